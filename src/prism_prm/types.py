"""Shared types: arrays, and callbacks for progress."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Say = Callable[[str], None]
"""Hears what people may want to know, a line at a time."""


class Advance(Protocol):
    """Hears how many more items are done, and what else there is to show beside the bar."""

    def __call__(self, done: int, more: str = "", /) -> None:
        """So many more are done."""


class Bars(Protocol):
    """Makes progress bars, as `cli.ui.progress` does."""

    def __call__(self, description: str, total: float | None, /, *, unit: str = "") -> AbstractContextManager[Advance]:
        """A bar over `total` units (None: unknown); the unit "bytes" is shown as such."""


def ignore(_done: int, _more: str = "") -> None:
    """An `Advance` for callers that show nothing."""


def silent(_text: str) -> None:
    """A `Say` for callers that show nothing."""


def no_bars(_description: str, _total: float | None, /, *, unit: str = "") -> AbstractContextManager[Advance]:  # noqa: ARG001
    """`Bars` for callers that show nothing."""
    return contextlib.nullcontext(ignore)


@contextlib.contextmanager
def bar_on_stderr(description: str, total: int, *, shown: bool) -> Iterator[Advance]:
    """A plain progress bar, for callers who ask a function of the library for one."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done, _more="": bar.advance(task, done)

"""Notes and progress bars of a run.

The library is silent by default. The `prism` command shows everything on the terminal; in your own program:

    with shown_on(Console(print)):
        evaluate_prm(…)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Advance(Protocol):
    """Advances a progress bar by some items; `more` is text to show beside it."""

    def __call__(self, done: int, more: str = "", /) -> None: ...


def ignore(_done: int, _more: str = "") -> None:
    """An `Advance` that shows nothing."""


class Console:
    """Passes notes to a callback such as `print`, and shows no progress bars; `cli.ui.Terminal` shows both."""

    def __init__(self, say: Callable[[str], object] = lambda _: None) -> None:
        self._say = say

    def say(self, note: str) -> None:
        """Show a note (one line)."""
        self._say(note)

    def progress(
        self,
        description: str,  # noqa: ARG002
        total: float | None,  # noqa: ARG002
        *,
        unit: str = "",  # noqa: ARG002
        done: int = 0,  # noqa: ARG002
    ) -> AbstractContextManager[Advance]:
        """Show a progress bar over `total` items (None: unknown; unit "bytes": as KB, MB, …)."""
        return contextlib.nullcontext(ignore)


_current = Console()


def current() -> Console:
    """The console in use."""
    return _current


def say(note: str) -> None:
    """Show a note (one line)."""
    _current.say(note)


def progress(
    description: str, total: float | None, *, unit: str = "", done: int = 0
) -> AbstractContextManager[Advance]:
    """A progress bar over `total` items (None: unknown; unit "bytes": as KB, MB, …); yields its `Advance`."""
    return _current.progress(description, total, unit=unit, done=done)


@contextlib.contextmanager
def shown_on(console: Console) -> Iterator[Console]:
    """Show the notes and progress of all threads on this console while the block runs."""
    global _current
    before, _current = _current, console
    try:
        yield console
    finally:
        _current = before


def silent_unless(shown: bool) -> AbstractContextManager[object]:
    """Silence the block unless `shown`: of several processes that do the same work, only one should print."""
    return contextlib.nullcontext() if shown else shown_on(Console())


class _Prefixed(Console):
    def __init__(self, prefix: str, console: Console) -> None:
        super().__init__(console.say)
        self.prefix, self.console = prefix, console

    def progress(
        self, description: str, total: float | None, *, unit: str = "", done: int = 0
    ) -> AbstractContextManager[Advance]:
        return self.console.progress(f"{self.prefix}: {description}", total, unit=unit, done=done)


def prefixed(prefix: str) -> AbstractContextManager[Console]:
    """Prefix the descriptions of progress bars while the block runs."""
    return shown_on(_Prefixed(prefix, _current))


@contextlib.contextmanager
def bar_on_stderr(description: str, total: int, *, shown: bool) -> Iterator[Advance]:
    """A plain progress bar on standard error, for library functions with a `progress` argument."""
    from rich.console import Console as Rich
    from rich.progress import Progress

    with Progress(console=Rich(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done, _more="": bar.advance(task, done)

"""What commands show while they work: progress bars and tables on standard error, data on standard output."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.resume import locked

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[[int], None]
"""Call with how many more units are done."""

SECONDS_BETWEEN_LINES = 30.0


def console() -> Console:
    """The console for everything that is not data."""
    from rich.console import Console

    return Console(stderr=True)


def say(text: str) -> None:
    """A line for people, not wrapped, so that paths in it can be copied."""
    console().print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def progress(description: str, total: float | None, *, unit: str = "", shown: bool = True) -> Iterator[Advance]:
    """A progress bar over `total` units (None: unknown; "bytes": as KB, MB, …); yields the function that advances it.

    In a log file, which has no place for a bar, it is a line every half minute and one at the end.
    """
    if shown and not console().is_terminal:
        lines = _Lines(description, total, unit)
        yield lines.advance
        lines.say()
        return
    from rich import progress as bars

    count = bars.DownloadColumn() if unit == "bytes" else bars.MofNCompleteColumn()
    shown_unit = "" if unit == "bytes" else unit
    columns = (
        bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), count,
        bars.TextColumn(shown_unit, markup=False), bars.TimeElapsedColumn(), bars.TimeRemainingColumn(),
    )  # fmt: skip
    with bars.Progress(*columns, console=console(), disable=not shown) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)


class _Lines:
    """Progress as lines: how far, and after which time."""

    def __init__(self, description: str, total: float | None, unit: str) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.done = 0
        self.started = self.said = time.monotonic()

    def advance(self, steps: int) -> None:
        self.done += steps
        if time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self.say()

    def say(self) -> None:
        self.said = time.monotonic()
        of = "" if self.total is None else f" of {self.total:,.0f}"
        after = timedelta(seconds=round(self.said - self.started))
        say(f"{self.description}: {self.done:,}{of} {self.unit}".rstrip() + f", {after}")


def alone_in_its_folder(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which then holds its folder `out`: two at once would mix their files."""

    @functools.wraps(command)
    def run(*, out: Path, **options: Any) -> None:
        with locked(out):
            command(out=out, **options)

    return run


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table for people; the first column is left-aligned, the others right. Brackets are brackets, not mark-up."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="table.title"), title_justify="left")
    for i, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)

"""What commands show: results on standard output, everything else (progress, notes, errors) on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.console import Console, current

if TYPE_CHECKING:
    from rich.console import Console as Rich

SECONDS_BETWEEN_LINES = 30.0
_WIDE = 1000
"""Columns of a file or pipe, where no table needs to be folded."""


@cache
def standard_error() -> Rich:
    """The one console for everything except results, so that lines go above a progress bar."""
    from rich.console import Console as Rich

    return Rich(stderr=True)


def complain(text: str) -> None:
    """An error, in red where there are colors."""
    standard_error().print(_one_line(text), style="red", markup=False, emoji=False, highlight=False, soft_wrap=True)


def _one_line(text: str) -> str:
    """The text with line breaks and control characters, which names of files may have, as Python writes them."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Bar:
    """Shows progress: a bar in a terminal; in a log file, a line every half minute and at the end."""

    def __init__(
        self, say: Callable[[str], None], description: str, total: float | None, unit: str, done: int = 0
    ) -> None:
        self.say, self.description, self.total, self.unit, self.done = say, description, total, unit, done
        self.more = ""
        self.started = self.said = time.monotonic()

    def __call__(self, steps: int, more: str = "") -> None:
        """Advance by this many; `more` is further text to show."""
        self.done += steps
        self.more = more or self.more
        self.changed()

    def changed(self) -> None:
        """Show it, if it is time."""
        if time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self.line()

    def line(self) -> None:
        """Show it as a line."""
        self.said = time.monotonic()
        of = "" if self.total is None else f" of {self.total:,.0f}"
        after = timedelta(seconds=round(self.said - self.started))
        more = f", {self.more}" if self.more else ""
        self.say(f"{self.description}: {self.done:,}{of} {self.unit}".rstrip() + f", {after}{more}")


class Terminal(Console):
    """Shows notes and progress on standard error; nothing if `quiet`."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        super().__init__()
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose

    def say(self, note: str) -> None:
        """Show a note, not wrapped, so that paths in it can be copied."""
        if not self.quiet:
            standard_error().print(_one_line(note), markup=False, emoji=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, description: str, total: float | None, *, unit: str = "", done: int = 0) -> Iterator[Bar]:
        bar = Bar(self.say, description, total, unit, done)
        if self.quiet or not standard_error().is_terminal:
            yield bar
            bar.line()
            return
        from rich import progress as bars

        count = bars.DownloadColumn() if unit == "bytes" else bars.MofNCompleteColumn()
        columns = (
            bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), count,
            bars.TextColumn("" if unit == "bytes" else unit, markup=False), bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(), bars.TextColumn("{task.fields[more]}", markup=False),
        )  # fmt: skip
        with bars.Progress(*columns, console=standard_error()) as live:
            task = live.add_task(description, total=total, completed=done, more="")
            bar.changed = lambda: live.update(task, completed=bar.done, more=bar.more)  # type: ignore[method-assign]
            yield bar


def wants_json() -> bool:
    """Whether the command prints its result as JSON."""
    console = current()
    return isinstance(console, Terminal) and console.as_json


def conclude(facts: Callable[[], Mapping[str, Any]], show: Callable[[], None]) -> None:
    """The result of a command: for people, or with --json as one JSON object."""
    if wants_json():
        sys.stdout.write(json.dumps(facts(), ensure_ascii=False) + "\n")
    else:
        show()


def report_facts(out: Path) -> dict[str, Any]:
    """What --json gives of a command that writes a report: its metrics, and where the page is."""
    from prism_prm.report import METRICS, PAGE

    return {"report": str(out / PAGE), **json.loads((out / METRICS).read_text(encoding="utf-8"))}


def conclude_report(out: Path, show: Callable[[], None] = lambda: None) -> None:
    """The result of a command that wrote a report to `out`: for people, what `show` prints and the path of the page."""
    from prism_prm.report import PAGE

    conclude(lambda: report_facts(out), show)
    if not wants_json():
        tell(out / PAGE)


def tell(text: object) -> None:
    """A line of the result."""
    sys.stdout.write(f"{text}\n")


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of results; the first column is left-aligned, the others right. Brackets are brackets, not mark-up."""
    from rich.console import Console as Rich
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="table.title"), title_justify="left")
    for i, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    Rich(width=None if sys.stdout.isatty() else _WIDE).print(table)

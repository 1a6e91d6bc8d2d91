"""Format numbers and tables: percent with intervals, the best cells in bold, and examples."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.stats import Comparison, Interval

NO_DATA = "–"
"""A cell without data."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals; integers get thousands separators; "–" for no data."""
    if value is None or math.isnan(value):
        return NO_DATA
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def percent(found: float | Interval | Comparison | None, *, digits: int = 1) -> str:
    """A share as percent without the sign, with its interval if it has one: `61.1 [59.2, 63.0]`."""
    value, low, high = _parts(found)
    if value is None or math.isnan(value):
        return NO_DATA
    text = f"{100 * value:.{digits}f}"
    if not math.isnan(low + high):
        text += f" [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"
    return re.sub(r"-(0\.0*)(?![0-9])", r"\1", text).replace("-", "−")


def signed_percent(found: float | Interval | Comparison | None, *, digits: int = 1) -> str:
    """A difference of shares in percentage points, with its sign and interval: `−8.2 [−9.1, −7.3]`."""
    value, *_ = _parts(found)
    return "+" * (value is not None and round(100 * value, digits) > 0) + percent(found, digits=digits)


def _parts(found: float | Interval | Comparison | None) -> tuple[float | None, float, float]:
    match found:
        case Interval():
            return found.value, found.low, found.high
        case Comparison():
            return found.difference, found.low, found.high
        case _:
            return found, math.nan, math.nan


def p_value(value: float | None) -> str:
    """A p-value: two digits, or `< 0.01`."""
    if value is None or math.isnan(value):
        return NO_DATA
    return "< 0.01" if value < 0.01 else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are plain text; the first column is left-aligned, the others right."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    best: frozenset[tuple[int, int]] = frozenset()
    """(row, column) of the cells in bold."""

    @property
    def num_intervals(self) -> int:
        """The most intervals in a row: if a table would be too wide, they are put below the values."""
        return max((sum("[" in cell for cell in row) for row in self.rows), default=0)


def _value(cell: str) -> float | None:
    """The number at the start of a cell."""
    found = re.match(r"[+−]?[\d,]*\.?\d+", cell)
    return float(found[0].replace(",", "").replace("−", "-")) if found else None


def best_cells(table: Table, *, by_row: bool, apart: Collection[str]) -> frozenset[tuple[int, int]]:
    """The best cells of each column (or row) with an arrow in its header, or else in the caption."""
    lines = range(len(table.rows)) if by_row else range(1, len(table.headers))
    best: set[tuple[int, int]] = set()
    for line in lines:
        if by_row:
            at = [(line, j) for j in range(1, len(table.headers)) if table.headers[j] not in apart]
        else:
            at = [(i, line) for i in range(len(table.rows)) if table.rows[i][0] not in apart]
        header = table.rows[line][0] if by_row else table.headers[line]
        arrow = next((sign for text in (header, table.caption) for sign in "↑↓" if sign in text), "")
        values = {place: value for place in at if (value := _value(table.rows[place[0]][place[1]])) is not None}
        if arrow and len(set(values.values())) > 1:
            winner = max(values.values()) if arrow == "↑" else min(values.values())
            best |= {place for place, value in values.items() if value == winner}
    return frozenset(best)


def split_interval(cell: str) -> tuple[str, str]:
    """The value of a cell, and its interval in brackets."""
    value, bracket, rest = cell.partition(" [")
    return value, bracket[1:] + rest


def header(text: str) -> str:
    """A header without line breaks before an arrow or a number, after `at` and in `Best-of-16`."""
    return re.sub(r" (?=[↑↓=\d])|(?<==) |(?<=\bat) ", "\u00a0", text).replace("Best-of-", "Best\u2011of\u2011")


def unbroken_parts(name: str) -> str:
    """The name of a row with line breaks only at its dots: `mine · weighted vote · min`."""
    parts = name.split(" · ")
    return name if len(parts) == 1 else " · ".join(part.replace(" ", "\u00a0") for part in parts)


def markdown_table(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rows = [
        [f"**{cell}**" if (i, j) in table.best else cell for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    ]
    rules = ["---"] + ["---:"] * (len(table.headers) - 1)
    lines = [line(table.headers), "| " + " | ".join(rules) + " |", *map(line, rows)]
    return f"**{table.caption}**\n\n" + "\n".join(lines)


MAX_LETTERS = 1500
"""The size limit of an example in characters."""


@dataclass(frozen=True, slots=True)
class Example:
    """A solution with its steps colored by each PRM's score."""

    problem: str
    steps: Sequence[str]
    scores: Mapping[str, Sequence[float]]
    """PRM → P(right) of each step."""
    truths: Sequence[str]
    """For each step "right", "wrong", or "" if unknown."""
    caption: str

    def as_table(self) -> Table:
        """For Markdown, which has no colors."""
        truths = [truth or NO_DATA for truth in self.truths]
        rows = zip(self.steps, truths, *(map(percent, own) for own in self.scores.values()), strict=True)
        return Table((self.problem, "truth", *self.scores), tuple(rows), self.caption)


def most_telling(scores: Mapping[str, Floats], letters: Sequence[int]) -> int | None:
    """The index of the wrong step or solution to show: where PRMs differ most; with one PRM, the highest score.

    Ties (within a percent) go to the longest one.

    Args:
        scores: PRM → its score of each; NaN for no score.
        letters: the length of each; those above MAX_LETTERS are skipped.
    """
    table = np.array(list(scores.values()))
    if not table.size:
        return None
    worth = np.ptp(table, axis=0) if len(table) > 1 else table[0]
    worth = np.where(np.isnan(worth) | (np.array(letters) > MAX_LETTERS), -1.0, np.round(worth, 2))
    best = np.flatnonzero(worth == worth.max())
    return int(best[np.array(letters)[best].argmax()]) if worth.max() >= 0 else None


def telling(what: str, prms: Sequence[str]) -> str:
    """The caption of an example that was chosen by `most_telling`."""
    chosen = "on which the PRMs differ most" if len(prms) > 1 else f"that {prms[0]} scores highest"
    return f"An example: the {what} {chosen}. P(right) of each step (%)"

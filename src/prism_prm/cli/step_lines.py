"""A solution with its scores as lines of a terminal: color, mark and number; each alone is enough.

What a model wrote is shown as text. Escape sequences, control characters and marks that reverse the direction of
writing are made visible, so that no solution can change the terminal or the lines around it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from prism_prm.evaluate.look_at import JudgedSolution, LookedAt

MARKS = {True: "✓", False: "✗", None: "?"}
PLAIN_MARKS = {True: "+", False: "x", None: "?"}
"""For an encoding that has no others."""
COLORS = {True: "green", False: "red", None: "yellow"}
TAB = 4
LONGEST_NAME = 12
"""Columns of a PRM's name above its scores."""
SCORE = len("+ 0.999")
GAP = 2
LEAST = 20
"""Columns that the text of a step needs beside the scores; with less, they stand below it."""
_JOINING = frozenset("\u00ad\u061c\u200c\u200d\u200e\u200f")
"""Invisible characters that many languages and emoji need; they change nothing beyond their neighbors."""


def harmless(text: str) -> str:
    """The text with all that could steer a terminal made visible; only line breaks are kept."""
    return "".join(_visible(one) for one in text.replace("\r\n", "\n").expandtabs(TAB))


def _visible(character: str) -> str:
    code = ord(character)
    if character == "\n" or character in _JOINING:
        return character
    if code < 32:
        return chr(0x2400 + code)  # the pictures of control characters: ␛ is ESC
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
    return character


def show(console: Console, solutions: Sequence[LookedAt]) -> None:
    """Print solutions, one below the other."""
    for number, one in enumerate(solutions, start=1):
        if number > 1:
            console.print()
        for line in _Lines(console.encoding, console.width).of(one, f"{number} of {len(solutions)}"):
            console.print(line)


class _Lines:
    """Lines in an encoding, for a terminal of some width."""

    def __init__(self, encoding: str, width: int) -> None:
        self.encoding, self.width = encoding, width
        can_all = encoding.lower().startswith("utf")
        self.marks = MARKS if can_all else PLAIN_MARKS
        self.dash, self.dot = ("–", " · ") if can_all else ("-", " - ")

    def of(self, one: LookedAt, number: str) -> Iterator[RenderableType]:
        """A heading, the problem, the steps, and what each PRM says of the whole."""
        yield self._text(self.dot.join(filter(None, [number, harmless(one.tree.name)])), "bold")
        yield self._text(harmless(one.tree.problem))
        yield self._steps(one)
        for judged in one.by_prm:
            said = self.dot.join(self._summary(judged))
            yield self._text(f"{harmless(judged.prm)}: {said}" if len(one.by_prm) > 1 else said, "bold")

    def _text(self, words: str, style: str = "") -> Text:
        shown = words.encode(self.encoding, "backslashreplace").decode(self.encoding)
        return Text(shown, style, overflow="fold")

    def _steps(self, one: LookedAt) -> Table:
        several = len(one.by_prm) > 1
        names = [self._text(harmless(judged.prm)[:LONGEST_NAME]) for judged in one.by_prm]
        columns = [max(SCORE, name.cell_len if several else 0) for name in names]
        number = len(str(len(one.tree.nodes)))
        fits = number + GAP + sum(columns) + GAP * len(columns) + LEAST <= self.width
        table = Table(
            box=None, show_header=several and fits, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold"
        )
        table.add_column(justify="right", no_wrap=True)
        for name, width in zip(names, columns, strict=True) if fits else ():
            table.add_column(name, no_wrap=True, min_width=width)
        table.add_column(overflow="fold")
        for step in range(len(one.tree.nodes)):
            cells = [self._text(self._score(judged, step), COLORS[judged.is_right(step)]) for judged in one.by_prm]
            if fits:
                table.add_row(self._text(str(step + 1)), *cells, self._said(one, step))
                continue
            table.add_row(self._text(str(step + 1)), self._said(one, step))
            for judged, cell in zip(one.by_prm, cells, strict=True):
                table.add_row("", cell + self._text(f"  {harmless(judged.prm)}" if several else ""))
        return table

    def _said(self, one: LookedAt, step: int) -> Text:
        """A step's text, in the color of the verdict if there is only one, with its notes."""
        several = len(one.by_prm) > 1
        said = self._text(harmless(one.tree.nodes[step].text), "" if several else COLORS[one.by_prm[0].is_right(step)])
        parent = one.tree.parents[step]
        if parent != step - 1:
            said.append(f"  ({f'after step {parent + 1}' if parent >= 0 else 'another first step'})", "italic")
        first = [harmless(judged.prm) for judged in one.by_prm if judged.first_error == step]
        if first:
            whose = f" of {' and '.join(first)}" if several else ""
            said.append_text(self._text(f"  <- first below threshold{whose}", "bold"))
        return said

    def _score(self, judged: JudgedSolution, step: int) -> str:
        probability = judged.probabilities[step]
        number = f"{self.dash:>5}" if probability is None else f"{probability:.3f}"
        return f"{self.marks[judged.is_right(step)]} {number}"

    def _summary(self, judged: JudgedSolution) -> Iterator[str]:
        yield f"score {self.dash if judged.score is None else f'{judged.score:.3f}'} ({judged.aggregator})"
        if judged.first_error is not None:
            yield f"first below threshold: step {judged.first_error + 1}"
        elif judged.score is not None:
            yield "all above threshold"
        unscored = sum(one is None for one in judged.probabilities)
        if unscored:
            yield f"{unscored} of {len(judged.probabilities)} steps without a score"
        yield f"threshold {judged.threshold:.3g}"

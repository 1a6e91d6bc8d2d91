"""One solution with what every PRM says of its steps, and which one to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.report.tables import NO_DATA, Table, percent

MAX_LETTERS = 1500
"""The size limit of the solution that is shown: nobody reads longer ones."""


@dataclass(frozen=True, slots=True)
class Example:
    """A solution whose steps are colored by each PRM's score."""

    problem: str
    steps: Sequence[str]
    scores: Mapping[str, Sequence[float]]
    """PRM → P(right) of each step."""
    truths: Sequence[str]
    """Of each step "right" or "wrong"; "" where nobody knows."""
    caption: str

    def as_table(self) -> Table:
        """For Markdown, which has no colours."""
        truths = [truth or NO_DATA for truth in self.truths]
        rows = zip(self.steps, truths, *(map(percent, own) for own in self.scores.values()), strict=True)
        return Table((self.problem, "truth", *self.scores), tuple(rows), self.caption)


def most_telling(scores: Mapping[str, Floats], letters: Sequence[int]) -> int | None:
    """Which of some wrong steps or solutions to show: where PRMs differ most; with one PRM, what it scores highest.

    Of those that are alike within a percent, it is the one with the most to see.

    Args:
        scores: PRM → its score of each; NaN where it has none.
        letters: how long each is; those that are too long to read are passed over.
    """
    table = np.array(list(scores.values()))
    if not table.size:
        return None
    worth = np.ptp(table, axis=0) if len(table) > 1 else table[0]
    worth = np.where(np.isnan(worth) | (np.array(letters) > MAX_LETTERS), -1.0, np.round(worth, 2))
    best = np.flatnonzero(worth == worth.max())
    return int(best[np.array(letters)[best].argmax()]) if worth.max() >= 0 else None


def telling(what: str, prms: Sequence[str]) -> str:
    """The caption of an example that was chosen so."""
    chosen = "on which the PRMs differ most" if len(prms) > 1 else f"that {prms[0]} scores highest"
    return f"An example: the {what} {chosen}. P(right) of each step (%)"

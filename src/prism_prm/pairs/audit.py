"""The lookahead audit: which later steps may already be right at the earlier position.

Two marks. A near-duplicate of the current step (the same quantities, nearly the same words and signs) says the same
thing, so it is right there too. A step that uses no quantity introduced in between (by the current step or any up to
the candidate) may already follow from what is known. Quantities are numbers and one-letter names. Texts equal but for
white space and case never become negatives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

Mark = Literal["near_duplicate", "no_new_quantity"]

NEAR_DUPLICATE = 0.8
"""Share of common tokens (Jaccard) from which two steps with the same quantities say the same."""

_TOKEN = re.compile(r"[a-z]+|\d+(?:\.\d+)?|[-+*/=<>^!%|−×÷·≤≥≠≈±√∞]|[^\W\d_a-z]+")
"""Words, numbers, and the signs that change what a formula says."""
_QUANTITY = re.compile(r"\d+(?:\.\d+)?|(?<![a-z])[b-hj-z](?![a-z])|[α-ω]")
"""Numbers and letters that stand alone; a and i are hardly ever more than words."""


def tokens(text: str) -> frozenset[str]:
    """The distinct words, numbers and signs of a text, in lower case."""
    return frozenset(_TOKEN.findall(text.lower()))


def quantities(text: str) -> frozenset[str]:
    """The distinct quantities that a text names."""
    return frozenset(_QUANTITY.findall(text.lower()))


def normalise_step(text: str) -> str:
    """The text without differences of white space and case."""
    return " ".join(text.lower().split())


def mark(problem: str, steps: Sequence[str], current: int, candidate: int) -> Mark | None:
    """Why `candidate`, a later step of the solution, may be legitimate in the place of `current`; None if it is not."""
    here, there = quantities(steps[current]), quantities(steps[candidate])
    if here == there and _are_similar(tokens(steps[current]), tokens(steps[candidate])):
        return "near_duplicate"
    known = frozenset[str]().union(*map(quantities, [problem, *steps[:current]]))
    between = frozenset[str]().union(*map(quantities, steps[current:candidate]))
    return None if there & (between - known) else "no_new_quantity"


def _are_similar(one: frozenset[str], other: frozenset[str]) -> bool:
    return len(one & other) >= NEAR_DUPLICATE * len(one | other)


@dataclass(frozen=True, slots=True)
class TrunkAudit:
    """The same for all steps of a solution at once."""

    near_duplicates: list[tuple[int, int]]
    """Every step and later step that are near-duplicates."""
    needs: list[int]
    """For every step the latest earlier step that introduced a quantity it uses; -1 where there is none.

    So a candidate uses something introduced in between iff its latest need is at or after the current step.
    """

    @classmethod
    def of(cls, problem: str, steps: Sequence[str]) -> TrunkAudit:
        """Audit a solution."""
        found = [_QUANTITY.findall(step.lower()) for step in steps]
        introduced = dict.fromkeys(_QUANTITY.findall(problem.lower()), -1)
        needs: list[int] = []
        for at, used in enumerate(found):
            latest = -1
            for quantity in used:
                step = introduced.setdefault(quantity, at)
                if latest < step < at:
                    latest = step
            needs.append(latest)
        return cls(_near_duplicates(steps, found), needs)


def _near_duplicates(steps: Sequence[str], found: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Only steps with the same quantities are compared word by word, and these are few."""
    alike: dict[frozenset[str], list[int]] = {}
    for at, used in enumerate(map(frozenset, found)):
        alike.setdefault(used, []).append(at)
    near: list[tuple[int, int]] = []
    for places in alike.values():
        if len(places) > 1:
            said = [(at, tokens(steps[at])) for at in places]
            near += [(a, b) for (a, here), (b, there) in combinations(said, 2) if _are_similar(here, there)]
    return near

"""Which pairs are made, and the seeded choice among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from prism_prm.errors import SettingError
from prism_prm.ranges import Count, Natural, Share, check

Audit = Literal["drop", "keep", "off"]


@dataclass(frozen=True, slots=True)
class PairSettings:
    """The rules of pairing; the defaults are those of `prism pairs`."""

    lookahead: Count | Literal["all", "none"] = "all"
    """How many later steps become negatives at each position: all, none, or a number."""
    min_gap: Count = 1
    """A lookahead negative comes at least this many steps later."""
    max_gap: Count | None = None
    """A lookahead negative comes at most this many steps later. By default there is no limit."""
    audit: Audit = "drop"
    """What to do with later steps that may already be right: drop them, keep and count them, or do not check (off)."""
    max_per_position: Count | None = None
    """The maximum number of annotated pairs per position. By default there is no limit."""
    random: Natural = 0
    """Negatives per position drawn from other problems (an ablation)."""
    perturbed: Natural = 0
    """Negatives per position made by changing a number or a sign (an ablation)."""
    min_value_gap: Share = 0.0
    """For steps labelled by rollouts: the chosen step's value exceeds the rejected one's by at least this."""
    min_rollouts: Natural = 0
    """For steps labelled by rollouts: each step of a pair has at least this many. Verdicts on final answers count as
    enough."""
    positive_above: Share = 0.5
    """A step is right if its label is above this."""
    negative_below: Share = 0.5
    """A step is wrong if its label is below this."""
    seed: Natural = 0
    """The seed for splits and for every random choice of pairs."""

    def __post_init__(self) -> None:
        check(self)
        if self.max_gap is not None and self.max_gap < self.min_gap:
            raise SettingError("max_gap", self.max_gap, f"must be at least min_gap, which is {self.min_gap}")
        if self.negative_below > self.positive_above:
            limit = f"must be at most positive_above, which is {self.positive_above}"
            raise SettingError("negative_below", self.negative_below, limit)

    def is_positive(self, label: float | None) -> bool:
        """Whether a step with this label is right."""
        return label is not None and label > self.positive_above

    def is_negative(self, label: float | None) -> bool:
        """Whether a step with this label is wrong."""
        return label is not None and label < self.negative_below

    def why_unsure(self, gap: float | None, rollouts: int | None) -> str | None:
        """Why a pair of steps that were labelled by rollouts is left out, if it is."""
        if gap is not None and gap < self.min_value_gap:
            return "small_gap"
        return "few_rollouts" if rollouts is not None and rollouts < self.min_rollouts else None


_MASK = (1 << 64) - 1


def priority(seed: int, *parts: Any) -> Any:
    """A number in [0, 2^64) that looks random, for Python integers and for NumPy uint64 arrays alike.

    Choosing the smallest of them is a seeded choice that does not depend on what else is read, nor in which chunks.
    The mixing is splitmix64's.
    """
    state: Any = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    for part in parts:
        state = (state ^ part) * 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state = state ^ (state >> 31)
    return state

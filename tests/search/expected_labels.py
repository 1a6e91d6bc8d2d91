"""The expected labels and cost of a labeling method, exactly, from the steps' values alone.

Rollouts from a step are independent draws that succeed with probability equal to its value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from prism_prm.search.label_rules import LabelSettings, RolloutTally, find_rule, stop_rule


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected outcome of labeling a step."""

    right: float
    """The probability that it is labeled right."""
    rollouts: float
    """The mean number of rollouts."""


def expected(value: float, settings: LabelSettings) -> Expected:
    """The exact expectation for a step with this true value, over all outcomes of its rollouts."""
    rule, most, is_enough = find_rule(settings.rule), settings.rollouts, stop_rule(settings)
    size = most if settings.method == "monte-carlo" else settings.per_round
    active = {(0, 0): 1.0}  # (hits, rollouts) → probability
    right = rollouts = 0.0
    while active:
        after: dict[tuple[int, int], float] = defaultdict(float)
        for (hits, done), chance in active.items():
            count = min(size, most - done)
            shares = [1.0]  # the probabilities of 0, 1, … successes
            for _ in range(count):
                stay = [p * (1 - value) for p in shares] + [0.0]
                rise = [0.0] + [p * value for p in shares]
                shares = [a + b for a, b in zip(stay, rise, strict=True)]
            for more, share in enumerate(shares):
                after[hits + more, done + count] += chance * share
        active = {}
        for (hits, done), chance in after.items():
            if done == most or is_enough(RolloutTally(hits, done)):
                right += chance * rule.label(hits / done)
                rollouts += chance * done
            else:
                active[hits, done] = chance
    return Expected(right, rollouts)


def first_error_chances(values: Sequence[float], settings: LabelSettings, *, ended: bool) -> list[float]:
    """The chance that bisection finds each step of a failed solution as its first wrong one, given the steps' values.

    The last number is the chance of finding none, which is possible only for solutions that were cut off.
    """
    chances = [0.0] * (len(values) + 1)
    right = [expected(value, settings).right for value in values]

    def narrow(good: int, bad: int, chance: float) -> None:
        if bad - good == 1:
            chances[bad] += chance
            return
        middle = (good + bad) // 2
        narrow(middle, bad, chance * right[middle])
        narrow(good, middle, chance * (1 - right[middle]))

    narrow(-1, len(values) - 1 if ended else len(values), 1.0)
    return chances

"""When a step has enough rollouts, and exactly what a method then finds and costs, given the true values.

Rollouts from a step are independent draws that succeed with its value, so the outcome of every method follows from the
values alone. `docs/labels.md` uses this to compare methods, and the tests to check them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prism_prm.search.label_settings import LabelSettings, Rule, Tally, find_rule
from prism_prm.stats import wilson

IsEnough = Callable[[Tally], bool]


def is_certain(tally: Tally, rule: Rule, most: int) -> bool:
    """Whether the label is the same however the rest of `most` rollouts goes."""
    needed = rule.needed(most)
    return tally.hits >= needed or tally.hits + most - tally.rollouts < needed


def is_decided(tally: Tally, rule: Rule, most: int, level: float) -> bool:
    """Whether the label is certain, or the interval lies on one side of the threshold."""
    if is_certain(tally, rule, most):
        return True
    assert rule.threshold is not None, "a soft label is never decided"
    low, high = wilson(tally.hits, tally.rollouts, level)
    return not low <= rule.threshold <= high


def stopping(settings: LabelSettings) -> IsEnough:
    """When a step has enough rollouts, by the settings' method.

    Bisection stops only where the label is certain, so that its errors are those of the full number of rollouts.
    """
    rule, most = find_rule(settings.rule), settings.rollouts
    if settings.method == "monte-carlo":
        return lambda _: False
    if settings.method == "binary":
        return lambda tally: is_certain(tally, rule, most)
    return lambda tally: is_decided(tally, rule, most, settings.confidence)


@dataclass(frozen=True, slots=True)
class Expected:
    """What labelling a step comes to."""

    right: float
    """The probability that it is labelled right."""
    rollouts: float
    """The mean number of rollouts."""


def expected(value: float, settings: LabelSettings) -> Expected:
    """The exact outcome for a step of this true value: all ways that rollouts can go, with their probabilities."""
    rule, most, is_enough = find_rule(settings.rule), settings.rollouts, stopping(settings)
    size = most if settings.method == "monte-carlo" else settings.per_round
    going = {(0, 0): 1.0}
    right = rollouts = 0.0
    while going:
        after: dict[tuple[int, int], float] = defaultdict(float)
        for (hits, done), chance in going.items():
            count = min(size, most - done)
            for more, share in enumerate(_binomial(count, value)):
                after[hits + more, done + count] += chance * share
        going = {}
        for (hits, done), chance in after.items():
            if done == most or is_enough(Tally(hits, done)):
                right += chance * rule.label(hits / done)
                rollouts += chance * done
            else:
                going[hits, done] = chance
    return Expected(right, rollouts)


def _binomial(count: int, chance: float) -> list[float]:
    """The probabilities of 0, 1, … successes."""
    found = [1.0]
    for _ in range(count):
        stay = [p * (1 - chance) for p in found] + [0.0]
        rise = [0.0] + [p * chance for p in found]
        found = [a + b for a, b in zip(stay, rise, strict=True)]
    return found


def first_error_chances(values: Sequence[float], settings: LabelSettings, *, ended: bool) -> list[float]:
    """How likely bisection names each step of a failed solution as its first wrong one, given the steps' values.

    The last number is that of finding none, which happens only to solutions that have not ended.
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

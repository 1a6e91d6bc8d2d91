"""The settings of labeling, the rules that turn rollouts into labels, and when a step has enough rollouts.

Rollouts from a step are independent draws that succeed with probability equal to its value. So the expected labels and
cost of a method follow from the values alone: `expected` computes them, for the docs and the tests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from prism_prm.backends.policy import Sampling
from prism_prm.config import Count, Natural, Range, check
from prism_prm.errors import ConfigError, SettingError
from prism_prm.stats import wilson
from prism_prm.tree import Estimate


@dataclass(frozen=True, slots=True)
class Rule:
    """Turns a step's value into a label."""

    threshold: float | None
    """A step is right if its value is above this; None keeps the value itself as a soft label."""
    inclusive: bool = False
    """Whether a value equal to the threshold is right too."""

    def label(self, value: float) -> float:
        """The label of a step with this value."""
        if self.threshold is None:
            return value
        return float(value > self.threshold or (self.inclusive and value == self.threshold))

    def needed(self, rollouts: int) -> int:
        """How many of `rollouts` rollouts must reach the answer for a step to be right."""
        return next(hits for hits in range(rollouts + 2) if hits > rollouts or self.label(hits / rollouts))


RULES: dict[str, Rule] = {"any": Rule(0.0), "half": Rule(0.5, inclusive=True), "soft": Rule(None)}
"""By name; besides these, `value>T` is a rule for every T."""
KNOWN_RULES = f"{', '.join(RULES)}, or value>T with T from 0 to 1, e.g. value>0.25"


def find_rule(text: str) -> Rule:
    """Parse a rule."""
    if text in RULES:
        return RULES[text]
    name, above, number = text.partition(">")
    try:
        threshold = float(number) if name.strip() == "value" and above else -1.0
    except ValueError:
        threshold = -1.0
    if not 0 <= threshold < 1:
        raise ConfigError(f"Unknown label rule {text!r}. Known: {KNOWN_RULES}.")
    return Rule(threshold)


@dataclass(slots=True)
class RolloutTally:
    """The rollouts of one step so far."""

    hits: int = 0
    """Rollouts that reached the right answer."""
    rollouts: int = 0

    def estimate(self, level: float) -> Estimate:
        """The value, and its Wilson interval."""
        assert self.rollouts, "no rollouts, no estimate"
        return Estimate(self.hits / self.rollouts, self.rollouts, *wilson(self.hits, self.rollouts, level))


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """Section [label]: the labeling method, and its size."""

    method: Literal["monte-carlo", "binary", "adaptive"] = "monte-carlo"
    """Which steps get rollouts, and how many: all the same number (monte-carlo), only those that a bisection for the
    first error needs (binary), or all until their label is decided (adaptive)."""
    rollouts: Count = 8
    """The maximum number of rollouts per step."""
    alternatives: Natural = 4
    """Alternatives to sample for each step of a solution. Equal texts count once."""
    solutions: Count = 1
    """Solutions to sample per problem. Each becomes a tree; equal ones count once."""
    rule: str = "any"
    """A step is right if any of its rollouts reaches the answer (any), at least half of them (half), or a fraction
    above T (value>T). soft keeps the fraction itself as the label."""
    after_error: Literal["keep", "drop"] = "keep"
    """Whether steps after a wrong one in the same solution keep their labels (as in Math-Shepherd) or not (as in
    OmegaPRM). With binary, they never do."""
    confidence: Annotated[float, Range(above=0, below=1)] = 0.95
    """The level of intervals. With adaptive, a step's rollouts stop when its interval excludes the rule's threshold."""
    per_round: Count = 2
    """For adaptive and binary: rollouts per step between two decisions whether to continue."""
    max_policy_tokens: Count | None = None
    """The policy's tokens per problem after which no more rollouts start. By default there is no limit."""
    seed: Natural = 0
    """The seed for all sampling."""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        check(self)
        try:
            rule = find_rule(self.rule)
        except ConfigError as error:
            raise SettingError("rule", self.rule, str(error)) from None
        if rule.threshold is None and self.method != "monte-carlo":
            raise SettingError("rule", self.rule, f"{self.method} stops at a threshold, which this rule does not have")


def is_certain(tally: RolloutTally, rule: Rule, most: int) -> bool:
    """Whether the label is the same for all outcomes of the remaining rollouts, of `most` in total."""
    needed = rule.needed(most)
    return tally.hits >= needed or tally.hits + most - tally.rollouts < needed


def is_decided(tally: RolloutTally, rule: Rule, most: int, level: float) -> bool:
    """Whether the label is certain, or its interval excludes the threshold."""
    if is_certain(tally, rule, most):
        return True
    assert rule.threshold is not None, "a soft label is never decided"
    low, high = wilson(tally.hits, tally.rollouts, level)
    return not low <= rule.threshold <= high


def stop_rule(settings: LabelSettings) -> Callable[[RolloutTally], bool]:
    """When a step has enough rollouts, by method.

    Bisection stops only when the label is certain, so that it makes the same errors as with all rollouts.
    """
    rule, most = find_rule(settings.rule), settings.rollouts
    if settings.method == "monte-carlo":
        return lambda _: False
    if settings.method == "binary":
        return lambda tally: is_certain(tally, rule, most)
    return lambda tally: is_decided(tally, rule, most, settings.confidence)


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

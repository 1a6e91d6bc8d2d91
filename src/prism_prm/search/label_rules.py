"""From rollouts to a label: the settings, the rules, and when a step has enough rollouts.

Rollouts from a step are independent draws that succeed with its value, so what a method finds and costs follows from
the values alone: `expected` computes it, for `docs/labels.md` and for the tests.
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
    """Which values make a step right."""

    threshold: float | None
    """A step is right if its value is above this; None keeps the value itself as a soft label."""
    inclusive: bool = False
    """Whether a value of exactly the threshold is right, too."""

    def label(self, value: float) -> float:
        """The label of a step with this value."""
        if self.threshold is None:
            return value
        return float(value > self.threshold or (self.inclusive and value == self.threshold))

    def needed(self, rollouts: int) -> int:
        """How many of so many rollouts must reach the answer for a step to be right."""
        return next(hits for hits in range(rollouts + 2) if hits > rollouts or self.label(hits / rollouts))


RULES: dict[str, Rule] = {"any": Rule(0.0), "half": Rule(0.5, inclusive=True), "soft": Rule(None)}
"""Name → rule; `value>T` is a rule for every T."""
KNOWN_RULES = f"{', '.join(RULES)}, or value>T with T from 0 to 1, e.g. value>0.25"


def find_rule(text: str) -> Rule:
    """A rule by its name."""
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
    """Those that reached the answer."""
    rollouts: int = 0

    def estimate(self, level: float) -> Estimate:
        """The value, and its Wilson interval."""
        assert self.rollouts, "no rollouts, no estimate"
        return Estimate(self.hits / self.rollouts, self.rollouts, *wilson(self.hits, self.rollouts, level))


@dataclass(frozen=True, slots=True)
class LabelSettings:
    """A method of labelling, and its size."""

    method: Literal["monte-carlo", "binary", "adaptive"] = "monte-carlo"
    """Which steps get rollouts and how many: all steps alike (monte-carlo), those that bisection for the first error
    asks for (binary), or all steps until the label is decided (adaptive)."""
    rollouts: Count = 8
    """The maximum number of rollouts per step."""
    alternatives: Natural = 4
    """Other candidates to sample under each prefix of a solution. Equal texts count once."""
    solutions: Count = 1
    """Solutions to sample per problem. Each becomes a tree; equal ones count once."""
    rule: str = "any"
    """When a step is right: any of its rollouts reaches the answer (any), at least half of them (half), or a larger
    share than T (value>T); soft keeps the share itself as label."""
    after_error: Literal["keep", "drop"] = "keep"
    """Whether steps after a wrong one (label 0) in the same solution keep their labels (Math-Shepherd) or not
    (OmegaPRM). With binary they never do."""
    confidence: Annotated[float, Range(above=0, below=1)] = 0.95
    """The level of intervals. With adaptive, a step's rollouts stop when its interval excludes the rule's threshold."""
    per_round: Count = 2
    """Rollouts per step between two decisions whether to continue, for adaptive and binary."""
    max_policy_tokens: Count | None = None
    """The policy's tokens per problem after which no more rollouts are started. By default there is no limit."""
    seed: Natural = 0
    """The seed of all sampling."""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        check(self)
        try:
            rule = find_rule(self.rule)
        except ConfigError as error:
            raise SettingError("rule", self.rule, str(error)) from None
        if rule.threshold is None and self.method != "monte-carlo":
            raise SettingError("rule", self.rule, f"{self.method} stops at a threshold, which this rule has not")


def is_certain(tally: RolloutTally, rule: Rule, most: int) -> bool:
    """Whether the label is the same however the rest of `most` rollouts goes."""
    needed = rule.needed(most)
    return tally.hits >= needed or tally.hits + most - tally.rollouts < needed


def is_decided(tally: RolloutTally, rule: Rule, most: int, level: float) -> bool:
    """Whether the label is certain, or the interval lies on one side of the threshold."""
    if is_certain(tally, rule, most):
        return True
    assert rule.threshold is not None, "a soft label is never decided"
    low, high = wilson(tally.hits, tally.rollouts, level)
    return not low <= rule.threshold <= high


def stopping(settings: LabelSettings) -> Callable[[RolloutTally], bool]:
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
            shares = [1.0]  # the probabilities of 0, 1, … successes
            for _ in range(count):
                stay = [p * (1 - value) for p in shares] + [0.0]
                rise = [0.0] + [p * value for p in shares]
                shares = [a + b for a, b in zip(stay, rise, strict=True)]
            for more, share in enumerate(shares):
                after[hits + more, done + count] += chance * share
        going = {}
        for (hits, done), chance in after.items():
            if done == most or is_enough(RolloutTally(hits, done)):
                right += chance * rule.label(hits / done)
                rollouts += chance * done
            else:
                going[hits, done] = chance
    return Expected(right, rollouts)


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

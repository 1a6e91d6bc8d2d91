"""From how many rollouts reached the answer to a label: the rules, and when further rollouts cannot change it."""

from __future__ import annotations

from dataclasses import dataclass

from prism_prm.errors import ConfigError
from prism_prm.records import Estimate
from prism_prm.stats import wilson


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
class Tally:
    """The rollouts of one step so far."""

    hits: int = 0
    """Those that reached the answer."""
    rollouts: int = 0

    def estimate(self, level: float) -> Estimate:
        """The value, and its Wilson interval."""
        assert self.rollouts, "no rollouts, no estimate"
        return Estimate(self.hits / self.rollouts, self.rollouts, *wilson(self.hits, self.rollouts, level))

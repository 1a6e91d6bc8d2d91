"""How steps are labelled by rollouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from prism_prm.errors import ConfigError, SettingError
from prism_prm.label.rules import find_rule
from prism_prm.policies import Sampling
from prism_prm.ranges import Count, Natural, Range, check


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

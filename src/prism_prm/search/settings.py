"""The settings of a search; they and the models decide its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism_prm.aggregate import check_aggregator
from prism_prm.errors import ConfigError
from prism_prm.policies import Sampling

RANKED = ("beam", "dvts")
"""Methods that rank candidates, by PRM score and likelihood."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What all methods share, and the few knobs that some have."""

    method: str = "beam"
    n: int = 16
    """Solutions sampled, or candidates per round of a tree search: the scale of the search."""
    expand: int = 4
    """beam, dvts: samples per kept beam, so that n // expand beams are kept."""
    lookahead: int = 0
    """beam, dvts: greedy steps written ahead of each candidate; the candidate is ranked by the score at their end."""
    prm_weight: float = 1.0
    """beam, dvts: rank by prm_weight · log PRM score + (1 − prm_weight) · log-likelihood of the policy."""
    resample_temperature: float = 1.0
    """particle: resample by softmax(logit(score) / this)."""
    aggregator: str = "last"
    """How step scores become a path's score."""
    max_steps: int = 40
    """A solution with more steps is cut."""
    max_policy_tokens: int | None = None
    """Stop a problem's search when the policy has written so many tokens for it, and take what there is."""
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        check_aggregator(self.aggregator)
        for name in ("n", "expand", "max_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)} must be 1 or more")
        if self.max_policy_tokens is not None and self.max_policy_tokens < 1:
            raise ConfigError(f"max_policy_tokens = {self.max_policy_tokens} must be 1 or more")
        if self.lookahead < 0 or not 0 <= self.prm_weight <= 1 or self.resample_temperature <= 0:
            raise ConfigError("lookahead must be ≥ 0, prm_weight in [0, 1], and resample_temperature above 0")
        if self.lookahead and not self.prm_weight:
            raise ConfigError("looking ahead serves the PRM's score, to which prm_weight = 0 gives no weight")

    @property
    def fan(self) -> int:
        """Samples per kept beam: `expand`, but never more than n."""
        return min(self.expand, self.n)

    @property
    def width(self) -> int:
        """Beams that are kept."""
        return max(1, self.n // self.fan)

    @property
    def needs_log_likelihood(self) -> bool:
        """Whether the policy must say how likely its steps are."""
        return self.method in RANKED and self.prm_weight < 1

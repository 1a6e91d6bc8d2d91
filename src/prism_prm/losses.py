"""The objectives: losses on a PRM's log-odds, per pair or per step.

Every function takes log-odds (probability = sigmoid) and returns one loss per pair or step, never a mean: the sampler
decides how many pairs make an update. Shapes: P pairs, N steps. torch is imported where it is used, so that recipes can
be read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prism_prm.config import NotNegative, Positive, check
from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Objective:
    """Section [objective]: what training minimizes."""

    name: Literal["sc", "bce", "hybrid"] = "sc"
    """`sc`: the step-contrastive loss −log σ(r⁺ − r⁻). `bce`: pointwise cross-entropy. `hybrid`: their sum."""
    on: Literal["pairs", "labels"] = "pairs"
    """What to train on: `pairs`, or (only with `bce`) `labels`, every labeled step once, hard or soft."""
    space: Literal["probability", "log-odds"] = "probability"
    """What r is in `sc`. With probability (the paper) the loss stays above −log σ(1) = 0.313; with log-odds it has no
    floor."""
    temperature: Positive = 1.0
    """`sc` divides r⁺ − r⁻ − margin by this temperature. Below 1 the loss is sharper."""
    margin: float = 0.0
    """The margin that r⁺ − r⁻ should exceed in `sc`."""
    anchor_weight: NotNegative = 1.0
    """The weight of bce in `hybrid`: sc + anchor_weight · bce. SC leaves the level of the scores free; bce fixes it."""
    anchor_on: Literal["both", "chosen"] = "both"
    """The steps that bce sees in `hybrid`: both of a pair, or only the right one (which keeps false negatives low)."""
    positive_weight: Positive = 1.0
    """The weight of the right side of each label in `bce`."""
    negative_weight: Positive = 1.0
    """The weight of the wrong side of each label in `bce`."""

    def __post_init__(self) -> None:
        check(self)
        if self.on == "labels" and self.name != "bce":
            raise ConfigError(f"objective.on = 'labels' needs name = 'bce', not {self.name!r}: the others need pairs.")

    def of_pairs(self, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
        """The loss of each pair."""
        if self.name == "sc":
            return self._contrastive(chosen_P, rejected_P)
        pointwise_P = self._pointwise_pair(chosen_P, rejected_P)
        if self.name == "bce":
            return pointwise_P
        return self._contrastive(chosen_P, rejected_P) + self.anchor_weight * pointwise_P

    def of_steps(self, log_odds_N: Tensor, label_N: Tensor) -> Tensor:
        """The loss of each labeled step (`on = "labels"`)."""
        return pointwise(log_odds_N, label_N, self.positive_weight, self.negative_weight)

    def _contrastive(self, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
        if self.space == "probability":
            chosen_P, rejected_P = chosen_P.sigmoid(), rejected_P.sigmoid()
        return step_contrastive(chosen_P, rejected_P, self.temperature, self.margin)

    def _pointwise_pair(self, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
        """The mean over the pair's two steps, or the chosen step alone in a hybrid anchored there."""
        weights = (self.positive_weight, self.negative_weight)
        right_P = pointwise(chosen_P, chosen_P.new_ones(chosen_P.shape), *weights)
        if self.name == "hybrid" and self.anchor_on == "chosen":
            return right_P
        wrong_P = pointwise(
            rejected_P, rejected_P.new_zeros(rejected_P.shape), self.positive_weight, self.negative_weight
        )
        return (right_P + wrong_P) / 2


def step_contrastive(chosen_P: Tensor, rejected_P: Tensor, temperature: float = 1.0, margin: float = 0.0) -> Tensor:
    """−log σ((r⁺ − r⁻ − margin) / temperature): the paper's loss at temperature 1 and margin 0."""
    from torch.nn.functional import softplus

    return softplus(-(chosen_P - rejected_P - margin) / temperature)


def pointwise(
    log_odds_N: Tensor, label_N: Tensor, positive_weight: float = 1.0, negative_weight: float = 1.0
) -> Tensor:
    """Cross-entropy with a hard or soft label: −w⁺·y·log p − w⁻·(1 − y)·log(1 − p)."""
    from torch.nn.functional import softplus

    return positive_weight * label_N * softplus(-log_odds_N) + negative_weight * (1 - label_N) * softplus(log_odds_N)

"""The objectives: losses on a PRM's log-odds, per pair, per prefix, per step or per solution.

Every function takes log-odds (probability = sigmoid) and returns one loss per example, never a mean: the sampler
decides how many examples make an update. Shapes: P pairs, N steps or prefixes, K steps after a prefix. torch is
imported where it is used, so that recipes can be read without it.
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

    name: Literal["sc", "bce", "hybrid", "listwise", "listwise+bce", "implicit"] = "sc"
    """`sc`: the step-contrastive loss −log σ(r⁺ − r⁻). `bce`: pointwise cross-entropy. `hybrid`: their sum. `listwise`:
    conditional logit over all steps after a prefix; every prefix has the same weight. `listwise+bce`: listwise plus
    bce. `implicit`: cross-entropy on outcomes of r = β · log π(solution) / π_ref(solution), where π_ref is the
    backbone; it trains a language model (docs/guides/rivals.md)."""
    on: Literal["pairs", "labels"] = "pairs"
    """What to train on: `pairs`, or (only with `bce`) `labels`, every labeled step once, hard or soft."""
    space: Literal["probability", "log-odds"] = "probability"
    """What r is in `sc` and `listwise`. With probability (the paper) `sc` stays above −log σ(1) = 0.313; with log-odds
    it has no floor."""
    temperature: Positive = 1.0
    """`sc` and `listwise` divide r⁺ − r⁻ − margin by this temperature. Below 1 the loss is sharper."""
    margin: float = 0.0
    """The margin that r⁺ − r⁻ should exceed in `sc` and `listwise`."""
    anchor_weight: NotNegative = 1.0
    """The weight of bce in `hybrid` (sc + anchor_weight · bce) and `listwise+bce`. SC and listwise leave the level of
    the scores free; bce fixes it."""
    anchor_on: Literal["both", "chosen"] = "both"
    """The steps that bce sees in `hybrid` and `listwise+bce`: both sides, or only the right one (which keeps false
    negatives low)."""
    positive_weight: Positive = 1.0
    """The weight of the right side of each label in `bce` and `implicit`."""
    negative_weight: Positive = 1.0
    """The weight of the wrong side of each label in `bce` and `implicit`."""
    beta: Positive = 0.05
    """β of `implicit`; it is saved with the model."""

    def __post_init__(self) -> None:
        check(self)
        if self.on == "labels" and self.name != "bce":
            raise ConfigError(f"objective.on = 'labels' needs name = 'bce', not {self.name!r}: the others need pairs.")

    @property
    def in_lists(self) -> bool:
        """Whether an example is a prefix with all its steps, not a pair."""
        return self.name in ("listwise", "listwise+bce")

    @property
    def examples(self) -> Literal["pairs", "labels", "outcomes"]:
        """What an example is: a pair, a labeled step, or a solution that is right or wrong."""
        return "outcomes" if self.name == "implicit" else self.on

    def of_pairs(self, chosen_P: Tensor, rejected_P: Tensor) -> Tensor:
        """The loss of each pair."""
        if self.name == "sc":
            return self._contrastive(chosen_P, rejected_P)
        pointwise_P = self._pointwise_pair(chosen_P, rejected_P)
        if self.name == "bce":
            return pointwise_P
        return self._contrastive(chosen_P, rejected_P) + self.anchor_weight * pointwise_P

    def of_lists(self, log_odds_NK: Tensor, right_NK: Tensor, wrong_NK: Tensor) -> Tensor:
        """The loss of each prefix; `right_NK` and `wrong_NK` say which entries are its right and wrong steps.

        With one step of each kind it is the loss of that pair by `sc` or `hybrid`.
        """
        score_NK = log_odds_NK.sigmoid() if self.space == "probability" else log_odds_NK
        score_NK = (score_NK + self.margin * wrong_NK.to(score_NK.dtype)) / self.temperature
        listwise_N = conditional_logit(score_NK, right_NK, wrong_NK)
        if self.name == "listwise":
            return listwise_N
        weights = (self.positive_weight, self.negative_weight)
        loss_NK = pointwise(log_odds_NK, right_NK.to(log_odds_NK.dtype), *weights)
        pointwise_N = (loss_NK * right_NK).sum(1) / right_NK.sum(1)
        if self.anchor_on == "both":
            pointwise_N = (pointwise_N + (loss_NK * wrong_NK).sum(1) / wrong_NK.sum(1)) / 2
        return listwise_N + self.anchor_weight * pointwise_N

    def of_steps(self, log_odds_N: Tensor, label_N: Tensor) -> Tensor:
        """The loss of each labeled step (`on = "labels"`)."""
        return pointwise(log_odds_N, label_N, self.positive_weight, self.negative_weight)

    def of_solutions(self, log_ratio_N: Tensor, label_N: Tensor) -> Tensor:
        """The loss of each solution, given log π / π_ref of all its steps (`implicit`)."""
        return self.of_steps(self.beta * log_ratio_N, label_N)

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
        wrong_P = pointwise(rejected_P, rejected_P.new_zeros(rejected_P.shape), *weights)
        return (right_P + wrong_P) / 2


def step_contrastive(chosen_P: Tensor, rejected_P: Tensor, temperature: float = 1.0, margin: float = 0.0) -> Tensor:
    """−log σ((r⁺ − r⁻ − margin) / temperature): the paper's loss at temperature 1 and margin 0."""
    from torch.nn.functional import softplus

    return softplus(-(chosen_P - rejected_P - margin) / temperature)


def conditional_logit(score_NK: Tensor, right_NK: Tensor, wrong_NK: Tensor) -> Tensor:
    """−log of the probability that exactly the right steps are right, given how many of the steps are.

    That is −log(exp(Σ right scores) / Σ over all choices of as many steps exp(Σ their scores)). Whatever all scores of
    a prefix have in common cancels. With one right step it is the softmax loss.
    """
    import torch

    never = -1e30  # not −∞, whose gradient would be NaN
    used_NK = right_NK | wrong_NK
    score_NK = torch.where(used_NK, score_NK, never)
    num_right_N = right_NK.sum(1)
    # total_NC[:, c]: the log of the sum over all choices of c of the steps seen so far
    size = int(num_right_N.max()) + 1
    total_NC = score_NK.new_full((len(score_NK), size), never)
    total_NC[:, 0] = 0
    for score_N in score_NK.unbind(1):
        with_it_NC = total_NC[:, :-1] + score_N[:, None]
        total_NC = torch.cat([total_NC[:, :1], torch.logaddexp(total_NC[:, 1:], with_it_NC)], 1)
    of_all_N = total_NC.gather(1, num_right_N[:, None])[:, 0]
    return of_all_N - torch.where(right_NK, score_NK, 0).sum(1)


def pointwise(
    log_odds_N: Tensor, label_N: Tensor, positive_weight: float = 1.0, negative_weight: float = 1.0
) -> Tensor:
    """Cross-entropy with a hard or soft label: −w⁺·y·log p − w⁻·(1 − y)·log(1 − p)."""
    from torch.nn.functional import softplus

    return positive_weight * label_N * softplus(-log_odds_N) + negative_weight * (1 - label_N) * softplus(log_odds_N)

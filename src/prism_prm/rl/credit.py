"""Credit: from the scores of the steps of a group of solutions to the advantage of each step.

A group is G solutions to one problem. p_k is P(right) of step k of K, r the reward of a whole solution. All functions
are pure, and take and give one array per solution. Standard deviations are those of a sample, with 1e-4 added, as TRL
takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.errors import ConfigError

EPSILON = 1e-4
"""What is added to a standard deviation before it divides."""
PURE_TEMPERATURE = 0.1
"""The temperature of PURE's softmax over steps: towards 0 only the worst step counts."""
PROGRESS_WEIGHT = 1.0
"""How much a step's progress weighs beside the solution's own advantage."""


@dataclass(frozen=True, slots=True)
class Graded:
    """What credit needs to know of one solution of a group; it has at least one step."""

    scores: Sequence[float]
    """P(right) of each step; 0 throughout where the solution was gated."""
    rewards: Sequence[float]
    """The reward of each step: its score, or what shaping made of it."""
    num_tokens: Sequence[int]
    """How many tokens each step has."""
    reward: float
    """The reward of the whole solution."""

    def __post_init__(self) -> None:
        assert len(self.scores) == len(self.rewards) == len(self.num_tokens) > 0, "one of each per step"


Credit = Callable[[Sequence[Graded]], list[Floats]]
"""A group of solutions → the advantage of each step of each solution."""


def outcome(group: Sequence[Graded]) -> list[Floats]:
    """(r − mean) / std over the group, the same for all steps: GRPO as it is."""
    advantages = standardize(np.array([solution.reward for solution in group]))
    return [np.full(len(one.scores), advantage) for one, advantage in zip(group, advantages, strict=True)]


def process(group: Sequence[Graded]) -> list[Floats]:
    """DeepSeekMath 4.1.3: standardize the rewards of all steps of the group; a step gets the sum from itself on."""
    rewards = [np.asarray(solution.rewards, dtype=np.float64) for solution in group]
    standard = standardize(np.concatenate(rewards))
    return [_to_go(part) for part in np.split(standard, np.cumsum([len(own) for own in rewards])[:-1])]


def pure(group: Sequence[Graded]) -> list[Floats]:
    """PURE's min-form: a softmax over −s gives nearly all credit to the worst step, s = 2p − 1.

    The baseline is the return per TOKEN of the other solutions of the group, taken off each step by its length. With
    scores in [0, 1] and a baseline per solution, training collapses: every step more would pay.
    """
    rewards = []
    for solution in group:
        signed = 2 * np.asarray(solution.scores, dtype=np.float64) - 1
        weights = np.exp((signed.min() - signed) / PURE_TEMPERATURE)
        rewards.append(weights / weights.sum() * signed)
    lengths = [np.asarray(solution.num_tokens, dtype=np.float64) for solution in group]
    returns, totals = np.array([own.sum() for own in rewards]), np.array([own.sum() for own in lengths])
    advantages = []
    for i, (own, tokens) in enumerate(zip(rewards, lengths, strict=True)):
        others = totals.sum() - totals[i]
        baseline = (returns.sum() - returns[i]) / others if others else 0.0
        advantages.append(_to_go(own - baseline * tokens))
    return advantages


def progress(group: Sequence[Graded]) -> list[Floats]:
    """Process advantages (arXiv 2410.08146): the solution's own advantage, and how far the step got: p_k − p_{k−1}.

    Before the first step p is the mean of the group's first steps: what the problem itself promises this policy.
    """
    before = float(np.mean([solution.scores[0] for solution in group]))
    whole = outcome(group)
    return [
        own + PROGRESS_WEIGHT * np.diff(np.asarray(solution.scores, dtype=np.float64), prepend=before)
        for own, solution in zip(whole, group, strict=True)
    ]


CREDITS: dict[str, Credit] = {"outcome": outcome, "process": process, "pure": pure, "progress": progress}
"""Name → how the steps of a group share what the group earned."""

STEPS_ONLY = frozenset({"process", "pure"})
"""Credits that look at steps alone; others share out the reward of the whole solution, whatever it is made of."""


def find_credit(name: str) -> Credit:
    """The credit of that name."""
    if name not in CREDITS:
        raise ConfigError(f"Unknown credit {name!r}. Known: {', '.join(CREDITS)}.")
    return CREDITS[name]


def standardize(values: Floats) -> Floats:
    """Less the mean, over the standard deviation; a value alone is 0."""
    if len(values) < 2:
        return np.zeros(len(values))
    return np.asarray((values - values.mean()) / (values.std(ddof=1) + EPSILON))


def clip(rewards: Floats, ceiling: float) -> Floats:
    """min(r, η) − η: rewards above the ceiling count as 0, so that no step pays for being there (arXiv 2410.15115)."""
    return np.minimum(rewards, ceiling) - ceiling


def delta(rewards: Floats) -> Floats:
    """r_k − r_{k+1}, so that the sum from a step on is its own reward alone (arXiv 2410.15115).

    The last step gets nothing: it is left to the reward for a right answer.
    """
    kept = np.append(rewards[:-1], 0.0)
    return np.append(kept[:-1] - kept[1:], 0.0)


def _to_go(rewards: Floats) -> Floats:
    """The sum from each step on."""
    return np.cumsum(rewards[::-1])[::-1]

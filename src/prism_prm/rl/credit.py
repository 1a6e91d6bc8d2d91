"""Credit: compute the advantage of each step from the step scores of a group of solutions.

A group is G solutions to one problem. p_k is P(right) of step k of K, and r is the reward of a whole solution. All
functions are pure, and take and return one array per solution. As in TRL, standard deviations are those of a sample,
with 1e-4 added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.errors import ConfigError

EPSILON = 1e-4
"""Added to standard deviations before dividing by them."""
PURE_TEMPERATURE = 0.1
"""The temperature of PURE's softmax over steps. Near 0, only the worst step counts."""
PROGRESS_WEIGHT = 1.0
"""The weight of a step's progress relative to the solution's own advantage."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The scores of one solution of a group, which has at least one step."""

    scores: Sequence[float]
    """P(right) of each step; all 0 if the solution was gated."""
    rewards: Sequence[float]
    """The reward of each step: its score, after shaping."""
    num_tokens: Sequence[int]
    """The number of tokens of each step."""
    reward: float
    """The reward of the whole solution."""

    def __post_init__(self) -> None:
        assert len(self.scores) == len(self.rewards) == len(self.num_tokens) > 0, "one of each per step"


Credit = Callable[[Sequence[Graded]], list[Floats]]
"""Maps a group of solutions to the advantages of their steps."""


def outcome(group: Sequence[Graded]) -> list[Floats]:
    """(r − mean) / std over the group, the same for all steps: plain GRPO."""
    advantages = standardize(np.array([solution.reward for solution in group]))
    return [np.full(len(solution.scores), advantage) for solution, advantage in zip(group, advantages, strict=True)]


def process(group: Sequence[Graded]) -> list[Floats]:
    """DeepSeekMath 4.1.3: standardize the rewards of all steps of the group; a step gets the sum of its own and all
    later rewards."""
    rewards = [np.asarray(solution.rewards, dtype=np.float64) for solution in group]
    standard = standardize(np.concatenate(rewards))
    return [_to_go(part) for part in np.split(standard, np.cumsum([len(own) for own in rewards])[:-1])]


def pure(group: Sequence[Graded]) -> list[Floats]:
    """PURE's min-form: with s = 2p − 1, a softmax over −s gives nearly all credit to the worst step.

    The baseline is the return per TOKEN of the other solutions of the group, subtracted from each step by its length.
    With scores in [0, 1] and a baseline per solution, training collapses, because every extra step would pay.
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
    """Process advantages (arXiv 2410.08146): the solution's own advantage, plus the step's progress p_k − p_{k−1}.

    Before the first step, p is the mean over the group's first steps.
    """
    before = float(np.mean([solution.scores[0] for solution in group]))
    whole = outcome(group)
    return [
        own + PROGRESS_WEIGHT * np.diff(np.asarray(solution.scores, dtype=np.float64), prepend=before)
        for own, solution in zip(whole, group, strict=True)
    ]


CREDITS: dict[str, Credit] = {"outcome": outcome, "process": process, "pure": pure, "progress": progress}
"""By name."""

STEPS_ONLY = frozenset({"process", "pure"})
"""Credits that use only step rewards; the others use the reward of the whole solution."""


def find_credit(name: str) -> Credit:
    if name not in CREDITS:
        raise ConfigError(f"Unknown credit {name!r}. Known: {', '.join(CREDITS)}.")
    return CREDITS[name]


def standardize(values: Floats) -> Floats:
    """Subtract the mean, and divide by the standard deviation; a single value becomes 0."""
    if len(values) < 2:
        return np.zeros(len(values))
    return np.asarray((values - values.mean()) / (values.std(ddof=1) + EPSILON))


def clip(rewards: Floats, ceiling: float) -> Floats:
    """min(r, η) − η: rewards above the ceiling count as 0, so that extra steps do not pay (arXiv 2410.15115)."""
    return np.minimum(rewards, ceiling) - ceiling


def delta(rewards: Floats) -> Floats:
    """r_k − r_{k+1}, so that the sum from a step to the end is its own reward (arXiv 2410.15115).

    The last step gets 0; only the reward for a right answer applies to it.
    """
    kept = np.append(rewards[:-1], 0.0)
    return np.append(kept[:-1] - kept[1:], 0.0)


def _to_go(rewards: Floats) -> Floats:
    """The sum from each step to the end."""
    return np.cumsum(rewards[::-1])[::-1]

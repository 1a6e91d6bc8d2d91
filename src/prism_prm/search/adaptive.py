"""Adaptive budgets: draw solutions of a problem until its answer is safe, and stop hopeless ones early.

**Votes.** After t of N draws, the leading answer is safe if the chance that another one overtakes it in the other N − t
is at most ε. Against one other answer with v votes, the leader's share of the votes for both has the posterior
Beta(1 + lead, 1 + v), so its share of the remaining draws is beta-binomial. The chances of all other answers, and of
one not yet seen, are added. A posterior holds whenever one stops, so the answer differs from that of the full budget in
at most a share ε of the problems, if these are as the uniform prior says.

**Weights.** Scores that are probabilities of being right may weigh the votes. The sums are then counted in units of the
mean weight.

**Hopeless solutions.** After some complete solutions, a solution stops at its first step whose score is below a
quantile of theirs (of the lowest step each). It casts no vote.

**Early scores.** If a solution is right with chance p, n = log(1 − c) / log(1 − p) of them have a right one with chance
c. p is the mean score of the first steps of some solutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.config import Count, Share, check
from prism_prm.errors import SettingError

GRID = 4
"""Votes are rounded to 1 / GRID of the mean weight, the leader's down and others' up."""


@dataclass(frozen=True, slots=True)
class AdaptiveSettings:
    """When to stop drawing solutions of a problem."""

    error: Share | None = None
    """Stop as soon as the answer will differ from that of the full budget with at most this chance, such as 0.05. By
    default the budget is fixed."""
    rule: Literal["safe", "hopeless", "early-scores"] = "safe"
    """What a search does within its budget: draw until the answer is safe (safe), stop hopeless solutions too
    (hopeless), or draw as many solutions as the scores of the first steps suggest (early-scores). The first two need
    `error`, the last two a PRM. `prism rerank` simulates all three."""
    least: Count = 4
    """The number of complete solutions to draw before the first decision; in a search, also between decisions."""
    hopeless: Share = 0.1
    """Stop a solution at a step below this quantile of the lowest step scores of the first solutions. 0: never."""
    success: Share = 0.95
    """The chance of a right solution that a budget from early scores aims at."""

    def __post_init__(self) -> None:
        check(self)
        if self.rule == "hopeless" and self.error is None:
            raise SettingError("rule", self.rule, "needs the setting adaptive.error too, such as 0.05")

    @property
    def is_fixed(self) -> bool:
        """Whether the full budget is drawn."""
        return self.error is None and self.rule == "safe"

    @property
    def needs_scores(self) -> bool:
        """Whether a PRM decides how much is written."""
        return self.rule != "safe"

    def lowest_hope(self, scores: Iterable[Sequence[float] | Floats]) -> float:
        """The score below which a step is hopeless, by the step scores of the first solutions."""
        lowest = [min(known) for own in scores if (known := _known(own))]
        return float(np.quantile(lowest, self.hopeless)) if lowest and self.hopeless else -math.inf

    def num_wanted(self, scores: Iterable[Sequence[float] | Floats], total: int) -> int:
        """How many of `total` solutions the first steps of some suggest, by their step scores."""
        firsts = [known[0] for own in scores if (known := _known(own))]
        p = float(np.clip(np.mean(firsts), 1e-6, 1 - 1e-6)) if firsts else 1e-6
        wanted = math.ceil(math.log(1 - self.success) / math.log(1 - p)) if self.success < 1 else total
        return min(total, max(self.least, wanted))


def _known(scores: Sequence[float] | Floats) -> list[float]:
    """Without steps that have no score, such as thinking that is only context."""
    return [float(score) for score in scores if not math.isnan(score)]


@lru_cache(maxsize=200_000)
def chance_overtaken(lead: float, other: float, remaining: int) -> float:
    """The chance that an answer with `other` votes reaches one with `lead` votes in the remaining draws.

    All remaining draws are taken to be for one of the two, and a tie counts as overtaken.
    """
    # Overtaken if x of m further votes are for the leader, and lead + x <= other + m - x.
    most = math.floor((other + remaining - lead) / 2 + 1e-9)
    if most < 0:
        return 0.0
    if most >= remaining:
        return 1.0
    a, b, total = 1 + lead, 1 + other, 0.0
    constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.lgamma(a + b + remaining)
    for x in range(most + 1):
        ways = math.lgamma(remaining + 1) - math.lgamma(x + 1) - math.lgamma(remaining - x + 1)
        total += math.exp(constant + ways + math.lgamma(a + x) + math.lgamma(b + remaining - x))
    return min(1.0, total)


def is_safe(votes: Sequence[float], remaining: int, error: float) -> bool:
    """Whether the leading of these answers stays ahead, but for a chance of `error`.

    Args:
        votes: those of each answer, in units of one draw.
        remaining: how many more would be drawn.
        error: the chance, at most, that another answer wins.

    Example:
        >>> is_safe([4, 0], 28, 0.05), is_safe([7, 1], 24, 0.05)
        (False, True)
    """
    if remaining == 0:
        return True
    if not votes or max(votes) <= 0:
        return False
    lead, *others = sorted(votes, reverse=True)
    lead = math.floor(lead * GRID) / GRID
    chance = 0.0
    for other in (*others, 0.0):  # 0: an answer that was not seen yet
        chance += chance_overtaken(lead, math.ceil(other * GRID) / GRID, remaining)
        if chance > error:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a rule drew of one problem, in one order."""

    num_solutions: int
    cost: float
    """Of the parts that were written."""
    answer: int
    """The group of the selected answer; -1 for none."""
    is_right: bool


def _totals(groups: Sequence[int], weights: Sequence[float] | Floats) -> dict[int, float]:
    """The sum of the weights of each group, in order of appearance."""
    totals: dict[int, float] = {}
    for group, weight in zip(groups, weights, strict=True):
        if group >= 0:
            totals[group] = totals.get(group, 0.0) + float(weight)
    return totals


@dataclass(frozen=True, slots=True)
class OrderedSolutions:
    """The solutions of one problem, in the order in which they are drawn."""

    groups: Ints
    """Equal numbers for equal answers; -1 casts no vote."""
    right: Bools
    weights: Floats
    """1 for each in a majority vote."""
    costs: Sequence[Floats]
    """The cost of each step of each solution, such as its tokens."""
    steps: Sequence[Floats] | None = None
    """The score of each step of each solution, if there is a scorer."""

    def ordered(self, order: Ints) -> OrderedSolutions:
        """The same solutions in another order."""
        return OrderedSolutions(
            self.groups[order], self.right[order], self.weights[order], [self.costs[i] for i in order],
            None if self.steps is None else [self.steps[i] for i in order],
        )  # fmt: skip


def draw_until_safe(problem: OrderedSolutions, settings: AdaptiveSettings, hope: float = -math.inf) -> Drawn:
    """Draw until the leading answer is safe; later solutions stop at a step below `hope` and cast no vote."""
    total, groups, cost = len(problem.groups), [], 0.0
    complete: list[int] = []
    for at in range(total):
        group, costs = int(problem.groups[at]), problem.costs[at]
        scores = problem.steps[at] if problem.steps is not None and at >= settings.least else np.empty(0)
        low = np.flatnonzero(scores < hope)
        if low.size:
            costs, group = costs[: low[0] + 1], -1
        else:
            complete.append(at)
        groups.append(group)
        cost += float(np.sum(costs))
        if at + 1 >= min(settings.least, total):
            votes = votes_in_draws([groups[i] for i in complete], problem.weights[complete])
            if is_safe(votes, total - at - 1, settings.error or 0.0):
                break
    return vote_of(problem, len(groups), groups, cost)


def draw_hopeful(problem: OrderedSolutions, settings: AdaptiveSettings) -> Drawn:
    """Draw until the leading answer is safe; hopeless solutions stop early and cast no vote."""
    assert problem.steps is not None, "it needs scores"
    return draw_until_safe(problem, settings, settings.lowest_hope(problem.steps[: settings.least]))


def draw_by_early_scores(problem: OrderedSolutions, settings: AdaptiveSettings) -> Drawn:
    """Draw as many solutions as the first steps of some suggest, then vote."""
    assert problem.steps is not None, "it needs scores"
    total, least = len(problem.groups), min(settings.least, len(problem.groups))
    return vote_of(problem, settings.num_wanted(problem.steps[:least], total))


RULES: dict[str, Callable[[OrderedSolutions, AdaptiveSettings], Drawn]] = {
    "safe": draw_until_safe,
    "hopeless": draw_hopeful,
    "early-scores": draw_by_early_scores,
}
"""By `adaptive.rule`; the first needs no scores."""


def vote_of(
    problem: OrderedSolutions, count: int, groups: Sequence[int] | None = None, cost: float | None = None
) -> Drawn:
    """A vote over the first solutions; by default for their own answers, at their full cost."""
    groups = problem.groups[:count].tolist() if groups is None else groups
    cost = float(sum(map(np.sum, problem.costs[:count]))) if cost is None else cost
    totals = _totals(groups, problem.weights[:count])
    if not totals:
        return Drawn(count, cost, -1, is_right=False)
    most = max(totals.values())
    winner = next(group for group, total in totals.items() if total >= most * (1 - 1e-9))
    return Drawn(count, cost, winner, bool(problem.right[groups.index(winner)]))


def votes_in_draws(groups: Sequence[int], weights: Sequence[float] | Floats) -> list[float]:
    """The votes for each answer, in units of the mean weight."""
    mean = float(np.mean(weights)) if len(weights) else 0.0
    return [total / mean for total in _totals(groups, weights).values()] if mean > 0 else []

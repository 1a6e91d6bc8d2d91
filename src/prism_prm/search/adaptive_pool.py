"""Simulate adaptive budgets on a pool: draw its solutions in random orders, and stop as the rules say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Floats, Ints
from prism_prm.search.adaptive import RULES, AdaptiveSettings, OrderedSolutions, vote_of
from prism_prm.search.curves import draw_orders
from prism_prm.search.grade_pool import GradedPool, StepScores
from prism_prm.stats import (
    Comparison,
    Interval,
    cluster_draws,
    cluster_sums,
    compare_means,
    interval,
    mean_interval,
    resampled_sums,
)

CHARACTERS = 4
"""Characters per token, roughly."""
ORDERS = 50
"""Simulated orders of the solutions of each problem."""


@dataclass(frozen=True, slots=True)
class AdaptiveResult:
    """An adaptive budget on a pool: means over problems and over random orders of their solutions."""

    rule: str
    prm: str
    """The scorer whose scores weigh the votes; "" for a majority vote."""
    solutions: Interval
    """Drawn per problem."""
    tokens: Interval
    """Written per problem, estimated by characters."""
    saved: Interval
    """The share of the full budget's tokens that it saves."""
    accuracy: Interval
    differing: Interval
    """The share of problems whose answer is not that of the full budget."""
    over_full: Comparison
    """Its accuracy minus that of the full budget."""
    over_fixed: Comparison
    """Its accuracy minus that of a fixed budget of as many solutions, rounded."""


def simulate(
    graded: GradedPool,
    scores: Mapping[str, StepScores],
    log_scores: Mapping[str, Floats],
    settings: AdaptiveSettings,
    *,
    seed: int,
) -> list[AdaptiveResult]:
    """Simulate every rule on the measured problems of a pool, with the scores of each scorer."""
    clusters, results = graded.clusters, []
    for rule, prm in [("safe", ""), *((rule, prm) for prm in scores for rule in RULES)]:
        rows = []  # per problem and order: solutions, cost, right, differs, and the full budget's cost and verdict
        candidates = []
        for problem in graded.measured:
            solutions, own = graded.pool.problems[problem].solutions, graded.slices[problem]
            costs = [np.array([len(step) / CHARACTERS for step in solution.steps]) for solution in solutions]
            weights, steps = np.ones(len(solutions)), None
            if prm:
                steps = [np.empty(0) if one is None else one for one in scores[prm][own]]
                weights = np.exp(log_scores[prm][own])
            one = OrderedSolutions(graded.groups(problem), graded.correct(problem), weights, costs, steps)
            orders = draw_orders(len(solutions), ORDERS, [seed, problem])
            candidates.append([one.ordered(order) for order in orders])
            drawn = [(RULES[rule](each, settings), vote_of(each, len(solutions))) for each in candidates[-1]]
            rows.append([
                (found.num_solutions, found.cost, found.is_right, found.answer != full.answer, full.cost, full.is_right)
                for found, full in drawn
            ])  # fmt: skip
        means_P6 = np.array([np.mean(np.array(of_problem, float), axis=0) for of_problem in rows])
        count = max(1, round(float(means_P6[:, 0].mean())))
        fixed = [[vote_of(each, min(count, len(each.groups))).is_right for each in orders] for orders in candidates]
        fixed_P = np.array(fixed, dtype=np.float64).mean(axis=1)
        num_solutions, cost, right, differs, full_cost, full_right = means_P6.T
        results.append(
            AdaptiveResult(
                rule, prm, mean_interval(num_solutions, clusters), mean_interval(cost, clusters),
                _saved(cost, full_cost, clusters), mean_interval(right, clusters), mean_interval(differs, clusters),
                compare_means(right, full_right, clusters), compare_means(right, fixed_P, clusters),
            )
        )  # fmt: skip
    return results


def _saved(cost_P: Floats, full_P: Floats, clusters: Ints) -> Interval:
    """One minus the ratio of the two sums, with a bootstrap interval over clusters."""
    num_clusters = int(clusters.max()) + 1
    draws = cluster_draws(num_clusters)
    sums = [resampled_sums(cluster_sums(values, clusters, num_clusters), draws) for values in (cost_P, full_P)]
    # A replicate of problems without solutions saves nothing.
    replicates = 1 - np.divide(sums[0], sums[1], out=np.ones_like(sums[0]), where=sums[1] > 0)
    return interval(1 - float(cost_P.sum() / full_P.sum()), replicates.ravel(), num_clusters)

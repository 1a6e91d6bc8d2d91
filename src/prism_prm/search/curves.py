"""The expected accuracy of selecting from n of a problem's N solutions, over all ways to draw them.

The pool is one large sample. Each value is the expectation over ordered draws of n different solutions, so it does not
depend on one lucky draw. pass@n and Best-of-n have closed forms. Votes are averaged over many seeded draws, which are
the same for every n and every PRM, so that comparisons are paired. Ties go to the earlier solution; since the order is
random, tied solutions have equal chances.

Shapes: N solutions, D draws, G groups of equal answers, K values of n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.console import Advance, ignore
from prism_prm.data.pools import Pool
from prism_prm.errors import ConfigError, DataError
from prism_prm.search.grade_pool import GradedPool, StepScores, check_measured, log_scores_of
from prism_prm.search.select import TIE, after_tests, relative_weights
from prism_prm.stats import Comparison, Interval, compare_means, mean_interval

NUM_DRAWS = 1000


def chance_of_none(num_solutions: int, n: int) -> Floats:
    """The chance C(N−r, n) / C(N, n) that none of r given solutions is among n drawn, for r = 0 … N."""
    drawn = np.arange(num_solutions)
    factors = np.clip(num_solutions - n - drawn, 0, None) / (num_solutions - drawn)
    return np.concatenate([[1.0], np.cumprod(factors)])


def pass_at(correct_N: Bools, ns: Sequence[int]) -> Floats:
    """The oracle: the exact chance that at least one of n drawn solutions is right."""
    return np.array([1.0 - chance_of_none(len(correct_N), n)[int(correct_N.sum())] for n in ns])


def best_of(correct_N: Bools | Floats, scores_N: Floats, ns: Sequence[int]) -> Floats:
    """The exact chance that the best-scored of n drawn solutions is right; tied solutions have equal chances.

    With any other values of solutions instead of `correct_N`, their expectation.
    """
    order = np.argsort(-scores_N, kind="stable")
    ranked_scores, ranked_correct = scores_N[order], correct_N[order].astype(np.float64)
    starts = np.flatnonzero(np.concatenate([[True], ranked_scores[1:] != ranked_scores[:-1]]))
    ends = np.append(starts[1:], len(order))
    shares = np.add.reduceat(ranked_correct, starts) / (ends - starts)
    values = []
    for n in ns:
        none_above = chance_of_none(len(order), n)  # the chance that no solution ranked higher is drawn
        values.append(float(((none_above[starts] - none_above[ends]) * shares).sum()))
    return np.array(values)


def draw_orders(num_solutions: int, num_draws: int, seed: Sequence[int]) -> Ints:
    """(D, N) random orders of the solutions. The first n of a row are a draw of n."""
    orders_DN = np.tile(np.arange(num_solutions), (num_draws, 1))
    return np.random.default_rng(seed).permuted(orders_DN, axis=1)


def vote_accuracy(groups_N: Ints, correct_N: Bools, weights_N: Floats, ns: Sequence[int], orders_DN: Ints) -> Floats:
    """The fraction of draws in which `vote` on the first n of each order gives a right answer.

    `groups_N` has the same number, from 0 up, for equal answers; −1 casts no vote.
    """
    if not correct_N[groups_N >= 0].any():
        return np.zeros(len(ns))
    num_draws, num_groups = len(orders_DN), int(groups_N.max()) + 1
    rows = np.arange(num_draws)
    # The last column collects solutions without an answer, and is never read.
    total_DG = np.zeros((num_draws, num_groups + 1))
    first_DG = np.full((num_draws, num_groups + 1), len(groups_N))
    best_DG = np.full((num_draws, num_groups + 1), -np.inf)
    right_DG = np.zeros((num_draws, num_groups + 1), dtype=bool)
    shares = {}
    for place in range(max(ns)):
        drawn = orders_DN[:, place]
        group, weight = groups_N[drawn], weights_N[drawn]
        total_DG[rows, group] += weight
        first_DG[rows, group] = np.minimum(first_DG[rows, group], place)
        is_best = weight > best_DG[rows, group]
        best_DG[rows[is_best], group[is_best]] = weight[is_best]
        right_DG[rows[is_best], group[is_best]] = correct_N[drawn[is_best]]
        if place + 1 in ns:
            # The group with the most weight in each draw; of equals, the one drawn first. If no group was drawn, this
            # is group 0, which then counts as wrong.
            absent, seen_DG = len(groups_N), first_DG[:, :num_groups]
            weight_DG = np.where(seen_DG < absent, total_DG[:, :num_groups], -np.inf)
            most_D1 = weight_DG.max(axis=1, keepdims=True)
            is_top_DG = weight_DG >= np.where(most_D1 > 0, most_D1 * (1 - TIE), most_D1)
            winner = np.where(is_top_DG, seen_DG, absent + 1).argmin(axis=1)
            shares[place + 1] = float(right_DG[rows, winner].mean())
    return np.array([shares[n] for n in ns])


WITHOUT_PRM = ("mean", "majority", "oracle")
WITH_PRM = ("best-of-n", "weighted")
TESTED = "public-tests"
"""Only for programs with public tests, with and without a PRM."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The expected accuracy of one way to select, for each n."""

    method: str
    """mean (pass@1), majority, oracle (pass@n), best-of-n, weighted or public-tests."""
    prm: str
    """The PRM whose scores are used; "" for methods that need none."""
    aggregator: str
    ns: tuple[int, ...]
    values: Floats
    """One row per n, one column per measured problem."""
    clusters: Ints
    """Problems with the same text are one cluster."""
    points: tuple[Interval, ...]
    """The accuracy over all problems, for each n."""

    @classmethod
    def of(cls, graded: GradedPool, name: tuple[str, str, str], ns: Sequence[int], values: Floats) -> Curve:
        """The curve of a method, PRM and aggregator (`name`)."""
        points = tuple(mean_interval(of_n, graded.clusters) for of_n in values)
        return cls(*name, tuple(ns), values, graded.clusters, points)

    def rows(self) -> list[dict[str, Any]]:
        """One row per n, for tables and metrics.json."""
        about = {"method": self.method, "prm": self.prm, "aggregator": self.aggregator}
        return [{**about, "n": n, **asdict(point)} for n, point in zip(self.ns, self.points, strict=True)]

    def minus(self, other: Curve, n: int) -> Comparison:
        """This accuracy minus the other, on the same draws of the same problems."""
        return compare_means(self.values[self.ns.index(n)], other.values[other.ns.index(n)], self.clusters)


def default_ns(graded: GradedPool) -> tuple[int, ...]:
    """1, 2, 4, … up to the largest number of solutions of a measured problem, and that number."""
    most = largest_n([len(graded.grades[problem]) for problem in graded.measured])
    powers = [1 << i for i in range(most.bit_length())]
    return tuple(sorted({*powers, most}))


def check_ns(pool: Pool, ns: Sequence[int]) -> tuple[int, ...]:
    """Sort `ns`. Raises if one is not possible for any problem."""
    most = largest_n([len(entry.solutions) for entry in pool.problems])
    bad = [n for n in ns if not 1 <= n <= most]
    if bad or not ns:
        raise ConfigError(
            f"n = {bad} is not possible: no problem of this pool has more than {most} solutions, so n must be from 1 "
            f"to {most}."
        )
    return tuple(sorted(set(ns)))


def largest_n(sizes: Sequence[int]) -> int:
    """The largest n that is possible for some problem; problems with fewer solutions use all of them."""
    most = max(sizes, default=0)
    if not most:
        raise DataError(f"none of the {len(sizes):,} problems has a solution, so there is nothing to select from")
    return most


def count_smaller(graded: GradedPool, ns: Sequence[int]) -> dict[int, int]:
    """By n, the number of measured problems that have solutions, but fewer than n; without zeros."""
    sizes = [len(graded.grades[problem]) for problem in graded.measured]
    counts = {n: sum(0 < size < n for size in sizes) for n in ns}
    return {n: count for n, count in counts.items() if count}


def compute_curves(
    graded: GradedPool,
    scores: Mapping[str, StepScores],
    *,
    aggregators: Sequence[str],
    ns: Sequence[int] | None = None,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
    advance: Advance = ignore,
) -> list[Curve]:
    """All curves of a pool's measured problems. `scores` has the step scores of each PRM, by name.

    At each n, a problem with fewer solutions uses all of them. `advance` counts problems.
    """
    check_measured(graded)
    ns = default_ns(graded) if ns is None else tuple(sorted(set(ns)))
    log_scores = {
        (prm, aggregator): log_scores_of(steps, aggregator, graded.pool)
        for prm, steps in scores.items()
        for aggregator in aggregators
    }
    tested = (TESTED,) * graded.has_tests
    names = [(method, "", "") for method in WITHOUT_PRM + tested]
    names += [(method, *key) for key in log_scores for method in WITH_PRM + tested]
    values = np.zeros((len(names), len(ns), len(graded.measured)))
    for column, problem in enumerate(graded.measured):
        if graded.grades[problem]:
            own = [of_all[graded.slices[problem]] for of_all in log_scores.values()]
            values[:, :, column] = _problem_values(graded, problem, own, ns, num_draws, seed)
        advance(1)
    return [Curve.of(graded, name, ns, of_name) for name, of_name in zip(names, values, strict=True)]


def _problem_values(
    graded: GradedPool, problem: int, log_scores: Sequence[Floats], ns: Sequence[int], num_draws: int, seed: int
) -> list[Floats]:
    """The values of one problem: those without a PRM, then Best-of-n and the weighted vote for each set of scores. Each
    ends with the public tests, if there are any."""
    correct_N, groups_N = graded.correct(problem), graded.groups(problem)
    ns = [min(n, len(correct_N)) for n in ns]
    orders_DN = draw_orders(len(correct_N), num_draws, [seed, problem])

    def votes(weights_N: Floats) -> Floats:
        values_K = vote_accuracy(groups_N, correct_N, weights_N, ns, orders_DN)
        # The value of a single solution is known exactly.
        return np.where(np.asarray(ns) == 1, (correct_N & (groups_N >= 0)).mean(), values_K)

    def passing(log_scores_N: Floats) -> list[Floats]:
        return [best_of(correct_N, after_tests(log_scores_N, graded.passed(problem)), ns)] * graded.has_tests

    values = [np.full(len(ns), correct_N.mean()), votes(np.ones(len(correct_N))), pass_at(correct_N, ns)]
    values += passing(np.zeros(len(correct_N)))
    for log_scores_N in log_scores:
        values += [best_of(correct_N, log_scores_N, ns), votes(relative_weights(log_scores_N))]
        values += passing(log_scores_N)
    return values

"""Accuracy against the number of solutions drawn, for every way to select one of them, with intervals over problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.arrays import Floats, Ints
from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError, DataError
from prism_prm.pools import Pool
from prism_prm.rerank.expectation import NUM_DRAWS, best_of, draw_orders, pass_at, voted
from prism_prm.rerank.grading import GradedPool, check_measured
from prism_prm.rerank.select import after_tests, relative_weights
from prism_prm.rerank.step_scores import StepScores
from prism_prm.stats import Comparison, Interval, compare_means, mean_interval, number_clusters

WITHOUT_PRM = ("mean", "majority", "oracle")
WITH_PRM = ("best-of-n", "weighted")
TESTED = "public-tests"
"""Where programs have public tests, with and without a PRM."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The expected accuracy of one way to select, for each n."""

    method: str
    """mean (pass@1), majority, oracle (pass@n), best-of-n, weighted or public-tests."""
    prm: str
    """Whose scores; "" for the methods that need none."""
    aggregator: str
    ns: tuple[int, ...]
    values: Floats
    """One row per n, one column per measured problem."""
    clusters: Ints
    """Problems with the same text are one cluster."""
    points: tuple[Interval, ...]
    """The accuracy over all problems, for each n."""

    def minus(self, other: Curve, n: int) -> Comparison:
        """This one's accuracy minus the other's, on the same draws of the same problems."""
        return compare_means(self.values[self.ns.index(n)], other.values[other.ns.index(n)], self.clusters)


def default_ns(graded: GradedPool) -> tuple[int, ...]:
    """1, 2, 4, … up to the size of the largest measured problem's pool, and that size."""
    most = largest([len(graded.grades[problem]) for problem in graded.measured])
    powers = [1 << i for i in range(most.bit_length())]
    return tuple(sorted({*powers, most}))


def check_ns(pool: Pool, ns: Sequence[int]) -> tuple[int, ...]:
    """`ns` sorted; each must be possible for some problem."""
    most = largest([len(entry.solutions) for entry in pool.problems])
    bad = [n for n in ns if not 1 <= n <= most]
    if bad or not ns:
        raise ConfigError(
            f"n = {bad} is not possible: no problem of this pool has more than {most} solutions, so n must be from 1 "
            f"to {most}."
        )
    return tuple(sorted(set(ns)))


def largest(sizes: Sequence[int]) -> int:
    """The largest n that is possible for some problem; a problem with fewer solutions takes all it has."""
    most = max(sizes, default=0)
    if not most:
        raise DataError(f"none of the {len(sizes):,} problems has a solution, so there is nothing to select from")
    return most


def count_smaller(graded: GradedPool, ns: Sequence[int]) -> dict[int, int]:
    """n → how many of the measured problems have solutions, but fewer than n; only where there are such problems."""
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
    """All curves of a pool's measured problems; `scores` maps the name of a PRM to its step scores.

    At each n a problem with fewer solutions takes all it has. `advance` is told of each problem.
    """
    check_measured(graded)
    ns = default_ns(graded) if ns is None else tuple(sorted(set(ns)))
    log_scores = {(prm, how): log_scores_of(steps, how) for prm, steps in scores.items() for how in aggregators}
    tested = (TESTED,) * graded.has_tests
    names = [(method, "", "") for method in WITHOUT_PRM + tested]
    names += [(method, *key) for key in log_scores for method in WITH_PRM + tested]
    columns: list[list[Floats]] = []
    ends = np.cumsum([len(grades) for grades in graded.grades])
    for problem in graded.measured:
        here = slice(ends[problem] - len(graded.grades[problem]), ends[problem])
        columns.append(
            _of_problem(graded, problem, [values[here] for values in log_scores.values()], ns, num_draws, seed)
        )
        advance(1)
    clusters, _ = number_clusters(graded.pool.problems[problem].problem.text for problem in graded.measured)
    curves = []
    for i, name in enumerate(names):
        values = np.stack([column[i] for column in columns], axis=1)
        points = tuple(mean_interval(of_n, clusters) for of_n in values)
        curves.append(Curve(*name, tuple(ns), values, clusters, points))
    return curves


def log_scores_of(steps: StepScores, aggregator: str) -> Floats:
    """The log of the score of each solution; −inf where it has none."""
    return np.array([-np.inf if step is None else log_score(step, aggregator) for step in steps])


def _of_problem(
    graded: GradedPool, problem: int, log_scores: Sequence[Floats], ns: Sequence[int], num_draws: int, seed: int
) -> list[Floats]:
    """The values of one problem: without a PRM, then for each set of scores Best-of-n and the weighted vote; in the end
    of each, those that pass the public tests, where there are any."""
    correct_N, groups_N = graded.correct(problem), graded.groups(problem)
    tested = graded.has_tests
    if not len(correct_N):
        return [np.zeros(len(ns))] * (len(WITHOUT_PRM) + tested + (len(WITH_PRM) + tested) * len(log_scores))
    ns = [min(n, len(correct_N)) for n in ns]
    orders_DN = draw_orders(len(correct_N), num_draws, [seed, problem])

    def votes(weights_N: Floats) -> Floats:
        values_K = voted(groups_N, correct_N, weights_N, ns, orders_DN)
        # One solution outvotes nobody: this value is known exactly.
        return np.where(np.asarray(ns) == 1, (correct_N & (groups_N >= 0)).mean(), values_K)

    def passing(log_scores_N: Floats) -> list[Floats]:
        return [best_of(correct_N, after_tests(log_scores_N, graded.passed(problem)), ns)] * tested

    values = [np.full(len(ns), correct_N.mean()), votes(np.ones(len(correct_N))), pass_at(correct_N, ns)]
    values += passing(np.zeros(len(correct_N)))
    for log_scores_N in log_scores:
        values += [best_of(correct_N, log_scores_N, ns), votes(relative_weights(log_scores_N))]
        values += passing(log_scores_N)
    return values

"""From scores to the numbers of the report: what was measured per seed, PRM and test set, and what theory predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.demo.stages import NATURAL, SeedResult
from prism_prm.evaluation.judged_steps import Steps
from prism_prm.evaluation.measure import Measurer
from prism_prm.metrics import threshold_for_tpr
from prism_prm.pools import read_pool
from prism_prm.rerank.curves import Curve, compute_curves
from prism_prm.rerank.expectation import best_of
from prism_prm.rerank.grading import GradedPool, grade_pool
from prism_prm.rerank.step_scores import StepScores
from prism_prm.stats import Interval, over_seeds
from prism_prm.tasks import MathGrader
from prism_prm.theory.selection import best_of_n
from prism_prm.world.perturb import PERTURBATIONS

TPR = 0.9
AGGREGATORS = ("min", "product")
"""Measured for all PRMs, beside each one's own."""
NUM_DRAWS = 200
"""Draws per problem for the votes."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """What one PRM does on one set of test trees."""

    auroc: float
    fpr: float
    fnr: float
    """Both on natural errors at threshold 0.5."""
    fpr_at_tpr: dict[str, float]
    """By test set: the share of wrong steps above the threshold that keeps 90 % of the right ones."""

    @property
    def natural(self) -> float:
        return self.fpr_at_tpr[NATURAL]

    @property
    def perturbed(self) -> float:
        """The mean over the classes of perturbed errors."""
        return float(np.mean([self.fpr_at_tpr[kind] for kind in PERTURBATIONS]))


def measure_steps(steps: Steps) -> StepNumbers:
    """All numbers of one PRM; the threshold for the matched TPR is that of the natural test set's right steps."""
    natural = steps.only_groups([NATURAL])
    ranked = Measurer(natural, 0.5, num_draws=1).rankings(names=("auroc",))
    rates = Measurer(natural, 0.5, num_draws=1).rates()
    threshold = threshold_for_tpr(natural.right, natural.probability, TPR)
    by_group = Measurer(steps, threshold, num_draws=1).by_group()
    return StepNumbers(
        ranked["auroc"].value,
        rates["fpr"].value,
        rates["fnr"].value,
        {group: table["fpr"].value for group, table in by_group.items()},
    )


def measure_pool(result: SeedResult, graded: GradedPool, *, far: bool = False) -> list[Curve]:
    """Best-of-N and votes of every PRM, on the same draws."""
    scores = {name: (scored.far_pool if far else scored.pool) or () for name, scored in result.scored.items()}
    hows = dict.fromkeys([*AGGREGATORS, *(scored.aggregator.value for scored in result.scored.values())])
    return compute_curves(graded, scores, aggregators=list(hows), num_draws=NUM_DRAWS, seed=result.seed)


def grade(result: SeedResult, *, far: bool = False) -> GradedPool:
    """The pool's answers, found and judged as in any task."""
    with MathGrader(methods=("####", "last number")) as grader:
        return grade_pool(read_pool(result.world.pool(far=far)), grader)


def differences(a: Sequence[float], b: Sequence[float]) -> Interval:
    """A minus B, paired by seed."""
    return over_seeds([x - y for x, y in zip(a, b, strict=True)])


def find_curve(curves: Sequence[Curve], method: str, prm: str = "", aggregator: str = "") -> Curve:
    """One of the curves of a pool."""
    return next(c for c in curves if (c.method, c.prm, c.aggregator) == (method, prm, aggregator))


def at_n(curve: Curve, n: int) -> float:
    """The accuracy at one n."""
    return curve.points[curve.ns.index(n)].value


def best_scores(graded: GradedPool, pool: StepScores, aggregator: str, ns: Sequence[int]) -> list[float]:
    """The expected score of the best of n solutions, over all problems: what Best-of-N maximises."""
    rest = iter(pool)
    by_problem = []
    for entry in graded.pool.problems:
        some = [next(rest) for _ in entry.solutions]
        scores = np.array([0.0 if steps is None else np.exp(log_score(steps, aggregator)) for steps in some])
        by_problem.append(best_of(scores, scores, ns))
    return [float(value) for value in np.mean(by_problem, axis=0)]


def plain(numbers: Mapping[str, StepNumbers]) -> dict[str, Any]:
    """For metrics.json."""
    return {
        name: {"auroc": x.auroc, "fpr": x.fpr, "fnr": x.fnr, "fpr_at_tpr_90": x.fpr_at_tpr}
        for name, x in numbers.items()
    }


def predicted_best_of_n(
    graded: GradedPool, pool: StepScores, aggregator: str, ns: Sequence[int]
) -> tuple[float, float, float, list[float]]:
    """Best-of-N as the paper's closed form predicts it from a PRM's errors on whole solutions.

    Gives (p, α, β, P(n) for each n), with p of every problem, and α and β of the pool at its 90 % threshold.
    """
    right = [graded.correct(i) for i in range(len(graded.grades))]
    correct = np.concatenate(right)
    scores = np.array([-np.inf if steps is None else log_score(steps, aggregator) for steps in pool])
    finite = np.where(np.isfinite(scores), scores, -1e9)
    threshold = threshold_for_tpr(correct, finite, TPR)
    accepted = finite > threshold
    alpha = float(accepted[~correct].mean()) if (~correct).any() else 0.0
    beta = float((~accepted)[correct].mean()) if correct.any() else 0.0
    shares = np.array([of_problem.mean() for of_problem in right])
    return float(shares.mean()), alpha, beta, [float(best_of_n(shares, alpha, beta, n).mean()) for n in ns]

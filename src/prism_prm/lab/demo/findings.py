"""The numbers of the report: what was measured per seed, PRM and test set, over all seeds, and what theory predicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism_prm.aggregate import Choice, log_score
from prism_prm.data.pools import read_pool
from prism_prm.data.tasks import TaskGrader
from prism_prm.evaluate.measure import Measurer, Steps
from prism_prm.lab.demo.arms import ARMS
from prism_prm.lab.demo.reinforcement import ANSWER, ORACLE, Run
from prism_prm.lab.demo.stages import BASE, GUIDED_NS, NATURAL, SeedResult
from prism_prm.lab.theory.closed_forms import best_of_n
from prism_prm.lab.world.trees import PERTURBATIONS
from prism_prm.metrics import threshold_for_tpr
from prism_prm.report import NO_DATA, percent
from prism_prm.rl.alarm import PROXY
from prism_prm.search.curves import Curve, best_of, compute_curves
from prism_prm.search.grade_pool import GradedPool, StepScores, grade_pool
from prism_prm.stats import Interval, over_seeds

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
    with TaskGrader(methods=("####", "last number")) as grader:
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
    """The expected score of the best of n solutions, over all problems: what Best-of-N maximizes."""
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


@dataclass(frozen=True)
class Findings:
    """Numbers of all seeds, in the order of the seeds."""

    results: Sequence[SeedResult]
    steps: Sequence[dict[str, StepNumbers]]
    curves: Sequence[list[Curve]]
    far_steps: Sequence[dict[str, StepNumbers]]
    far_curves: Sequence[list[Curve]]
    graded: Sequence[GradedPool]

    @property
    def prms(self) -> list[str]:
        """The base PRM and the arms that every seed has."""
        return [name for name in self.results[0].scored if all(name in result.scored for result in self.results)]

    def of_steps(self, prm: str, get: Callable[[StepNumbers], float], *, far: bool = False) -> list[float]:
        """One value per seed."""
        return [get(seed[prm]) for seed in (self.far_steps if far else self.steps)]

    def of_class(self, prm: str, group: str) -> list[float]:
        """One FPR at the matched TPR per seed, on one test set."""
        return self.of_steps(prm, lambda numbers: numbers.fpr_at_tpr[group])

    def aggregator(self, prm: str) -> Choice[str]:
        """The aggregator of a PRM, the same for all seeds."""
        return self.results[0].scored[prm].aggregator

    def of_pool(self, method: str, prm: str, n: int, *, far: bool = False) -> list[float]:
        """One accuracy per seed."""
        how = self.aggregator(prm).value if prm else ""
        return [at_n(find_curve(curves, method, prm, how), n) for curves in (self.far_curves if far else self.curves)]

    def of_guided(self, prm: str, n: int, *, far: bool = False) -> list[float]:
        """One share of problems solved by guided search per seed."""
        scored = [result.scored[prm] for result in self.results]
        outcomes = [(s.far_guided or {}) if far else s.guided for s in scored]
        return [float(np.mean(by_n[n])) for by_n in outcomes]

    @property
    def runs(self) -> list[Run]:
        """The policies that every seed has trained."""
        return [run for run in self.results[0].policies if all(run in result.policies for result in self.results)]

    @property
    def plain_runs(self) -> list[Run]:
        """The runs that the figure and the summary show: GRPO as it is, without a bond to the untrained policy."""
        return [run for run in self.runs if run == Run(run.prm)]

    def of_policy(self, run: Run, measure: str, at: int = -1) -> list[float]:
        """One value per seed: of the last look, or another one."""
        return [result.policies[run].points[at].mean(measure) for result in self.results]

    @property
    def ns(self) -> tuple[int, ...]:
        return self.curves[0][0].ns

    @property
    def reference_ns(self) -> tuple[int, int]:
        """The two n that are compared: 4 and 16, or what the pool has."""
        many = max(n for n in self.ns if n <= 16)
        return max(n for n in self.ns if n <= max(1, many // 4)), many


def find(results: Sequence[SeedResult]) -> Findings:
    """Measure everything."""
    far = results[0].world.far_data is not None
    steps = [{name: measure_steps(s.steps) for name, s in result.scored.items()} for result in results]
    far_steps = [
        {name: measure_steps(s.far_steps) for name, s in result.scored.items() if s.far_steps is not None}
        for result in (results if far else ())
    ]
    graded = [grade(result) for result in results]
    curves = [measure_pool(result, pool) for result, pool in zip(results, graded, strict=True)]
    far_curves = [measure_pool(result, grade(result, far=True), far=True) for result in results] if far else []
    return Findings(results, steps, curves, far_steps, far_curves, graded)


def title_of(prm: str) -> str:
    """How a PRM is called in tables."""
    return {BASE: "base PRM", ORACLE: "oracle"}.get(prm) or ARMS[prm].title


SUMMARY: dict[str, Callable[[StepNumbers], float]] = {
    "AUROC ↑": lambda s: s.auroc,
    "FPR at 0.5 ↓": lambda s: s.fpr,
    "FNR at 0.5 ↓": lambda s: s.fnr,
    "FPR at TPR 90 ↓": lambda s: s.natural,
    "injected errors: FPR at TPR 90 ↓": lambda s: s.perturbed,
}
"""Columns of the summary that are about steps."""


def summary(
    found: Findings, *, far: bool = False, show: Callable[[Interval], str] = percent
) -> tuple[list[str], list[list[str]]]:
    """The closing table: headers and rows."""
    n_few, n_many = found.reference_ns
    headers = ["PRM", *SUMMARY, f"Best-of-{n_few} ↑", f"Best-of-{n_many} ↑", f"weighted vote {n_many} ↑"]
    headers += [f"beam search {n} ↑" for n in GUIDED_NS]
    policies = {} if far else {run.prm: run for run in found.plain_runs}
    if policies:
        headers += ["RL: solved", "RL: reward"]

    def ends(prm: str) -> list[str]:
        """True accuracy and reward of the policy that the PRM rewarded."""
        if prm not in policies:
            return [NO_DATA] * 2 if policies else []
        cells = []
        for measure in (ANSWER, PROXY):
            then, now = (over_seeds(found.of_policy(policies[prm], measure, at)).value for at in (0, -1))
            cells.append(f"{percent(then, digits=0)} → {percent(now, digits=0)}")
        return cells

    rows = []
    for prm in found.prms:
        cells = [show(over_seeds(found.of_steps(prm, get, far=far))) for get in SUMMARY.values()]
        for method, n in (("best-of-n", n_few), ("best-of-n", n_many), ("weighted", n_many)):
            cells.append(show(over_seeds(found.of_pool(method, prm, n, far=far))))
        cells += [show(over_seeds(found.of_guided(prm, n, far=far))) for n in GUIDED_NS]
        cells += ends(prm)
        rows.append([title_of(prm), *cells])
    if ORACLE in policies:  # which has nothing else to show
        rows.append([title_of(ORACLE), *[NO_DATA] * (len(headers) - 3), *ends(ORACLE)])
    return headers, rows

"""The numbers of the demo: the results of a seed, measurements over all seeds, and theoretical predictions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import Choice, log_score
from prism_prm.backends.load_prm import load_prm
from prism_prm.backends.policy import Sampling, open_policy
from prism_prm.console import progress
from prism_prm.data.pools import read_pool
from prism_prm.data.tasks import TaskGrader
from prism_prm.evaluate.measure import AUROCS, Measurer, Steps
from prism_prm.lab.demo.reinforcement import ANSWER, ORACLE, PolicyRun, Reinforcement
from prism_prm.lab.demo.settings import ARMS, VALIDITY_BASE
from prism_prm.lab.theory.closed_forms import best_of_n
from prism_prm.lab.world.build import World, WorldSettings
from prism_prm.lab.world.oracle import solved
from prism_prm.lab.world.problems import Problem
from prism_prm.lab.world.trees import PERTURBATIONS
from prism_prm.metrics import Ranking, Target
from prism_prm.report import NO_DATA, percent
from prism_prm.rl.alarm import PROXY, TrainedPolicy
from prism_prm.scorer import Scorer
from prism_prm.search.curves import Curve, best_of, compute_curves
from prism_prm.search.engine import SearchEngine
from prism_prm.search.grade_pool import GradedPool, StepScores, grade_pool
from prism_prm.search.methods import SearchSettings
from prism_prm.search.tree import SearchResult
from prism_prm.stats import Interval, over_seeds

BASE = "base"
NATURAL = "natural"
GUIDED_NS = (4, 16)
"""Candidates per round of the beam search."""

TPR = 0.9
AGGREGATORS = ("min", "product")
"""Measured for all PRMs, besides each PRM's own."""
NUM_DRAWS = 200
"""Draws per problem for votes."""


@dataclass(frozen=True)
class Scored:
    """All scores of one PRM on the test sets of one seed."""

    aggregator: Choice[str]
    """The PRM's aggregator, for solutions and beams."""
    steps: Steps
    """All test trees; one group per test set."""
    pool: StepScores
    """P(right) of the steps of each solution of the pool."""
    guided: dict[int, list[bool]]
    """Beam search guided by the PRM: for each n, whether it solved each problem of the pool."""
    far_steps: Steps | None = None
    far_pool: StepScores | None = None
    far_guided: dict[int, list[bool]] | None = None


@dataclass(frozen=True)
class SeedResult:
    """The results of one seed."""

    seed: int
    world: World
    prms: dict[str, Path]
    """Folders of the base PRM and of every arm that was trained."""
    scored: dict[str, Scored]
    """The scores of each of them."""
    rounds: dict[str, dict[str, Any]]
    """The validation of each arm's rounds, as in run.json."""
    failed: dict[str, str]
    """Arms that could not be trained (e.g. a curriculum bin without pairs) → the error."""
    policies: dict[PolicyRun, TrainedPolicy] = field(default_factory=dict)
    """The policies trained with these PRMs as rewards."""
    rl: Reinforcement | None = None


def beam_settings(n: int, aggregator: str, world: WorldSettings) -> SearchSettings:
    """Beam search with n candidates per round."""
    sampling = Sampling(temperature=world.temperature, max_step_tokens=8, max_tokens=64)
    return SearchSettings("beam", n=n, aggregator=aggregator, max_steps=12, seed=world.seed, sampling=sampling)


def guided_search(
    world: World,
    prm: Path | Scorer,
    settings: SearchSettings,
    *,
    far: bool = False,
    name: str = "PRM",
    family: str = "qwen",
) -> list[bool]:
    """For each problem of the pool, whether the best solution of a beam search with the PRM is right."""
    policy = world.far_policy if far else world.policy
    problems = [entry.problem.text for entry in read_pool(world.pool(far=far)).problems]
    outcome = [False] * len(problems)
    with (
        contextlib.closing(open_policy(f"hf:{policy}")) as opened,
        progress(f"{name}: beam search, n = {settings.n}", len(problems)) as advance,
    ):
        scorer = load_prm(prm, family=family, device="cpu", on_too_long="skip") if isinstance(prm, Path) else prm
        for found in SearchEngine(opened, scorer, settings, at_once=64).run(problems):
            if isinstance(found, SearchResult):
                if found.solutions:
                    how = settings.effective_aggregator
                    scores = [log_score(one.scores, how) if one.scores else -np.inf for one in found.solutions]
                    best = found.solutions[int(np.argmax(scores))]
                    problem = Problem.parse(problems[found.problem], world.settings.modulus)
                    outcome[found.problem] = solved(problem, best.steps)
                advance(1)
    return outcome


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The metrics of one PRM on the test trees."""

    auroc: float
    """Pooled."""
    auroc_prefix: float
    auroc_problem: float
    fpr: float
    fnr: float
    """Both on natural errors at threshold 0.5."""
    fpr_at_tpr_90: dict[str, float]
    """By test set: the share of wrong steps above the threshold that keeps 90 % of the right ones."""

    @property
    def natural(self) -> float:
        return self.fpr_at_tpr_90[NATURAL]

    @property
    def perturbed(self) -> float:
        """The mean over the classes of injected errors."""
        return float(np.mean([self.fpr_at_tpr_90[kind] for kind in PERTURBATIONS]))


def measure_steps(steps: Steps) -> StepNumbers:
    """The metrics of one PRM; the threshold for TPR 90 is fitted on the right steps of the natural test set."""
    natural = steps.only_groups([NATURAL])
    measurer = Measurer(natural, 0.5, num_draws=1)
    ranked, rates = measurer.rankings(names=tuple(AUROCS)), measurer.rates()
    threshold = Ranking.of(natural.right, natural.probability).threshold(Target("tpr", TPR))
    by_group = Measurer(steps, threshold, num_draws=1).by_group()
    return StepNumbers(
        ranked["auroc"].value,
        ranked["auroc_prefix"].value,
        ranked["auroc_problem"].value,
        rates["fpr"].value,
        rates["fnr"].value,
        {group: table["fpr"].value for group, table in by_group.items()},
    )


def differences(a: Sequence[float], b: Sequence[float]) -> Interval:
    """A minus B, paired by seed."""
    return over_seeds([x - y for x, y in zip(a, b, strict=True)])


def find_curve(curves: Sequence[Curve], method: str, prm: str = "", aggregator: str = "") -> Curve:
    return next(c for c in curves if (c.method, c.prm, c.aggregator) == (method, prm, aggregator))


def at_n(curve: Curve, n: int) -> float:
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


def predicted_best_of_n(
    graded: GradedPool, pool: StepScores, aggregator: str, ns: Sequence[int]
) -> tuple[float, float, float, list[float]]:
    """Best-of-N predicted by the paper's closed form from a PRM's errors on whole solutions.

    Returns (p, α, β, P(n) for each n), with p per problem, and α and β on the pool at its 90 % threshold.
    """
    right = [graded.correct(i) for i in range(len(graded.grades))]
    correct = np.concatenate(right)
    scores = np.array([-np.inf if steps is None else log_score(steps, aggregator) for steps in pool])
    finite = np.where(np.isfinite(scores), scores, -1e9)
    threshold = Ranking.of(correct, finite).threshold(Target("tpr", TPR))
    accepted = finite > threshold
    alpha = float(accepted[~correct].mean()) if (~correct).any() else 0.0
    beta = float((~accepted)[correct].mean()) if correct.any() else 0.0
    shares = np.array([of_problem.mean() for of_problem in right])
    return float(shares.mean()), alpha, beta, [float(best_of_n(shares, alpha, beta, n).mean()) for n in ns]


@dataclass(frozen=True)
class Findings:
    """The results of all seeds, in order."""

    results: Sequence[SeedResult]
    steps: Sequence[dict[str, StepNumbers]]
    curves: Sequence[list[Curve]]
    far_steps: Sequence[dict[str, StepNumbers]]
    far_curves: Sequence[list[Curve]]
    graded: Sequence[GradedPool]

    @property
    def prms(self) -> list[str]:
        """The base PRM and the arms that were trained with every seed."""
        return [name for name in self.results[0].scored if all(name in result.scored for result in self.results)]

    def of_steps(self, prm: str, get: Callable[[StepNumbers], float], *, far: bool = False) -> list[float]:
        """One value per seed."""
        return [get(seed[prm]) for seed in (self.far_steps if far else self.steps)]

    def of_class(self, prm: str, group: str) -> list[float]:
        """One FPR at the matched TPR per seed, on one test set."""
        return self.of_steps(prm, lambda numbers: numbers.fpr_at_tpr_90[group])

    def aggregator(self, prm: str) -> Choice[str]:
        return self.results[0].scored[prm].aggregator

    def of_pool(self, method: str, prm: str, n: int, *, far: bool = False) -> list[float]:
        """One accuracy per seed."""
        aggregator = self.aggregator(prm).value if prm else ""
        of_seeds = self.far_curves if far else self.curves
        return [at_n(find_curve(curves, method, prm, aggregator), n) for curves in of_seeds]

    def of_guided(self, prm: str, n: int, *, far: bool = False) -> list[float]:
        """The share of problems solved by beam search, per seed."""
        scored = [result.scored[prm] for result in self.results]
        outcomes = [(s.far_guided or {}) if far else s.guided for s in scored]
        return [float(np.mean(by_n[n])) for by_n in outcomes]

    @property
    def runs(self) -> list[PolicyRun]:
        """The policies that were trained with every seed."""
        return [run for run in self.results[0].policies if all(run in result.policies for result in self.results)]

    @property
    def plain_runs(self) -> list[PolicyRun]:
        """The runs in the figure and the summary: plain GRPO without a KL penalty."""
        return [run for run in self.runs if run == PolicyRun(run.prm)]

    def of_policy(self, run: PolicyRun, measure: str, at: int = -1) -> list[float]:
        """One value per seed, at the last evaluation point or another one."""
        return [result.policies[run].points[at].mean(measure) for result in self.results]

    @property
    def ns(self) -> tuple[int, ...]:
        return self.curves[0][0].ns

    @property
    def reference_ns(self) -> tuple[int, int]:
        """The two n that are compared: 4 and 16, or fewer if the pool is smaller."""
        many = max(n for n in self.ns if n <= 16)
        return max(n for n in self.ns if n <= max(1, many // 4)), many


def find(results: Sequence[SeedResult]) -> Findings:

    def measure_pool(result: SeedResult, *, far: bool) -> tuple[GradedPool, list[Curve]]:
        """Grade the pool, and compute Best-of-N and votes of every PRM on the same draws."""
        with TaskGrader(methods=("####", "last number")) as grader:
            graded = grade_pool(read_pool(result.world.pool(far=far)), grader)
        scores = {name: (scored.far_pool if far else scored.pool) or () for name, scored in result.scored.items()}
        used = dict.fromkeys([*AGGREGATORS, *(scored.aggregator.value for scored in result.scored.values())])
        return graded, compute_curves(graded, scores, aggregators=list(used), num_draws=NUM_DRAWS, seed=result.seed)

    far = results if results[0].world.far_data is not None else ()
    steps = [{name: measure_steps(one.steps) for name, one in result.scored.items()} for result in results]
    far_steps = [
        {name: measure_steps(one.far_steps) for name, one in result.scored.items() if one.far_steps is not None}
        for result in far
    ]
    graded, curves = zip(*(measure_pool(result, far=False) for result in results), strict=True)
    far_curves = [measure_pool(result, far=True)[1] for result in far]
    return Findings(results, steps, curves, far_steps, far_curves, graded)


def title_of(prm: str) -> str:
    """The title of a PRM in tables."""
    return {BASE: "base PRM", VALIDITY_BASE: "base, ReasonEval head", ORACLE: "oracle"}.get(prm) or ARMS[prm].title


SUMMARY: dict[str, Callable[[StepNumbers], float]] = {
    "AUROC within prefix ↑": lambda s: s.auroc_prefix,
    "AUROC within problem ↑": lambda s: s.auroc_problem,
    "AUROC, pooled ↑": lambda s: s.auroc,
    "FPR at 0.5 ↓": lambda s: s.fpr,
    "FNR at 0.5 ↓": lambda s: s.fnr,
    "FPR at TPR 90 ↓": lambda s: s.natural,
    "injected errors: FPR at TPR 90 ↓": lambda s: s.perturbed,
}
"""The step metrics in the summary: header → value. Those without data in any world are left out."""


def summary(
    found: Findings, *, far: bool = False, show: Callable[[Interval], str] = percent
) -> tuple[list[str], list[list[str]]]:
    """The summary table: headers and rows."""
    n_few, n_many = found.reference_ns
    by_title = {
        title: [over_seeds(found.of_steps(prm, get, far=far)) for prm in found.prms] for title, get in SUMMARY.items()
    }
    by_title = {title: values for title, values in by_title.items() if not all(np.isnan(one.value) for one in values)}
    headers = ["PRM", *by_title, f"Best-of-{n_few} ↑", f"Best-of-{n_many} ↑", f"weighted vote {n_many} ↑"]
    headers += [f"beam search {n} ↑" for n in GUIDED_NS]
    policies = {} if far else {run.prm: run for run in found.plain_runs}
    if policies:
        headers += ["RL: solved", "RL: reward"]

    def ends(prm: str) -> list[str]:
        """True accuracy and reward of the policy trained with the PRM, before and after."""
        if prm not in policies:
            return [NO_DATA] * 2 if policies else []
        cells = []
        for measure in (ANSWER, PROXY):
            then, now = (over_seeds(found.of_policy(policies[prm], measure, at)).value for at in (0, -1))
            cells.append(f"{percent(then, digits=0)} → {percent(now, digits=0)}")
        return cells

    rows = []
    for i, prm in enumerate(found.prms):
        cells = [show(values[i]) for values in by_title.values()]
        for method, n in (("best-of-n", n_few), ("best-of-n", n_many), ("weighted", n_many)):
            cells.append(show(over_seeds(found.of_pool(method, prm, n, far=far))))
        cells += [show(over_seeds(found.of_guided(prm, n, far=far))) for n in GUIDED_NS]
        cells += ends(prm)
        rows.append([title_of(prm), *cells])
    if ORACLE in policies:  # it has no other values
        rows.append([title_of(ORACLE), *[NO_DATA] * (len(headers) - 3), *ends(ORACLE)])
    return headers, rows

"""The results over all seeds, and the closing table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.chosen import Choice
from prism_prm.demo.arms import ARMS
from prism_prm.demo.numbers import (
    StepNumbers,
    at_n,
    find_curve,
    grade,
    measure_pool,
    measure_steps,
)
from prism_prm.demo.policies import change, plain_runs
from prism_prm.demo.reinforcement import ANSWER, ORACLE, Run
from prism_prm.demo.stages import BASE, GUIDED_NS, SeedResult
from prism_prm.report import NO_DATA, percent
from prism_prm.rerank.curves import Curve
from prism_prm.rerank.grading import GradedPool
from prism_prm.rl.looks import PROXY
from prism_prm.stats import Interval, over_seeds


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
    def ns(self) -> tuple[int, ...]:
        return self.curves[0][0].ns


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
    n_few, n_many = reference_ns(found)
    headers = ["PRM", *SUMMARY, f"Best-of-{n_few} ↑", f"Best-of-{n_many} ↑", f"weighted vote {n_many} ↑"]
    headers += [f"beam search {n} ↑" for n in GUIDED_NS]
    policies = {} if far else {run.prm: run for run in plain_runs(found)}
    if policies:
        headers += ["RL: solved", "RL: reward"]

    def ends(prm: str) -> list[str]:
        """True accuracy and reward of the policy that the PRM rewarded."""
        if prm not in policies:
            return [NO_DATA] * 2 if policies else []
        return [change(found, policies[prm], measure) for measure in (ANSWER, PROXY)]

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


def reference_ns(found: Findings) -> tuple[int, int]:
    """The two n that are compared: 4 and 16, or what the pool has."""
    many = max(n for n in found.ns if n <= 16)
    return max(n for n in found.ns if n <= max(1, many // 4)), many

"""Controls for re-ranking: rules that select without reading, and how often a PRM selects what they do.

A gain of a PRM is only a gain if no such rule has it too: `min` over steps favors short solutions, for example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from prism_prm.arrays import Bools, Floats
from prism_prm.data.pools import Solution
from prism_prm.report import Report, p_value, percent, signed_percent
from prism_prm.search.curves import Curve, best_of
from prism_prm.search.grade_pool import GradedPool, StepScores, log_scores_of
from prism_prm.search.select import best_of_n
from prism_prm.stats import Comparison

LENGTH_RULES: dict[str, Callable[[Solution], float]] = {
    "fewest-steps": lambda solution: -len(solution.steps),
    "most-steps": lambda solution: len(solution.steps),
    "shortest": lambda solution: -len(solution.text),
    "longest": lambda solution: len(solution.text),
}
"""Rule → the value that it maximizes; lengths are in characters."""
FIRST = "first"
"""The rule that selects the first solution in the order of the pool."""
SOURCE = "source-only"
"""The rule that selects a solution of the source that is right most often on the other problems."""
CONTROLS = (*LENGTH_RULES, FIRST)
"""The rules that need nothing but the solutions; SOURCE also needs a pool with several sources."""
ALPHA = 0.05
"""The chance of a warning about any PRM and rule if no PRM cares for length."""


def compute_controls(graded: GradedPool, ns: Sequence[int]) -> tuple[Curve, ...]:
    """The curve of each control on the measured problems: exact, like Best-of-n; tied solutions have equal chances."""
    values_of = {
        rule: {problem: rule_values(_solutions(graded, problem), rule) for problem in graded.measured}
        for rule in CONTROLS
    }
    if len({solution.source for problem in graded.measured for solution in _solutions(graded, problem)}) > 1:
        values_of[SOURCE] = _by_source(graded)
    return tuple(_curve(graded, (rule, "", ""), values, ns) for rule, values in values_of.items())


def _curve(graded: GradedPool, name: tuple[str, str, str], scores: Mapping[int, Floats], ns: Sequence[int]) -> Curve:
    """The curve of the rule that selects the highest of these scores; by problem, one score per solution."""
    values = np.zeros((len(ns), len(graded.measured)))
    for column, problem in enumerate(graded.measured):
        if size := len(scores[problem]):
            values[:, column] = best_of(graded.correct(problem), scores[problem], [min(n, size) for n in ns])
    return Curve.of(graded, name, ns, values)


def _solutions(graded: GradedPool, problem: int) -> tuple[Solution, ...]:
    return graded.pool.problems[problem].solutions


def rule_values(solutions: Sequence[Solution], rule: str) -> Floats:
    """What a rule maximizes, per solution; blank solutions come last, as they do for a PRM."""
    own = [-float(i) if rule == FIRST else LENGTH_RULES[rule](solution) for i, solution in enumerate(solutions)]
    return np.where([bool(solution.steps) for solution in solutions], own, -np.inf)


def _by_source(graded: GradedPool) -> dict[int, Floats]:
    """The share of right solutions that the source of each solution has on other problems (by text); for a source that
    has none there, the share of all sources."""
    right: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    """By source ("" for all) and text ("" for all)."""
    for problem in graded.measured:
        text = graded.pool.problems[problem].problem.text
        for solution, correct in zip(_solutions(graded, problem), graded.correct(problem).tolist(), strict=True):
            for key in {(source, place) for source in (solution.source, "") for place in (text, "")}:
                total[key] += 1
                right[key] += correct

    def elsewhere(source: str, text: str) -> float:
        count = total[source, ""] - total[source, text]
        if count:
            return (right[source, ""] - right[source, text]) / count
        return elsewhere("", text) if source else 0.0

    values = {}
    for problem in graded.measured:
        entry = graded.pool.problems[problem]
        values[problem] = np.array(
            [elsewhere(s.source, entry.problem.text) if s.steps else -np.inf for s in entry.solutions]
        )
    return values


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the Best-of-N pick of a PRM is also a pick of a length rule.

    The expected share is that of picks drawn uniformly from the solutions that are as right as the PRM's pick (from
    all, if the problem has no reference answer): a PRM may prefer short solutions if the right ones are short.
    """

    prm: str
    rule: str
    num_problems: int
    """Problems in which such a pick may agree or not; the others are not counted."""
    share: float
    expected: float
    p: float
    """The exact chance that uniform picks agree at least as often (a sum of independent draws, one per problem)."""
    is_suspicious: bool
    """Whether p is below ALPHA after Bonferroni's correction for all PRMs and rules."""


def measure_agreements(
    graded: GradedPool, scores: Mapping[str, StepScores], aggregators: Mapping[str, str], num_pools: int = 1
) -> tuple[Agreement, ...]:
    """The agreement of each PRM's Best-of-N pick with each length rule.

    With `num_pools`, p-values are corrected for as many pools.
    """
    picks = {prm: _picks(graded, steps, aggregators[prm]) for prm, steps in scores.items()}
    num_tests = num_pools * len(picks) * len(LENGTH_RULES)
    return tuple(_agreement(graded, prm, own, rule, num_tests) for prm, own in picks.items() for rule in LENGTH_RULES)


def _picks(graded: GradedPool, steps: StepScores, aggregator: str) -> dict[int, int]:
    """By problem, the solution with the highest score; problems without scores are left out."""
    log_scores = log_scores_of(steps, aggregator, graded.pool)
    return {
        problem: best_of_n(log_scores[own])
        for problem, own in enumerate(graded.slices)
        if any(of_solution is not None for of_solution in steps[own])
    }


def _agreement(graded: GradedPool, prm: str, picks: Mapping[int, int], rule: str, num_tests: int) -> Agreement:
    agreed, chances = [], []
    for problem, pick in picks.items():
        grades, values_N = graded.grades[problem], rule_values(_solutions(graded, problem), rule)
        of_rule_N: Bools = values_N == values_N.max()
        peers_N = np.array([grade.correct == grades[pick].correct for grade in grades]) & np.isfinite(values_N)
        chance = float(of_rule_N[peers_N].mean())
        if 0 < chance < 1:
            agreed.append(bool(of_rule_N[pick]))
            chances.append(chance)
    if not chances:
        return Agreement(prm, rule, 0, np.nan, np.nan, np.nan, is_suspicious=False)
    p = chance_of_at_least(sum(agreed), chances)
    return Agreement(
        prm, rule, len(chances), float(np.mean(agreed)), float(np.mean(chances)), p, is_suspicious=p < ALPHA / num_tests
    )


def chance_of_at_least(count: int, chances: Sequence[float]) -> float:
    """The chance of `count` or more successes in independent trials with these chances (Poisson binomial, exact)."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.append(distribution * (1 - chance), 0.0) + np.append(0.0, distribution * chance)
    return min(1.0, float(distribution[count:].sum()))


def warnings(agreements: Sequence[Agreement]) -> list[str]:
    """A line for each suspicious agreement."""
    return [
        f"Warning: {found.prm} selects what the rule {found.rule.replace('-', ' ')} selects on "
        f"{percent(found.share)} % of {found.num_problems:,} problems; {percent(found.expected)} % are expected of "
        f"picks at random from equally right solutions (p {p_value(found.p)}). Its picks may follow length."
        for found in agreements
        if found.is_suspicious
    ]


@dataclass(frozen=True, slots=True)
class AdjustedMin:
    """Best-of-n by length-adjusted `min` against `min`: what is left if short solutions have no advantage."""

    prm: str
    n: int
    min: float
    """Accuracy."""
    adjusted: float
    gain: Comparison
    """Adjusted minus `min`, paired."""
    min_picks: Agreement
    """How often the pick by `min` has the fewest steps."""
    adjusted_picks: Agreement


def _adjusted_min(graded: GradedPool, prm: str, steps: StepScores, n: int) -> AdjustedMin:
    curves, picks = [], []
    for aggregator in ("min", "adjusted-min"):
        by_solution = log_scores_of(steps, aggregator, graded.pool)
        by_problem = {problem: by_solution[graded.slices[problem]] for problem in graded.measured}
        curves.append(_curve(graded, ("best-of-n", prm, aggregator), by_problem, (n,)))
        picks.append(_agreement(graded, prm, _picks(graded, steps, aggregator), "fewest-steps", num_tests=1))
    plain, adjusted = curves
    return AdjustedMin(prm, n, plain.points[0].value, adjusted.points[0].value, adjusted.minus(plain, n), *picks)


@dataclass(frozen=True, slots=True)
class Controls:
    """What selecting from a pool without reading achieves, and how close PRMs are to it."""

    curves: tuple[Curve, ...] = ()
    """One per rule; empty if nothing is measured."""
    agreements: tuple[Agreement, ...] = ()
    adjusted: tuple[AdjustedMin, ...] = ()
    """One per PRM, at the largest n; empty if nothing is measured."""

    def metrics(self) -> dict[str, Any]:
        """The part of `metrics.json`."""
        return {
            "curves": [row for curve in self.curves for row in curve.rows()],
            "agreement": [asdict(found) for found in self.agreements],
            "adjusted_min": [asdict(found) for found in self.adjusted],
        }


def measure_controls(
    graded: GradedPool,
    scores: Mapping[str, StepScores],
    aggregators: Mapping[str, str],
    ns: Sequence[int],
    num_pools: int = 1,
) -> Controls:
    """The controls of a pool, and what they say about each PRM with its aggregator; without `ns`, nothing is measured.

    With `num_pools`, warnings are corrected for as many pools.
    """
    agreements = measure_agreements(graded, scores, aggregators, num_pools)
    if not ns:
        return Controls(agreements=agreements)
    adjusted = tuple(_adjusted_min(graded, prm, steps, ns[-1]) for prm, steps in scores.items())
    return Controls(compute_controls(graded, ns), agreements, adjusted)


def tabulate_adjusted(report: Report, adjusted: Sequence[AdjustedMin]) -> None:
    """Add the table of `min` against length-adjusted `min`."""

    def share(found: Agreement) -> str:
        return f"{percent(found.share)} (expected {percent(found.expected)})"

    rows = [
        [
            one.prm, str(one.n), percent(one.min), percent(one.adjusted),
            f"{signed_percent(one.gain)} (p {p_value(one.gain.p)})", share(one.min_picks), share(one.adjusted_picks),
        ]
        for one in adjusted
    ]  # fmt: skip
    headers = ["PRM", "n", "min ↑", "adjusted-min ↑", "difference", "fewest steps, min", "fewest steps, adjusted-min"]
    if rows:
        caption = "Best-of-n by min, and by min adjusted for length (%): accuracy, and picks with the fewest steps"
        report.table(headers, rows, caption=caption)

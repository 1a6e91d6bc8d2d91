"""Controls for re-ranking: rules that select without reading, and how often a PRM selects what they do.

A gain of a PRM is only a gain if no such rule has it too: `min` over steps favors short solutions, for example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.arrays import Bools, Floats
from prism_prm.data.pools import Solution
from prism_prm.report import p_value, percent
from prism_prm.search.curves import Curve, best_of
from prism_prm.search.grade_pool import GradedPool
from prism_prm.search.select import Selection
from prism_prm.stats import mean_interval, number_clusters

LENGTH_RULES: dict[str, Callable[[Solution], float]] = {
    "fewest-steps": lambda solution: -len(solution.steps),
    "most-steps": lambda solution: len(solution.steps),
    "shortest": lambda solution: -len(solution.text),
    "longest": lambda solution: len(solution.text),
}
"""Rule → the value that it maximizes; lengths are in characters."""
FIRST = "first"
"""The rule that selects the first solution in the order of the pool."""
CONTROLS = (*LENGTH_RULES, FIRST)
ALPHA = 0.05
"""The chance of a warning about any PRM and rule if no PRM cares for length."""


def compute_controls(graded: GradedPool, ns: Sequence[int]) -> list[Curve]:
    """The curve of each control on the measured problems: exact, like Best-of-n; tied solutions have equal chances."""
    values = {rule: np.zeros((len(ns), len(graded.measured))) for rule in CONTROLS}
    for column, problem in enumerate(graded.measured):
        solutions = graded.pool.problems[problem].solutions
        if solutions:
            sizes = [min(n, len(solutions)) for n in ns]
            for rule, of_rule in values.items():
                of_rule[:, column] = best_of(graded.correct(problem), rule_values(solutions, rule), sizes)
    clusters, _ = number_clusters(graded.pool.problems[problem].problem.text for problem in graded.measured)
    return [
        Curve(rule, "", "", tuple(ns), of_rule, clusters, tuple(mean_interval(of_n, clusters) for of_n in of_rule))
        for rule, of_rule in values.items()
    ]


def rule_values(solutions: Sequence[Solution], rule: str) -> Floats:
    """What a rule maximizes, per solution; blank solutions come last, as they do for a PRM."""
    own = [-float(i) if rule == FIRST else LENGTH_RULES[rule](solution) for i, solution in enumerate(solutions)]
    return np.where([bool(solution.steps) for solution in solutions], own, -np.inf)


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


def measure_agreements(graded: GradedPool, selections: Sequence[Selection]) -> list[Agreement]:
    """The agreement of each PRM's Best-of-N pick with each length rule."""
    picks: dict[str, dict[int, int]] = {}
    for chosen in selections:
        if chosen.rule == "best-of-n" and chosen.solution is not None and chosen.score is not None:
            picks.setdefault(chosen.prm, {})[chosen.problem_id] = chosen.solution
    num_tests = len(picks) * len(LENGTH_RULES)
    return [_agreement(graded, prm, own, rule, num_tests) for prm, own in picks.items() for rule in LENGTH_RULES]


def _agreement(graded: GradedPool, prm: str, picks: Mapping[int, int], rule: str, num_tests: int) -> Agreement:
    agreed, chances = [], []
    for problem, pick in picks.items():
        solutions, grades = graded.pool.problems[problem].solutions, graded.grades[problem]
        values_N = rule_values(solutions, rule)
        of_rule_N: Bools = values_N == values_N.max()
        peers_N = np.array([grade.correct == grades[pick].correct for grade in grades]) & np.isfinite(values_N)
        chance = float(of_rule_N[peers_N].mean())
        if 0 < chance < 1:
            agreed.append(bool(of_rule_N[pick]))
            chances.append(chance)
    if not chances:
        return Agreement(prm, rule, 0, float("nan"), float("nan"), float("nan"), is_suspicious=False)
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

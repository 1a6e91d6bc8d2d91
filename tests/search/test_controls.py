"""Rules that select without reading, and how often a PRM selects what they do; values by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from prism_prm import RerankSettings, rerank_pool
from prism_prm.aggregate import Choice
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import TaskProblem
from prism_prm.search.controls import (
    CONTROLS,
    Agreement,
    chance_of_at_least,
    compute_controls,
    measure_agreements,
    warnings,
)
from prism_prm.search.grade_pool import Grade, GradedPool
from prism_prm.search.select import select_solutions

Sketch = tuple[int, int, bool | None]
"""A solution: its number of steps, its length, and whether it is right."""


def graded_pool(*problems: Sequence[Sketch]) -> GradedPool:
    entries, grades = [], []
    for i, solutions in enumerate(problems):
        made = tuple(Solution(("x",) * steps, "x" * length) for steps, length, _ in solutions)
        entries.append(PoolProblem(TaskProblem(f"{i}", "a"), made))
        grades.append(tuple(Grade("a" if right else "b", "boxed", right, 0, "ok") for _, _, right in solutions))
    return GradedPool(Pool(tuple(entries)), tuple(grades))


def test_every_control_at_every_n() -> None:
    """Three solutions, of which only the first is right: it has the fewest steps and the longest text."""
    curves = compute_controls(graded_pool([(1, 9, True), (2, 5, False), (3, 1, False)]), (1, 2, 3))
    assert [curve.method for curve in curves] == list(CONTROLS)
    values = {curve.method: curve.values[:, 0].tolist() for curve in curves}
    third, two_of_three_pairs = pytest.approx(1 / 3), pytest.approx(2 / 3)
    assert values == {
        "fewest-steps": [third, two_of_three_pairs, 1], "most-steps": [third, 0, 0], "shortest": [third, 0, 0],
        "longest": [third, two_of_three_pairs, 1], "first": [third, two_of_three_pairs, 1],
    }  # fmt: skip


def test_ties_blanks_and_problems_without_solutions() -> None:
    tied = [(1, 4, True), (1, 4, False), (2, 8, False)]
    blank = [(0, 0, False), (1, 4, True)]
    curves = {curve.method: curve for curve in compute_controls(graded_pool(tied, blank, []), (1, 3))}
    assert curves["fewest-steps"].values[1].tolist() == [0.5, 1, 0], "a blank solution comes last"
    assert curves["first"].values[1].tolist() == [1, 1, 0]
    assert curves["shortest"].points[1].value == 0.5
    assert curves["shortest"].points[1].num_clusters == 3


@pytest.mark.parametrize(
    ("count", "chances", "expected"),
    [(0, [0.5], 1), (1, [0.5, 0.5], 0.75), (2, [0.5, 0.5], 0.25), (1, [0.2, 0.5], 0.6), (2, [0.2, 0.5], 0.1)],
)
def test_the_sum_of_independent_draws(count: int, chances: list[float], expected: float) -> None:
    assert chance_of_at_least(count, chances) == pytest.approx(expected)


def agreements(graded: GradedPool, scores: Sequence[float]) -> dict[str, Agreement]:
    steps = [np.array([score]) for score in scores]
    chosen = select_solutions(graded, {"prm": steps}, {"prm": Choice("min", "")})
    return {found.rule: found for found in measure_agreements(graded, chosen)}


def test_a_prm_that_counts_steps_is_found() -> None:
    """Four right solutions of 1 to 4 steps, eight problems: it always picks the first, by chance one in four."""
    graded = graded_pool(*[[(1, 4, True), (2, 3, True), (3, 2, True), (4, 1, True)]] * 8)
    found = agreements(graded, [0.9, 0.5, 0.4, 0.3] * 8)
    assert found["fewest-steps"] == Agreement("prm", "fewest-steps", 8, 1.0, 0.25, pytest.approx(0.25**8), True)
    assert found["longest"].is_suspicious
    assert (found["shortest"].share, found["shortest"].p, found["shortest"].is_suspicious) == (0.0, 1.0, False)
    assert warnings(list(found.values())) == [
        f"Warning: prm selects what the rule {rule} selects on 100.0 % of 8 problems; 25.0 % are expected of picks at "
        "random from equally right solutions (p < 0.01). Its picks may follow length."
        for rule in ("fewest steps", "longest")
    ]


def test_short_solutions_may_be_preferred_if_the_right_ones_are_short() -> None:
    """The pick is the only right solution: no other pick is as right, so its length is no evidence."""
    graded = graded_pool(*[[(1, 1, True), (2, 2, False), (3, 3, False), (4, 4, False)]] * 8)
    found = agreements(graded, [0.9, 0.5, 0.4, 0.3] * 8)
    assert {one.num_problems for one in found.values()} == {0}
    assert warnings(list(found.values())) == []


def test_without_a_reference_all_solutions_are_compared() -> None:
    graded = graded_pool(*[[(1, 1, None), (2, 2, None), (2, 3, None), (2, 4, None)]] * 2)
    found = agreements(graded, [0.9, 0.5, 0.4, 0.3, 0.1, 0.2, 0.3, 0.4])
    assert found["fewest-steps"].num_problems == 2
    assert (found["fewest-steps"].share, found["fewest-steps"].expected) == (0.5, 0.25)
    assert found["fewest-steps"].p == pytest.approx(1 - 0.75**2)
    assert (found["most-steps"].share, found["most-steps"].expected) == (0.5, 0.75)


def test_the_report_has_controls_and_warns(tmp_path: Path) -> None:
    solutions = [
        {"steps": [*["Think."] * more, r"\boxed{1}"], "scores": [*[0.8] * more, 0.9 - 0.1 * more]} for more in range(4)
    ]
    lines = [json.dumps({"problem": f"{i} / {i}?", "answer": "1", "solutions": solutions}) for i in range(1, 9)]
    (tmp_path / "pool.jsonl").write_text("\n".join(lines))
    settings = RerankSettings(aggregators=("min",), num_draws=10, judges=1)
    results = rerank_pool(tmp_path / "pool.jsonl", tmp_path / "out", settings=settings)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())["controls"]
    assert [(row["method"], row["n"], row["value"]) for row in metrics["curves"]] == [
        (rule, n, 1.0) for rule in CONTROLS for n in (1, 2, 4)
    ]
    assert [(row["rule"], row["share"], row["is_suspicious"]) for row in metrics["agreement"]] == [
        ("fewest-steps", 1.0, True), ("most-steps", 0.0, False), ("shortest", 1.0, True), ("longest", 0.0, False),
    ]  # fmt: skip
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| control: fewest steps | 100.0 |" in report
    assert "Warning: pool selects what the rule fewest steps selects on 100.0 % of 8 problems" in report
    assert {curve.method for curve in results.curves}.isdisjoint(CONTROLS)

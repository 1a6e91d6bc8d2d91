"""Rules that select without reading, and how often a PRM selects what they do; values by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from docs_code import ROOT, stated
from prism_prm import RerankSettings, rerank_pool
from prism_prm.data.pools import Pool, PoolProblem, Solution
from prism_prm.data.tasks import TaskProblem
from prism_prm.search.controls import (
    CONTROLS,
    Agreement,
    chance_of_at_least,
    compute_controls,
    measure_agreements,
    measure_controls,
    warnings,
)
from prism_prm.search.grade_pool import Grade, GradedPool

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
    """Every step of a solution has its score."""
    steps = [np.full(len(one.steps), score) for one, score in zip(graded.pool.solutions, scores, strict=True)]
    return {found.rule: found for found in measure_agreements(graded, {"prm": steps}, {"prm": "min"})}


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


def test_the_best_source_of_the_other_problems() -> None:
    """On problems 0 and 1 source a is right, on problem 2 source b. Elsewhere a has 1/2, 1/2 and 1 of its solutions
    right, b 1/2, 1/2 and 0; a tie has equal chances. Source c is on problem 2 only: there it counts as the mean."""
    sources = [("a", "b"), ("a", "b"), ("a", "b", "c")]
    right = [(True, False), (True, False), (False, True, True)]
    entries = [
        PoolProblem(TaskProblem(f"{i}", "a"), tuple(Solution(("x",), "x", source=source) for source in of_problem))
        for i, of_problem in enumerate(sources)
    ]
    grades = tuple(tuple(Grade("a", "boxed", one, 0, "ok") for one in of_problem) for of_problem in right)
    curves = {curve.method: curve for curve in compute_controls(GradedPool(Pool(tuple(entries)), grades), (3,))}
    assert curves["source-only"].values[0].tolist() == [0.5, 0.5, 0]
    swapped = GradedPool(Pool(tuple(entries[:2])), grades[:2])
    assert compute_controls(swapped, (2,))[-1].values[0].tolist() == [1, 1], "a is right on the other problem"


def test_a_pool_without_sources_has_no_such_control() -> None:
    assert [curve.method for curve in compute_controls(graded_pool([(1, 1, True)]), (1,))] == list(CONTROLS)


def test_adjusted_min_picks_the_long_solution_that_is_no_worse() -> None:
    """Scores 0.5 for one step, 0.4 for the lowest of four: 0.4 ** (12/25) = 0.644. The long one is right."""
    graded = graded_pool(*[[(1, 1, False), (4, 4, True)]] * 3)
    steps = [np.array([0.5]), np.array([0.9, 0.4, 0.8, 0.7])] * 3
    (found,) = measure_controls(graded, {"prm": steps}, {"prm": "min"}, (1, 2)).adjusted
    assert (found.n, found.min, found.adjusted, found.gain.difference) == (2, 0.0, 1.0, 1.0)
    without = measure_controls(graded, {"prm": steps}, {"prm": "min"}, ())
    assert (without.curves, without.adjusted, len(without.agreements)) == ((), (), 4)


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
    (adjusted,) = metrics["adjusted_min"]
    assert (adjusted["min"], adjusted["adjusted"], adjusted["min_picks"]["share"]) == (1.0, 1.0, 1.0)
    assert adjusted["adjusted_picks"]["share"] == 1.0, "0.9 against 0.8 ** (2/3) = 0.862 of two steps"
    report = (tmp_path / "out" / "report.md").read_text()
    assert "fewest steps, adjusted-min" in report
    assert "| control: fewest steps | 100.0 |" in report
    assert "Warning: pool selects what the rule fewest steps selects on 100.0 % of 8 problems" in report
    assert {curve.method for curve in results.curves}.isdisjoint(CONTROLS)


@pytest.mark.real_data
def test_published_prms_on_gsm8k(real_data: Path, tmp_path: Path) -> None:
    """The sentence of the guide; and the controls are those that docs/lab/real-pools.md computed on its own."""
    files = {"shepherd": "math-shepherd-mistral-7b", "qwen": "qwen2.5-math-prm-7b"}
    folder = real_data / "best_of_n_prm"
    results = rerank_pool(
        folder / "gsm8k_pool_250x32.jsonl", tmp_path / "out",
        scores={name: folder / f"gsm8k_scores_{file}.jsonl" for name, file in files.items()},
        settings=RerankSettings(aggregators=("min",), ns=(32,), num_draws=10, judges=1),
    )  # fmt: skip
    found = {one.prm: one for one in results.controls.agreements if one.rule == "fewest-steps"}
    numbers = stated(
        "docs/guides/rerank.md",
        "Math-Shepherd selects a solution with the fewest steps on {} % of > {} problems, where {} % are expected; "
        "Qwen2.5-Math-PRM-7B on {} % of {}, where {} % are.",
    )
    assert numbers == [
        text
        for one in (found["shepherd"], found["qwen"])
        for text in (f"{100 * one.share:.1f}", f"{one.num_problems}", f"{100 * one.expected:.1f}")
    ]
    assert (found["shepherd"].is_suspicious, found["qwen"].is_suspicious) == (True, False)
    values = {curve.method: f"{100 * curve.points[-1].value:.1f}" for curve in results.controls.curves}
    page = (ROOT / "docs/lab/real-pools.md").read_text(encoding="utf-8")
    for rule, title in {"fewest-steps": "fewest steps", "shortest": "shortest text"}.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {title} |")]
        assert row.split(" | ")[3] == values[rule]


@pytest.mark.real_data
def test_adjusted_min_on_gsm8k(real_data: Path, tmp_path: Path) -> None:
    """The table of the guide."""
    files = {
        "Math-Shepherd": "math-shepherd-mistral-7b", "Skywork-o1-PRM-7B": "skywork-o1-prm-7b",
        "RLHFlow-Deepseek": "rlhflow-llama3.1-8b-deepseek", "Qwen2.5-Math-PRM-7B": "qwen2.5-math-prm-7b",
    }  # fmt: skip
    folder = real_data / "best_of_n_prm"
    results = rerank_pool(
        folder / "gsm8k_pool_250x32.jsonl", tmp_path / "out",
        scores={name: folder / f"gsm8k_scores_{file}.jsonl" for name, file in files.items()},
        settings=RerankSettings(aggregators=("min",), ns=(32,), num_draws=10, judges=1),
    )  # fmt: skip
    page = (ROOT / "docs/guides/rerank.md").read_text(encoding="utf-8")
    for one, words in zip(results.controls.adjusted, (" (expected {})", *[" ({})"] * 3), strict=True):
        cells = [f"{100 * one.min:.1f}", f"{100 * one.adjusted:.1f}"]
        for picks, text in ((one.min_picks, words), (one.adjusted_picks, " ({})")):
            cells.append(f"{100 * picks.share:.1f}" + text.format(f"{100 * picks.expected:.1f}"))
        assert f"| {one.prm} | {' | '.join(cells)} |" in page
        assert one.gain.low <= 0 <= one.gain.high


@pytest.mark.real_data
def test_sources_of_a_mixed_pool(real_data: Path, tmp_path: Path) -> None:
    settings = RerankSettings(ns=(40,), num_draws=1000, judges=1)
    results = rerank_pool(real_data / "best_of_n" / "math500_pool_100.jsonl", tmp_path / "out", settings=settings)
    found = {curve.method: curve for curve in (*results.controls.curves, *results.curves)}
    assert stated(
        "docs/guides/rerank.md",
        "one solution at random is right on {} % of the problems, one of the best source on {} %, the majority vote on "
        "{} %.",
    ) == [f"{100 * found[rule].points[-1].value:.1f}" for rule in ("mean", "source-only", "majority")]

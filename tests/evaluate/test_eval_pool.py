from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from eval_helpers import write_jsonl
from test_eval_cli import metrics, output, prism

from prism_prm.aggregate import Choice
from prism_prm.backends.load_prm import init_prm
from prism_prm.errors import DataError, PrismError
from prism_prm.lab.theory.scored_pool import JudgedPool, predict
from prism_prm.search.rerank_pool import RerankSettings, rerank_pool

MIN, HALF = Choice("min", "as given"), Choice(0.5, "as given")


def made_pool(alpha: float, beta: float, *, problems: int = 60, size: int = 400, spread: float = 0.0) -> JudgedPool:
    """Solutions whose verdicts err with α and β; `spread` makes the errors depend on the problem."""
    rng = np.random.default_rng(0)
    correct, scores = [], []
    for _ in range(problems):
        right = rng.random(size) < rng.uniform(0.1, 0.9)
        own_alpha = np.clip(alpha + spread * rng.choice([-1, 1]), 0, 1)
        good = rng.random(size) < np.where(right, 1 - beta, own_alpha)
        correct.append(right)
        scores.append(np.where(good, 0.9, 0.1))
    return JudgedPool(tuple(correct), tuple(scores))


def test_prediction_meets_measurement_where_its_assumption_holds() -> None:
    found = predict(made_pool(0.3, 0.2), (1, 2, 4, 8, 16), aggregator=MIN, threshold=HALF)
    assert found.alpha.value == pytest.approx(0.3, abs=0.02)
    assert found.beta.value == pytest.approx(0.2, abs=0.02)
    for predicted, measured in zip(found.predicted, found.measured, strict=True):
        assert predicted == pytest.approx(measured.value, abs=0.015)
    assert found.predicted[0] == pytest.approx(found.p.value), "one sample is the base rate"
    assert found.predicted[-1] == pytest.approx(found.ceiling, abs=0.03)
    # One p for all problems is not the mean of the curves.
    assert found.predicted_one_p[3] > found.predicted[3] + 0.02


def test_errors_that_hang_on_the_problem_show() -> None:
    found = predict(made_pool(0.4, 0.1, spread=0.4), (1, 16), aggregator=MIN, threshold=HALF)
    assert abs(found.predicted[1] - found.measured[1].value) > 0.02


def test_by_hand() -> None:
    pool = JudgedPool((np.array([True, False]),), (np.array([0.9, 0.8]),))
    found = predict(pool, (1, 2), aggregator=MIN, threshold=Choice(0.85, "as given"))
    assert (found.p.value, found.alpha.value, found.beta.value) == (0.5, 0, 0)
    assert found.predicted == (0.5, 0.75)
    assert [point.value for point in found.measured] == [0.5, 1.0], "drawn without replacement"


def test_a_pool_without_wrong_solutions_predicts_nothing() -> None:
    pool = JudgedPool((np.array([True, True]),), (np.array([0.9, 0.8]),))
    with pytest.raises(DataError, match="no wrong solution, so the FPR is unknown"):
        predict(pool, (1,), aggregator=MIN, threshold=HALF)


def test_a_problem_with_fewer_solutions_takes_all_it_has() -> None:
    """Predicted as measured: one solution is right as often as the policy is, whatever the N of others."""
    pool = JudgedPool((np.array([True, False]), np.array([True])), (np.array([0.9, 0.1]), np.array([0.8])))
    found = predict(pool, (1, 2), aggregator=MIN, threshold=HALF)
    assert found.num_smaller == 1
    assert found.predicted == ((0.5 + 1) / 2, (0.75 + 1) / 2)
    assert [point.value for point in found.measured] == [0.75, 1.0]


def test_a_table_of_scores_says_what_the_card_of_its_prm_says(tmp_path: Path, tiny_lm: Callable[..., Path]) -> None:
    """And a pool with scores of its own has no card."""
    solutions = [{"steps": [f"\\boxed{{{k}}}"], "scores": [0.9]} for k in range(2)]
    rows = [{"problem": f"{i}?", "answer": "0", "solutions": solutions} for i in "ab"]
    pool = write_jsonl(tmp_path / "pool.jsonl", rows)
    prm = init_prm(tiny_lm("qwen2"), family="qwen")
    prm.save(tmp_path / "prm", threshold=0.25)
    rerank_pool(pool, tmp_path / "out", prms={"mine": prm}, settings=RerankSettings(judges=1, num_draws=10))
    used = {}
    for name, more in {"table": ["--scores", tmp_path / "out" / "scores" / "mine.parquet"], "pool": []}.items():
        output(prism("theory", "--out", tmp_path / name, "--no-simulate", "--pool", pool, *more))
        found = metrics(tmp_path / name)["pool"]
        used[name] = (found["aggregator"]["value"], found["threshold"]["value"], found["threshold"]["origin"])
    assert used == {
        "table": ("product", 0.25, "from the PRM's card"), "pool": ("min", 0.5, "the default, since no card sets it")
    }  # fmt: skip


def test_theory_reads_and_grades_a_pool(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(8):
        solutions = [
            {"steps": ["We add.", f"The answer is \\boxed{{{i + (k % 2)}}}."], "scores": [0.9, float(rng.random())]}
            for k in range(6)
        ]
        rows.append({"problem": f"What is {i} + 0?", "answer": str(i), "solutions": solutions})
    rows.append({"problem": "What is nothing?", "answer": "0", "solutions": []})
    pool = write_jsonl(tmp_path / "pool.jsonl", rows)
    output(prism("theory", "--out", tmp_path / "out", "--no-simulate", "--pool", pool, "--aggregator", "last"))
    text = (tmp_path / "out" / "report.md").read_text()
    finding = "keeps Best-of-N below 63.2 %, however many are drawn"
    assert text.index(finding) < text.index("](figures/") < text.index("| --- |")
    found = metrics(tmp_path / "out")["pool"]
    assert found["p"]["value"] == 0.5
    assert found["ns"] == [1, 2, 4, 6]
    assert (found["num_problems"], found["num_empty"], found["num_solutions"]) == (8, 1, 48)
    for row in rows:
        for solution in row["solutions"]:
            del solution["scores"]
    bare = write_jsonl(tmp_path / "bare.jsonl", rows)
    result = prism("theory", "--out", tmp_path / "out", "--no-simulate", "--pool", bare)
    assert isinstance(result.exception, PrismError)
    assert "the pool has no scores" in str(result.exception)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["pool"]["ns"] == [1, 2, 4, 6]

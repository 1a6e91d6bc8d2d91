from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from eval_helpers import processbench_row, score_with, write_jsonl

from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks.processbench import measure_processbench, missing_splits, read_processbench
from prism_prm.evaluate.measure import Measurer

ROWS = [
    processbench_row("gsm8k-0", 3, 1, problem="Same?"),
    processbench_row("gsm8k-1", 3, -1, problem="Same?"),
    processbench_row("math-0", 2, 0),
    processbench_row("math-1", 2, -1),
]


def test_labels_are_zero_based_and_steps_after_the_error_are_not_judged(tmp_path: Path) -> None:
    benchmark = read_processbench([write_jsonl(tmp_path / "all.jsonl", ROWS)])
    assert [[node.label for node in item.tree.nodes] for item in benchmark.items] == [
        [1, 0, None],
        [1, 1, 1],
        [0, None],
        [1, 1],
    ]
    assert benchmark.counts() == {"gsm8k": 2, "math": 2}
    assert benchmark.complete is False
    steps = score_with(benchmark, lambda *_: 0.9)
    assert steps.num_clusters == 3, "two solutions of one problem are one cluster"


def test_f1_by_hand(tmp_path: Path) -> None:
    benchmark = read_processbench([write_jsonl(tmp_path / "all.jsonl", ROWS)])
    low = {("gsm8k-0", 1), ("gsm8k-0", 2), ("math-0", 1), ("math-1", 0)}
    steps = score_with(benchmark, lambda name, i, _: 0.2 if (name, i) in low else 0.8)
    tables = measure_processbench(Measurer(steps, 0.5, num_draws=100))
    assert {name: m.value for name, m in tables["split:gsm8k"].items()} == {"acc_error": 1, "acc_correct": 1, "f1": 1}
    assert {name: m.value for name, m in tables["split:math"].items()} == {"acc_error": 0, "acc_correct": 0, "f1": 0}
    assert tables["split:mean"]["f1"].value == 0.5
    assert missing_splits(["gsm8k", "math"]) == ["olympiadbench", "omnimath"]


def test_a_step_at_the_threshold_is_not_below_it(tmp_path: Path) -> None:
    benchmark = read_processbench([write_jsonl(tmp_path / "all.jsonl", ROWS)])
    tables = measure_processbench(Measurer(score_with(benchmark, lambda *_: 0.5), 0.5, num_draws=100))
    assert tables["split:gsm8k"]["acc_correct"].value == 1


def test_a_split_without_right_solutions_has_no_f1(tmp_path: Path) -> None:
    benchmark = read_processbench([write_jsonl(tmp_path / "math.jsonl", [ROWS[2]])])
    tables = measure_processbench(Measurer(score_with(benchmark, lambda *_: 0.9), 0.5, num_draws=100))
    assert math.isnan(tables["split:math"]["f1"].value)
    assert math.isnan(tables["split:mean"]["f1"].value)


def test_a_split_that_was_left_out_is_not_in_the_mean(tmp_path: Path) -> None:
    benchmark = read_processbench([write_jsonl(tmp_path / "all.jsonl", ROWS)])
    steps = score_with(benchmark, lambda _item, _i, label: 0.0 if label == 0 else 1.0)
    tables = measure_processbench(Measurer(steps.only(np.array([True, True, False, False])), 0.5, num_draws=100))
    assert list(tables) == ["split:gsm8k", "split:mean"]
    assert tables["split:mean"]["f1"].value == 1


def test_duplicated_ids_and_bad_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"id 'gsm8k-0' is also in"):
        read_processbench([write_jsonl(tmp_path / "twice.jsonl", [ROWS[0], ROWS[0]])])
    with pytest.raises(DataError, match=r"bad.jsonl:1: label 3 is not the index"):
        read_processbench([write_jsonl(tmp_path / "bad.jsonl", [processbench_row("gsm8k-0", 3, 3)])])


def slow_f1(rows: list[dict[str, object]], predicted: dict[str, int]) -> float:
    wrong = [predicted[row["id"]] == row["label"] for row in rows if row["label"] != -1]
    right = [predicted[row["id"]] == -1 for row in rows if row["label"] == -1]
    a, b = sum(wrong) / len(wrong), sum(right) / len(right)
    return 2 * a * b / (a + b) if a + b else 0.0


@pytest.mark.parametrize("name", ["constant", "random", "oracle"])
def test_real_files(real_data: Path, name: str) -> None:
    rng = np.random.default_rng(1)
    scorers = {
        "constant": lambda *_: 0.7,
        "random": lambda *_: rng.random() ** 0.2,
        "oracle": lambda _item, _i, label: 0.0 if label == 0 else 1.0,
    }
    benchmark = read_processbench([real_data / "processbench"])
    assert benchmark.counts() == {"gsm8k": 400, "math": 1000}
    steps = score_with(benchmark, scorers[name])
    tables = measure_processbench(Measurer(steps, 0.5, num_draws=100))
    f1 = []
    for split, errors in (("gsm8k", 207), ("math", 594)):
        rows = json.loads((real_data / "processbench" / f"{split}.json").read_text())
        assert sum(row["label"] != -1 for row in rows) == errors
        predicted = {}
        for item, start, length in zip(steps.items, steps.starts, steps.lengths, strict=True):
            bad = [i for i in range(length) if steps.probability[start + i] < 0.5]
            predicted[item] = bad[0] if bad else -1
        f1.append(slow_f1(rows, predicted))
        assert tables[f"split:{split}"]["f1"].value == pytest.approx(f1[-1], abs=1e-12)
    assert tables["split:mean"]["f1"].value == pytest.approx(np.mean(f1), abs=1e-12)
    if name == "oracle":
        assert f1 == [1, 1]
    if name == "constant":
        assert f1 == [0, 0]

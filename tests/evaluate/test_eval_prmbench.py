from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from eval_helpers import prmbench_row, score_with, slow_prmbench, write_jsonl

from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks import prmbench, read_benchmark
from prism_prm.evaluate.benchmarks.prmbench import PRMBENCH, measure_prmbench, read_prmbench
from prism_prm.evaluate.evaluate_prm import EvalSettings, evaluate_steps
from prism_prm.evaluate.measure import Measurer, Steps
from prism_prm.evaluate.report import RunInfo, write_run
from prism_prm.evaluate.score_files import collect_steps

ROWS = [
    prmbench_row("circular", "a", 4, [2, 3]),
    prmbench_row("circular", "a", 9, [1]),  # the same id again: the first row counts
    prmbench_row("redundency", "a", 3, [3]),
    prmbench_row("counterfactual", "a", 3, [3, 4, 7]),  # 4 and 7 are past the last step
    prmbench_row("step_contradiction", "b", 2, [5]),  # all past the last step: no error is left
    prmbench_row("domain_inconsistency", "b", 2, [1]),
    prmbench_row("confidence", "b", 2, [2]),
    prmbench_row("missing_condition", "b", 2, [1, 2]),
    prmbench_row("deception", "b", 2, [1]),
    prmbench_row("multi_solutions", "c", 5, []),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "prmbench" / "one.jsonl", ROWS[:4])
    write_jsonl(tmp_path / "prmbench" / "two.jsonl", ROWS[4:])
    return tmp_path / "prmbench"


def values(steps: Steps, threshold: float = 0.5) -> dict[str, float]:
    tables = measure_prmbench(Measurer(steps, threshold, num_draws=100))
    flat = {name: m.value for key in ("classes", "groups", "side") for name, m in tables[key].items()}
    return {**flat, "overall": tables["overall"]["prm_score"].value}


def test_items_ids_twins_and_notes(folder: Path) -> None:
    benchmark = read_benchmark("prmbench", [folder])
    assert [item.tree.name for item in benchmark.items] == [
        "circular_a", "redundency_a", "correct_a", "counterfactual_a", "step_contradiction_b", "domain_inconsistency_b",
        "confidence_b", "missing_condition_b", "deception_b", "multi_solutions_c",
    ]  # fmt: skip
    assert [item.tree.tree_id for item in benchmark.items] == list(range(10))
    assert benchmark.notes == {
        "error steps past the last step": 3,
        "items whose error steps are all past the last step": 1,
        "rows whose id was seen before": 1,
    }
    assert benchmark.complete is False
    assert benchmark.describe() == "part of prmbench: 9 items and 1 correct twins"
    twin = benchmark.items[2]
    assert twin.tree.texts(twin.tree.trunk) == ["a original step 1", "a original step 2", "a original step 3"]
    assert twin.tree.problem == "What is a ?"


def test_labels_are_one_based_and_reach_past_the_error(folder: Path) -> None:
    labels = {item.tree.name: [node.label for node in item.tree.nodes] for item in read_prmbench([folder]).items}
    assert labels["circular_a"] == [1, 0, 0, 1]
    assert labels["counterfactual_a"] == [1, 1, 0]
    assert labels["step_contradiction_b"] == [1, 1]
    assert labels["multi_solutions_c"] == [1] * 5
    assert labels["correct_a"] == [1] * 3


def test_items_of_one_problem_are_one_cluster(folder: Path) -> None:
    """The classes word the question anew; `question` keeps it."""
    steps = score_with(read_prmbench([folder]), lambda *_: 0.9)
    assert steps.num_clusters == 3
    assert steps.item_cluster.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]


SCORERS = {
    "all good": lambda *_: 1.0,
    "all bad": lambda *_: 0.0,
    "at the threshold": lambda *_: 0.5,
    "oracle": lambda _name, _i, label: label,
    "contrary": lambda _name, _i, label: 1 - label,
    "mixed": lambda name, i, _: (len(name) * 7 + i * 5) % 10 / 10,
}


@pytest.mark.parametrize("name", SCORERS)
def test_scores_follow_the_rules_written_out(folder: Path, name: str) -> None:
    benchmark = read_prmbench([folder])
    steps = score_with(benchmark, SCORERS[name])
    scores = {
        (item, i): score
        for item, first in zip(steps.items, steps.starts, strict=True)
        for i, score in enumerate(steps.probability[first : first + 9])
    }
    expected = slow_prmbench(ROWS, lambda item, i: bool(scores[item, i] > 0.5))
    found = values(steps)
    for key, value in found.items():
        assert value == pytest.approx(expected.get(key, math.nan), nan_ok=True), key


def test_by_hand(folder: Path) -> None:
    found = values(score_with(read_prmbench([folder]), SCORERS["all good"]))
    # circular: TP 2, FP 2: F1 = 2/3; negative precision −1, recall 0: 0. Half of each.
    assert found["circular"] == pytest.approx(1 / 3)
    # No wrong step left: negative precision and recall −1 give −1; ½·1 − ½ = 0.
    assert found["step_contradiction"] == 0
    # All steps wrong and all judged good: F1 has precision 0, recall −1, so 0; negative F1 0 by the same token.
    assert found["missing_condition"] == 0
    assert found["multi_solutions"] == 1, "F1 alone"
    assert found["first_error_acc"] == 0
    assert found["similarity"] == 0


def test_a_class_has_one_prm_score(folder: Path) -> None:
    items = read_benchmark("prmbench", [folder])
    steps = score_with(items, SCORERS["all good"])
    subset = evaluate_steps(items, steps, EvalSettings(num_draws=100)).subsets["all"]
    classes = {name: score.value for name, score in subset.tables["classes"].items()}
    assert {name: subset.groups[name]["prm_score"].value for name in classes} == classes
    assert classes["multi_solutions"] == 1


def test_strict_threshold(folder: Path) -> None:
    at = values(score_with(read_prmbench([folder]), SCORERS["at the threshold"]))
    bad = values(score_with(read_prmbench([folder]), SCORERS["all bad"]))
    assert at == pytest.approx(bad, nan_ok=True)


def test_overall_pools_steps_and_leaves_twins_out(folder: Path) -> None:
    benchmark = read_prmbench([folder])
    tables = measure_prmbench(Measurer(score_with(benchmark, SCORERS["oracle"]), 0.5, num_draws=100))
    assert tables["overall"]["accuracy"].value == 1
    wrecked = score_with(benchmark, lambda name, _, label: 0.0 if name.startswith("correct_") else label)
    assert measure_prmbench(Measurer(wrecked, 0.5, num_draws=100))["overall"]["accuracy"].value == 1
    # A twin without a good step takes no part in similarity, as in the original.
    assert math.isnan(measure_prmbench(Measurer(wrecked, 0.5, num_draws=100))["side"]["similarity"].value)


def test_redundancy_polarity_only_for_two_classes(folder: Path) -> None:
    benchmark = read_prmbench([folder])
    validity = [np.full(len(item.tree.nodes), 0.9) for item in benchmark.items]
    redundancy = [np.full(len(item.tree.nodes), 0.16) for item in benchmark.items]
    steps = collect_steps(benchmark.items, validity, redundancy)
    good = PRMBENCH.judge(steps, 0.5)
    by_class = {name: good[steps.step_group == i] for i, name in enumerate(steps.group_names)}
    assert not by_class["circular"].any(), "redundant, so not good, whatever the validity"
    assert not by_class["redundency"].any()
    assert by_class["confidence"].all(), "judged by validity"
    assert by_class["correct"].all(), "twins are judged by validity"
    at = collect_steps(benchmark.items, validity, [np.full(len(r), 0.15) for r in redundancy])
    assert PRMBENCH.judge(at, 0.5).all(), "0.15 itself is not redundant"


def test_groups_need_all_their_classes(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "part.jsonl", [row for row in ROWS if row["classification"] in ("circular", "confidence")])
    tables = measure_prmbench(Measurer(score_with(read_prmbench([tmp_path]), SCORERS["oracle"]), 0.5, num_draws=100))
    assert all(math.isnan(group.value) for group in tables["groups"].values())
    assert list(tables["classes"]) == ["circular", "confidence"]


def test_a_class_whose_items_are_all_held_out_is_not_there(tmp_path: Path) -> None:
    kinds = ("circular", "confidence", "deception")
    rows = [prmbench_row(kind, word, 2, [1]) for kind, word in zip(kinds, ("one", "two", "three"), strict=True)]
    benchmark = read_benchmark("prmbench", [write_jsonl(tmp_path / "three.jsonl", rows)])
    settings = EvalSettings(target_tpr=0.9, num_draws=100)
    found = evaluate_steps(benchmark, score_with(benchmark, SCORERS["oracle"]), settings)
    left = found.subsets["all"]
    assert len(left.tables["classes"]) == 2
    assert set(left.tables["classes"]) == set(left.groups) < set(kinds)
    page = write_run(tmp_path / "out", RunInfo("oracle", "oracle"), [found], settings)
    assert "overall pools the 2 of 9 available classes" in page.read_text()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            prmbench_row("circle", "a", 2, [1]),
            r"bad.jsonl:1: classification 'circle' is not one of PRMBench's: redundency",
        ),
        (prmbench_row("circular", "a", 2, [0]), r"bad.jsonl:1: error_steps \[0\] must count from 1"),
        ({"classification": "circular", "idx": "a"}, r"bad.jsonl:1: .*missing required field"),
    ],
)
def test_bad_rows_say_where(tmp_path: Path, row: dict[str, object], message: str) -> None:
    path = write_jsonl(tmp_path / "bad.jsonl", [row])
    with pytest.raises(DataError, match=message):
        read_prmbench([path])


def test_published_table_agrees_with_the_size_of_the_benchmark() -> None:
    assert sum(size for name, size in prmbench.FULL_SIZE.items() if name != "correct") == 6211


# ---- the files themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all good", "all bad", "random", "oracle"])
def test_real_files_equal_the_rules_written_out(real_data: Path, name: str) -> None:
    folder = real_data / "prmbench"
    rows = [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open(encoding="utf-8")]
    assert len(rows) == 2295
    benchmark = read_prmbench([folder])
    assert len(benchmark.items) == 2290 + 267
    rng = np.random.default_rng(0)
    scorer = SCORERS.get(name, lambda *_: rng.random())
    steps = score_with(benchmark, scorer)
    scores = {
        item: steps.probability[start : start + length]
        for item, start, length in zip(steps.items, steps.starts, steps.lengths, strict=True)
    }
    expected = slow_prmbench(rows, lambda item, i: bool(scores[item][i] > 0.5))
    found = values(steps)
    assert set(found) <= set(expected) | {"similarity"}
    for key, value in found.items():
        assert value == pytest.approx(expected.get(key, math.nan), nan_ok=True, abs=1e-12), key
    if name == "oracle":
        assert found["overall"] == 1
        assert {key: found[key] for key in prmbench.CLASSES} == dict.fromkeys(prmbench.CLASSES, 1.0)

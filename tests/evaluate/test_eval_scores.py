from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from eval_helpers import prmbench_row, processbench_row, write_jsonl

from prism_prm.errors import DataError
from prism_prm.evaluate.benchmarks import ItemSet, read_benchmark
from prism_prm.evaluate.benchmarks.processbench import read_processbench
from prism_prm.evaluate.measure import Steps, read_steps, write_steps
from prism_prm.evaluate.score_files import steps_from_predictions, steps_from_table, table_of_trees
from prism_prm.scorer import TreeScores


@pytest.fixture
def benchmark(tmp_path: Path) -> ItemSet:
    rows = [processbench_row("math-0", 3, 1), processbench_row("math-1", 2, -1)]
    return read_processbench([write_jsonl(tmp_path / "math.jsonl", rows)])


GOOD = [{"id": "math-0", "scores": [0.9, 0.2, 0.4]}, {"id": "math-1", "scores": [0.8, 0.7]}]


def test_predictions_meet_their_items_in_any_order(tmp_path: Path, benchmark: ItemSet) -> None:
    path = write_jsonl(tmp_path / "p.jsonl", [*reversed(GOOD), {"id": "other-3", "scores": [0.1]}])
    steps, notes = steps_from_predictions(benchmark, path)
    assert steps.items == ("math-0", "math-1")
    assert steps.probability.tolist() == [0.9, 0.2, 0.4, 0.8, 0.7]
    assert steps.label.tolist() == [1, 0, -1, 1, 1]
    assert notes == {"predictions for items that are not in the data": 1}
    assert not steps.hard


def test_labels_instead_of_scores(tmp_path: Path, benchmark: ItemSet) -> None:
    rows = [{"id": "math-0", "labels": [True, False, True]}, {"id": "math-1", "labels": [True, True]}]
    steps, _ = steps_from_predictions(benchmark, write_jsonl(tmp_path / "p.jsonl", rows))
    assert steps.probability.tolist() == [1, 0, 1, 1, 1]
    assert steps.hard


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (GOOD[:1], r"no scores for 1 of 2 items \(math-1, …\)"),
        ([GOOD[0], {"id": "math-1", "scores": [0.8]}], r"item math-1: 1 scores for 2 steps"),
        (
            [GOOD[0], {"id": "math-1", "scores": [0.8, 1.5]}],
            r"math-1, step 2: the score is 1.5, not a probability",
        ),
        ([GOOD[0], {"id": "math-1"}], r"p.jsonl:2: item math-1: give either scores or labels"),
        ([GOOD[0], {"id": "math-1", "labels": [True, True]}], "some items have scores and some labels"),
        ([*GOOD, GOOD[0]], r"p.jsonl:3: item math-0 occurs twice"),
        ([{"scores": [0.1]}], r"p.jsonl:1: .*missing required field `id`"),
        ([{**GOOD[0], "redundancy": [0.1, 0.1, 0.1]}, GOOD[1]], "redundancy is given for 1 of 2 items"),
    ],
)
def test_bad_predictions(tmp_path: Path, benchmark: ItemSet, rows: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        steps_from_predictions(benchmark, write_jsonl(tmp_path / "p.jsonl", rows))


def test_nan_scores_are_an_error(tmp_path: Path, benchmark: ItemSet) -> None:
    """JSON has no NaN; Python writes one all the same."""
    text = "\n".join(json.dumps(row) for row in [GOOD[0], {"id": "math-1", "scores": [0.8, float("nan")]}])
    (tmp_path / "p.jsonl").write_text(text + "\n")
    with pytest.raises(DataError, match=r"p.jsonl:2"):
        steps_from_predictions(benchmark, tmp_path / "p.jsonl")


def test_twins_may_be_left_out_all_together(tmp_path: Path) -> None:
    rows = [prmbench_row("redundency", "a", 2, [1]), prmbench_row("redundency", "b", 2, [1])]
    benchmark = read_benchmark("prmbench", [write_jsonl(tmp_path / "nr.jsonl", rows)])
    own = [{"id": f"redundency_{idx}", "scores": [0.1, 0.9]} for idx in "ab"]
    steps, notes = steps_from_predictions(benchmark, write_jsonl(tmp_path / "p.jsonl", own))
    assert steps.items == ("redundency_a", "redundency_b")
    assert notes == {"correct twins without predictions": 2}
    half = [*own, {"id": "correct_a", "scores": [0.9] * 3}]
    with pytest.raises(DataError, match=r"no scores for 1 of 4 items \(correct_b"):
        steps_from_predictions(benchmark, write_jsonl(tmp_path / "q.jsonl", half))


def write_scores_table(path: Path, benchmark: ItemSet, outputs: tuple[str, ...] = ("correct",)) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    trees = [item.tree for item in benchmark.items]
    log_odds = [rng.normal(size=(len(tree.nodes), len(outputs))) for tree in trees]
    scores = [TreeScores(outputs, values) for values in log_odds]
    pq.write_table(table_of_trees(trees, scores, outputs, "abc"), path)
    return log_odds


def test_scores_tables_are_matched_by_content(tmp_path: Path, benchmark: ItemSet) -> None:
    log_odds = write_scores_table(tmp_path / "s.parquet", benchmark)
    steps, model_hash, _ = steps_from_table(benchmark, tmp_path / "s.parquet")
    assert steps.probability == pytest.approx(1 / (1 + np.exp(-np.concatenate(log_odds)[:, 0])))
    assert model_hash == "abc"
    assert steps.redundancy is None


def test_redundancy_comes_along(tmp_path: Path, benchmark: ItemSet) -> None:
    log_odds = write_scores_table(tmp_path / "s.parquet", benchmark, ("validity", "redundancy"))
    steps, *_ = steps_from_table(benchmark, tmp_path / "s.parquet")
    assert steps.redundancy == pytest.approx(1 / (1 + np.exp(-np.concatenate(log_odds)[:, 1])))


def test_missing_steps_and_other_data_are_errors(tmp_path: Path, benchmark: ItemSet) -> None:
    write_scores_table(tmp_path / "s.parquet", benchmark)
    table = pq.read_table(tmp_path / "s.parquet")
    pq.write_table(table.slice(0, 4), tmp_path / "part.parquet")
    with pytest.raises(DataError, match=r"item math-1 has no score for step 2 \(1 of 2 steps have none\)"):
        steps_from_table(benchmark, tmp_path / "part.parquet")
    pq.write_table(table.slice(0, 3), tmp_path / "less.parquet")
    with pytest.raises(DataError, match="no scores for item math-1; they are of other data"):
        steps_from_table(benchmark, tmp_path / "less.parquet")
    with pytest.raises(DataError, match="no such scores table"):
        steps_from_table(benchmark, tmp_path / "none.parquet")


def test_judged_steps_survive_a_round_trip(tmp_path: Path, benchmark: ItemSet) -> None:
    write_scores_table(tmp_path / "s.parquet", benchmark, ("validity", "redundancy"))
    steps, *_ = steps_from_table(benchmark, tmp_path / "s.parquet")
    write_steps(tmp_path / "steps.parquet", steps)
    again = read_steps(tmp_path / "steps.parquet")
    _assert_same(steps, again)
    only = steps.only(np.array([False, True]))
    write_steps(tmp_path / "steps.parquet", only)
    _assert_same(only, read_steps(tmp_path / "steps.parquet"))
    assert only.items == ("math-1",)
    assert only.num_clusters == 1
    assert only.item_content == (benchmark.items[1].tree.content_hash(),)


def _assert_same(a: Steps, b: Steps) -> None:
    assert (a.items, a.group_names, a.num_clusters, a.hard) == (b.items, b.group_names, b.num_clusters, b.hard)
    assert a.item_content == b.item_content
    for name in ("item_group", "item_cluster", "item_contaminated", "starts", "parent", "label", "probability"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert (a.redundancy is None) == (b.redundancy is None)
    if a.redundancy is not None:
        assert np.array_equal(a.redundancy, b.redundancy)

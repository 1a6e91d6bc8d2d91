"""Folders of `prism pairs` as benchmarks: splits, and a group per kind of pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prism_prm.cli import app
from prism_prm.data.formats import ReadOptions
from prism_prm.data.tables import iter_trees, write_pairs, write_trees
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.benchmarks import read_benchmark
from prism_prm.evaluate.score_files import TreesToScore
from prism_prm.tree import Step, StepPair, StepTree

TREE = StepTree(
    7,
    "start with 1",
    (
        Step("add 1 to get 2", label=1.0),
        Step("add 1 to get 3", label=0.0),
        Step("add 2 to get 4", label=1.0),
        Step("unjudged"),
        Step("add 2 to get 5", label=0.0),
        Step("so it is 4", label=1.0),
    ),
    (-1, -1, 0, 0, 0, 2),
    (0, 2, 5),
)
PAIRS = [
    StepPair(0, 7, 0, 0, 1, 7, "annotated"),
    StepPair(1, 7, 1, 2, 4, 7, "annotated"),
    StepPair(2, 7, 1, 2, 5, 7, "lookahead"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_trees(tmp_path / "trees.parquet", [TREE], split="test")
    write_pairs(tmp_path / "pairs.parquet", PAIRS, split="test")
    return tmp_path


def judged(tree: StepTree) -> dict[tuple[str, ...], float]:
    """The path of texts to each judged step → its label."""
    return {
        tuple(tree.texts(tree.path(node))): step.label for node, step in enumerate(tree.nodes) if step.label is not None
    }


def test_each_kind_of_pair_is_a_group(folder: Path) -> None:
    items = {item.group: item for item in read_benchmark("pairs", [folder], "test").items}
    first, second = TREE.nodes[0].text, TREE.nodes[2].text
    assert judged(items["annotated"].tree) == {
        (first,): 1.0,
        ("add 1 to get 3",): 0.0,
        (first, second): 1.0,
        (first, "add 2 to get 5"): 0.0,
    }
    assert judged(items["lookahead"].tree) == {(first, second): 1.0, (first, "so it is 4"): 0.0}
    assert [len(items[kind].tree.nodes) for kind in ("annotated", "lookahead")] == [4, 3], "nothing else is scored"
    assert items["annotated"].tree.tree_id != items["lookahead"].tree.tree_id
    assert {item.problem for item in items.values()} == {TREE.problem}


def test_a_split_that_is_not_there(folder: Path) -> None:
    for bench in ("pairs", "labeled"):
        with pytest.raises(DataError, match=r"no tree is in the split 'train'; found: \['test'\]"):
            read_benchmark(bench, [folder], "train")
    (folder / "labels.jsonl").write_text('{"problem": "p", "steps": ["a"], "label": 0}')
    with pytest.raises(ConfigError, match=r"labels.jsonl: has no splits; --split test"):
        read_benchmark("labeled", [folder / "labels.jsonl"], "test")
    with pytest.raises(ConfigError, match="--split is for the benchmarks labeled, pairs, not for prmbench"):
        read_benchmark("prmbench", [folder], "test")


def test_splits_share_no_tree(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": f"problem {i}",
            "completions": ["a right step", "then more", f"end {i}"],
            "labels": [True, True, i > 9],
        }
        for i in range(20)
    ]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["pairs", str(tmp_path / "labels.jsonl"), "--split", "train=0.6,test=0.4", "--out", str(tmp_path / "pairs")]
    assert CliRunner().invoke(app, words).exit_code == 0
    whole = len(list(iter_trees(tmp_path / "pairs")))
    parts = {split: read_benchmark("labeled", [tmp_path / "pairs"], split) for split in ("train", "test")}
    problems = [{item.problem for item in part.items} for part in parts.values()]
    assert sum(len(part.items) for part in parts.values()) == whole
    assert not problems[0] & problems[1]
    assert parts["test"].notes == {"records dropped: other-split": len(parts["train"].items)}
    to_score = TreesToScore([tmp_path / "pairs"], options=ReadOptions(split="test"))
    assert {tree.problem for tree in to_score} == problems[1]

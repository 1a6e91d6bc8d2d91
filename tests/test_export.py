from __future__ import annotations

from pathlib import Path

import pytest

from prism_prm.data.export import EXPORTS, plain, trl_preference, trl_stepwise
from prism_prm.data.tables import write_pairs, write_trees
from prism_prm.errors import DataError
from prism_prm.tree import ROOT, Step, StepPair, StepTree

TREES = [
    StepTree(
        0, "p?", (Step("a", 1.0), Step("x", 0.0), Step("b", 1.0), Step("y", 0.0), Step("c"), Step("z", 0.0)),
        (ROOT, ROOT, 0, 0, 2, 4), (0, 2, 4),
    ),
    StepTree.chain("q?", [Step("soft", 0.25), Step("d", 1.0)], tree_id=1, name="second"),
    StepTree.chain("r?", ["unlabelled"], tree_id=2),
]  # fmt: skip
PAIRS = [
    StepPair(0, 0, 0, 0, 1, 0, "annotated"),
    StepPair(1, 0, 1, 2, 4, 0, "lookahead"),
    StepPair(2, 1, 0, 0, 1, 1, "lookahead"),
    StepPair(3, 0, 1, 2, 0, 1, "random"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_trees(tmp_path / "trees.parquet", TREES, split="train")
    write_pairs(tmp_path / "pairs.parquet", PAIRS, split="train")
    return tmp_path


def test_stepwise_rows_have_a_label_for_every_step(folder: Path) -> None:
    assert list(trl_stepwise(folder)) == [
        {"prompt": "p?", "completions": ["a", "b"], "labels": [True, True]},
        {"prompt": "p?", "completions": ["x"], "labels": [False]},
        {"prompt": "p?", "completions": ["a", "y"], "labels": [True, False]},
        {"prompt": "q?", "completions": ["soft", "d"], "labels": [0.25, 1.0]},
    ]


def test_preference_rows(folder: Path) -> None:
    assert list(trl_preference(folder)) == [
        {"prompt": "p?\n\n", "chosen": "a", "rejected": "x"},
        {"prompt": "p?\n\na\n\n", "chosen": "b", "rejected": "c"},
        {"prompt": "q?\n\n", "chosen": "soft", "rejected": "d"},
        {"prompt": "p?\n\na\n\n", "chosen": "b", "rejected": "soft"},
    ]


def test_plain_rows(folder: Path) -> None:
    rows = list(plain(folder))
    assert rows[1] == {
        "pair_id": 1, "tree_id": 0, "name": "", "kind": "lookahead", "position": 1, "problem": "p?", "prefix": ["a"],
        "chosen": "b", "rejected": "c",
    }  # fmt: skip
    assert rows[2]["name"] == "second"


@pytest.mark.parametrize("name", EXPORTS)
def test_splits_are_respected(folder: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"no tree is in the split 'test'; found: \['train'\]"):
        list(EXPORTS[name](folder, split="test"))
    assert list(EXPORTS[name](folder, split="train")) == list(EXPORTS[name](folder))

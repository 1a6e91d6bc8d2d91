from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm import annotated_pairs, lookahead_pairs
from prism_prm.data import build_pairs as build
from prism_prm.data.build_pairs import PairRecipe, build_pairs
from prism_prm.data.pair_rules import PairSettings
from prism_prm.data.reader import Reader
from prism_prm.data.same_problem import Exclusions, Splits
from prism_prm.data.tables import PAIRS, TREES, iter_pairs, iter_trees, write_trees
from prism_prm.tree import Step, StepTree
from strategies import forests

RIGHT = [Step(f"step {i} = {i + 3}", 1.0) for i in range(4)]
TREES_20 = [
    StepTree.chain(f"Problem number {i // 2}", [Step(f"{i}: {s.text}", s.label) for s in RIGHT], tree_id=i, ended=True)
    for i in range(20)
]


def run(folder: Path, trees: list[StepTree], recipe: PairRecipe) -> dict[str, object]:
    write_trees(folder / "in.parquet", trees)
    return build_pairs(Reader([folder / "in.parquet"]), folder / "out", recipe)


@settings(max_examples=40, deadline=None)
@given(forests().filter(len), st.sampled_from(["drop", "off"]), st.sampled_from([1, 20, 16384]))
def test_files_hold_what_the_rules_say(trees: list[StepTree], audit: str, chunk: int) -> None:
    rules = PairSettings(audit=audit)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as name, mock.patch.object(build, "CHUNK_NODES", chunk):
        folder = Path(name)
        summary = run(folder, trees, PairRecipe(rules))
        assert list(iter_trees(folder / "out")) == trees
        expected = [
            (p.tree_id, p.position, p.chosen, p.rejected, p.rejected_tree, p.kind)
            for tree in trees
            for p in annotated_pairs(tree, rules) + lookahead_pairs(tree, rules)
        ]
        found = list(iter_pairs(folder / "out"))
        assert [(p.tree_id, p.position, p.chosen, p.rejected, p.rejected_tree, p.kind) for p in found] == expected
        assert [pair.pair_id for pair in found] == list(range(len(found)))
        assert summary["trees"] == len(trees)
        assert summary["positions"] == sum(1 for tree in trees for _ in tree.positions())
        assert pq.read_schema(folder / "out" / "trees.parquet").equals(TREES)
        assert pq.read_schema(folder / "out" / "pairs.parquet").equals(PAIRS)


def test_splits_never_cut_a_problem(tmp_path: Path) -> None:
    summary = run(tmp_path, TREES_20, PairRecipe(PairSettings(random=1), Splits({"train": 0.5, "test": 0.5})))
    table = pq.read_table(tmp_path / "out" / "trees.parquet")
    splits: dict[str, set[str]] = {}
    for problem, split in zip(table["problem"].to_pylist(), table["split"].to_pylist(), strict=True):
        splits.setdefault(problem, set()).add(split)
    assert all(len(found) == 1 for found in splits.values())
    assert set.union(*splits.values()) == {"train", "test"}
    split_of = dict(zip(table["tree_id"].to_pylist(), table["split"].to_pylist(), strict=True))
    pairs = pq.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    assert all(split_of[p["tree_id"]] == p["split"] == split_of[p["rejected_tree"]] for p in pairs)
    counted = Counter(pair["split"] for pair in pairs)
    assert {name: counts["pairs"] for name, counts in summary["splits"].items()} == counted  # type: ignore[attr-defined]
    train = list(iter_trees(tmp_path / "out", split="train"))
    assert 0 < len(train) < 20


def test_ablation_kinds(tmp_path: Path) -> None:
    summary = run(tmp_path, TREES_20, PairRecipe(PairSettings(lookahead="none", random=2, perturbed=1)))
    assert summary["pairs"] == {"annotated": 0, "lookahead": 0, "random": 160, "perturbed": 80, "total": 240}
    trees = {tree.tree_id: tree for tree in iter_trees(tmp_path / "out")}
    for pair in iter_pairs(tmp_path / "out"):
        tree, other = trees[pair.tree_id], trees[pair.rejected_tree]
        assert tree.nodes[pair.chosen].text != other.nodes[pair.rejected].text
        assert tree.path(pair.chosen)[:-1] == tree.path(pair.chosen)[: pair.position]
        if pair.kind == "perturbed":
            assert other.nodes[pair.rejected].origin == "perturbed"
            assert tree.parents[pair.chosen] == tree.parents[pair.rejected]
        else:
            assert other.problem != tree.problem
    assert summary["labels"]["none"] == 80  # type: ignore[index]


def test_chunks_change_nothing(tmp_path: Path) -> None:
    recipe = PairRecipe(PairSettings(lookahead=1, random=1, perturbed=1, audit="off"), Splits({"a": 0.5, "b": 0.5}))
    tables = []
    for chunk in (1, 7, 16384):
        with mock.patch.object(build, "CHUNK_NODES", chunk):
            run(tmp_path, TREES_20, recipe)
        tables.append([pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in ("trees", "pairs")])
    assert tables[0] == tables[1] == tables[2]


def test_excluded_trees_are_counted_and_ids_stay_ordinals(tmp_path: Path) -> None:
    exclusions = Exclusions()
    exclusions.add("problem number 0", "bench.jsonl")
    summary = run(tmp_path, TREES_20, PairRecipe(exclusions=exclusions))
    assert summary["trees"] == 18
    assert summary["excluded_trees"] == {"bench.jsonl": {"same_problem": 2}}
    assert [tree.tree_id for tree in iter_trees(tmp_path / "out")] == list(range(18))


def test_shares(tmp_path: Path) -> None:
    trees = [
        StepTree.chain("p", [Step("a", 1.0, 1.0), Step("b", 1.0, 1.0)], tree_id=0, ended=True),
        StepTree.chain("p", [Step("a", 1.0, 1.0), Step("b", 1.0, None, "human")], tree_id=1, ended=True),
        StepTree.chain("p", [Step("a", 1.0, 1.0), Step("b", 0.0, -1.0)], tree_id=2, ended=True),
        StepTree.chain("p", [Step("a", 1.0, 1.0), Step("b", None, 0.0)], tree_id=3, ended=False),
        StepTree.chain("p", [Step("a", None, None)], tree_id=4, ended=None),
    ]
    summary = run(tmp_path, trees, PairRecipe())
    assert summary["positive_step_share"] == {"rated": 5 / 7, "trunk": 6 / 9}
    assert (summary["all_right_share"], summary["model_all_right_share"]) == (2 / 4, 1 / 4)
    assert summary["ratings"] == {"-1": 1, "0": 1, "1": 5, "none": 2}
    assert summary["origins"] == {"human": 1, "model": 8}
    unknown = run(tmp_path, trees[4:], PairRecipe())
    assert (unknown["all_right_share"], unknown["positive_step_share"]) == (None, {"rated": None, "trunk": 0.0})


def test_a_failed_write_leaves_the_old_files(tmp_path: Path) -> None:
    run(tmp_path, TREES_20, PairRecipe())
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with (
        mock.patch.object(build.PairCounts, "as_dict", side_effect=OSError("disk full")),
        pytest.raises(OSError, match="disk"),
    ):
        run(tmp_path, TREES_20[:3], PairRecipe())
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_counts_on_prm800k(real_data: Path, tmp_path: Path) -> None:
    file = real_data / "prm800k" / "phase1_train.jsonl"
    summary = build_pairs(Reader([file]), tmp_path, PairRecipe(PairSettings(audit="off")))
    assert (summary["trees"], summary["positions"]) == (942, 15311)
    assert summary["pairs"] == {"annotated": 26621, "lookahead": 209749, "random": 0, "perturbed": 0, "total": 236370}
    assert summary["dropped_pairs"]["annotated"]["same_text"] == 16
    assert summary["ratings"] == {"-1": 19656, "0": 10234, "1": 18782, "none": 822 + 2341}
    audited = build_pairs(Reader([file]), tmp_path, PairRecipe(PairSettings(audit="keep")))
    assert audited["pairs"]["lookahead"] == 209749
    assert sum(audited["audit_marks"].values()) > 100_000

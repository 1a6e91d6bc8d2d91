from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.data.export import EXPORTS
from prism_prm.data.pair_examples import Split
from prism_prm.data.reader import read_trees
from prism_prm.data.tables import NODE, iter_pairs, iter_trees, read_pairs, write_pairs, write_trees
from prism_prm.errors import DataError
from prism_prm.tree import PAIR_KINDS, Estimate, Step, StepPair, StepTree
from strategies import forests

pairs = st.lists(
    st.builds(
        StepPair, *[st.integers(0, 2**31 - 1)] * 6, st.sampled_from(PAIR_KINDS)
    ),
    max_size=5,
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(forests())
def test_trees_survive_parquet(trees: list[StepTree]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.parquet"
        write_trees(path, trees, split="train", source="made up")
        assert list(iter_trees(path)) == trees
        assert list(iter_trees(folder, split="train")) == trees
        assert list(iter_trees(path, split="test")) == []
        hashes = pq.read_table(path).column("content_hash").to_pylist()
        assert hashes == [tree.content_hash() for tree in iter_trees(path)]
        if trees:
            assert list(read_trees(path)) == trees


@settings(max_examples=20, deadline=None)
@given(pairs)
def test_pairs_survive_parquet(pairs: list[StepPair]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.parquet"
        write_pairs(path, pairs, split="train")
        assert list(iter_pairs(folder)) == pairs
        assert list(iter_pairs(path, split="test")) == []
        assert read_pairs(path, split="train").num_rows == len(pairs)


def test_content_hash_says_what_the_tree_says() -> None:
    tree = StepTree.chain("p", ["a", "b"])
    assert tree.content_hash() == StepTree.chain("p", ["a", "b"], tree_id=7, name="n").content_hash()
    others = [
        StepTree.chain("p", ["ab"]),
        StepTree.chain("pa", ["b"]),
        StepTree.chain("p", ["a", "b"], ended=True),
        StepTree.chain("p", ["a", "b"], answer=""),
    ]
    assert len({tree.content_hash(), *(other.content_hash() for other in others)}) == 5


def test_foreign_or_missing_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file; `prism pairs` writes it"):
        list(iter_trees(tmp_path))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "pairs.parquet")
    with pytest.raises(DataError, match="lacks the columns"):
        read_pairs(tmp_path)
    (tmp_path / "trees.parquet").write_text("no Parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        list(iter_trees(tmp_path))


BAD_LINKS = {
    "a cycle": ([1, 0], [], "node 0 has the parent 1"),
    "its own parent": ([-1, 1], [], "node 1 has the parent 1"),
    "a parent that is not there": ([-1, 7], [], "node 1 has the parent 7"),
    "a parent below the root": ([-1, -2], [], "node 1 has the parent -2"),
    "no parent": ([-1, None], [], "node 1 has the parent None"),
    "a trunk node that is not there": ([-1, 0], [0, 9], "the trunk has the node 9 after 0"),
    "a trunk node below the root": ([-1, 0], [0, -1], "the trunk has the node -1 after 0"),
    "a trunk that skips": ([-1, 0], [1], "the trunk has the node 1 after -1"),
}


@pytest.mark.parametrize("case", BAD_LINKS)
def test_links_that_make_no_tree_are_named(case: str, tmp_path: Path) -> None:
    parents, trunk, message = BAD_LINKS[case]
    path = tmp_path / "trees.parquet"
    write_trees(path, [StepTree.chain("p", ["a", "b"], tree_id=i) for i in (40, 41)])
    rows = pq.read_table(path).to_pylist()
    rows[1]["trunk"] = trunk
    for node, parent in zip(rows[1]["nodes"], parents, strict=True):
        node["parent"] = parent
    node_type = pa.struct([field.with_nullable(True) for field in NODE])
    nodes = pa.array([row.pop("nodes") for row in rows], pa.list_(node_type))
    pq.write_table(pa.Table.from_pylist(rows).append_column("nodes", nodes), path)
    as_table = "the column 'nodes' holds" if None in parents else f"tree 41: {re.escape(message)}"
    with pytest.raises(DataError, match=rf"trees\.parquet[:,] {as_table}"):
        list(iter_trees(tmp_path))
    again = r"Expected `int`, got `null` - at `\$\.nodes\[1\]\.parent`" if None in parents else re.escape(message)
    with pytest.raises(DataError, match=rf"trees\.parquet: row 1: .*{again}"):
        list(read_trees(path))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (StepPair(3, 40, 0, 0, 2, 40, "annotated"), "pair 3 names node 2 of tree 40, which has 2 nodes"),
        (StepPair(3, 40, 0, -1, 1, 40, "lookahead"), "pair 3 names node -1 of tree 40, which has 2 nodes"),
        (StepPair(3, 41, 0, 0, 1, 41, "annotated"), "pair 3 names node 0 of tree 41, which trees.parquet lacks"),
        (StepPair(3, 40, 0, 0, 0, 2**31 - 1, "random"), "pair 3 names node 0 of tree 2147483647, which trees.parquet"),
    ],
)
def test_pairs_of_nodes_that_are_not_there_are_named(pair: StepPair, message: str, tmp_path: Path) -> None:
    write_trees(tmp_path / "trees.parquet", [StepTree(40, "p", (Step("a"), Step("b")), (-1, -1), (0,))])
    write_pairs(tmp_path / "pairs.parquet", [StepPair(2, 40, 0, 0, 1, 40, "annotated"), pair])
    with pytest.raises(DataError, match=message):
        Split.read(tmp_path, None)
    with pytest.raises(DataError, match=message):
        list(EXPORTS["jsonl"](tmp_path))


def test_tables_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Without estimates, and without how sure a pair is; hashes are those that were written."""
    tree = StepTree.chain("p", [Step("a", 1.0, 1.0), "b"], answer="3")
    write_trees(tmp_path / "trees.parquet", [tree])
    write_pairs(tmp_path / "pairs.parquet", [StepPair(0, 0, 0, 0, 1, 0, "annotated", 0.5, 8)])
    trees, pairs = pq.read_table(tmp_path / "trees.parquet"), pq.read_table(tmp_path / "pairs.parquet")
    rows = trees.to_pylist()
    for row in rows:
        for node in row["nodes"]:
            assert node.pop("estimate") is None
    schema = trees.schema.set(
        trees.schema.get_field_index("nodes"),
        pa.field("nodes", pa.list_(pa.struct([field for field in NODE if field.name != "estimate"]))),
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "trees.parquet")
    pq.write_table(pairs.drop_columns(["gap", "rollouts"]), tmp_path / "pairs.parquet")
    assert list(iter_trees(tmp_path)) == list(read_trees(tmp_path / "trees.parquet")) == [tree]
    assert list(iter_pairs(tmp_path)) == [StepPair(0, 0, 0, 0, 1, 0, "annotated")]
    assert rows[0]["content_hash"] == tree.content_hash() == "a68e83b99fce511f"


def test_an_estimate_is_part_of_what_a_tree_says() -> None:
    plain, sure, unsure = (
        StepTree.chain("p", [Step("a", 1.0, estimate=estimate)])
        for estimate in (None, Estimate(1.0, 8, 0.7, 1.0), Estimate(1.0, 2, 0.3, 1.0))
    )
    assert len({plain.content_hash(), sure.content_hash(), unsure.content_hash()}) == 3

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_prm.data import read_trees
from prism_prm.errors import DataError
from prism_prm.records import PAIR_KINDS, StepPair, StepTree
from prism_prm.tables import iter_pairs, iter_trees, read_pairs, write_pairs, write_trees
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

"""The Parquet tables that commands exchange: schemas, readers and writers, and many trees as columns.

`docs/reference/files.md` explains each column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prism_prm.arrays import Ints
from prism_prm.console import Advance, ignore
from prism_prm.data.formats import Draft
from prism_prm.errors import DataError
from prism_prm.file_types import fitted, reading_parquet
from prism_prm.files import atomic_file
from prism_prm.tree import Estimate, StepPair, StepTree

_NAME = pa.dictionary(pa.int32(), pa.string())
"""For columns with few distinct values."""

T = TypeVar("T")


def _required(**types: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, type_, nullable=False) for name, type_ in types.items()]


ESTIMATE = pa.struct(_required(value=pa.float64(), rollouts=pa.int32(), low=pa.float64(), high=pa.float64()))

NODE = pa.struct(
    [
        *_required(text=pa.string(), parent=pa.int32()),
        pa.field("label", pa.float64()),
        pa.field("rating", pa.float64()),
        *_required(origin=pa.string()),
        pa.field("estimate", ESTIMATE),
    ]
)

TREES = pa.schema(
    [
        *_required(tree_id=pa.int32(), name=pa.string(), problem=pa.string()),
        pa.field("answer", pa.string()),
        pa.field("ended", pa.bool_()),
        *_required(
            nodes=pa.list_(NODE), trunk=pa.list_(pa.int32()), split=_NAME, source=_NAME, content_hash=pa.string()
        ),
    ]
)

PAIRS = pa.schema(
    [
        *_required(
            pair_id=pa.int64(), tree_id=pa.int32(), position=pa.int32(), chosen=pa.int32(), rejected=pa.int32(),
            rejected_tree=pa.int32(), kind=_NAME, split=_NAME,
        ),
        pa.field("gap", pa.float64()),
        pa.field("rollouts", pa.int32()),
    ]
)  # fmt: skip
LATER = ("gap", "rollouts")
"""Columns of pairs that files of earlier versions lack."""


def scores_schema(outputs: Sequence[str]) -> pa.Schema:
    """Return the schema of a scores table with these outputs; the first is the log-odds of a right step."""
    log_odds = pa.struct(_required(**dict.fromkeys(outputs, pa.float64())))
    return pa.schema(
        _required(
            tree_id=pa.int32(), name=pa.string(), parent=pa.int32(), node_tree=pa.int32(), node_id=pa.int32(),
            log_odds=log_odds, probability=pa.float64(), content_hash=pa.string(), model_hash=_NAME,
        )
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Forest:
    """A chunk of trees; the nodes of all trees are concatenated, and so are their trunks."""

    drafts: Sequence[Draft]
    node_starts: Ints
    """The start of each tree's nodes, and the end of the last."""
    trunk_starts: Ints
    """The start of each tree's trunk, and the end of the last."""
    texts: Any
    """Arrow strings, one per node."""
    text_codes: Ints
    """A number for every text, equal for equal texts."""
    labels: Any
    """Arrow floats with nulls."""
    ratings: Any
    """Arrow floats with nulls."""
    origins: Any
    """Arrow strings."""
    estimates: Any
    """Arrow structs with nulls."""
    parents: npt.NDArray[np.int32]
    """Numbers within the tree, as in the records."""
    trunk: npt.NDArray[np.int32]

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> Forest:
        """Concatenate drafts."""

        def flat(name: str) -> list[Any]:
            return list(chain.from_iterable(getattr(draft, name) for draft in drafts))

        texts = pa.array(flat("texts"), pa.string())
        node_starts, trunk_starts = (
            np.array([0, *accumulate(len(getattr(draft, name)) for draft in drafts)], dtype=np.int64)
            for name in ("texts", "trunk")
        )
        # A null estimate has zeros as fields, because Parquet does not accept null fields of a null struct.
        numbers, missing = np.zeros((len(ESTIMATE), len(texts))), np.ones(len(texts), dtype=bool)
        if any(draft.estimates for draft in drafts):
            known = (draft.estimates or [None] * len(draft.texts) for draft in drafts)
            for i, each in enumerate(chain.from_iterable(known)):
                if each is not None:
                    numbers[:, i], missing[i] = (each.value, each.rollouts, each.low, each.high), False
        columns = [pa.array(column).cast(field.type) for column, field in zip(numbers, ESTIMATE, strict=True)]
        return cls(
            drafts, node_starts, trunk_starts, texts, string_codes(texts), pa.array(flat("labels"), pa.float64()),
            pa.array(flat("ratings"), pa.float64()), pa.array(flat("origins"), pa.string()),
            pa.StructArray.from_arrays(columns, fields=list(ESTIMATE), mask=pa.array(missing)),
            np.array(flat("parents"), dtype=np.int32), np.array(flat("trunk"), dtype=np.int32),
        )  # fmt: skip

    def tree_of_node(self) -> Ints:
        """Return for every node the index of its tree in this chunk."""
        return np.repeat(np.arange(len(self.drafts)), np.diff(self.node_starts))


def string_codes(strings: Any) -> Ints:
    """Encode strings as numbers, equal for equal strings."""
    codes: Ints = pc.dictionary_encode(strings).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


_INDEXED = ["tree_id"]
"""Columns with statistics per row group, so that readers can skip groups; other columns do not need them."""


def tree_writer(path: str | Path) -> pq.ParquetWriter:
    """Open a writer of `trees.parquet`; only columns with few distinct values use a dictionary."""
    few = [*(f"nodes.list.element.{name}" for name in ("label", "rating", "origin")), "split", "source"]
    return pq.ParquetWriter(
        path, TREES, compression="zstd", compression_level=1, use_dictionary=few, write_statistics=_INDEXED
    )


def pair_writer(path: str | Path) -> pq.ParquetWriter:
    """Open a writer of `pairs.parquet`; its numbers grow slowly, so delta encoding takes a sixth of the space."""
    numbers = {field.name: "DELTA_BINARY_PACKED" for field in PAIRS if pa.types.is_integer(field.type)}
    return pq.ParquetWriter(
        path, PAIRS, compression="zstd", compression_level=1, use_dictionary=["kind", "split"], column_encoding=numbers,
        write_statistics=_INDEXED
    )  # fmt: skip


def tree_table(forest: Forest, *, tree_ids: Sequence[int], splits: Sequence[str], sources: Sequence[str]) -> pa.Table:
    """Return the rows of `trees.parquet`."""
    drafts = forest.drafts
    node_columns = [
        forest.texts, pa.array(forest.parents), forest.labels, forest.ratings, forest.origins, forest.estimates,
    ]  # fmt: skip
    nodes = pa.StructArray.from_arrays(node_columns, fields=list(NODE))
    columns = [
        pa.array(tree_ids, pa.int32()),
        pa.array([draft.name for draft in drafts], pa.string()),
        pa.array([draft.problem for draft in drafts], pa.string()),
        pa.array([draft.answer for draft in drafts], pa.string()),
        pa.array([draft.ended for draft in drafts], pa.bool_()),
        pa.ListArray.from_arrays(pa.array(forest.node_starts, pa.int32()), nodes, type=TREES.field("nodes").type),
        pa.ListArray.from_arrays(pa.array(forest.trunk_starts, pa.int32()), pa.array(forest.trunk)),
        pa.array(splits, pa.string()).dictionary_encode(),
        pa.array(sources, pa.string()).dictionary_encode(),
        pa.array([draft.content_hash() for draft in drafts], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=TREES)


def write_trees(path: str | Path, trees: Iterable[StepTree], *, split: str = "", source: str = "") -> None:
    """Write `trees.parquet`, all in one split."""
    with atomic_file(path) as aside, tree_writer(aside) as writer:
        for chunk in _batched(trees, 1024):
            size = len(chunk)
            forest = Forest.of([Draft.of(tree) for tree in chunk])
            ids = [tree.tree_id for tree in chunk]
            writer.write_table(tree_table(forest, tree_ids=ids, splits=[split] * size, sources=[source] * size))


def check_split(path: str | Path, split: str | None) -> None:
    """Raise if no tree of a `trees.parquet` (or of the folder that holds it) is in the split."""
    if split is None:
        return
    with _open(path, "trees.parquet", TREES) as file:
        column = fitted(path, file.read(columns=["split"]), pa.schema([TREES.field("split")]))
        splits = sorted(set(column["split"].to_pylist()))
    if split not in splits:
        raise DataError(
            f"{path}: no tree is in the split {split!r}; found: {splits}. "
            "Make splits with `prism pairs --split`, or in a recipe with [data] split.",
            reason="no-such-split",
        )


def check_pairs_folder(folder: str | Path, split: str | None = None) -> None:
    """Raise unless `prism pairs` wrote the folder and it has the split."""
    for name, schema in (("trees.parquet", TREES), ("pairs.parquet", PAIRS)):
        with _open(folder, name, schema):
            pass
    check_split(folder, split)


def iter_trees(path: str | Path, *, split: str | None = None, advance: Advance = ignore) -> Iterator[StepTree]:
    """Yield the trees of a `trees.parquet` (or of the folder that holds it), with their stored ids.

    `advance` is called with the number of newly read bytes, estimated from the rows.
    """
    path = _file(path, "trees.parquet")
    size = path.stat().st_size if advance is not ignore else 0
    with _open(path, "trees.parquet", TREES) as file:
        for batch in file.iter_batches(batch_size=256):
            selected = _only_split(fitted(path, batch, TREES), split)
            nodes = selected.column("nodes")
            values = nodes.flatten()
            starts = np.concatenate([[0], np.cumsum(nodes.value_lengths().to_numpy(zero_copy_only=False))]).tolist()
            texts, parents, labels, ratings, origins, structs = (values.field(field.name).to_pylist() for field in NODE)
            estimates = [None if struct is None else Estimate(**struct) for struct in structs]
            names = ("tree_id", "problem", "trunk", "name", "answer", "ended", "source")
            for i, row in enumerate(zip(*(selected.column(name).to_pylist() for name in names), strict=True)):
                tree_id, problem, trunk, name, answer, ended, source = row
                own = slice(starts[i], starts[i + 1])
                draft = Draft(
                    problem, texts[own], parents[own], labels[own], ratings[own], origins[own], trunk, name, answer,
                    ended, f"{path} (from {source})" if source else str(path), estimates[own],
                )  # fmt: skip
                try:
                    draft.check_links()
                except DataError as error:
                    raise DataError(f"{path}, tree {tree_id}: {error}", reason=error.reason) from None
                yield draft.tree(tree_id)
            advance(size * batch.num_rows // max(1, file.metadata.num_rows))


def write_pairs(path: str | Path, pairs: Iterable[StepPair], *, split: str = "") -> None:
    """Write `pairs.parquet`, all in one split."""
    with atomic_file(path) as aside, pair_writer(aside) as writer:
        for chunk in _batched(pairs, 65536):
            values = [[getattr(pair, field.name, split) for pair in chunk] for field in PAIRS]
            arrays = [pa.array(column, field.type) for column, field in zip(values, PAIRS, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=PAIRS))


def read_pairs(path: str | Path, *, split: str | None = None) -> pa.Table:
    """Read all of a `pairs.parquet` (or of the folder that holds it) as columns: about 37 bytes per pair."""
    with _open(path, "pairs.parquet", PAIRS) as file:
        return _only_split(fitted(_file(path, "pairs.parquet"), file.read(), PAIRS, optional=LATER), split)


def iter_pairs(path: str | Path, *, split: str | None = None) -> Iterator[StepPair]:
    """Yield the pairs of a `pairs.parquet` (or of the folder that holds it)."""
    names = [field.name for field in PAIRS if field.name != "split"]
    with _open(path, "pairs.parquet", PAIRS) as file:
        for batch in file.iter_batches(batch_size=65536):
            selected = _only_split(fitted(_file(path, "pairs.parquet"), batch, PAIRS, optional=LATER), split)
            for row in zip(*(selected.column(name).to_pylist() for name in names), strict=True):
                yield StepPair(*row)


def check_pairs(where: str | Path, pairs: Mapping[str, Ints], sizes: Mapping[int, int]) -> None:
    """Raise if a pair (columns of a `pairs.parquet`) names a missing node; `sizes` are the node counts of the trees."""
    trees = np.array(sorted(sizes), dtype=np.int64)
    num_nodes = np.array([sizes[tree] for tree in trees.tolist()] + [0], dtype=np.int64)
    for tree_column, node_column in (("tree_id", "chosen"), ("rejected_tree", "rejected")):
        tree_ids, nodes = pairs[tree_column], pairs[node_column]
        at = np.searchsorted(trees, tree_ids)
        at[np.append(trees, -1)[at] != tree_ids] = len(trees)
        bad = np.flatnonzero((nodes < 0) | (nodes >= num_nodes[at]))
        if len(bad):
            first = bad[0]
            raise no_such_node(where, pairs["pair_id"][first], tree_ids[first], nodes[first], num_nodes[at[first]])


def no_such_node(where: str | Path, pair_id: int, tree_id: int, node: int, num_nodes: int) -> DataError:
    """Make the error for a pair that names a missing node; `num_nodes` is 0 if the tree is missing."""
    finding = f"has {num_nodes} nodes" if num_nodes else "trees.parquet lacks"
    return DataError(
        f"{where}: pair {pair_id} names node {node} of tree {tree_id}, which {finding}; both tables must come from "
        "one run of `prism pairs`",
        reason="no-such-node",
    )


def _batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _only_split(table: Any, split: str | None) -> Any:
    return table if split is None else table.filter(pc.equal(table.column("split"), split))


def _file(path: str | Path, name: str) -> Path:
    """Return `path`, or the file `name` in it if it is a folder."""
    path = Path(path)
    return path / name if path.is_dir() else path


@contextlib.contextmanager
def _open(path: str | Path, name: str, schema: pa.Schema) -> Iterator[pq.ParquetFile]:
    """Open the Parquet file `path`, or `name` in the folder `path`, and check its columns."""
    path = _file(path, name)
    if not path.is_file():
        raise DataError(f"{path}: no such file; `prism pairs` writes it", reason="no-such-file")
    with reading_parquet(path, "write it again with `prism pairs`"), pq.ParquetFile(path) as file:
        missing = sorted(set(schema.names) - set(file.schema_arrow.names) - set(LATER))
        if missing:
            raise DataError(f"{path}: not a {name} of prism; it lacks the columns {missing}", reason="wrong-format")
        yield file

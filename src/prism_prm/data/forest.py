"""Many trees as columns: what is written to `trees.parquet` and read back, and what pairs are computed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prism_prm.arrays import Ints
from prism_prm.data.draft import Draft
from prism_prm.data.formats import TREE_TABLE_KEYS, Format
from prism_prm.data.read_options import ReadOptions
from prism_prm.errors import DataError
from prism_prm.records import Estimate, Origin


@dataclass(frozen=True, slots=True)
class Forest:
    """A chunk of trees; the nodes of all trees are concatenated, and so are their trunks."""

    drafts: Sequence[Draft]
    node_starts: Ints
    """Where each tree's nodes begin, and where the last tree's nodes end."""
    trunk_starts: Ints
    """Where each tree's trunk begins, and where the last one ends."""
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
        """Put trees side by side."""
        texts = pa.array(_flat(draft.texts for draft in drafts), pa.string())
        return cls(
            drafts,
            _starts([len(draft.texts) for draft in drafts]),
            _starts([len(draft.trunk) for draft in drafts]),
            texts,
            string_codes(texts),
            pa.array(_flat(draft.labels for draft in drafts), pa.float64()),
            pa.array(_flat(draft.ratings for draft in drafts), pa.float64()),
            pa.array(_flat(draft.origins for draft in drafts), pa.string()),
            _estimates(drafts),
            np.array(_flat(draft.parents for draft in drafts), dtype=np.int32),
            np.array(_flat(draft.trunk for draft in drafts), dtype=np.int32),
        )

    def tree_of_node(self) -> Ints:
        """For every node the index of its tree in this chunk."""
        return np.repeat(np.arange(len(self.drafts)), np.diff(self.node_starts))


ESTIMATE = pa.struct(
    [
        pa.field("value", pa.float64(), nullable=False),
        pa.field("rollouts", pa.int32(), nullable=False),
        pa.field("low", pa.float64(), nullable=False),
        pa.field("high", pa.float64(), nullable=False),
    ]
)


def _estimates(drafts: Sequence[Draft]) -> Any:
    """The estimates of all nodes; under a null stand zeros, since Parquet takes no null parts of a null whole."""
    size = sum(len(draft.texts) for draft in drafts)
    numbers, missing = np.zeros((len(ESTIMATE), size)), np.ones(size, dtype=bool)
    if any(draft.estimates for draft in drafts):
        for i, one in enumerate(_flat(draft.estimates or [None] * len(draft.texts) for draft in drafts)):
            if one is not None:
                numbers[:, i], missing[i] = (one.value, one.rollouts, one.low, one.high), False
    columns = [pa.array(column).cast(field.type) for column, field in zip(numbers, ESTIMATE, strict=True)]
    return pa.StructArray.from_arrays(columns, fields=list(ESTIMATE), mask=pa.array(missing))


def string_codes(strings: Any) -> Ints:
    """A number for every string, equal for equal strings."""
    codes: Ints = pc.dictionary_encode(strings).indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _starts(sizes: list[int]) -> Ints:
    return np.array([0, *accumulate(sizes)], dtype=np.int64)


def _flat(lists: Any) -> list[Any]:
    return list(chain.from_iterable(lists))


class TreeTableNode(msgspec.Struct):
    text: str
    parent: int
    label: float | None
    rating: float | None
    origin: Origin
    estimate: Estimate | None = None


class TreeTableRow(msgspec.Struct):
    """Read back as written: labels are kept, and neutral ratings are not labelled again."""

    tree_id: int
    problem: str
    nodes: list[TreeTableNode]
    trunk: list[int]
    name: str = ""
    answer: str | None = None
    ended: bool | None = None
    split: str = ""


def _drop_reason(row: TreeTableRow, options: ReadOptions) -> str | None:
    """Why the tree is left out, if it is."""
    return None if options.split in (None, row.split) else "other-split"


def _read(row: TreeTableRow, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The tree of a row."""
    nodes = row.nodes
    draft = Draft(
        row.problem,
        [node.text for node in nodes],
        [node.parent for node in nodes],
        [node.label for node in nodes],
        [node.rating for node in nodes],
        [node.origin for node in nodes],
        row.trunk,
        row.name,
        row.answer,
        row.ended,
        estimates=[node.estimate for node in nodes] if any(node.estimate for node in nodes) else None,
    )
    try:
        draft.check_links()
    except DataError as error:
        raise DataError(f"tree {row.tree_id}: {error}", reason=error.reason) from None
    return [draft]


TREE_TABLE_FORMAT = Format("trees", TreeTableRow, TREE_TABLE_KEYS, _read, _drop_reason)

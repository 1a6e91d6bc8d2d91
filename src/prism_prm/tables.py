"""The Parquet schemas that commands exchange; `docs/architecture.md` says what each column means."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_NAME = pa.dictionary(pa.int32(), pa.string())
"""For columns with few distinct values."""

NODE = pa.struct(
    [
        pa.field("text", pa.string(), nullable=False),
        pa.field("parent", pa.int32(), nullable=False),
        pa.field("label", pa.float64()),
        pa.field("rating", pa.float64()),
        pa.field("origin", pa.string(), nullable=False),
    ]
)

TREES = pa.schema(
    [
        pa.field("tree_id", pa.int32(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("problem", pa.string(), nullable=False),
        pa.field("answer", pa.string()),
        pa.field("ended", pa.bool_()),
        pa.field("nodes", pa.list_(NODE), nullable=False),
        pa.field("trunk", pa.list_(pa.int32()), nullable=False),
        pa.field("split", _NAME, nullable=False),
        pa.field("source", _NAME, nullable=False),
        pa.field("content_hash", pa.string(), nullable=False),
    ]
)

PAIRS = pa.schema(
    [
        pa.field("pair_id", pa.int64(), nullable=False),
        pa.field("tree_id", pa.int32(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("chosen", pa.int32(), nullable=False),
        pa.field("rejected", pa.int32(), nullable=False),
        pa.field("rejected_tree", pa.int32(), nullable=False),
        pa.field("kind", _NAME, nullable=False),
        pa.field("split", _NAME, nullable=False),
    ]
)


def scores_schema(outputs: Sequence[str]) -> pa.Schema:
    """The scores table of a family that names its log-odds `outputs`; the first is that of a right step."""
    log_odds = pa.struct([pa.field(name, pa.float64(), nullable=False) for name in outputs])
    return pa.schema(
        [
            pa.field("tree_id", pa.int32(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("parent", pa.int32(), nullable=False),
            pa.field("node_tree", pa.int32(), nullable=False),
            pa.field("node_id", pa.int32(), nullable=False),
            pa.field("log_odds", log_odds, nullable=False),
            pa.field("probability", pa.float64(), nullable=False),
            pa.field("content_hash", pa.string(), nullable=False),
            pa.field("model_hash", _NAME, nullable=False),
        ]
    )

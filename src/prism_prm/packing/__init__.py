"""Packed trees: every node of a tree of steps in one row of tokens, each seeing its own ancestors only.

A tree is laid out depth first, so the descendants of a token are a stretch behind it: token q sees token k iff
k ≤ q < end[k]. Two integers per token, position and end, say everything; the same rule gives a dense mask or a
block mask. A tree too big for a row is split by branches, and the trunk is repeated where it is needed.

Shapes: B rows, L tokens of a row, R reads.
"""

from __future__ import annotations

from prism_prm.packing.batch import PackedBatch, batch_rows, collate, merge_rows, read_index
from prism_prm.packing.encode import EncodedTree, Layout, describe, encode_tree
from prism_prm.packing.rows import Group, Row, depth_first, lay_out, pack, split

__all__ = [
    "EncodedTree",
    "Group",
    "Layout",
    "PackedBatch",
    "Row",
    "batch_rows",
    "collate",
    "depth_first",
    "describe",
    "encode_tree",
    "lay_out",
    "merge_rows",
    "pack",
    "read_index",
    "split",
]

"""Our own `trees.parquet`, read back as it was written: labels are kept, and neutral ratings are not judged anew."""

from __future__ import annotations

import msgspec

from prism_prm.data.draft import Draft
from prism_prm.data.formats import Format
from prism_prm.data.options import ReadOptions
from prism_prm.errors import DataError
from prism_prm.records import Origin


class TableNode(msgspec.Struct):
    text: str
    parent: int
    label: float | None
    rating: float | None
    origin: Origin


class Record(msgspec.Struct):
    tree_id: int
    problem: str
    nodes: list[TableNode]
    trunk: list[int]
    name: str = ""
    answer: str | None = None
    ended: bool | None = None
    split: str = ""


def drop_reason(record: Record, options: ReadOptions) -> str | None:
    """Why the tree is left out, if it is."""
    return None if options.split in (None, record.split) else "other-split"


def read(record: Record, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The tree of a row."""
    nodes = record.nodes
    draft = Draft(
        record.problem,
        [node.text for node in nodes],
        [node.parent for node in nodes],
        [node.label for node in nodes],
        [node.rating for node in nodes],
        [node.origin for node in nodes],
        record.trunk,
        record.name,
        record.answer,
        record.ended,
    )
    try:
        draft.check_links()
    except DataError as error:
        raise DataError(f"tree {record.tree_id}: {error}", reason=error.reason) from None
    return [draft]


FORMAT = Format("trees", Record, frozenset({"tree_id", "nodes", "trunk"}), read, drop_reason)

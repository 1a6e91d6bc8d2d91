"""Many trees as columns: what is written to Parquet, and what pairs are computed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prism_prm.data.draft import Draft

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Forest:
    """A chunk of trees; nodes of all trees stand one after the other, and so do their trunks."""

    drafts: Sequence[Draft]
    node_starts: Ints
    """Where each tree's nodes begin, and one more: where the last one's end."""
    trunk_starts: Ints
    """The same for the trunks."""
    texts: Any
    """Arrow strings, one per node."""
    labels: Any
    """Arrow floats with nulls."""
    parents: npt.NDArray[np.int32]
    """Numbers within the tree, as in the records."""
    trunk: npt.NDArray[np.int32]

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> Forest:
        """Put trees side by side."""
        return cls(
            drafts,
            _starts([len(draft.texts) for draft in drafts]),
            _starts([len(draft.trunk) for draft in drafts]),
            pa.array(_flat(draft.texts for draft in drafts), pa.string()),
            pa.array(_flat(draft.labels for draft in drafts), pa.float64()),
            np.array(_flat(draft.parents for draft in drafts), dtype=np.int32),
            np.array(_flat(draft.trunk for draft in drafts), dtype=np.int32),
        )

    def column(self, name: str, type_: Any) -> Any:
        """Another per-node field of the drafts as an Arrow array."""
        return pa.array(_flat(getattr(draft, name) for draft in self.drafts), type_)

    def tree_of_node(self) -> Ints:
        """For every node the index of its tree in this chunk."""
        return np.repeat(np.arange(len(self.drafts)), np.diff(self.node_starts))


def _starts(sizes: list[int]) -> Ints:
    return np.array([0, *accumulate(sizes)], dtype=np.int64)


def _flat(lists: Any) -> list[Any]:
    return list(chain.from_iterable(lists))

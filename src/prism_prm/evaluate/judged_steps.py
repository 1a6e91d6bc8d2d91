"""The judged steps of a benchmark as columns: what metrics, figures and comparisons work on, and a Parquet file.

Items lie one after the other; `starts` says where each begins. The file is self-contained: two runs can be compared
without the benchmark's texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prism_prm import metrics
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.errors import DataError
from prism_prm.file_types import fitted, reading_parquet
from prism_prm.files import whole_file
from prism_prm.stats import number_clusters

NOT_JUDGED = -1


@dataclass(frozen=True)
class Steps:
    """One row per step; columns that start with `item_` have one row per item."""

    items: tuple[str, ...]
    group_names: tuple[str, ...]
    item_group: Ints
    """Index into `group_names`."""
    item_cluster: Ints
    num_clusters: int
    item_contaminated: npt.NDArray[np.int8]
    """1 yes, 0 no, −1 not checked."""
    starts: Ints
    parent: Ints
    """Node before the step, −1 for a first step."""
    label: npt.NDArray[np.int8]
    """1 right, 0 wrong, −1 not judged."""
    probability: Floats
    """NaN where a critic gave no verdict."""
    redundancy: Floats | None = None
    hard: bool = False
    """Whether the scores are only verdicts (0 or 1), which give no ranking."""
    item_content: tuple[str, ...] | None = None
    """The content hash of each item; None in tables of earlier versions."""

    @cached_property
    def lengths(self) -> Ints:
        return np.diff(np.append(self.starts, len(self.label)))

    @cached_property
    def step_item(self) -> Ints:
        """For every step the ordinal of its item."""
        return np.repeat(np.arange(len(self.items)), self.lengths)

    @cached_property
    def step_group(self) -> Ints:
        """For every step the group of its item."""
        return self.item_group[self.step_item]

    @cached_property
    def step_cluster(self) -> Ints:
        """For every step the cluster of its item."""
        return self.item_cluster[self.step_item]

    @cached_property
    def judged(self) -> Bools:
        """Steps with a label and a score; a critic may leave steps unscored (NaN)."""
        return np.asarray((self.label != NOT_JUDGED) & ~np.isnan(self.probability))

    @cached_property
    def right(self) -> Bools:
        return np.asarray(self.label == 1)

    @cached_property
    def wrong(self) -> Bools:
        return np.asarray(self.label == 0)

    @cached_property
    def are_chains(self) -> bool:
        """Whether every item is one plain solution, so that "first" means something."""
        before = np.arange(len(self.label)) - np.repeat(self.starts, self.lengths) - 1
        return bool((self.parent == before).all())

    def first_judged_bad(self, bad: Bools) -> Ints:
        """Per item the first of the bad steps, −1 if none is, and −2 if a step before it has no score."""
        unscored = np.isnan(self.probability)
        first, gap = metrics.first_bad(bad & ~unscored, self.starts), metrics.first_bad(unscored, self.starts)
        return np.where((gap >= 0) & ((first < 0) | (gap < first)), -2, first)

    def only(self, keep: Bools) -> Steps:
        """Some of the items (a mask over items), with clusters and groups renumbered."""
        step_keep = np.repeat(keep, self.lengths)
        lengths = self.lengths[keep]
        present, groups = np.unique(self.item_group[keep], return_inverse=True)
        clusters, num_clusters = number_clusters(self.item_cluster[keep].tolist())
        return replace(
            self,
            items=tuple(compress(self.items, keep)),
            group_names=tuple(self.group_names[i] for i in present),
            item_group=groups.astype(np.int64),
            item_cluster=clusters,
            num_clusters=num_clusters,
            item_contaminated=self.item_contaminated[keep],
            starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)[: len(lengths)],
            parent=self.parent[step_keep],
            label=self.label[step_keep],
            probability=self.probability[step_keep],
            redundancy=None if self.redundancy is None else self.redundancy[step_keep],
            item_content=None if self.item_content is None else tuple(compress(self.item_content, keep)),
        )

    def only_groups(self, names: Sequence[str]) -> Steps:
        """The items of some groups."""
        return self.only(np.isin(np.array(self.group_names)[self.item_group], list(names)))


_AGAIN = "run `prism eval` again"
_COLUMNS = ("item", "group", "cluster", "contaminated", "parent", "label", "probability", "redundancy")
_CONTENT = "content_hash"
"""A column that tables of earlier versions do not have."""


def write_steps(path: str | Path, steps: Steps) -> None:
    """Write the columns as Parquet, one row per step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def names(values: Sequence[str], at: Ints) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(at, pa.int32()), pa.array(list(values), pa.string()))

    columns = [
        names(steps.items, steps.step_item),
        names(steps.group_names, steps.step_group),
        pa.array(steps.step_cluster, pa.int32()),
        pa.array(steps.item_contaminated[steps.step_item], pa.int8()),
        pa.array(steps.parent, pa.int32()),
        pa.array(steps.label, pa.int8()),
        pa.array(steps.probability, pa.float64()),
        pa.array(np.full(len(steps.label), np.nan) if steps.redundancy is None else steps.redundancy, pa.float64()),
    ]
    table = pa.Table.from_arrays(columns, names=list(_COLUMNS))
    if steps.item_content is not None:
        table = table.append_column(_CONTENT, names(steps.item_content, steps.step_item))
    with whole_file(path) as aside:
        pq.write_table(table.replace_schema_metadata({"hard": str(int(steps.hard))}), aside)


def read_steps(path: str | Path) -> Steps:
    """What `write_steps` wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path(path).exists():
        raise DataError(f"{path}: no such file; {_AGAIN}")
    words, kinds = pa.dictionary(pa.int32(), pa.string()), (pa.int32(), pa.int8(), pa.int32(), pa.int8())
    types = (words, words, *kinds, pa.float64(), pa.float64(), words)
    with reading_parquet(path, _AGAIN):
        table = pq.read_table(path)
        if tuple(table.column_names) not in (_COLUMNS, (*_COLUMNS, _CONTENT)):
            raise DataError(f"{path}: not a table of judged steps; it has the columns {table.column_names}")
        fields = [pa.field(*field, nullable=False) for field in zip(table.column_names, types, strict=False)]
        table = fitted(path, table, pa.schema(fields))
    clusters = table["cluster"].to_numpy().astype(np.int64)
    if not len(clusters) or not 0 <= clusters.min() <= clusters.max() < len(clusters):
        raise DataError(f"{path}: its problems have no numbers; {_AGAIN}")
    item = table["item"].combine_chunks()
    step_item, names = item.indices.to_numpy(), item.dictionary.to_pylist()
    starts = np.flatnonzero(np.diff(step_item, prepend=-1)).astype(np.int64)
    group = table["group"].combine_chunks()
    redundancy = table["redundancy"].to_numpy()
    content = table[_CONTENT].combine_chunks() if _CONTENT in table.column_names else None
    return Steps(
        items=tuple(names),
        group_names=tuple(group.dictionary.to_pylist()),
        item_group=group.indices.to_numpy().astype(np.int64)[starts],
        item_cluster=clusters[starts],
        num_clusters=int(clusters.max()) + 1,
        item_contaminated=table["contaminated"].to_numpy()[starts],
        starts=starts,
        parent=table["parent"].to_numpy().astype(np.int64),
        label=table["label"].to_numpy(),
        probability=table["probability"].to_numpy(),
        redundancy=None if np.isnan(redundancy).all() else redundancy,
        hard=(table.schema.metadata or {}).get(b"hard") == b"1",
        item_content=None if content is None else tuple(content.take(pa.array(starts)).to_pylist()),
    )

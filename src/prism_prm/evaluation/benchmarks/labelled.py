"""Any labelled data that `prism pairs` reads: a PRM800K test split, your own labels, a trees.parquet.

A step is right if its label is above ½ and wrong if it is below; others are not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prism_prm.data.read_options import ReadOptions
from prism_prm.data.reader import Reader
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluation.benchmarks.base import Benchmark, Item, ItemSet
from prism_prm.records import unique_names
from prism_prm.tables import check_split


def read_labelled(inputs: Sequence[str | Path], split: str | None = None) -> ItemSet:
    """The trees that carry a label, grouped by file; of a split, where the input is a folder of `prism pairs`."""
    reader = Reader(inputs, options=ReadOptions(split=split))
    for source in reader.sources if split is not None else ():
        if source.kind != "parquet":
            raise ConfigError(f"{source.name}: has no splits; --split {split} is for folders of `prism pairs`")
        check_split(source.name, split)
    notes: Counter[str] = Counter()
    items: list[Item] = []
    for source, draft in reader.drafts():
        if all(label is None or label == 0.5 for label in draft.labels):
            notes["trees without a judged step"] += 1
            continue
        tree = replace(draft.tree(len(items)), name=draft.name or f"tree-{len(items)}")
        items.append(Item(tree, Path(source.name).name, draft.problem))
    names = unique_names(item.tree.name for item in items)
    items = [replace(item, tree=replace(item.tree, name=name)) for item, name in zip(items, names, strict=True)]
    notes.update({f"records dropped: {reason}": count for reason, count in reader.report.dropped.items()})
    files = tuple(source.name for source in reader.sources)
    if not items:
        raise DataError(f"{', '.join(files)}: no step carries a label, so there is nothing to measure against")
    return ItemSet(tuple(items), files, dict(notes))


LABELLED = Benchmark(read_labelled, has_splits=True)

"""Your own labels as benchmarks: any labelled data that `prism pairs` reads, and the pairs that it has written.

In labelled data (a PRM800K test split, a trees.parquet) a step is right if its label is above ½ and wrong if it is
below; others are not judged. Each kind of pair is a group: annotated errors, and steps that come too early (lookahead),
are measured separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prism_prm.data.draft import ReadOptions
from prism_prm.data.pair_examples import Split, as_one_tree
from prism_prm.data.reader import Reader
from prism_prm.data.tables import check_split
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.benchmarks.base import Benchmark, Item, ItemSet
from prism_prm.tree import ROOT, StepTree, unique_names


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
        raise DataError(f"{', '.join(files)}: no step has a label, so there is nothing to measure")
    return ItemSet(tuple(items), files, dict(notes))


def read_pair_folders(folders: Sequence[str | Path], split: str | None = None) -> ItemSet:
    """An item per tree and kind of pair: its chosen steps are right, its rejected ones wrong, others not judged."""
    items: list[Item] = []
    for folder in folders:
        data = Split.read(Path(folder), split)
        for kind in sorted(set(data.kinds)):
            pairs = data.pairs.take(np.flatnonzero(data.kinds == kind))
            for indices in pairs.by_tree():
                tree, groups = as_one_tree(pairs, indices)
                judged = _judged(tree, {chosen for chosen, _ in groups}, {rejected for _, rejected in groups})
                named = replace(judged, tree_id=len(items), name=f"{tree.name or tree.tree_id}:{kind}#{len(items)}")
                items.append(Item(named, str(kind), tree.problem))
    files = tuple(map(str, folders))
    return ItemSet(tuple(items), files)


def _judged(tree: StepTree, right: Collection[int], wrong: Collection[int]) -> StepTree:
    """The tree with these labels alone, and only the nodes that they stand on."""
    kept = sorted({node for judged in (*right, *wrong) for node in tree.path(judged)})
    number = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
    labels = dict.fromkeys(right, 1.0) | dict.fromkeys(wrong, 0.0)
    return replace(
        tree,
        nodes=tuple(replace(tree.nodes[node], label=labels.get(node), rating=None) for node in kept),
        parents=tuple(number[tree.parents[node]] for node in kept),
        trunk=tuple(number[node] for node in tree.trunk if node in number),
    )


LABELLED = Benchmark(read_labelled, has_splits=True)
PAIRS = Benchmark(read_pair_folders, has_splits=True)

"""Pairs that `prism pairs` has written, as a benchmark: how the PRM tells the right step of a pair from the wrong one.

Each kind of pair is a group: annotated errors, and steps that come too early (lookahead), are measured apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prism_prm.evaluation.benchmarks.base import Benchmark, Item, ItemSet
from prism_prm.pairs.examples import Split, as_one_tree
from prism_prm.records import ROOT, StepTree


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


PAIRS = Benchmark(read_pair_folders, has_splits=True)

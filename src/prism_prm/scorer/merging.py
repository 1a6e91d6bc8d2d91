"""Trees that share a problem, merged into one: what they have in common is then computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from prism_prm.packing import EncodedTree
from prism_prm.records import ROOT, StepTree

TreeT = TypeVar("TreeT")
Places = list[int]
"""For each node of a tree the node of the merged one that it became."""


def score_merged(
    trees: Sequence[TreeT],
    shared: Callable[[int], Hashable],
    merge: Callable[[Sequence[TreeT]], tuple[TreeT, list[Places]]],
    score: Callable[[Sequence[TreeT]], Sequence[np.ndarray]],
) -> list[np.ndarray]:
    """The log-odds_NO of each tree; trees of which `shared` gives the same are merged before they are scored."""
    groups: dict[Hashable, list[int]] = {}
    for i in range(len(trees)):
        groups.setdefault(shared(i), []).append(i)
    merged = [merge([trees[i] for i in members]) for members in groups.values()]
    found: dict[int, np.ndarray] = {}
    scores = score([tree for tree, _ in merged])
    for members, (_, places), values_NO in zip(groups.values(), merged, scores, strict=True):
        found |= {i: values_NO[where] for i, where in zip(members, places, strict=True)}
    return [found[i] for i in range(len(trees))]


def merge_encoded(trees: Sequence[EncodedTree]) -> tuple[EncodedTree, list[Places]]:
    """One tree of those with the same prompt."""
    firsts, parents, places = _merge([(list(zip(tree.ids, tree.reads, strict=True)), tree.parents) for tree in trees])
    tree = EncodedTree(
        trees[0].prompt,
        tuple(trees[i].ids[node] for i, node in firsts),
        tuple(trees[i].reads[node] for i, node in firsts),
        parents,
        tuple(trees[i].starts[node] for i, node in firsts),
    )
    return tree, places


def merge_trees(trees: Sequence[StepTree]) -> tuple[StepTree, list[Places]]:
    """One tree of those with the same problem."""
    firsts, parents, places = _merge([([step.text for step in tree.nodes], tree.parents) for tree in trees])
    nodes = tuple(trees[i].nodes[node] for i, node in firsts)
    return StepTree(0, trees[0].problem, nodes, parents, ()), places


def _merge(
    trees: Sequence[tuple[Sequence[Hashable], Sequence[int]]],
) -> tuple[list[tuple[int, int]], tuple[int, ...], list[Places]]:
    """For trees as (what each node says, parents): the first (tree, node) of each merged node, its parent, places."""
    known: dict[tuple[int, Hashable], int] = {}
    firsts: list[tuple[int, int]] = []
    parents: list[int] = []
    places: list[Places] = []
    for i, (said, above) in enumerate(trees):
        where: Places = []
        for node, (key, parent) in enumerate(zip(said, above, strict=True)):
            at = ROOT if parent == ROOT else where[parent]
            if (at, key) not in known:
                known[at, key] = len(firsts)
                firsts.append((i, node))
                parents.append(at)
            where.append(known[at, key])
        places.append(where)
    return firsts, tuple(parents), places

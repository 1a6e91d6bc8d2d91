"""Which pairs make an update. Chosen first, packed later, so that packing never changes what is learned.

Pairs of one tree share their prefix, so training several of them together costs little more than one. An update
therefore takes its pairs in groups from one tree, up to a stated number, and groups from many trees in random order.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from prism_prm.errors import ConfigError


def plan_updates(
    trees_P: NDArray[np.integer], *, per_update: int, per_tree: int, seed: tuple[int, ...]
) -> list[NDArray[np.int64]]:
    """One epoch: every pair once, as a list of updates of `per_update` pair indices (fewer only at the very end).

    `trees_P` names the tree of each pair; at most `per_tree` pairs of an update come from one tree. The plan depends
    on these arguments alone: not on packing, micro-batches or the number of processes.
    """
    for name, value in (("per_update", per_update), ("per_tree", per_tree)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: an update needs at least one pair.")
    waiting = deque(_tree_groups(trees_P, min(per_tree, per_update), np.random.default_rng(seed)))
    updates: list[NDArray[np.int64]] = []
    while waiting:
        update: list[NDArray[np.int64]] = []
        room, taken = per_update, Counter[int]()
        held: list[NDArray[np.int64]] = []
        while waiting and room:
            group = waiting.popleft()
            tree = int(trees_P[group[0]])
            count = min(room, per_tree - taken[tree], len(group))
            if count:
                update.append(group[:count])
                room -= count
                taken[tree] += count
            if count < len(group):
                held.append(group[count:])
        waiting.extendleft(reversed(held))
        updates.append(np.concatenate(update))
    return updates


def _tree_groups(trees_P: NDArray[np.integer], size: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The pairs of each tree in random order, cut into groups of at most `size`; the groups in random order."""
    order = rng.permutation(len(trees_P))
    order = order[np.argsort(trees_P[order], kind="stable")]
    starts = np.flatnonzero(np.diff(trees_P[order], prepend=-1))
    groups = [
        tree[i : i + size] for tree in np.split(order, starts[1:]) if len(tree) for i in range(0, len(tree), size)
    ]
    return [groups[i] for i in rng.permutation(len(groups))]


def share(weights: NDArray[np.float64], ranks: int) -> NDArray[np.int64]:
    """The rank of each group of work, so that the ranks' loads are even: heaviest first, to the lightest rank."""
    load = np.zeros(ranks)
    owner = np.empty(len(weights), dtype=np.int64)
    for i in np.argsort(-weights, kind="stable"):
        owner[i] = load.argmin()
        load[owner[i]] += weights[i]
    return owner

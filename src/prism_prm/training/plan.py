"""Which pairs make an update. Chosen first, packed later, so that packing never changes what is learned.

Pairs of one tree share their prefix, so training several of them together costs little more than one. An update
therefore takes its pairs in groups from one tree, up to a stated number, and groups from many trees in random order.
Where a random order would end in many short updates, because some trees have far more pairs than others, the pairs are
dealt out evenly instead.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prism_prm.arrays import Ints
from prism_prm.errors import ConfigError


def plan_updates(trees_P: NDArray[np.integer], *, per_update: int, per_tree: int, seed: tuple[int, ...]) -> list[Ints]:
    """One epoch: every pair once, as a list of updates of `per_update` pair indices or, evenly, a few less.

    `trees_P` names the tree of each pair; at most `per_tree` pairs of an update come from one tree, except for trees
    that have too many (`over_limit` counts them). The plan depends on these arguments alone, not on packing,
    micro-batches or the number of processes.
    """
    for name, value in (("per_update", per_update), ("per_tree", per_tree)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: an update needs at least one pair.")
    rng = np.random.default_rng(seed)
    size = min(per_tree, per_update)
    updates = _filled(tree_groups(trees_P, size, rng), trees_P, per_update, per_tree)
    fewest = math.ceil(len(trees_P) / per_update)
    return updates if len(updates) <= fewest + 1 else _dealt(trees_P, per_update, size, rng)


def tree_groups(trees_P: NDArray[np.integer], size: int, rng: np.random.Generator) -> list[Ints]:
    """The pairs of each tree in random order, cut into groups of at most `size`; the groups in random order."""
    groups = [tree[i : i + size] for tree in _by_tree(trees_P, rng) for i in range(0, len(tree), size)]
    return [groups[i] for i in rng.permutation(len(groups))]


def _by_tree(trees_P: NDArray[np.integer], rng: np.random.Generator) -> list[Ints]:
    """The pairs of each tree in random order."""
    order = rng.permutation(len(trees_P))
    order = order[np.argsort(trees_P[order], kind="stable")]
    starts = np.flatnonzero(np.diff(trees_P[order], prepend=-1))
    return [tree for tree in np.split(order, starts[1:]) if len(tree)]


def _filled(groups: Sequence[Ints], trees_P: NDArray[np.integer], per_update: int, per_tree: int) -> list[Ints]:
    """Groups in their order; what a tree has beyond its share of an update goes into the next ones."""
    queues: dict[int, deque[tuple[int, Ints]]] = {}
    for place, group in enumerate(groups):
        queues.setdefault(int(trees_P[group[0]]), deque()).append((place, group))
    first = [(queue[0][0], tree) for tree, queue in queues.items()]  # a tree by the place of its first group: a heap
    updates: list[Ints] = []
    while first:
        update: list[Ints] = []
        room, taken = per_update, Counter[int]()
        has_its_share: list[tuple[int, int]] = []
        while first and room:
            place, tree = heapq.heappop(first)
            queue = queues[tree]
            group = queue.popleft()[1]
            count = min(room, per_tree - taken[tree], len(group))
            update.append(group[:count])
            room -= count
            taken[tree] += count
            if count < len(group):
                queue.appendleft((place, group[count:]))
            if queue and taken[tree] < per_tree:
                heapq.heappush(first, (queue[0][0], tree))
            elif queue:
                has_its_share.append((queue[0][0], tree))
        for item in has_its_share:
            heapq.heappush(first, item)
        updates.append(np.concatenate(update))
    return updates


def _dealt(trees_P: NDArray[np.integer], per_update: int, size: int, rng: np.random.Generator) -> list[Ints]:
    """Tree after tree in blocks of `size`, a block to each update in turn, so that a tree meets none of them twice
    before it has been in all; the updates in random order."""
    trees = _by_tree(trees_P, rng)
    order = np.concatenate([trees[i] for i in rng.permutation(len(trees))])
    num_blocks = math.ceil(len(order) / size)
    num_updates = math.ceil(num_blocks / (per_update // size))
    update_P = rng.permutation(num_updates)[np.arange(len(order)) // size % num_updates]
    starts = np.cumsum(np.bincount(update_P))[:-1]
    return np.split(order[np.argsort(update_P, kind="stable")], starts)


def over_limit(trees_P: NDArray[np.integer], updates: Sequence[Ints], per_tree: int) -> tuple[int, int]:
    """How many trees have more than `per_tree` pairs in an update, and how many pairs that is at most."""
    over: set[int] = set()
    most = 0
    for update in updates:
        trees, counts = np.unique(trees_P[update], return_counts=True)
        over.update(trees[counts > per_tree].tolist())
        most = max(most, int(counts.max()))
    return len(over), most if over else 0


def share(weights: NDArray[np.float64], ranks: int) -> Ints:
    """The rank of each group of work, so that the ranks' loads are even: heaviest first, to the lightest rank."""
    load = np.zeros(ranks)
    owner = np.empty(len(weights), dtype=np.int64)
    for i in np.argsort(-weights, kind="stable"):
        owner[i] = load.argmin()
        load[owner[i]] += weights[i]
    return owner

"""Choose the pairs of each update, then pack them. The choice comes first, so packing never changes what is learned.

Pairs of one tree share their prefix, so training several of them together costs little more than one. An update
therefore takes a limited group of pairs from each tree, and the groups of many trees in random order. If some trees
have far more pairs than others, a random order would end in many short updates; then the pairs are dealt out evenly.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from prism_prm.arrays import Ints
from prism_prm.data.pair_examples import Examples, as_one_tree
from prism_prm.errors import ConfigError, DataError
from prism_prm.models.lower_cache import LowerCache
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import EncodedTree, Layout, PackedBatch, Row, encode_tree, merge_rows, pack, read_index
from prism_prm.models.prm import fit
from prism_prm.train.recipe import Packing
from prism_prm.tree import StepTree


def plan_updates(trees_P: NDArray[np.integer], *, per_update: int, per_tree: int, seed: tuple[int, ...]) -> list[Ints]:
    """One epoch: every pair once, in updates of `per_update` pair indices, or a few less if they are dealt out evenly.

    `trees_P` is the tree of each pair. At most `per_tree` pairs of an update come from one tree, except for trees that
    have too many (see `over_limit`). The plan does not depend on packing, micro-batches or the number of processes.
    """
    for name, value in (("per_update", per_update), ("per_tree", per_tree)):
        if value < 1:
            raise ConfigError(f"{name} is {value}: an update needs at least one pair.")
    rng = np.random.default_rng(seed)
    size = min(per_tree, per_update)
    updates = _fill_in_order(tree_groups(trees_P, size, rng), trees_P, per_update, per_tree)
    fewest = math.ceil(len(trees_P) / per_update)
    return updates if len(updates) <= fewest + 1 else _deal_evenly(trees_P, per_update, size, rng)


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


def _fill_in_order(groups: Sequence[Ints], trees_P: NDArray[np.integer], per_update: int, per_tree: int) -> list[Ints]:
    """Fill updates with groups in their order; pairs of a tree beyond its limit wait for the next updates."""
    queues: dict[int, deque[tuple[int, Ints]]] = {}
    for index, group in enumerate(groups):
        queues.setdefault(int(trees_P[group[0]]), deque()).append((index, group))
    heap = [(queue[0][0], tree) for tree, queue in queues.items()]  # trees by the index of their first group
    updates: list[Ints] = []
    while heap:
        update: list[Ints] = []
        room, taken = per_update, Counter[int]()
        at_limit: list[tuple[int, int]] = []
        while heap and room:
            index, tree = heapq.heappop(heap)
            queue = queues[tree]
            group = queue.popleft()[1]
            count = min(room, per_tree - taken[tree], len(group))
            update.append(group[:count])
            room -= count
            taken[tree] += count
            if count < len(group):
                queue.appendleft((index, group[count:]))
            if queue and taken[tree] < per_tree:
                heapq.heappush(heap, (queue[0][0], tree))
            elif queue:
                at_limit.append((queue[0][0], tree))
        for item in at_limit:
            heapq.heappush(heap, item)
        updates.append(np.concatenate(update))
    return updates


def _deal_evenly(trees_P: NDArray[np.integer], per_update: int, size: int, rng: np.random.Generator) -> list[Ints]:
    """Deal blocks of `size` pairs, tree by tree, to the updates in turn; then shuffle the updates.

    A tree gets a second block in an update only after it has one in every update.
    """
    trees = _by_tree(trees_P, rng)
    order = np.concatenate([trees[i] for i in rng.permutation(len(trees))])
    num_blocks = math.ceil(len(order) / size)
    num_updates = math.ceil(num_blocks / (per_update // size))
    update_P = rng.permutation(num_updates)[np.arange(len(order)) // size % num_updates]
    starts = np.cumsum(np.bincount(update_P))[:-1]
    return np.split(order[np.argsort(update_P, kind="stable")], starts)


def over_limit(trees_P: NDArray[np.integer], updates: Sequence[Ints], per_tree: int) -> tuple[int, int]:
    """The number of trees with more than `per_tree` pairs in some update, and the maximum of pairs; (0, 0) if none."""
    over: set[int] = set()
    most = 0
    for update in updates:
        trees, counts = np.unique(trees_P[update], return_counts=True)
        over.update(trees[counts > per_tree].tolist())
        most = max(most, int(counts.max()))
    return len(over), most if over else 0


def share(weights: NDArray[np.float64], ranks: int) -> Ints:
    """The rank of each part so that loads are even: the heaviest part first, to the rank with the least load."""
    load = np.zeros(ranks)
    owner = np.empty(len(weights), dtype=np.int64)
    for i in np.argsort(-weights, kind="stable"):
        owner[i] = load.argmin()
        load[owner[i]] += weights[i]
    return owner


Read = tuple[int, int]
"""(row number, node): one score."""

MUCH_PADDING = 1.1
"""If padded rows have more than this many times their tokens, rows are joined instead."""


@dataclass(frozen=True)
class Part:
    """Rows that must be in the same micro-batch, and where each example is read in them."""

    rows: tuple[Row, ...]
    examples: tuple[int, ...]
    """Indices into the round's examples."""
    reads: tuple[tuple[Read, ...], ...]
    """The reads of each example: chosen and rejected, all steps of a prefix, or the labeled step alone."""

    @property
    def length(self) -> int:
        return max(len(row) for row in self.rows)

    @property
    def tokens(self) -> int:
        return sum(len(row) for row in self.rows)


@dataclass(frozen=True)
class MicroBatch:
    """One forward and backward pass."""

    batch: PackedBatch
    examples: Ints
    reads_NK: Tensor
    """The indices of each example's reads in the batch; rows of prefixes with fewer steps are filled up with 0."""
    weight: float
    """1, or 0 for a pass that only keeps this process in step with the others."""


@dataclass(frozen=True)
class RowLimits:
    """The limits of `packing.pack` on rows."""

    tokens: int
    pair_cost: float = 0.0

    def rows(self, tree: EncodedTree, groups: Sequence[Sequence[int]]) -> list[Row]:
        return pack([tree], self.tokens, [groups], pair_cost=self.pair_cost)


def parts_of_update(
    examples: Examples, update: Ints, family: Layout, packing: Packing, limits: RowLimits
) -> list[Part]:
    """The rows of an update's examples, tree by tree; the list is the same on every process."""
    parts: list[Part] = []
    number = 0
    for tree_id in np.unique(examples.tree[update]):
        indices = update[examples.tree[update] == tree_id]
        tree, groups = as_one_tree(examples, indices)
        for rows, reads in _lay_out(encode_tree(tree, family), groups, packing, limits):
            numbered = tuple(
                replace(row, owners=tuple((number + i, node) for _, node in row.owners)) for i, row in enumerate(rows)
            )
            own_reads = tuple(tuple((number + row, node) for row, node in group) for group in reads.values())
            parts.append(Part(numbered, tuple(int(indices[i]) for i in reads), own_reads))
            number += len(rows)
    return parts


def _lay_out(
    tree: EncodedTree, groups: Sequence[tuple[int, ...]], packing: Packing, limits: RowLimits
) -> Iterator[tuple[Sequence[Row], dict[int, tuple[Read, ...]]]]:
    """The rows of each part, and where the nodes of each group (by its index) are read."""
    if packing == "tree":  # all groups share the tree's prefix; a tree too long for one row is split between groups
        left = dict(enumerate(groups))
        for row in limits.rows(tree, groups):
            nodes = {node for _, node in row.owners}
            here = {i: group for i, group in left.items() if nodes.issuperset(group)}
            left = {i: group for i, group in left.items() if i not in here}
            yield [row], {i: tuple((0, node) for node in group) for i, group in here.items()}
        assert not left, "every group is read in one row"
        return
    for i, group in enumerate(groups):
        if packing == "pair":  # the two steps of a pair share their prefix
            yield limits.rows(tree, [group]), {i: tuple((0, node) for node in group)}
        else:  # every step is a sequence of its own
            yield [limits.rows(tree, [(node,)])[0] for node in group], {i: tuple(enumerate(group))}


def arrange_rows(module: PrmModule, rows: Sequence[Row], tokens: int) -> Sequence[Row]:
    """Join rows if that is cheaper for the module's attention than padding them.

    Flex attention always joins them. Attention in blocks costs only what each token sees, so it joins rows of uneven
    length to save the padding.
    """
    padded = len(rows) * max(map(len, rows))
    if module.attention == "flex" or (module.in_blocks and padded > MUCH_PADDING * sum(map(len, rows))):
        return merge_rows(rows, tokens)
    return rows


def batch_maker(
    module: PrmModule, tokens: int, cache: LowerCache | None = None
) -> Callable[[Sequence[Row]], PackedBatch]:
    """A function that collates rows for the module's attention."""

    def make(rows: Sequence[Row]) -> PackedBatch:
        rows = arrange_rows(module, rows, tokens)
        batch = module.collate(rows)
        return batch if cache is None else cache.attach(batch, rows)

    return make


def passes(parts: Sequence[Part], tokens: int, ranks: int = 1) -> list[list[tuple[list[Part], float]]]:
    """The (parts, weight) of each micro-batch of each process; every process has the same number.

    A process without work runs the shortest part with weight 0, because gradients are averaged in step.
    """
    owner = share(np.array([part.tokens for part in parts], dtype=np.float64), ranks)
    by_rank: list[list[Part]] = [[] for _ in range(ranks)]
    for part, rank in zip(parts, owner.tolist(), strict=True):
        by_rank[rank].append(part)
    plans = [_batch_by_length(own_parts, tokens) for own_parts in by_rank]
    idle = [min(parts, key=lambda part: part.tokens)]
    most = max(map(len, plans))
    return [[(batch, 1.0) for batch in plan] + [(idle, 0.0)] * (most - len(plan)) for plan in plans]


def micro_batches(
    parts: Sequence[Part], make: Callable[[Sequence[Row]], PackedBatch], tokens: int, rank: int = 0, ranks: int = 1
) -> list[MicroBatch]:
    """The micro-batches of one process, of at most `tokens` padded tokens each; every process has the same number."""
    batches = []
    for own_parts, weight in passes(parts, tokens, ranks)[rank]:
        batch = make([row for part in own_parts for row in part.rows])
        index = read_index(batch)
        reads = [torch.tensor([index[read] for read in group]) for part in own_parts for group in part.reads]
        examples = np.array([i for part in own_parts for i in part.examples], dtype=np.int64)
        batches.append(MicroBatch(batch, examples, pad_sequence(reads, batch_first=True), weight))
    return batches


@dataclass(frozen=True)
class KeptReads:
    """Where the cache has the state of every read of a round. With all layers frozen, an update runs the head on these
    states: it packs no trees, builds no masks and does not run the backbone."""

    take: Callable[[Ints], Tensor]
    """Reads the states hidden_RH at some places: `LowerCache.take`, or a table in memory."""
    places_R2: Ints
    """The place of each read; a table may have places of one number."""
    reads_NK: Ints
    """The reads of each example; rows of prefixes with fewer steps are filled up with 0."""

    @classmethod
    def of(cls, cache: LowerCache, examples: Examples, family: Layout, limits: RowLimits) -> KeptReads | None:
        """None if the cache lacks states, because it is full, or if not all layers are frozen."""
        if not cache.reads_only:
            return None
        places: list[Ints] = []
        reads: dict[int, Tensor] = {}
        num_reads = 0
        for indices in examples.by_tree():
            for part in parts_of_update(examples, indices, family, "tree", limits):
                found = cache.places(part.rows)
                if found is None:
                    return None
                owners = (owner for row in part.rows for owner in row.owners)
                index = {owner: number for number, owner in enumerate(owners, start=num_reads)}
                for example, group in zip(part.examples, part.reads, strict=True):
                    reads[example] = torch.tensor([index[read] for read in group])
                places.append(found)
                num_reads += len(found)
        reads_NK = pad_sequence([reads[i] for i in range(len(examples))], batch_first=True)
        return cls(cache.take, np.concatenate(places), reads_NK.numpy())

    def micro_batch(self, update: Ints, rank: int = 0, ranks: int = 1) -> MicroBatch:
        """One process's part of an update; without one, an example with weight 0."""
        own = update[rank::ranks]
        examples = own if len(own) else update[:1]
        used_R, reads = np.unique(self.reads_NK[examples], return_inverse=True)
        none = torch.empty(0, dtype=torch.int64)
        batch = PackedBatch(none, none, none, none, none, none, (), hidden_RH=self.take(self.places_R2[used_R]))
        reads_NK = torch.from_numpy(reads.reshape(len(examples), -1))
        return MicroBatch(batch, examples, reads_NK, float(len(own) > 0))


def _batch_by_length(parts: Sequence[Part], tokens: int) -> list[list[Part]]:
    """Batch parts of similar length, the longest first."""
    batches: list[list[Part]] = []
    rows = length = 0
    for part in sorted(parts, key=lambda part: -part.length):
        rows += len(part.rows)
        if batches and rows * length <= tokens:
            batches[-1].append(part)
        else:
            batches.append([part])
            rows, length = len(part.rows), part.length
    return batches


def too_long(examples: Examples, family: Layout, context: int) -> Ints:
    """The indices of examples with a step whose path is longer than the model's context."""
    long = []
    for indices in examples.by_tree():
        tree, groups = as_one_tree(examples, indices)
        encoded = encode_tree(tree, family)
        long += [i for i, group in zip(indices, groups, strict=True) if max(map(encoded.path_tokens, group)) > context]
    return np.array(sorted(long), dtype=np.int64)


def in_windows(examples: Examples, long: Ints, family: Layout, context: int) -> tuple[Examples, Ints]:
    """The examples with shorter trees for those that are too long, and the indices of those that no window fits.

    The steps of an example share their prefix, so they are read after the shortest one that a window of them has.
    """
    trees: dict[int, StepTree] = {}
    ids: dict[tuple[int, int, int], int] = {}  # (tree, parent, first node of the window) → the new tree
    columns = {name: getattr(examples, name).copy() for name in ("tree", "chosen", "rejected", "rejected_tree")}
    too_big = []
    free = max(examples.trees) + 1
    for i in long.tolist():
        tree, ((*nodes,),) = as_one_tree(examples, [i])
        try:
            items, _ = fit(tree, 0, nodes, family, context, "window")
        except DataError:  # the problem and one step alone exceed the context
            too_big.append(i)
            continue
        path = tree.path(tree.parents[nodes[0]])
        first = max(path.index(item.nodes[0]) if item.nodes[0] in path else len(path) for item in items if item.nodes)
        key = int(examples.tree[i]), tree.parents[nodes[0]], first
        new = ids.setdefault(key, free + len(ids))
        kept = [tree.nodes[node] for node in path[first:]]
        short = trees.get(new) or replace(StepTree.chain(tree.problem, kept), tree_id=new, trunk=(), where=tree.where)
        for name, node in zip(("chosen", "rejected"), (nodes[0], nodes[-1]), strict=True):
            leaf = next((k for k in range(len(kept), len(short.nodes)) if short.nodes[k] == tree.nodes[node]), None)
            if leaf is None:
                leaf = len(short.nodes)
                short = short.with_leaves([(len(kept) - 1, tree.nodes[node])])
            columns[name][i] = leaf
        columns["tree"][i] = columns["rejected_tree"][i] = new
        trees[new] = short
    return replace(examples, trees={**examples.trees, **trees}, **columns), np.array(too_big, dtype=np.int64)

"""From the examples of an update to the micro-batches that a process runs; packing never changes what is learned.

An example's nodes are always read in one micro-batch, so the loss of each example is computed exactly once, and the
gradient of the update is the sum over micro-batches, however they are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from prism_prm.arrays import Ints
from prism_prm.packing import EncodedTree, Layout, PackedBatch, Row, encode_tree, merge_rows, pack, read_index
from prism_prm.pairs.examples import Examples, as_one_tree
from prism_prm.prms.module import PrmModule
from prism_prm.scorer.lower_cache import LowerCache
from prism_prm.training.plan import share
from prism_prm.training.settings import Packing

Read = tuple[int, int]
"""(number of the row, node): one score."""

MUCH_PADDING = 1.1
"""Padded tokens per token from which rows are joined instead."""


@dataclass(frozen=True)
class Part:
    """Rows that belong together, and where in them each example is read."""

    rows: tuple[Row, ...]
    examples: tuple[int, ...]
    """Indices into the round's examples."""
    reads: tuple[tuple[Read, ...], ...]
    """Per example its reads: chosen and rejected, or the labelled step alone."""

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
    """Per example the indices of its reads in the batch."""
    weight: float
    """0 where the pass only keeps step with other processes, else 1."""


@dataclass(frozen=True)
class RowLimits:
    """How long rows may be; see `packing.pack`."""

    tokens: int
    pair_cost: float = 0.0

    def rows(self, tree: EncodedTree, groups: Sequence[Sequence[int]]) -> list[Row]:
        return pack([tree], self.tokens, [groups], pair_cost=self.pair_cost)


def parts_of_update(
    examples: Examples, update: Ints, family: Layout, packing: Packing, limits: RowLimits
) -> list[Part]:
    """The update's examples, laid out tree by tree: the same list on every process."""
    parts: list[Part] = []
    number = 0
    for tree_id in np.unique(examples.tree[update]):
        indices = update[examples.tree[update] == tree_id]
        tree, groups = as_one_tree(examples, indices)
        for part in LAYOUTS[packing](encode_tree(tree, family), groups, limits):
            parts.append(_numbered(part, indices, number))
            number += len(part.rows)
    return parts


def _tree_parts(tree: EncodedTree, groups: Sequence[tuple[int, ...]], limits: RowLimits) -> Iterable[Part]:
    """All groups of a tree share its prefix; a tree too big for a row is split between groups."""
    left = dict(enumerate(groups))
    for row in limits.rows(tree, groups):
        nodes = {node for _, node in row.owners}
        here = {i: group for i, group in left.items() if nodes.issuperset(group)}
        left = {i: group for i, group in left.items() if i not in here}
        yield Part((row,), tuple(here), tuple(tuple((0, node) for node in group) for group in here.values()))
    assert not left, "every group is read in one row"


def _pair_parts(tree: EncodedTree, groups: Sequence[tuple[int, ...]], limits: RowLimits) -> Iterable[Part]:
    """The two steps of a pair share their prefix."""
    for i, group in enumerate(groups):
        yield Part(tuple(limits.rows(tree, [group])), (i,), (tuple((0, node) for node in group),))


def _separate_parts(tree: EncodedTree, groups: Sequence[tuple[int, ...]], limits: RowLimits) -> Iterable[Part]:
    """Every step is a sequence of its own: the slow, obvious way."""
    for i, group in enumerate(groups):
        rows = tuple(limits.rows(tree, [(node,)])[0] for node in group)
        yield Part(rows, (i,), (tuple(enumerate(group)),))


LAYOUTS: dict[Packing, Callable[[EncodedTree, Sequence[tuple[int, ...]], RowLimits], Iterable[Part]]] = {
    "tree": _tree_parts,
    "pair": _pair_parts,
    "none": _separate_parts,
}


def _numbered(part: Part, indices: Ints, first: int) -> Part:
    """The part with the round's example indices, and rows numbered from `first`."""
    rows = tuple(
        replace(row, owners=tuple((first + i, node) for _, node in row.owners)) for i, row in enumerate(part.rows)
    )
    reads = tuple(tuple((first + row, node) for row, node in group) for group in part.reads)
    return Part(rows, tuple(int(indices[i]) for i in part.examples), reads)


def arranged(module: PrmModule, rows: Sequence[Row], tokens: int) -> Sequence[Row]:
    """Rows as they are batched for the module's attention: for flex several to a row of whole blocks, else padded.

    Where attention pays only for what is seen, rows of uneven length are put behind each other, too: padding is work.
    """
    padded = len(rows) * max(map(len, rows))
    if module.attention == "flex" or (module.in_blocks and padded > MUCH_PADDING * sum(map(len, rows))):
        return merge_rows(rows, tokens)
    return rows


def batch_maker(
    module: PrmModule, tokens: int, cache: LowerCache | None = None
) -> Callable[[Sequence[Row]], PackedBatch]:
    """How rows become a batch for the module's attention."""

    def make(rows: Sequence[Row]) -> PackedBatch:
        rows = arranged(module, rows, tokens)
        batch = module.collate(rows)
        return batch if cache is None else cache.attach(batch, rows)

    return make


def passes(parts: Sequence[Part], tokens: int, ranks: int = 1) -> list[list[tuple[list[Part], float]]]:
    """For each process its (parts, weight) per micro-batch; every process has the same number.

    A process without work repeats the shortest part without weight, since gradients are averaged in step.
    """
    owner = share(np.array([part.tokens for part in parts], dtype=np.float64), ranks)
    own: list[list[Part]] = [[] for _ in range(ranks)]
    for part, who in zip(parts, owner.tolist(), strict=True):
        own[who].append(part)
    plans = [_batched(some, tokens) for some in own]
    idle = [min(parts, key=lambda part: part.tokens)]
    most = max(map(len, plans))
    return [[(some, 1.0) for some in plan] + [(idle, 0.0)] * (most - len(plan)) for plan in plans]


def micro_batches(
    parts: Sequence[Part], make: Callable[[Sequence[Row]], PackedBatch], tokens: int, rank: int = 0, ranks: int = 1
) -> list[MicroBatch]:
    """The micro-batches of one process, of at most `tokens` padded tokens each; every process has the same number."""
    return [_micro_batch(some, make, weight) for some, weight in passes(parts, tokens, ranks)[rank]]


def _batched(parts: Sequence[Part], tokens: int) -> list[list[Part]]:
    """Parts of similar length together, longest first."""
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


def _micro_batch(parts: Sequence[Part], make: Callable[[Sequence[Row]], PackedBatch], weight: float) -> MicroBatch:
    batch = make([row for part in parts for row in part.rows])
    at = read_index(batch)
    reads = [[at[read] for read in group] for part in parts for group in part.reads]
    examples = np.array([i for part in parts for i in part.examples], dtype=np.int64)
    return MicroBatch(batch, examples, torch.tensor(reads), weight)


def too_long(examples: Examples, family: Layout, context: int) -> Ints:
    """The examples with a step whose path is longer than the model's context."""
    found = []
    for indices in examples.by_tree():
        tree, groups = as_one_tree(examples, indices)
        encoded = encode_tree(tree, family)
        found += [i for i, group in zip(indices, groups, strict=True) if max(map(encoded.path_tokens, group)) > context]
    return np.array(sorted(found), dtype=np.int64)

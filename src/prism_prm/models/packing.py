"""Packed trees: every node of a tree of steps in one row of tokens, where each node sees only its own ancestors.

A tree is laid out depth first, so the descendants of a token directly follow it: token q sees token k iff
k ≤ q < end[k]. Two integers per token, position and end, define the whole mask, dense or in blocks. A tree that is too
big for a row is split by branches, and the trunk is repeated where it is needed.

    encode_tree (token ids) → pack (rows) → batch_rows → collate (tensors)

Shapes: B rows, L tokens of a row, R reads.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from prism_prm.errors import DataError
from prism_prm.segments import without_tags
from prism_prm.tree import ROOT, StepTree

Group = Sequence[int]
"""Nodes that must be read in one row, such as the two nodes of a pair."""
Parts = list[tuple[set[int], set[int]]]
"""(nodes to lay out, nodes to read) of each row."""


class Layout(Protocol):
    """The part of a PRM family that packing needs."""

    def prompt_ids(self, problem: str) -> list[int]: ...
    def step_ids(self, text: str, index: int) -> tuple[list[int], int]: ...


@dataclass(frozen=True, slots=True)
class EncodedTree:
    """A tree as token ids."""

    prompt: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]
    """Per node, the ids that it adds to its parent's."""
    reads: tuple[int, ...]
    """Per node, the offset in its ids where its score is read."""
    parents: tuple[int, ...]
    starts: tuple[int, ...]
    """Per node, the number of tokens before it on its path."""

    def path(self, node: int) -> list[int]:
        """Return the nodes from the first step to this one."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def path_tokens(self, node: int) -> int:
        """Count the tokens needed to read the node."""
        return self.starts[node] + self.reads[node] + 1

    @property
    def num_tokens(self) -> int:
        """The tokens of the prompt and of every node once."""
        return len(self.prompt) + sum(map(len, self.ids))


def encode_tree(tree: StepTree, family: Layout) -> EncodedTree:
    """Encode a tree with a family's layout."""
    try:
        prompt = tuple(family.prompt_ids(tree.problem))
    except DataError as error:
        raise DataError(f"{describe(tree)}, the problem: {error}", reason=error.reason) from None
    ids: list[tuple[int, ...]] = []
    reads: list[int] = []
    starts: list[int] = []
    for node, (depth, parent) in enumerate(zip(tree.depths(), tree.parents, strict=True)):
        try:
            step, read = encode_step(tree.nodes[node].text, depth, family)
        except DataError as error:
            raise DataError(f"{describe(tree, node)}: {error}", reason=error.reason) from None
        assert 0 <= read < len(step), "a step is read at one of its own tokens"
        ids.append(tuple(step))
        reads.append(read)
        starts.append(len(prompt) if parent == ROOT else starts[parent] + len(ids[parent]))
    return EncodedTree(prompt, tuple(ids), tuple(reads), tree.parents, tuple(starts))


def encode_step(text: str, depth: int, family: Layout) -> tuple[list[int], int]:
    """Encode one step, without the tags around thinking, and return where its score is read."""
    return family.step_ids(without_tags(text), depth)


def describe(tree: StepTree, node: int | None = None) -> str:
    """Name a tree, and optionally one of its nodes, in messages."""
    name = f" ({tree.name})" if tree.name else ""
    place = f"{tree.where}: " if tree.where else ""
    return f"{place}tree {tree.tree_id}{name}" + ("" if node is None else f", node {node}")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of tokens: a part of a tree, or several."""

    ids_L: np.ndarray
    positions_L: np.ndarray
    ends_L: np.ndarray
    reads: tuple[int, ...]
    """The columns to read."""
    owners: tuple[tuple[int, int], ...]
    """For each read, (index of the packed tree, node)."""
    starts: tuple[int, ...]
    """The columns where a prompt or a step begins."""

    def __len__(self) -> int:
        return len(self.ids_L)


def pack(
    trees: Sequence[EncodedTree],
    row_tokens: int,
    wanted: Sequence[Sequence[Group]] | None = None,
    *,
    pair_cost: float = 0.0,
) -> list[Row]:
    """Pack trees into rows of at most `row_tokens` tokens; each row holds one tree or a part of it.

    `wanted` has for each tree the groups of nodes to read (by default all nodes); a group is never split. Only wanted
    nodes and their ancestors are laid out. A node in several groups may be read in several rows. A path cannot be
    split: if one exceeds `row_tokens`, the tree's rows have at most as many tokens as that path.

    `pair_cost` is the cost of attention per (token, token) of a row; the rest of the model's work per token is 1. With
    a dense mask the cost grows with the square of the row, so trees are split where the estimated cost is lowest.
    """
    rows = []
    for index, tree in enumerate(trees):
        order = depth_first(tree.parents)
        groups = [(node,) for node in order] if wanted is None else wanted[index]
        # Where one path needs a longer row, all may be as long: else each longer path would repeat all before it.
        limit = max([row_tokens, *(tree.starts[node] + len(tree.ids[node]) for group in groups for node in group)])
        parts = list(_split(tree, groups, limit, order))
        if pair_cost and len(groups) > 1:
            parts = _cheapest(tree, groups, limit, order, pair_cost, parts)
        rows += [_lay_out(tree, index, part, reads, order) for part, reads in parts]
    return rows


def depth_first(parents: Sequence[int]) -> list[int]:
    """Order all nodes depth first, small branches first.

    This puts the candidates of one position next to each other, before the trunk continues. A split row then repeats
    the trunk only up to its own positions.
    """
    sizes = [1] * len(parents)
    children: dict[int, list[int]] = {}
    for node in reversed(range(len(parents))):
        if parents[node] != ROOT:
            sizes[parents[node]] += sizes[node]
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    order: list[int] = []
    stack = [ROOT]
    while stack:
        node = stack.pop()
        if node != ROOT:
            order.append(node)
        stack += sorted(children.get(node, ()), key=lambda child: (-sizes[child], -child))
    return order


def _split(
    tree: EncodedTree, groups: Sequence[Group], row_tokens: int, order: Sequence[int]
) -> Iterator[tuple[set[int], set[int]]]:
    """Yield (nodes to lay out, nodes to read) of each row: groups in depth-first order, as many as fit."""
    rank = {node: i for i, node in enumerate(order)}
    part: set[int] = set()
    reads: set[int] = set()
    size = len(tree.prompt)
    for group in sorted(groups, key=lambda group: max(rank[node] for node in group)):
        new = _missing(tree, group, part)
        more = sum(len(tree.ids[node]) for node in new)
        if reads and size + more > row_tokens:
            yield part, reads
            part, reads = set(), set()
            new = _missing(tree, group, part)
            size, more = len(tree.prompt), sum(len(tree.ids[node]) for node in new)
        part |= new
        reads.update(group)
        size += more
    if reads:
        yield part, reads


def _missing(tree: EncodedTree, group: Group, part: set[int]) -> set[int]:
    """Return the group's nodes and ancestors that the part does not have yet."""
    new: set[int] = set()
    for node in group:
        while node != ROOT and node not in part and node not in new:
            new.add(node)
            node = tree.parents[node]
    return new


def _cheapest(
    tree: EncodedTree, groups: Sequence[Group], row_tokens: int, order: Sequence[int], pair_cost: float, first: Parts
) -> Parts:
    """Try shorter and shorter rows, down to the longest path, and return the cheapest split."""

    def cost(parts: Parts) -> float:
        sizes = [len(tree.prompt) + sum(len(tree.ids[node]) for node in part) for part, _ in parts]
        return sum(size + pair_cost * size * size for size in sizes)

    longest = max(tree.path_tokens(node) for group in groups for node in group)
    best, least = first, cost(first)
    limit = min(row_tokens, tree.num_tokens)
    while (limit := int(limit / 1.4)) > longest:
        parts = list(_split(tree, groups, limit, order))
        if cost(parts) < least:
            best, least = parts, cost(parts)
    return best


def _lay_out(tree: EncodedTree, index: int, part: set[int], reads: set[int], order: Sequence[int]) -> Row:
    """Build one row: the prompt and the part's nodes, depth first."""
    inner = {tree.parents[node] for node in part}
    ids = list(tree.prompt)
    positions = list(range(len(tree.prompt)))
    spans: dict[int, tuple[int, int]] = {ROOT: (0, len(ids))}
    nodes = [node for node in order if node in part]
    for node in nodes:
        # Nothing attends to a leaf's tokens after its read position.
        step = tree.ids[node] if node in inner else tree.ids[node][: tree.reads[node] + 1]
        spans[node] = (len(ids), len(ids) + len(step))
        ids += step
        positions += range(tree.starts[node], tree.starts[node] + len(step))
    end = {node: span[1] for node, span in spans.items()}
    for node in reversed(nodes):  # a node ends where its last descendant ends
        parent = tree.parents[node]
        end[parent] = max(end[parent], end[node])
    ends = np.empty(len(ids), np.int64)
    for node, (start, stop) in spans.items():
        ends[start:stop] = end[node]
    read = [node for node in nodes if node in reads]
    return Row(
        np.array(ids, np.int64),
        np.array(positions, np.int64),
        ends,
        tuple(spans[node][0] + tree.reads[node] for node in read),
        tuple((index, node) for node in read),
        tuple(spans[node][0] for node in (ROOT, *nodes)),
    )


def merge_rows(rows: Sequence[Row], row_tokens: int) -> list[Row]:
    """Combine rows, longest first, for block masks, which skip invisible blocks."""
    bins: list[list[Row]] = []
    space: list[int] = []
    for row in sorted(rows, key=len, reverse=True):
        at = next((i for i, free in enumerate(space) if len(row) <= free), len(bins))
        if at == len(bins):
            bins.append([])
            space.append(max(row_tokens, len(row)))
        bins[at].append(row)
        space[at] -= len(row)
    merged = []
    for members in bins:
        offsets = np.cumsum([0, *map(len, members[:-1])]).tolist()
        placed = list(zip(members, offsets, strict=True))
        merged.append(
            Row(
                np.concatenate([row.ids_L for row in members]),
                np.concatenate([row.positions_L for row in members]),
                np.concatenate([row.ends_L + offset for row, offset in placed]),
                tuple(column + offset for row, offset in placed for column in row.reads),
                tuple(owner for row in members for owner in row.owners),
                tuple(start + offset for row, offset in placed for start in row.starts),
            )
        )
    return merged


def batch_rows(rows: Sequence[Row], token_budget: int) -> list[list[Row]]:
    """Group rows of similar length into batches of at most `token_budget` tokens, padding included; longest first.

    A batch that is already a quarter full takes no row that would be more than a fifth padding.
    """
    batches: list[list[Row]] = []
    for row in sorted(rows, key=len, reverse=True):
        longest, size = (len(batches[-1][0]), len(batches[-1])) if batches else (0, 0)
        is_similar = len(row) >= 0.8 * longest or longest * size < token_budget / 4
        if batches and is_similar and (size + 1) * longest <= token_budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The input of `PrmModule.forward`."""

    input_ids_BL: Tensor
    position_ids_BL: Tensor
    end_BL: Tensor
    read_row_R: Tensor
    read_col_R: Tensor
    read_start_R: Tensor
    """The column where the step of each read begins."""
    owners: tuple[tuple[int, int], ...]
    """For each read, (index of the packed tree, node)."""
    hidden_BLH: Tensor | None = None
    """The frozen layers' activations, if cached; the model then continues from there."""
    hidden_RH: Tensor | None = None
    """The last hidden states of the reads, if all layers are frozen and cached; then only the head runs."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        tensors = {one.name: value for one in fields(self) if isinstance(value := getattr(self, one.name), Tensor)}
        moved: dict[str, Any] = {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()}
        return replace(self, **moved)


def collate(rows: Sequence[Row], *, pad_id: int = 0, multiple: int = 1) -> PackedBatch:
    """Stack rows into tensors, padded on the right to a multiple; a padding token sees only itself."""
    length = -(-max(len(row) for row in rows) // multiple) * multiple
    ids_BL = np.full((len(rows), length), pad_id, np.int64)
    positions_BL = np.zeros((len(rows), length), np.int64)
    ends_BL = np.tile(np.arange(1, length + 1), (len(rows), 1))
    for i, row in enumerate(rows):
        ids_BL[i, : len(row)] = row.ids_L
        positions_BL[i, : len(row)] = row.positions_L
        ends_BL[i, : len(row)] = row.ends_L
    return PackedBatch(
        torch.from_numpy(ids_BL),
        torch.from_numpy(positions_BL),
        torch.from_numpy(ends_BL),
        torch.tensor([i for i, row in enumerate(rows) for _ in row.reads], dtype=torch.int64),
        torch.tensor([col for row in rows for col in row.reads], dtype=torch.int64),
        torch.tensor([row.starts[bisect(row.starts, col) - 1] for row in rows for col in row.reads], dtype=torch.int64),
        tuple(owner for row in rows for owner in row.owners),
    )


def read_index(batch: PackedBatch) -> Mapping[tuple[int, int], int]:
    """Map (tree, node) to its read, to find the two nodes of a pair."""
    return {owner: i for i, owner in enumerate(batch.owners)}

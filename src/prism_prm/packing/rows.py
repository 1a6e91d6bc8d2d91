"""Encoded trees → rows of tokens: which nodes go into a row together, and how they are laid out in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.packing.encode import EncodedTree
from prism_prm.records import ROOT

Group = Sequence[int]
"""Nodes that must be read in one row, such as the two nodes of a pair."""
Parts = list[tuple[set[int], set[int]]]
"""Rows to be: (nodes to lay out, nodes to read)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of tokens: a part of a tree, or several."""

    ids_L: np.ndarray
    positions_L: np.ndarray
    ends_L: np.ndarray
    reads: tuple[int, ...]
    """Columns that are read."""
    owners: tuple[tuple[int, int], ...]
    """For each read (index of the tree in what was packed, node)."""
    starts: tuple[int, ...]
    """Columns where a prompt's or a step's tokens begin."""

    def __len__(self) -> int:
        return len(self.ids_L)


def pack(
    trees: Sequence[EncodedTree],
    row_tokens: int,
    wanted: Sequence[Sequence[Group]] | None = None,
    *,
    pair_cost: float = 0.0,
) -> list[Row]:
    """Rows of at most `row_tokens` tokens that read the wanted nodes (default: all), one part of one tree each.

    `wanted` has for each tree the groups of nodes to read; a group is never split. Only wanted nodes and their
    ancestors are laid out. A node in several groups may be read in several rows. A group whose own
    paths exceed `row_tokens` has a longer row to itself: a path cannot be split.

    `pair_cost` is what attention costs per (token, token) of a row, with the rest of the model's work per token as 1.
    With a dense mask a long row costs its square, so a tree is then split where that is estimated to be cheapest.
    """
    rows = []
    for index, tree in enumerate(trees):
        order = depth_first(tree.parents)
        groups = [(node,) for node in order] if wanted is None else wanted[index]
        parts = list(split(tree, groups, row_tokens, order))
        if pair_cost and len(groups) > 1:
            parts = _cheapest(tree, groups, row_tokens, order, pair_cost, parts)
        rows += [lay_out(tree, index, part, reads, order) for part, reads in parts]
    return rows


def _cheapest(
    tree: EncodedTree, groups: Sequence[Group], row_tokens: int, order: Sequence[int], pair_cost: float, whole: Parts
) -> Parts:
    """The cheapest of splits into ever shorter rows, down to the longest path."""

    def cost(parts: Parts) -> float:
        sizes = [len(tree.prompt) + sum(len(tree.ids[node]) for node in part) for part, _ in parts]
        return sum(size + pair_cost * size * size for size in sizes)

    longest = max(tree.path_tokens(node) for group in groups for node in group)
    best, least = whole, cost(whole)
    limit = min(row_tokens, len(tree.prompt) + sum(map(len, tree.ids)))
    while (limit := int(limit / 1.4)) > longest:
        parts = list(split(tree, groups, limit, order))
        if cost(parts) < least:
            best, least = parts, cost(parts)
    return best


def depth_first(parents: Sequence[int]) -> list[int]:
    """All nodes, each before its descendants, small branches first.

    Small branches first puts the candidates of one position next to each other, before the trunk continues, so that
    a split row repeats only the trunk up to its own positions.
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


def split(
    tree: EncodedTree, groups: Sequence[Group], row_tokens: int, order: Sequence[int] | None = None
) -> Iterator[tuple[set[int], set[int]]]:
    """(nodes to lay out, nodes to read) of each row: groups in depth-first order, as many as fit."""
    rank = {node: i for i, node in enumerate(depth_first(tree.parents) if order is None else order)}
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
    """The nodes and ancestors of a group that a part does not have yet."""
    new: set[int] = set()
    for node in group:
        while node != ROOT and node not in part and node not in new:
            new.add(node)
            node = tree.parents[node]
    return new


def lay_out(tree: EncodedTree, index: int, part: set[int], reads: set[int], order: Sequence[int]) -> Row:
    """One row: the prompt and the part's nodes, depth first."""
    inner = {tree.parents[node] for node in part}
    ids = list(tree.prompt)
    positions = list(range(len(tree.prompt)))
    spans: dict[int, tuple[int, int]] = {ROOT: (0, len(ids))}
    nodes = [node for node in order if node in part]
    for node in nodes:
        # Nothing looks at what a leaf has behind its read position.
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

"""Compute shared prefixes once, across requests and within one.

`PrefixCache` keeps key/value states between requests. It holds one trie of token ids per owner and prompt, and computes
each shared prefix once. The cache is bounded in bytes and evicts the least recently used nodes first. Owners share
nothing, so neither a score nor its latency reveals what another owner has sent. Like sessions, it is made of
`SessionNode`s; a session drops its nodes explicitly, the cache evicts them.

`score_merged` merges the trees of one call that share a problem. It keeps nothing between calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from prism_prm.models.check_packing import check_session
from prism_prm.models.packing import EncodedTree
from prism_prm.models.session import Growth, SessionNode, grow, run_growth
from prism_prm.tree import ROOT, StepTree

if TYPE_CHECKING:
    from prism_prm.models.prm import PRM

CHUNK = 1024
"""Maximum number of new tokens of one problem per forward pass; with more, the dense mask gets too large."""
NODE_BYTES = 1024
"""Approximate overhead of a node besides its states: Python objects and tensor headers."""

Key = tuple[SessionNode | None, Hashable]
"""For a root: None and (owner, prompt). For a step: its parent and (ids, read offset)."""
TreeT = TypeVar("TreeT")
NodeMap = list[int]
"""For each node of a tree, its node in the merged tree."""


@dataclass(frozen=True, slots=True)
class CachedScores:
    """The scores of one tree."""

    log_odds_NO: np.ndarray
    cached_tokens: int
    """How many of the tree's tokens were in the cache."""


class PrefixCache:
    """The cached key/value states of one PRM."""

    def __init__(self, prm: PRM, max_bytes: int) -> None:
        check_session(prm.module)
        self.prm = prm
        self.max_bytes = max_bytes
        self.num_bytes = 0
        probe = SessionNode(0, None, "", (0,), 0, 0, -1)
        with prm.module.scoring():
            run_growth(prm.module, [Growth([probe])])
        self._token_bytes = sum(tensor.nbytes for tensor in probe.keys_values or ())
        self._nodes: dict[Key, SessionNode] = {}
        self._order: OrderedDict[SessionNode, Key] = OrderedDict()
        """Least recently used first. Children are touched before their parents, so the first node is a leaf."""

    def __len__(self) -> int:
        return len(self._order)

    def score(self, requests: Sequence[tuple[Hashable, EncodedTree]]) -> list[CachedScores | None]:
        """Score each (owner, tree); every tree must fit the context. None for a tree that is larger than the cache.

        Requests that do not fit together are split in halves, such that trees with the same prompt stay together.
        """
        firsts: dict[tuple[Hashable, tuple[int, ...]], int] = {}
        groups = [firsts.setdefault((owner, tree.prompt), i) for i, (owner, tree) in enumerate(requests)]
        pending = [sorted(range(len(requests)), key=groups.__getitem__)]
        results: dict[int, CachedScores | None] = {}
        while pending:
            numbers = pending.pop()
            scored = self._score_together([requests[i] for i in numbers])
            if scored is not None:
                results |= zip(numbers, scored, strict=True)
            elif len(numbers) == 1:
                results[numbers[0]] = None
            else:
                half = len(numbers) // 2
                pending += [numbers[half:], numbers[:half]]
        return [results[i] for i in range(len(requests))]

    def _score_together(self, requests: Sequence[tuple[Hashable, EncodedTree]]) -> list[CachedScores] | None:
        """Score all requests in one go; None if their states exceed the cache."""
        new: dict[Key, SessionNode] = {}
        """Parents before their children."""
        trees: list[list[SessionNode]] = []
        """For each tree, its root and its nodes."""
        for number, (owner, tree) in enumerate(requests):
            key: Key = (None, (owner, tree.prompt))
            root = self._nodes.get(key) or new.get(key)
            if root is None:
                root = new[key] = SessionNode(number, None, "", tree.prompt, 0, len(tree.prompt) - 1, -1)
            nodes = [root]
            for ids, read, parent in zip(tree.ids, tree.reads, tree.parents, strict=True):
                above = nodes[parent - ROOT]
                key = (above, (ids, read))
                node = self._nodes.get(key) or new.get(key)
                if node is None:
                    start, depth = above.start + len(above.ids), above.depth + 1
                    node = new[key] = SessionNode(number, above, "", ids, start, read, depth)
                nodes.append(node)
            trees.append(nodes)
        cached_nodes = [{node for node in nodes if node in self._order} for nodes in trees]
        self._touch(trees)
        size = sum(map(self._size, new.values()))
        if sum(map(self._size, set().union(*cached_nodes))) + size > self.max_bytes:
            return None
        while self.num_bytes > self.max_bytes - size:
            node, key = self._order.popitem(last=False)
            del self._nodes[key]
            self.num_bytes -= self._size(node)
            node.keys_values = None
        self._compute([node for node in new.values() if node.ids])
        self._nodes |= new
        self._order |= {node: key for key, node in new.items()}
        self.num_bytes += size
        self._touch(trees)
        return [
            CachedScores(
                np.array([node.log_odds for node in nodes[1:]]).reshape(-1, len(self.prm.outputs)),
                sum(len(node.ids) for node in cached),
            )
            for nodes, cached in zip(trees, cached_nodes, strict=True)
        ]

    def held_tokens(self, owner: Hashable, tree: EncodedTree) -> int:
        """Estimate how many tokens of a tree are cached now. May be called from any thread, without a lock."""
        nodes = [self._nodes.get((None, (owner, tree.prompt)))]
        for ids, read, parent in zip(tree.ids, tree.reads, tree.parents, strict=True):
            above = nodes[parent - ROOT]
            nodes.append(None if above is None else self._nodes.get((above, (ids, read))))
        return sum(len(node.ids) for node in set(nodes) if node is not None)

    def _size(self, node: SessionNode) -> int:
        return NODE_BYTES + len(node.ids) * self._token_bytes

    def _touch(self, trees: Iterable[Sequence[SessionNode]]) -> None:
        """Mark all nodes as used, children first."""
        for nodes in trees:
            for node in reversed(nodes):
                if node in self._order:
                    self._order.move_to_end(node)

    def _compute(self, new: Sequence[SessionNode]) -> None:
        """Run new nodes in chunks, each after the chunks that it builds on."""
        waves: list[list[Growth]] = []
        for level, chunk in _chunks(new):
            waves += [[] for _ in range(level + 1 - len(waves))]
            waves[level].append(Growth(chunk))
        with self.prm.module.scoring():
            for growths in waves:
                grow(self.prm, growths, lambda number, depth: f"tree {number}, step {depth}")


def _chunks(new: Sequence[SessionNode]) -> list[tuple[int, list[SessionNode]]]:
    """Return (level, nodes) of each chunk, which builds on lower levels. A tree's nodes come together, depth first."""
    children: dict[SessionNode, list[SessionNode]] = {}
    firsts: dict[SessionNode, list[SessionNode]] = {}
    new_nodes = set(new)
    for node in new:
        if node.parent in new_nodes:
            children.setdefault(node.parent, []).append(node)
        else:
            firsts.setdefault(node.path()[0], []).append(node)
    chunks: list[tuple[int, list[SessionNode]]] = []
    chunk_of: dict[SessionNode | None, int] = {}
    for stack in firsts.values():
        room = 0
        while stack:
            node = stack.pop()
            stack += children.get(node, ())
            if not room or len(node.ids) > room:
                chunks.append((0, []))
                room = CHUNK
            room = max(0, room - len(node.ids))
            level, nodes = chunks[-1]
            nodes.append(node)
            chunk_of[node] = at = len(chunks) - 1
            before = chunk_of.get(node.parent, at)
            if before != at:
                chunks[-1] = max(level, chunks[before][0] + 1), nodes
    return chunks


def score_merged(
    trees: Sequence[TreeT],
    group_key: Callable[[int], Hashable],
    merge: Callable[[Sequence[TreeT]], tuple[TreeT, list[NodeMap]]],
    score: Callable[[Sequence[TreeT]], Sequence[np.ndarray]],
) -> list[np.ndarray]:
    """Compute the log-odds_NO of each tree; trees with the same group key are merged first."""
    groups: dict[Hashable, list[int]] = {}
    for i in range(len(trees)):
        groups.setdefault(group_key(i), []).append(i)
    merged = [merge([trees[i] for i in members]) for members in groups.values()]
    results: dict[int, np.ndarray] = {}
    scores = score([tree for tree, _ in merged])
    for members, (_, node_maps), values_NO in zip(groups.values(), merged, scores, strict=True):
        results |= {i: values_NO[node_map] for i, node_map in zip(members, node_maps, strict=True)}
    return [results[i] for i in range(len(trees))]


def merge_encoded(trees: Sequence[EncodedTree]) -> tuple[EncodedTree, list[NodeMap]]:
    """Merge trees with the same prompt into one."""
    firsts, parents, maps = _merge([(list(zip(tree.ids, tree.reads, strict=True)), tree.parents) for tree in trees])
    tree = EncodedTree(
        trees[0].prompt,
        tuple(trees[i].ids[node] for i, node in firsts),
        tuple(trees[i].reads[node] for i, node in firsts),
        parents,
        tuple(trees[i].starts[node] for i, node in firsts),
    )
    return tree, maps


def merge_trees(trees: Sequence[StepTree]) -> tuple[StepTree, list[NodeMap]]:
    """Merge trees with the same problem into one."""
    firsts, parents, maps = _merge([([step.text for step in tree.nodes], tree.parents) for tree in trees])
    nodes = tuple(trees[i].nodes[node] for i, node in firsts)
    return StepTree(0, trees[0].problem, nodes, parents, ()), maps


def _merge(
    trees: Sequence[tuple[Sequence[Hashable], Sequence[int]]],
) -> tuple[list[tuple[int, int]], tuple[int, ...], list[NodeMap]]:
    """Merge trees given as (node keys, parents).

    Returns the first (tree, node) of each merged node, its parent, and the node maps.
    """
    merged: dict[tuple[int, Hashable], int] = {}
    firsts: list[tuple[int, int]] = []
    merged_parents: list[int] = []
    node_maps: list[NodeMap] = []
    for i, (keys, parents) in enumerate(trees):
        node_map: NodeMap = []
        for node, (key, parent) in enumerate(zip(keys, parents, strict=True)):
            above = ROOT if parent == ROOT else node_map[parent]
            if (above, key) not in merged:
                merged[above, key] = len(firsts)
                firsts.append((i, node))
                merged_parents.append(above)
            node_map.append(merged[above, key])
        node_maps.append(node_map)
    return firsts, tuple(merged_parents), node_maps

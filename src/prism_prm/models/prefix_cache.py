"""Requests that have a prefix in common: what they share is computed once.

`PrefixCache` keeps session states for requests that come one by one. Its trees are tries of token ids, one for each
owner and prompt. Whatever a call has in common with what is kept, or within itself, is computed once. States are
bounded in bytes; the least recently used leave first. Owners share nothing, so that neither a score nor the time it
takes tells one of them what another has asked. It keeps `SessionNode`s, as sessions do, and evicts them by use; a
session's are dropped by its search, so the two have the nodes and the passes through the model in common, and no more.

`score_merged` merges the trees of one call that share a problem, where nothing is kept.
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
"""New tokens of one problem that go through the model at once; more of them would pay for a large dense mask."""
NODE_BYTES = 1024
"""What a node costs beside its states, roughly: Python objects and the headers of its tensors."""

Key = tuple[SessionNode | None, Hashable]
"""Of a root: None and (owner, prompt). Of a step: its parent and (ids, where they are read)."""
TreeT = TypeVar("TreeT")
Places = list[int]
"""For each node of a tree the node of the merged one that it became."""


@dataclass(frozen=True, slots=True)
class Found:
    """The scores of one tree."""

    log_odds_NO: np.ndarray
    cached_tokens: int
    """How many of its tokens were in the cache."""


class PrefixCache:
    """Kept states of one PRM."""

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
        """Least recently used first. A node is used after its children are, so what stands first has none."""

    def __len__(self) -> int:
        return len(self._order)

    def score(self, asked: Sequence[tuple[Hashable, EncodedTree]]) -> list[Found | None]:
        """The scores of each (owner, tree), all of which fit the context; None where its states alone exceed the cache.

        What does not fit at once is halved, so that trees that share a prompt stay together.
        """
        firsts: dict[tuple[Hashable, tuple[int, ...]], int] = {}
        groups = [firsts.setdefault((owner, tree.prompt), i) for i, (owner, tree) in enumerate(asked)]
        waiting = [sorted(range(len(asked)), key=groups.__getitem__)]
        found: dict[int, Found | None] = {}
        while waiting:
            numbers = waiting.pop()
            scored = self._score_together([asked[i] for i in numbers])
            if scored is not None:
                found |= zip(numbers, scored, strict=True)
            elif len(numbers) == 1:
                found[numbers[0]] = None
            else:
                half = len(numbers) // 2
                waiting += [numbers[half:], numbers[:half]]
        return [found[i] for i in range(len(asked))]

    def _score_together(self, asked: Sequence[tuple[Hashable, EncodedTree]]) -> list[Found] | None:
        """The scores of all; None if their states exceed the cache."""
        new: dict[Key, SessionNode] = {}
        """Parents before their children."""
        trees: list[list[SessionNode]] = []
        """For each tree its root and its nodes."""
        for number, (owner, tree) in enumerate(asked):
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
        held = [{node for node in nodes if node in self._order} for nodes in trees]
        self._touch(trees)
        size = sum(map(self._size, new.values()))
        if sum(map(self._size, set().union(*held))) + size > self.max_bytes:
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
            Found(
                np.array([node.log_odds for node in nodes[1:]]).reshape(-1, len(self.prm.outputs)),
                sum(len(node.ids) for node in cached),
            )
            for nodes, cached in zip(trees, held, strict=True)
        ]

    def held_tokens(self, owner: Hashable, tree: EncodedTree) -> int:
        """How many tokens of a tree are kept now; from any thread, so that it is only an estimate."""
        nodes = [self._nodes.get((None, (owner, tree.prompt)))]
        for ids, read, parent in zip(tree.ids, tree.reads, tree.parents, strict=True):
            above = nodes[parent - ROOT]
            nodes.append(None if above is None else self._nodes.get((above, (ids, read))))
        return sum(len(node.ids) for node in set(nodes) if node is not None)

    def _size(self, node: SessionNode) -> int:
        return NODE_BYTES + len(node.ids) * self._token_bytes

    def _touch(self, trees: Iterable[Sequence[SessionNode]]) -> None:
        """Their nodes were used: children first."""
        for nodes in trees:
            for node in reversed(nodes):
                if node in self._order:
                    self._order.move_to_end(node)

    def _compute(self, new: Sequence[SessionNode]) -> None:
        """Run new nodes: chunks that stand on other chunks after those."""
        waves: list[list[Growth]] = []
        for level, chunk in _chunks(new):
            waves += [[] for _ in range(level + 1 - len(waves))]
            waves[level].append(Growth(chunk))
        with self.prm.module.scoring():
            for growths in waves:
                grow(self.prm, growths, lambda number, depth: f"tree {number}, step {depth}")


def _chunks(new: Sequence[SessionNode]) -> list[tuple[int, list[SessionNode]]]:
    """(how many chunks it stands on, its nodes) of each chunk; nodes of one tree are together, depth first."""
    below: dict[SessionNode, list[SessionNode]] = {}
    firsts: dict[SessionNode, list[SessionNode]] = {}
    among = set(new)
    for node in new:
        if node.parent in among:
            below.setdefault(node.parent, []).append(node)
        else:
            firsts.setdefault(node.path()[0], []).append(node)
    chunks: list[tuple[int, list[SessionNode]]] = []
    chunk_of: dict[SessionNode, int] = {}
    for stack in firsts.values():
        room = 0
        while stack:
            node = stack.pop()
            stack += below.get(node, ())
            if not room or len(node.ids) > room:
                chunks.append((0, []))
                room = CHUNK
            room = max(0, room - len(node.ids))
            level, nodes = chunks[-1]
            chunk_of[node] = len(chunks) - 1
            before = chunk_of.get(node.parent, len(chunks) - 1) if node.parent is not None else len(chunks) - 1
            chunks[-1] = level if before == len(chunks) - 1 else max(level, chunks[before][0] + 1), nodes
            nodes.append(node)
    return chunks


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

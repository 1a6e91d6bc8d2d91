"""A cache of session states for requests that come one by one: what was computed for a prefix is kept for the next.

Trees are tries of token ids, one for each owner and prompt. Whatever a call has in common with what is kept, or within
itself, is computed once. States are bounded in bytes; the least recently used leave first. Owners share nothing, so
that neither a score nor the time it takes tells one of them what another has asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prism_prm.lm.memory import halving
from prism_prm.packing import EncodedTree
from prism_prm.records import ROOT
from prism_prm.scorer.check_packing import check_session
from prism_prm.scorer.session import SessionNode
from prism_prm.scorer.step_batch import Growth, in_batches, run_growth
from prism_prm.scorer.whole_trees import check_finite

if TYPE_CHECKING:
    from prism_prm.scorer.prm import PRM

CHUNK = 1024
"""New tokens of one problem that go through the model at once; more of them would pay for a large dense mask."""
NODE_BYTES = 1024
"""What a node costs beside its states, roughly: Python objects and the headers of its tensors."""

Key = tuple[tuple[int, ...], int]
"""(ids, where they are read) of a node."""


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
        self._token_bytes = self._measure()
        self._roots: dict[tuple[Hashable, tuple[int, ...]], SessionNode] = {}
        self._owners: dict[SessionNode, tuple[Hashable, tuple[int, ...]]] = {}
        self._children: dict[SessionNode, dict[Key, SessionNode]] = {}
        self._order: OrderedDict[SessionNode, None] = OrderedDict()
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
        call = _Call(self, asked)
        self._touch(node for nodes in call.nodes for node in nodes)
        size = sum(map(self._size, call.new))
        held = {node for nodes in call.nodes for node in nodes if node in self._order}
        if sum(map(self._size, held)) + size > self.max_bytes:
            return None
        self._shrink(self.max_bytes - size)
        self._compute(call.new)
        self._add(call)
        return [
            Found(np.array([node.log_odds for node in nodes[1:]]).reshape(-1, len(self.prm.outputs)), cached)
            for nodes, cached in zip(call.nodes, call.cached, strict=True)
        ]

    def held_tokens(self, owner: Hashable, tree: EncodedTree) -> int:
        """How many tokens of a tree are kept now; from any thread, so that it is only an estimate."""
        root = self.root(owner, tree.prompt)
        nodes = [root]
        for ids, read, parent in zip(tree.ids, tree.reads, tree.parents, strict=True):
            above = root if parent == ROOT else nodes[parent + 1]
            nodes.append(None if above is None else self.child(above, (ids, read)))
        return sum(len(node.ids) for node in set(nodes) if node is not None)

    def root(self, owner: Hashable, prompt: tuple[int, ...]) -> SessionNode | None:
        return self._roots.get((owner, prompt))

    def child(self, node: SessionNode, key: Key) -> SessionNode | None:
        return self._children.get(node, {}).get(key)

    def _measure(self) -> int:
        """The bytes that one token leaves behind."""
        probe = SessionNode(0, None, "", (0,), 0, 0, -1)
        with self.prm.module.scoring():
            run_growth(self.prm.module, [Growth([probe])])
        assert probe.keys_values is not None, "a node that was run has states"
        return sum(tensor.numel() * tensor.element_size() for tensor in probe.keys_values)

    def _size(self, node: SessionNode) -> int:
        return NODE_BYTES + len(node.ids) * self._token_bytes

    def _compute(self, new: Sequence[SessionNode]) -> None:
        """Run new nodes: chunks that stand on other chunks after those."""
        waves: list[list[Growth]] = []
        for level, chunk in _chunks([node for node in new if node.ids]):
            waves += [[] for _ in range(level + 1 - len(waves))]
            waves[level].append(Growth(chunk))
        with self.prm.module.scoring():
            for growths in waves:
                for batch in in_batches(growths, self.prm.token_budget):
                    self._run(batch)

    def _run(self, batch: Sequence[Growth]) -> None:
        for some, log_odds_RO in halving(batch, lambda some: run_growth(self.prm.module, some), _name):
            nodes = [node for growth in some for node in growth.new]
            steps = [i for i, node in enumerate(nodes) if node.parent is not None]
            # What is read at the end of a prompt is nobody's score.
            check_finite(log_odds_RO[steps], [(nodes[i].problem, nodes[i].depth) for i in steps], _name_step)
            for node, values in zip(nodes, log_odds_RO.tolist(), strict=True):
                node.log_odds = tuple(values)

    def _add(self, call: _Call) -> None:
        """Keep what was computed."""
        for node in call.new:
            if node.parent is None:
                self._owners[node] = owner = call.owner_of[node], node.ids
                self._roots[owner] = node
            else:
                self._children.setdefault(node.parent, {})[node.ids, node.read] = node
            self._order[node] = None
            self.num_bytes += self._size(node)
        for nodes in call.nodes:
            self._touch(nodes)

    def _touch(self, nodes: Iterable[SessionNode]) -> None:
        """They were used: children first."""
        for node in reversed(list(nodes)):
            if node in self._order:
                self._order.move_to_end(node)

    def _shrink(self, num_bytes: int) -> None:
        """Let go of the least recently used until the rest fits."""
        while self.num_bytes > num_bytes:
            node, _ = self._order.popitem(last=False)
            assert node not in self._children, "a node is used whenever its children are"
            self.num_bytes -= self._size(node)
            node.keys_values = None
            if node.parent is None:
                del self._roots[self._owners.pop(node)]
            else:
                siblings = self._children[node.parent]
                del siblings[node.ids, node.read]
                if not siblings:
                    del self._children[node.parent]


class _Call:
    """The nodes that some trees ask for: kept ones, and new ones that are not kept yet."""

    def __init__(self, cache: PrefixCache, asked: Sequence[tuple[Hashable, EncodedTree]]) -> None:
        self.new: list[SessionNode] = []
        """Parents before their children."""
        self.owner_of: dict[SessionNode, Hashable] = {}
        self.nodes: list[list[SessionNode]] = []
        """For each tree its root and its nodes."""
        self.cached: list[int] = []
        fresh_roots: dict[tuple[Hashable, tuple[int, ...]], SessionNode] = {}
        fresh: dict[tuple[SessionNode, Key], SessionNode] = {}
        for number, (owner, tree) in enumerate(asked):
            root = cache.root(owner, tree.prompt) or fresh_roots.get((owner, tree.prompt))
            if root is None:
                root = SessionNode(number, None, "", tree.prompt, 0, len(tree.prompt) - 1, -1)
                fresh_roots[owner, tree.prompt] = root
                self.owner_of[root] = owner
                self.new.append(root)
            nodes = [root]
            for ids, read, parent in zip(tree.ids, tree.reads, tree.parents, strict=True):
                above = root if parent == ROOT else nodes[parent + 1]
                key = ids, read
                node = cache.child(above, key) or fresh.get((above, key))
                if node is None:
                    start, depth = above.start + len(above.ids), above.depth + 1
                    node = fresh[above, key] = SessionNode(number, above, "", ids, start, read, depth)
                    self.new.append(node)
                nodes.append(node)
            self.nodes.append(nodes)
            kept = {node for node in nodes if node.log_odds or node.keys_values is not None}
            self.cached.append(sum(len(node.ids) for node in kept))


def _chunks(new: Sequence[SessionNode]) -> list[tuple[int, list[SessionNode]]]:
    """(how many chunks it stands on, its nodes) of each chunk; nodes of one tree are together, depth first."""
    below: dict[SessionNode, list[SessionNode]] = {}
    firsts: dict[SessionNode, list[SessionNode]] = {}
    among = set(new)
    for node in new:
        if node.parent in among:
            below.setdefault(node.parent, []).append(node)
        else:
            firsts.setdefault(_root(node), []).append(node)
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


def _root(node: SessionNode) -> SessionNode:
    while node.parent is not None:
        node = node.parent
    return node


def _name_step(number: int, depth: int) -> str:
    return f"tree {number}, step {depth}"


def _name(growth: Growth) -> str:
    return _name_step(growth.new[0].problem, growth.new[0].depth)

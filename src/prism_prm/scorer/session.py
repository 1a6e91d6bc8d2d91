"""A session: trees of steps that grow during a search, with a KV cache, so that only new tokens are computed.

Each node keeps the key/values of its own tokens and points to its parent. Forking a beam is extending one node twice;
nothing is copied. Dropping a beam frees what no other beam needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from prism_prm.errors import DataError, PrismError
from prism_prm.lm.memory import halving
from prism_prm.protocol import sigmoid
from prism_prm.records import StepTree
from prism_prm.scorer.step_batch import Growth, in_batches, run_growth
from prism_prm.scorer.whole_trees import check_finite

if TYPE_CHECKING:
    from prism_prm.scorer.prm import PRM


@dataclass(eq=False, slots=True)
class SessionNode:
    """A step of a session, or a problem itself (a root). Its scores stay after it was dropped."""

    problem: int
    """Which of the session's problems."""
    parent: SessionNode | None
    text: str
    ids: tuple[int, ...]
    """The tokens that it adds to its parent's."""
    start: int
    """How many tokens come before it."""
    read: int
    """Where in its tokens it is read."""
    depth: int
    """How many steps come before it; -1 for a root."""
    log_odds: tuple[float, ...] = ()
    """The family's named log-odds; empty for a root, NaN if it was too long and `on_too_long` is "skip"."""
    keys_values: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    """What its own tokens leave behind, each (layers, heads, tokens, size); the two may have different sizes."""
    handles: int = 1
    """How many beams end here; see `Session.fork`."""
    needed_by: int = 0
    """How many children still hold key/values or handles."""

    @property
    def num_tokens(self) -> int:
        """How many tokens it adds to its parent's."""
        return len(self.ids)

    @property
    def probability(self) -> float:
        """P(the step is right)."""
        return float(sigmoid(np.asarray(self.log_odds[0])))

    def path(self) -> list[SessionNode]:
        """The nodes from the root to here."""
        nodes: list[SessionNode] = []
        node: SessionNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def steps(self) -> list[str]:
        """The texts from the first step to here."""
        return [node.text for node in self.path()[1:]]


class Session:
    """Growing trees, one per problem: `extend`, `fork`, `drop`, `keep`."""

    def __init__(self, prm: PRM, problems: Sequence[str]) -> None:
        self.prm = prm
        self.problems = list(problems)
        self.roots = [self._root(i, problem) for i, problem in enumerate(self.problems)]
        """One node per problem, to be extended by first steps."""
        self._alive: set[SessionNode] = set(self.roots)

    def _root(self, index: int, problem: str) -> SessionNode:
        ids = tuple(self.prm.family.prompt_ids(problem))
        return SessionNode(index, None, "", ids, 0, len(ids) - 1, -1)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free everything."""
        for node in self._alive:
            node.keys_values = None
            node.handles = 0
        self._alive.clear()

    def extend(self, steps: Iterable[tuple[SessionNode, str]]) -> list[SessionNode]:
        """Score one more step after each given node; the new nodes come in the order given.

        Equal steps after one node are computed once and share their node (see `fork`). All problems go through the
        model together, in batches of the PRM's token budget.
        """
        new: dict[tuple[SessionNode, str], SessionNode] = {}
        nodes = []
        for parent, text in steps:
            if parent not in self._alive or parent.handles == 0:
                raise PrismError(f"problem {parent.problem}: a node that was dropped cannot be extended ({text!r})")
            if (parent, text) in new:
                nodes.append(self.fork(new[parent, text]))
                continue
            nodes.append(self._child(parent, text))
            new[parent, text] = nodes[-1]
        fitting = [node for node in new.values() if node.start + node.read + 1 <= self.prm.context]
        # What is too long is left to the PRM's own choice: an error, fewer steps, or no score.
        for node in set(new.values()) - set(fitting):
            node.log_odds = self._score_whole(node)
        self._compute(fitting)
        for node in new.values():
            self._alive.add(node)
            assert node.parent is not None
            node.parent.needed_by += 1
        return nodes

    def _child(self, parent: SessionNode, text: str) -> SessionNode:
        depth = parent.depth + 1
        try:
            ids, read = self.prm.family.step_ids(text, depth)
        except DataError as error:
            raise DataError(f"{_name_step(parent.problem, depth)}: {error}", reason=error.reason) from None
        return SessionNode(parent.problem, parent, text, tuple(ids), parent.start + len(parent.ids), read, depth)

    def _score_whole(self, node: SessionNode) -> tuple[float, ...]:
        chain = StepTree.chain(self.problems[node.problem], node.steps(), tree_id=node.problem)
        (scores,) = self.prm.score_trees([chain], [[node.depth]])
        return tuple(scores.log_odds_NO[-1].tolist())

    def _compute(self, nodes: Sequence[SessionNode]) -> None:
        """Run new nodes, and first the prompts of problems that were not touched before."""
        roots = {node.problem: self.roots[node.problem] for node in nodes}
        prompts = [root for root in roots.values() if root.keys_values is None and root.ids]
        with self.prm.module.scoring():
            for part in self._batches(prompts):
                self._run(part)
            for part in self._batches(nodes):
                for node, values in self._run(part):
                    node.log_odds = values

    def _run(self, batch: Sequence[Growth]) -> list[tuple[SessionNode, tuple[float, ...]]]:
        """The nodes of a batch and what is read at their ends."""
        found: list[tuple[SessionNode, tuple[float, ...]]] = []
        for some, log_odds_RO in halving(batch, lambda some: run_growth(self.prm.module, some), _name):
            nodes = [node for growth in some for node in growth.new]
            if nodes[0].parent is not None:  # what is read at the end of a prompt is nobody's score
                check_finite(log_odds_RO, [(node.problem, node.depth) for node in nodes], _name_step)
            found += zip(nodes, map(tuple, log_odds_RO.tolist()), strict=True)
        return found

    def _batches(self, nodes: Sequence[SessionNode]) -> list[list[Growth]]:
        """New nodes by problem, in batches."""
        by_problem: dict[int, list[SessionNode]] = {}
        for node in nodes:
            by_problem.setdefault(node.problem, []).append(node)
        return in_batches([Growth(some) for some in by_problem.values()], self.prm.token_budget)

    def fork(self, node: SessionNode) -> SessionNode:
        """The same node for one more beam; free. It must then be dropped once more."""
        node.handles += 1
        return node

    def drop(self, nodes: Iterable[SessionNode]) -> None:
        """Let go of beams: what no other beam needs is freed."""
        for node in nodes:
            if node.handles == 0:
                raise PrismError(f"problem {node.problem}: a node was dropped more often than it was forked")
            node.handles -= 1
            self._free(node)

    def keep(self, nodes: Iterable[SessionNode]) -> None:
        """Let go of everything but these beams and the roots; a node given twice counts as two beams."""
        wanted = Counter(nodes)
        if dead := wanted.keys() - self._alive:
            raise PrismError(f"problem {next(iter(dead)).problem}: a node that was dropped cannot be kept")
        roots = set(self.roots)
        for node in list(self._alive):
            if node not in roots:
                node.handles = wanted[node]
        for node in sorted(self._alive - roots, key=lambda node: -node.depth):
            self._free(node)

    def _free(self, node: SessionNode | None) -> None:
        while node is not None and node in self._alive and not node.handles and not node.needed_by:
            node.keys_values = None
            self._alive.discard(node)
            node = node.parent
            if node is not None:
                node.needed_by -= 1

    @property
    def num_tokens(self) -> int:
        """How many tokens are in the KV cache."""
        return sum(node.keys_values[0].shape[-2] for node in self._alive if node.keys_values is not None)

    @property
    def memory_bytes(self) -> int:
        """The size of the KV cache."""
        kept = (node.keys_values for node in self._alive if node.keys_values is not None)
        return sum(tensor.numel() * tensor.element_size() for pair in kept for tensor in pair)


def _name_step(problem: int, depth: int) -> str:
    return f"problem {problem}, step {depth}"


def _name(growth: Growth) -> str:
    return _name_step(growth.new[0].problem, growth.new[0].depth)

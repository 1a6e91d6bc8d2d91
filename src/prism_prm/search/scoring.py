"""The PRM's part of a search: steps scored in a session as trees grow, or whole solutions scored at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from prism_prm.records import Step, StepTree
from prism_prm.search.tree import SearchNode, Spent

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer


class Scoring:
    """Scores nodes of many problems; without a PRM it does nothing."""

    def __init__(self, prm: Scorer | None, problems: Sequence[str]) -> None:
        self.prm = prm
        self.problems = problems
        self.session = None if prm is None else prm.session(problems)
        self._tokens: dict[int, int] = {}

    def __enter__(self) -> Scoring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.session is not None:
            self.session.close()

    def root(self, problem: int) -> Any:
        """The session's node of a problem."""
        return None if self.session is None else self.session.roots[problem]

    def keep(self, nodes: Iterable[SearchNode]) -> None:
        """Free the key/values of all other nodes."""
        if self.session is not None:
            roots = set(self.session.roots)
            self.session.keep(node.scored for node in nodes if node.scored is not None and node.scored not in roots)

    def finish(self, problem: int) -> Spent:
        """Free a problem's prompt too; what its scores have cost."""
        if self.session is not None:
            self.session.drop([self.session.roots[problem]])
        return Spent(prm_tokens=self._tokens.pop(problem, 0))

    def score_steps(self, new: Sequence[tuple[int, SearchNode]]) -> None:
        """Score new steps of (problem, node); a step after one that could not be scored has no score either."""
        if self.session is None or self.prm is None:
            return
        able = []
        for problem, node in new:
            parent = node.parent
            assert parent is not None, "a root is not scored"
            if not node.step:
                continue
            if parent.scored is None or not self.prm.can_score(node.step, parent.scored.depth + 1):
                node.probability = math.nan
            else:
                able.append((problem, node, parent.scored))
        before: set[Any] = set()
        scored = self.session.extend([(parent, node.step) for _, node, parent in able])
        for (problem, node, _), one in zip(able, scored, strict=True):
            node.scored, node.probability, node.log_odds = one, one.probability, one.log_odds
            if one not in before:
                before.add(one)
                self._tokens.setdefault(problem, self.session.roots[problem].num_tokens)
                self._tokens[problem] += one.num_tokens

    def score_solutions(self, solutions: Mapping[int, Sequence[SearchNode]]) -> None:
        """Score what has no scores yet: the solutions of a problem as one packed tree."""
        if self.prm is None:
            return
        trees: list[tuple[int, StepTree, list[SearchNode]]] = []
        for problem, nodes in solutions.items():
            wanted = [node for leaf in nodes for node in leaf.nodes() if node.probability is None]
            if wanted:
                trees.append((problem, *self._tree(self.prm, problem, nodes)))
        for (problem, tree, nodes), scores in zip(
            trees, self.prm.score_trees([tree for _, tree, _ in trees]), strict=True
        ):
            found = zip(nodes, scores.probability.tolist(), scores.log_odds_NO.tolist(), strict=True)
            for node, probability, log_odds in found:
                node.probability, node.log_odds = probability, tuple(log_odds)
            self._tokens[problem] = self._tokens.get(problem, 0) + self.prm.count_tokens(tree)

    def _tree(self, prm: Scorer, problem: int, leaves: Sequence[SearchNode]) -> tuple[StepTree, list[SearchNode]]:
        """The steps of some solutions as a tree, and the node of each; from a step that cannot be scored on, none."""
        number: dict[SearchNode, int] = {}
        parents: list[int] = []
        for leaf in leaves:
            before = -1
            for depth, node in enumerate(leaf.nodes()):
                if node not in number:
                    if not prm.can_score(node.step, depth):
                        break
                    number[node] = len(number)
                    parents.append(before)
                before = number[node]
        steps = tuple(Step(node.step) for node in number)
        return StepTree(problem, self.problems[problem], steps, tuple(parents), ()), list(number)

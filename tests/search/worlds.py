"""A tiny deterministic policy and PRM over a tree that is written down, so that every best answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from prism_prm.errors import DataError
from prism_prm.policies import Ask, Sampling, Written
from prism_prm.policies.choose import noise

END = "."
"""A step that ends with this ends the solution."""


@dataclass
class FakePolicy:
    """Samples the next step from `options(steps so far)`: step → probability. Letters are tokens."""

    options: Callable[[tuple[str, ...]], Mapping[str, float]]
    name: str = "fake"
    has_log_likelihood: bool = True
    num_asked: int = 0

    def identity(self) -> str:
        return "fake"

    def prompt(self, problem: str) -> str:
        return f"{problem}:\n\n"

    def close(self) -> None: ...

    def write(self, asks: Sequence[Ask], sampling: Sampling) -> list[Written]:
        self.num_asked += len(asks)
        return [self._one(ask, sampling) for ask in asks]

    def _one(self, ask: Ask, sampling: Sampling) -> Written:
        steps = tuple(ask.text.split("\n\n")[1:-1])
        names, chances = zip(*self.options(steps).items(), strict=True)
        i = int(np.argmax(chances))
        if not ask.greedy and sampling.temperature > 0:
            i = int(np.searchsorted(np.cumsum(chances), noise(ask.key).random(), side="right"))
        step, chance = names[min(i, len(names) - 1)], chances[min(i, len(names) - 1)]
        if len(step) > ask.max_tokens:
            return Written(step[: ask.max_tokens], "cut", ask.max_tokens, math.log(chance))
        if step.endswith(END):
            return Written(step, "end", len(step), math.log(chance))
        return Written(f"{step}\n\n", "stop", len(step), math.log(chance))


@dataclass(eq=False)
class FakeNode:
    problem: int
    parent: FakeNode | None
    text: str
    depth: int
    probability: float = math.nan
    ids: tuple[int, ...] = (0,)

    def steps(self) -> tuple[str, ...]:
        return () if self.parent is None else (*self.parent.steps(), self.text)


@dataclass
class FakePrm:
    """Scores a step by `right(steps up to it)`."""

    right: Callable[[tuple[str, ...]], float]
    num_scored: int = 0
    card: Any = field(default_factory=lambda: SimpleNamespace(aggregator="last"))

    def judge(self, problem: str, steps: tuple[str, ...]) -> float:  # noqa: ARG002
        return self.right(steps)

    @property
    def family(self) -> Any:
        return SimpleNamespace(step_ids=self._ids)

    @staticmethod
    def _ids(text: str, _: int) -> tuple[list[int], int]:
        if "\t" in text:
            raise DataError("this layout has no place for a tab")
        return [0], 0

    def session(self, problems: Sequence[str]) -> FakeSession:
        return FakeSession(self, problems)

    def score_trees(self, trees: Sequence[Any]) -> list[Any]:
        found = []
        for tree in trees:
            paths = [tuple(tree.texts(tree.path(node))) for node in range(len(tree.nodes))]
            values = [self.judge(tree.problem, path) for path in paths]
            self.num_scored += len(values)
            found.append(SimpleNamespace(probability=np.array(values)))
        return found

    def encode_tree(self, tree: Any) -> Any:
        return SimpleNamespace(prompt=(0, 0), ids=((0,),) * len(tree.nodes))

    def model_hash(self) -> str:
        return "fake"


class FakeSession:
    """What the engine uses of a session, with the same errors for nodes that were let go."""

    def __init__(self, prm: FakePrm, problems: Sequence[str]) -> None:
        self.prm = prm
        self.problems = problems
        self.roots = [FakeNode(i, None, "", -1, ids=(0, 0)) for i in range(len(problems))]
        self.alive: set[FakeNode] = set(self.roots)

    def extend(self, steps: Sequence[tuple[FakeNode, str]]) -> list[FakeNode]:
        new: dict[tuple[FakeNode, str], FakeNode] = {}
        nodes = []
        for parent, text in steps:
            assert parent in self.alive, "a node that was let go cannot be extended"
            if (parent, text) not in new:
                node = new[parent, text] = FakeNode(parent.problem, parent, text, parent.depth + 1)
                node.probability = self.prm.judge(self.problems[node.problem], node.steps())
                self.prm.num_scored += 1
            nodes.append(new[parent, text])
        self.alive |= set(nodes)
        return nodes

    def keep(self, nodes: Any) -> None:
        self.alive = set(nodes) | (self.alive & set(self.roots))

    def drop(self, nodes: Sequence[FakeNode]) -> None:
        self.alive -= set(nodes)

    def close(self) -> None:
        self.alive.clear()

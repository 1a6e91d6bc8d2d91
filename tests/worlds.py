"""A tiny deterministic policy and PRM over a tree that is written down, so that every best answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism_prm.aggregate import CardValues
from prism_prm.backends.policy import Sampling, StepRequest, Written, rng
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.tree import StepTree

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

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        self.num_asked += len(asks)
        return [self._one(ask, sampling) for ask in asks]

    def _one(self, ask: StepRequest, sampling: Sampling) -> Written:
        steps = tuple(ask.text.split("\n\n")[1:-1])
        names, chances = zip(*self.options(steps).items(), strict=True)
        i = int(np.argmax(chances))
        if not ask.greedy and sampling.temperature > 0:
            i = int(np.searchsorted(np.cumsum(chances), rng(ask.key).random(), side="right"))
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
    num_tokens: int = 1

    @property
    def log_odds(self) -> tuple[float, ...]:
        return (math.log(self.probability / (1 - self.probability)),)

    def steps(self) -> tuple[str, ...]:
        return () if self.parent is None else (*self.parent.steps(), self.text)


@dataclass
class FakePrm(Scorer):
    """A scorer by `right(steps up to it)`: 2 tokens per problem, 1 per step, no place for a tab."""

    right: Callable[[tuple[str, ...]], float]
    num_scored: int = 0
    outputs: tuple[str, ...] = ("correct",)
    context: int = 1000
    card: CardValues | None = None

    def judge(self, problem: str, steps: tuple[str, ...]) -> float:  # noqa: ARG002
        return self.right(steps)

    def identity(self) -> str:
        return "fake"

    def can_score(self, step: str, depth: int) -> bool:  # noqa: ARG002
        return "\t" not in step

    def count_tokens(self, tree: StepTree) -> int:
        return 2 + len(tree.nodes)

    def session(self, problems: Sequence[str]) -> FakeSession:
        return FakeSession(self, problems)

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,  # noqa: ARG002
        advance: Callable[[int], None] | None = None,
    ) -> list[TreeScores]:
        found = []
        for i, tree in enumerate(trees):
            assert all(self.can_score(step.text, 0) for step in tree.nodes), "nobody asks for what cannot be scored"
            values = np.full(len(tree.nodes), np.nan)
            for node in range(len(tree.nodes)) if wanted is None else wanted[i]:
                values[node] = self.judge(tree.problem, tuple(tree.texts(tree.path(node))))
                self.num_scored += 1
            found.append(TreeScores(self.outputs, np.log(values / (1 - values))[:, None]))
            if advance is not None:
                advance(1)
        return found


class FakeSession:
    """What the engine uses of a session, with the same errors for nodes that were let go."""

    def __init__(self, prm: FakePrm, problems: Sequence[str]) -> None:
        self.prm = prm
        self.problems = problems
        self.roots = [FakeNode(i, None, "", -1, num_tokens=2) for i in range(len(problems))]
        self.alive: set[FakeNode] = set(self.roots)

    def extend(self, steps: Iterable[tuple[FakeNode, str]]) -> list[FakeNode]:
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

    def keep(self, nodes: Iterable[FakeNode]) -> None:
        self.alive = set(nodes) | (self.alive & set(self.roots))

    def drop(self, nodes: Iterable[FakeNode]) -> None:
        self.alive -= set(nodes)

    def close(self) -> None:
        self.alive.clear()


class SmallScorer(Scorer):
    """The scores of a `FakePrm` by a scorer that has only what it must have, and says what it cannot read."""

    def __init__(self, prm: FakePrm) -> None:
        self.prm = prm

    def identity(self) -> str:
        return self.prm.identity()

    def score_trees(self, trees: Sequence[StepTree], wanted: Any = None, **_: Any) -> list[TreeScores]:
        return self.prm.score_trees(trees, wanted)

    def count_tokens(self, tree: StepTree) -> int:
        return self.prm.count_tokens(tree)

    def can_score(self, step: str, depth: int) -> bool:
        return self.prm.can_score(step, depth)

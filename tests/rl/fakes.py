"""A scorer whose scores a person can read off the steps, and completions to score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prism_prm.errors import DataError
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.tree import StepTree


class FakeScorer(Scorer):
    """Scores a step by `right`; a tab cannot be read, a token is a word, and more than `context` are an error."""

    def __init__(self, right: Callable[[str], float], context: int = 10**9) -> None:
        self.right = right
        self.context = context
        self.seen: list[StepTree] = []

    def identity(self) -> str:
        return "fake"

    def can_score(self, step: str, depth: int) -> bool:  # noqa: ARG002
        return "\t" not in step

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.problem.split()) + sum(len(node.text.split()) for node in tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], **_: Any) -> list[TreeScores]:
        self.seen += trees
        found = []
        for tree in trees:
            for node in range(len(tree.nodes)):
                if self.count_tokens(StepTree.chain(tree.problem, tree.texts(tree.path(node)))) > self.context:
                    raise DataError("too long", reason="too-long")
            p = np.array([self.right(node.text) for node in tree.nodes])
            found.append(TreeScores(self.outputs, np.log(p / (1 - p))[:, None]))
        return found


def said(step: str) -> float:
    """The score that a step states: `0.9 …`."""
    return float(step.split()[0]) if step[:1].isdigit() else 0.5


def fake(right: Callable[[str], float] = said, context: int = 10**9) -> Any:
    return FakeScorer(right, context)

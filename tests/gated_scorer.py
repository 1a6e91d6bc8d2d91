"""A scorer that waits to be let through, so that tests decide what is in flight."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from prism_prm.errors import DataError, ModelError
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.tree import StepTree


class GatedScorer(Scorer):
    """Gives every step the log-odds of its text's length.

    A problem "bad" is an error, "broken" one of ours, "nan" one of the model.
    """

    context = 1000

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.calls: list[list[StepTree]] = []

    def identity(self) -> str:
        return "gated"

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.problem) + sum(len(step.text) for step in tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], wanted: Any = None, **_: Any) -> list[TreeScores]:  # noqa: ARG002
        self.calls.append(list(trees))
        assert self.open.wait(300)
        if any(tree.problem == "bad" for tree in trees):
            raise DataError("a bad problem")
        if any(tree.problem == "nan" for tree in trees):
            raise ModelError("a sec" + "ret is not a finite number")
        if any(tree.problem == "broken" for tree in trees):
            raise ZeroDivisionError("".join(["a sec", "ret"]))
        return [TreeScores(self.outputs, np.array([[float(len(step.text))] for step in tree.nodes])) for tree in trees]

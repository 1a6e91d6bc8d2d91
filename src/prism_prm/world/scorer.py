"""The oracle as a scorer of steps: a perfect PRM, usable wherever a PRM is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prism_prm.records import ROOT, StepTree
from prism_prm.scorer.protocol import Solution, TreeScores, as_trees
from prism_prm.world.oracle import State
from prism_prm.world.oracle import advance as after
from prism_prm.world.problems import Problem

SURE = 30.0
"""The log-odds of a step that is right: a probability of 1 but for 10⁻¹³."""

Verdicts = Callable[[str, str, bool], bool]
"""(problem, step, whether it is right) → what a scorer says: where it errs, and how."""


class OracleScorer:
    """Scores every step by the truth, or by what `says` makes of it."""

    outputs = ("correct",)
    context = 2**31
    on_too_long = "skip"

    def __init__(self, modulus: int, says: Verdicts | None = None, name: str = "oracle") -> None:
        self.modulus = modulus
        self.says = says
        self.name = name

    def identity(self) -> str:
        """Its name stands for what it says."""
        return f"{self.name}:{self.modulus}"

    def score(self, problem: str, steps: Sequence[str]) -> list[float]:
        """P(right) of each step of one solution."""
        return self.score_many([(problem, steps)])[0]

    def score_many(self, solutions: Sequence[Solution], *, progress: bool = False) -> list[list[float]]:  # noqa: ARG002
        """P(right) of each step of each solution."""
        return [found.probability.tolist() for found in self.score_trees(as_trees(solutions))]

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,  # noqa: ARG002
        *,
        progress: bool = False,  # noqa: ARG002
        advance: Callable[[int], None] | None = None,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, whichever are wanted."""
        found = []
        for tree in trees:
            found.append(TreeScores(self.outputs, SURE * np.array(self._signs(tree)).reshape(-1, 1)))
            if advance is not None:
                advance(1)
        return found

    def _signs(self, tree: StepTree) -> list[float]:
        """1 for each node that it calls right, −1 for others."""
        states = {ROOT: State.start(Problem.parse(tree.problem, self.modulus))}
        signs = []
        for node, (step, parent) in enumerate(zip(tree.nodes, tree.parents, strict=True)):
            verdict, states[node] = after(states[parent], step.text)
            right = verdict == "right"
            signs.append(1.0 if (self.says(tree.problem, step.text, right) if self.says else right) else -1.0)
        return signs

    def session(self, problems: Sequence[str]) -> Any:
        """Growing trees are not scored."""
        raise NotImplementedError("the oracle scores whole solutions; a search needs a PRM")

    def can_score(self, step: str, depth: int) -> bool:  # noqa: ARG002
        """Whatever is written can be judged."""
        return True

    def count_tokens(self, tree: StepTree) -> int:
        """One per step: no model reads anything."""
        return len(tree.nodes)

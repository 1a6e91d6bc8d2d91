"""Score completions through packed trees: one tree per problem, in which common prefixes occur once."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from prism_prm.arrays import Floats
from prism_prm.errors import DataError
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.tree import ROOT, Step, StepTree

log = logging.getLogger(__name__)


class _Growing:
    """The tree of one problem's solutions."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.nodes: dict[tuple[int, str], int] = {}

    def add(self, steps: Sequence[str]) -> list[int]:
        """The nodes of a solution's steps; those of a beginning that was there before are shared."""
        path, before = [], ROOT
        for step in steps:
            before = self.nodes.setdefault((before, step), len(self.nodes))
            path.append(before)
        return path

    def tree(self, tree_id: int) -> StepTree:
        steps = tuple(Step(text) for _, text in self.nodes)
        return StepTree(tree_id, self.problem, steps, tuple(parent for parent, _ in self.nodes), ())


def score_solutions(scorer: Scorer, problems: Sequence[str], solutions: Sequence[Sequence[str]]) -> list[Floats]:
    """P(right) of each step of each solution; NaN where the scorer cannot read a step, or it is too long.

    A step that cannot be read is left out, and those after it are read after the steps before it. A scorer that is
    `by_sample` may score equal solutions differently: each is a tree of its own.
    """
    by_sample = scorer.by_sample
    owners = [(problem, i if by_sample else 0) for i, problem in enumerate(problems)]
    trees: dict[tuple[str, int], _Growing] = {}
    paths: list[list[int]] = []
    read: list[list[int]] = []  # for each solution the numbers of the steps that can be read
    for owner, steps in zip(owners, solutions, strict=True):
        problem, _ = owner
        readable = _readable(scorer, problem, steps)
        read.append(readable)
        paths.append(trees.setdefault(owner, _Growing(problem)).add([steps[k] for k in readable]))
    packed = {owner: own.tree(i) for i, (owner, own) in enumerate(trees.items()) if own.nodes}
    scores = dict(zip(packed, _score(scorer, list(packed.values())), strict=True))
    found = []
    for owner, steps, numbers, path in zip(owners, solutions, read, paths, strict=True):
        own = np.full(len(steps), np.nan)
        if path:
            own[numbers] = scores[owner].probability[path]
        found.append(own)
    return found


def _readable(scorer: Scorer, problem: str, steps: Sequence[str]) -> list[int]:
    """The numbers of the steps that have a place in the layout, up to where the context ends."""
    numbers: list[int] = []
    for k, step in enumerate(steps):
        if scorer.can_score(step, len(numbers)):
            numbers.append(k)
    if scorer.on_too_long == "skip":  # it says so itself, by NaN
        return numbers

    def size(count: int) -> int:
        return scorer.count_tokens(StepTree.chain(problem, [steps[k] for k in numbers[:count]]))

    if size(len(numbers)) <= scorer.context:
        return numbers
    if scorer.on_too_long == "drop-left-steps":  # only what is too long by itself is lost
        return [k for k in numbers if scorer.count_tokens(StepTree.chain(problem, [steps[k]])) <= scorer.context]
    return numbers[: max(0, bisect_right(range(len(numbers) + 1), scorer.context, key=size) - 1)]


def _score(scorer: Scorer, trees: list[StepTree]) -> list[TreeScores]:
    """The trees' scores; where a scorer refuses one of them, that one has none."""
    try:
        return scorer.score_trees(trees)
    except DataError as error:
        log.warning("a tree of steps was refused, and the trees of this batch are scored one by one: %s", error)
        return [_score_alone(scorer, tree) for tree in trees]


def _score_alone(scorer: Scorer, tree: StepTree) -> TreeScores:
    try:
        return scorer.score_trees([tree])[0]
    except DataError:
        return TreeScores(scorer.outputs, np.full((len(tree.nodes), len(scorer.outputs)), np.nan))

"""The oracle as a scorer of steps: a perfect PRM, usable wherever a PRM is, and one that errs at stated rates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from prism_prm.console import Advance, ignore
from prism_prm.lab.world.oracle import State
from prism_prm.lab.world.oracle import advance as after
from prism_prm.lab.world.problems import Problem
from prism_prm.scorer import Scorer, StepSession, TreeScores, sigmoid
from prism_prm.tree import ROOT, StepTree

SURE = 30.0
"""The log-odds of a step that is right: a probability of 1 but for 10⁻¹³."""

Kind = Literal["independent", "systematic"]
KINDS: dict[Kind, str] = {
    "independent": "drawn anew for every step of every solution, also of equal ones",
    "systematic": "drawn once for every text of a step: where it errs, it errs wherever that text stands",
}
"""The ways to err."""


@dataclass(frozen=True, eq=False, slots=True)
class OracleStep:
    """A step that was judged, or a problem itself (a root)."""

    path: tuple[str, ...]
    """The problem and the steps up to here."""
    state: State
    sample: int = 0
    """The number of its solution, among equal ones too."""
    log_odds: tuple[float, ...] = ()

    @property
    def depth(self) -> int:
        """How many steps come before it; -1 for a root."""
        return len(self.path) - 2

    @property
    def probability(self) -> float:
        """P(the step is right)."""
        return float(sigmoid(np.asarray(self.log_odds[0])))

    @property
    def num_tokens(self) -> int:
        """One, and none for a root: no model reads anything."""
        return min(1, len(self.path) - 1)


class OracleScorer(Scorer):
    """Scores every step by the truth, or by what `says` makes of it."""

    on_too_long = "skip"

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus

    def identity(self) -> str:
        """The modulus is all that it depends on."""
        return f"oracle:{self.modulus}"

    def says(self, path: tuple[str, ...], sample: int, right: bool) -> bool:  # noqa: ARG002
        """What it says of the last step of a path (the problem and the steps up to here), which is right or not."""
        return right

    def start(self, problem: str, sample: int = 0) -> OracleStep:
        """A problem before its first step."""
        return OracleStep((problem,), State.start(Problem.parse(problem, self.modulus)), sample)

    def extend(self, parent: OracleStep, text: str) -> OracleStep:
        """One more step, judged."""
        verdict, state = after(parent.state, text)
        path = (*parent.path, text)
        called_right = self.says(path, parent.sample, verdict == "right")
        return OracleStep(path, state, parent.sample, (SURE if called_right else -SURE,))

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,  # noqa: ARG002
        *,
        progress: bool = False,  # noqa: ARG002
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, whichever are wanted."""
        found = []
        for tree in trees:
            judged = {ROOT: self.start(tree.problem, tree.tree_id)}
            for node, (step, parent) in enumerate(zip(tree.nodes, tree.parents, strict=True)):
                judged[node] = self.extend(judged[parent], step.text)
            log_odds = [judged[node].log_odds for node in range(len(tree.nodes))]
            found.append(TreeScores(self.outputs, np.array(log_odds).reshape(-1, 1)))
            advance(1)
        return found

    def session(self, problems: Sequence[str]) -> OracleSession:
        """Growing trees of steps, one per problem."""
        return OracleSession(self, problems)

    def can_score(self, step: str, depth: int) -> bool:  # noqa: ARG002
        """Whatever is written can be judged."""
        return True

    def count_tokens(self, tree: StepTree) -> int:
        """One per step: no model reads anything."""
        return len(tree.nodes)


class OracleSession(StepSession[OracleStep]):
    """Growing trees of steps; a step holds all that is known of it, so nothing is kept here."""

    def __init__(self, scorer: OracleScorer, problems: Sequence[str]) -> None:
        self.scorer = scorer
        self.roots = [scorer.start(problem) for problem in problems]

    def extend(self, steps: Iterable[tuple[OracleStep, str]]) -> list[OracleStep]:
        """Judge one more step after each given one; equal steps after one share their node."""
        asked = list(steps)
        judged = {(parent, text): self.scorer.extend(parent, text) for parent, text in dict.fromkeys(asked)}
        return [judged[one] for one in asked]


class CorruptedOracle(OracleScorer):
    """The oracle with a false positive rate `alpha` and a false negative rate `beta`, per step.

    Where it errs depends on the seed and, if errors are independent, on the `tree_id` of a solution; not on the order
    of calls. At a higher rate it errs in the same places and in more. Steps of a session are one solution's.
    """

    def __init__(self, modulus: int, alpha: float, beta: float, kind: Kind, seed: int = 0) -> None:
        super().__init__(modulus)
        self.alpha, self.beta, self.kind, self.seed = alpha, beta, kind, seed
        self.by_sample = kind == "independent"

    def identity(self) -> str:
        """All that decides what it says."""
        return f"{super().identity()}:{self.kind}:{self.alpha:g}:{self.beta:g}:{self.seed}"

    def says(self, path: tuple[str, ...], sample: int, right: bool) -> bool:
        """The truth, or its opposite at the rate for such steps."""
        about = (*path, sample) if self.kind == "independent" else path[-1:]
        errs = _chance(self.seed, right, about) < (self.beta if right else self.alpha)
        return right != errs


def _chance(*about: object) -> float:
    """A number from 0 to 1 that is the same wherever it is asked for."""
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64

"""The oracle: an exact verdict on every step, with the reason if it is wrong.

The oracle reads a solution from left to right. It tracks the last value and the next operation, and continues from what
was WRITTEN, so a step after an error is right if it follows from the written value. (This is PRMBench's convention.
Trees from samples stop at the first error, like PRM800K, so it does not matter there.) As a `Scorer` it is a perfect
PRM, or one with given error rates.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from prism_prm.calibration import sigmoid
from prism_prm.console import Advance, ignore
from prism_prm.lab.world.problems import ANSWER_MARK, UNDO, Operation, Problem
from prism_prm.scorer import Scorer, StepSession, TreeScores
from prism_prm.tree import ROOT, StepTree

Verdict = Literal[
    "right",
    "counterfactual",
    "contradiction",
    "skipped",
    "premature",
    "redundant",
    "circular",
    "missing_premise",
    "malformed",
]

VERDICTS: dict[Verdict, str] = {
    "right": "the next operation, on the current value, with its true result; or the answer when nothing is left to do",
    "counterfactual": "the next operation on the current value, with a false result",
    "contradiction": "the next operation on a value other than the current one, or an answer that is not the last one",
    "skipped": "a later operation, on the current value: those before it were left out",
    "premature": "a later operation, on a value not derived yet; or an answer before the end",
    "redundant": "a step already taken, or an operation already used",
    "circular": "the last operation undone: back from the current value to the one before it",
    "missing_premise": "an operation that the problem does not give",
    "malformed": "not a step",
}
"""Verdict → meaning; the first that fits, in the order of `_judge`, is returned."""

_STEP = re.compile(r"(\d+)([-+*])(\d+)=(\d+)")
_ANSWER = re.compile(rf"{ANSWER_MARK}\d+")


@dataclass(frozen=True, slots=True)
class _Equation:
    left: int
    operation: Operation
    result: int


@dataclass(frozen=True, slots=True)
class State:
    """The state of a solution after some steps."""

    problem: Problem
    done: int = 0
    """The number of operations that were applied or skipped."""
    value: int = 0
    before: int | None = None
    """The value before the last operation."""
    last: Operation | None = None
    """The last operation applied."""
    taken: frozenset[str] = frozenset()
    """The steps so far."""
    answered: bool = False

    @classmethod
    def start(cls, problem: Problem) -> State:
        """The state before the first step."""
        return cls(problem, value=problem.start)

    def right_step(self) -> str | None:
        """The only right next step; None after an answer."""
        if self.answered:
            return None
        if self.done == len(self.problem.operations):
            return f"{ANSWER_MARK}{self.value}"
        operation = self.problem.operations[self.done]
        return f"{self.value}{operation}={operation.apply(self.value, self.problem.modulus)}"


def _read(step: str) -> _Equation | None:
    found = _STEP.fullmatch(step)
    if found is None:
        return None
    return _Equation(int(found[1]), Operation(found[2], int(found[3])), int(found[4]))


def _ahead(state: State, operation: Operation) -> int | None:
    """The distance of `operation` from the next operation, 0 for the next itself; None if it is not ahead."""
    rest = state.problem.operations[state.done :]
    return rest.index(operation) if operation in rest else None


def _judge(state: State, step: str) -> Verdict:
    if step == state.right_step():
        return "right"
    equation = _read(step)
    if equation is None and not _ANSWER.fullmatch(step):
        return "malformed"
    if state.answered:
        return "redundant"
    if equation is None:
        return "contradiction" if state.done == len(state.problem.operations) else "premature"
    if step in state.taken:
        return "redundant"
    if state.last is not None and state.before is not None:
        undo = (state.value, UNDO.get(state.last.operator), state.last.operand, state.before)
        if (equation.left, equation.operation.operator, equation.operation.operand, equation.result) == undo:
            return "circular"
    ahead = _ahead(state, equation.operation)
    if ahead is None:
        return "redundant" if equation.operation in state.problem.operations[: state.done] else "missing_premise"
    if ahead == 0:
        return "counterfactual" if equation.left == state.value else "contradiction"
    return "skipped" if equation.left == state.value else "premature"


def advance(state: State, step: str) -> tuple[Verdict, State]:
    """The verdict on a step, and the state after it, which continues from what was written."""
    verdict = _judge(state, step)
    after = replace(state, taken=state.taken | {step}, answered=state.answered or bool(_ANSWER.fullmatch(step)))
    equation = _read(step)
    if verdict in ("malformed", "redundant", "circular") or equation is None:
        return verdict, after  # nothing new was derived: the value and the next operation do not change
    # An invented operation replaces the next one, if there is one.
    passed = min(state.done + (_ahead(state, equation.operation) or 0) + 1, len(state.problem.operations))
    return verdict, replace(after, done=passed, value=equation.result, before=equation.left, last=equation.operation)


def judge(problem: Problem, steps: Sequence[str]) -> list[Verdict]:
    """The verdict on every step of a solution, each given the steps before it."""
    state = State.start(problem)
    verdicts = []
    for step in steps:
        verdict, state = advance(state, step)
        verdicts.append(verdict)
    return verdicts


def judge_step(problem: Problem, prefix: Sequence[str], step: str) -> Verdict:
    """The verdict on one step after a prefix."""
    return judge(problem, [*prefix, step])[-1]


def solved(problem: Problem, steps: Sequence[str]) -> bool:
    """Whether a solution ends with the right answer, even if steps are wrong."""
    return bool(steps) and steps[-1] == f"{ANSWER_MARK}{problem.answer}"


SURE = 30.0
"""The log-odds of a right step: a probability of 1 − 10⁻¹³."""

Kind = Literal["independent", "systematic"]
KINDS: dict[Kind, str] = {
    "independent": "drawn for every step of every solution, even of equal ones",
    "systematic": "drawn once for every text of a step: a step with that text is always misjudged, or never",
}
"""The kinds of errors of a `CorruptedOracle`."""


@dataclass(frozen=True, eq=False, slots=True)
class OracleStep:
    """A judged step, or a root (the problem itself)."""

    path: tuple[str, ...]
    """The problem and the steps up to here."""
    state: State
    sample: int = 0
    """The number of its solution; equal solutions have different numbers."""
    log_odds: tuple[float, ...] = ()

    @property
    def depth(self) -> int:
        """The number of steps before it; -1 for a root."""
        return len(self.path) - 2

    @property
    def probability(self) -> float:
        """P(the step is right)."""
        return float(sigmoid(np.asarray(self.log_odds[0])))

    @property
    def num_tokens(self) -> int:
        """1, or 0 for a root: there is no model that reads tokens."""
        return min(1, len(self.path) - 1)


class OracleScorer(Scorer):
    """Scores every step by its truth; subclasses may override `says` to err."""

    on_too_long = "skip"

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus

    def identity(self) -> str:
        return f"oracle:{self.modulus}"

    def says(self, path: tuple[str, ...], sample: int, right: bool) -> bool:  # noqa: ARG002
        """Its verdict on the last step of a path (the problem and the steps up to here), given the truth."""
        return right

    def start(self, problem: str, sample: int = 0) -> OracleStep:
        return OracleStep((problem,), State.start(Problem.parse(problem, self.modulus)), sample)

    def extend(self, parent: OracleStep, text: str) -> OracleStep:
        verdict, state = advance(parent.state, text)
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
        """The scores of all nodes of each tree, wanted or not."""
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
        return True

    def count_tokens(self, tree: StepTree) -> int:
        """One per step: there is no model that reads tokens."""
        return len(tree.nodes)


class OracleSession(StepSession[OracleStep]):
    """A session of an oracle; steps hold all state, so nothing is cached here."""

    def __init__(self, scorer: OracleScorer, problems: Sequence[str]) -> None:
        self.scorer = scorer
        self.roots = [scorer.start(problem) for problem in problems]

    def extend(self, steps: Iterable[tuple[OracleStep, str]]) -> list[OracleStep]:
        """Judge a new step after each given step; equal steps after the same one share a node."""
        requested = list(steps)
        judged = {(parent, text): self.scorer.extend(parent, text) for parent, text in dict.fromkeys(requested)}
        return [judged[one] for one in requested]


class CorruptedOracle(OracleScorer):
    """The oracle with a false positive rate `alpha` and a false negative rate `beta` per step.

    Where it errs depends on the seed and, if errors are independent, on the `tree_id` of a solution, but not on the
    order of calls. At a higher rate it errs in the same places and more. All steps of a session count as one solution.
    """

    def __init__(self, modulus: int, alpha: float, beta: float, kind: Kind, seed: int = 0) -> None:
        super().__init__(modulus)
        self.alpha, self.beta, self.kind, self.seed = alpha, beta, kind, seed
        self.by_sample = kind == "independent"

    def identity(self) -> str:
        return f"{super().identity()}:{self.kind}:{self.alpha:g}:{self.beta:g}:{self.seed}"

    def says(self, path: tuple[str, ...], sample: int, right: bool) -> bool:
        """The truth, or its opposite at the rate alpha or beta."""
        about = (*path, sample) if self.by_sample else path[-1:]
        errs = _chance(self.seed, right, about) < (self.beta if right else self.alpha)
        return right != errs


def _chance(*about: object) -> float:
    """A number from 0 to 1, derived from a hash of the arguments."""
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64

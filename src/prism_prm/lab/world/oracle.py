"""The exact truth about every step under every prefix, and for a wrong step the reason.

The oracle reads a solution as a careful reader would: it keeps the value that was last derived and which operation
comes next, and continues from what was WRITTEN, so a step after an error is right if it follows from the written value.
(This is PRMBench's convention. Trees made from samples stop at the first error, as PRM800K does, and never meet it.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prism_prm.lab.world.problems import ANSWER_MARK, UNDO, Operation, Problem

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
    "right": "the next operation, on the present value, with its true result; or the answer when nothing is left to do",
    "counterfactual": "the next operation on the present value, with a false result",
    "contradiction": "the next operation on another value than the present one, or an answer that is not the last one",
    "skipped": "an operation from further on, on the present value: those before it were left out",
    "premature": "an operation from further on, on a value that was not derived yet; or an answer before the end",
    "redundant": "a step that was taken already, or an operation that was used already",
    "circular": "the last operation undone: back from the present value to the one before it",
    "missing_premise": "an operation that the problem does not give",
    "malformed": "not a step",
}
"""Every verdict and what it means; the first that fits, in the order of `_judge`, is the one given."""

ERRORS: tuple[Verdict, ...] = tuple(verdict for verdict in VERDICTS if verdict != "right")

_STEP = re.compile(r"(\d+)([-+*])(\d+)=(\d+)")


@dataclass(frozen=True, slots=True)
class _Equation:
    left: int
    operation: Operation
    result: int


@dataclass(frozen=True, slots=True)
class State:
    """Where a solution stands after some steps."""

    problem: Problem
    done: int = 0
    """How many operations were worked off or passed over."""
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
        """Before the first step."""
        return cls(problem, value=problem.start)

    def right_step(self) -> str | None:
        """The one right next step; None after an answer."""
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


def _is_answer(step: str) -> bool:
    return step.startswith(ANSWER_MARK) and step.removeprefix(ANSWER_MARK).isdecimal()


def _ahead(state: State, operation: Operation) -> int | None:
    """How many operations after the next one `operation` comes, 0 for the next itself; None if it does not come."""
    rest = state.problem.operations[state.done :]
    return rest.index(operation) if operation in rest else None


def _judge(state: State, step: str) -> Verdict:
    if step == state.right_step():
        return "right"
    equation = _read(step)
    if equation is None and not _is_answer(step):
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
    """The verdict on a step, and where the solution stands after it, going on from what was written."""
    verdict = _judge(state, step)
    after = replace(state, taken=state.taken | {step}, answered=state.answered or _is_answer(step))
    equation = _read(step)
    if verdict in ("malformed", "redundant", "circular") or equation is None:
        return verdict, after  # nothing new was derived: the value and the next operation stay
    # An invented operation stands in the place of the next one, if there is one.
    passed = min(state.done + (_ahead(state, equation.operation) or 0) + 1, len(state.problem.operations))
    return verdict, replace(after, done=passed, value=equation.result, before=equation.left, last=equation.operation)


def state_after(problem: Problem, steps: Sequence[str]) -> State:
    """Where a solution stands after `steps`, whatever they are."""
    state = State.start(problem)
    for step in steps:
        _, state = advance(state, step)
    return state


def judge(problem: Problem, steps: Sequence[str]) -> list[Verdict]:
    """The verdict on every step of a solution, each under the steps before it."""
    state = State.start(problem)
    verdicts = []
    for step in steps:
        verdict, state = advance(state, step)
        verdicts.append(verdict)
    return verdicts


def judge_step(problem: Problem, prefix: Sequence[str], step: str) -> Verdict:
    """The verdict on one step under a prefix."""
    return advance(state_after(problem, prefix), step)[0]


def solved(problem: Problem, steps: Sequence[str]) -> bool:
    """Whether a solution ends with the right answer, by whatever way."""
    return bool(steps) and steps[-1] == f"{ANSWER_MARK}{problem.answer}"

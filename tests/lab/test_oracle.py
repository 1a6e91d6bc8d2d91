"""The oracle against an evaluator written the other way round: it lists the steps of each class, then looks one up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from prism_prm.lab.world.oracle import VERDICTS, State, advance, judge, judge_step, solved
from prism_prm.lab.world.problems import Operation, Problem, ProblemSettings, operations_of


def split(text: str) -> tuple[int, list[tuple[str, int]]]:
    """A problem's text by hand: single-digit worlds only."""
    return int(text[0]), [(text[i], int(text[i + 1])) for i in range(1, len(text), 2)]


def work(value: int, op: str, number: int, modulus: int) -> int:
    return eval(f"({value}{op}{number}) % {modulus}")


class Listing:
    """For one prefix: every step that has a class, listed from what the classes mean."""

    def __init__(self, text: str, modulus: int) -> None:
        self.modulus = modulus
        self.value, self.todo = split(text)
        self.used: list[tuple[str, int]] = []
        self.history: list[str] = []
        self.undo: str | None = None
        self.closed = False

    def classes(self) -> list[tuple[str, set[str]]]:
        """(class, its steps), the first listing that has a step decides."""
        numbers = range(self.modulus)
        answers = {f"#### {n}" for n in numbers}
        if self.closed:
            return [("redundant", self.everything() | answers)]
        if not self.todo:
            right = {f"#### {self.value}"}
        else:
            op, number = self.todo[0]
            right = {f"{self.value}{op}{number}={work(self.value, op, number, self.modulus)}"}
        listing = [("right", right)]
        listing.append(("contradiction" if not self.todo else "premature", answers))
        listing.append(("redundant", self.everything() & set(self.history)))
        listing.append(("circular", {self.undo} if self.undo else set()))
        if self.todo:
            op, number = self.todo[0]
            listing.append(("counterfactual", {f"{self.value}{op}{number}={n}" for n in numbers}))
            listing.append(("contradiction", {f"{m}{op}{number}={n}" for m in numbers for n in numbers}))
        for op, number in self.todo[1:]:
            listing.append(("skipped", {f"{self.value}{op}{number}={n}" for n in numbers}))
            listing.append(("premature", {f"{m}{op}{number}={n}" for m in numbers for n in numbers}))
        for op, number in self.used:
            listing.append(("redundant", {f"{m}{op}{number}={n}" for m in numbers for n in numbers}))
        listing.append(("missing_premise", self.everything()))
        return listing

    def everything(self) -> set[str]:
        numbers = range(self.modulus)
        return {f"{a}{op}{b}={c}" for a, op, b, c in product(numbers, "+-*", numbers, numbers)}

    def verdict(self, step: str) -> str:
        return next((name for name, steps in self.classes() if step in steps), "malformed")

    def take(self, step: str) -> None:
        verdict = self.verdict(step)
        self.history.append(step)
        if step.startswith("#### "):
            self.closed = True
        elif verdict not in ("redundant", "circular", "malformed"):
            left, op, number, result = int(step[0]), step[1], int(step[2]), int(step[4])
            if (op, number) in self.todo:
                cut = self.todo.index((op, number)) + 1
                self.used += self.todo[:cut]
                self.todo = self.todo[cut:]
            elif self.todo:
                self.used.append(self.todo.pop(0))
            inverse = {"+": "-", "-": "+"}.get(op)
            self.undo = f"{result}{inverse}{number}={left}" if inverse else None
            self.value = result


def all_steps(modulus: int) -> list[str]:
    numbers = range(modulus)
    equations = [f"{a}{op}{b}={c}" for a, op, b, c in product(numbers, "+-*", numbers, numbers)]
    return [*equations, *(f"#### {n}" for n in numbers), "", "1+", "####", "1+1=1=1"]


def after(text: str, modulus: int, prefix: tuple[str, ...]) -> Listing:
    listing = Listing(text, modulus)
    for step in prefix:
        listing.take(step)
    return listing


def all_problems(settings: ProblemSettings) -> Iterator[Problem]:
    """Every problem of a small world."""
    choices = [Operation(op, n) for op, numbers in operations_of(settings).items() for n in numbers]
    for count in range(settings.min_operations, settings.max_operations + 1):
        for start in range(settings.modulus):
            for operations in product(choices, repeat=count):
                yield Problem(start, operations, settings.modulus)


@pytest.mark.parametrize(
    ("operations", "depth", "keep"),
    [(1, 1, 1), (1, 2, 97), (2, 1, 11), (3, 1, 97), pytest.param(2, 1, 1, marks=pytest.mark.slow)],
)
def test_every_step_under_every_prefix_of_small_problems(operations: int, depth: int, keep: int) -> None:
    """All problems modulo 3; any prefixes (every `keep`-th of all); all steps, and texts that are none."""
    settings = ProblemSettings(modulus=3, min_operations=operations, max_operations=operations)
    steps = all_steps(3)
    prefixes = [prefix for length in range(depth + 1) for prefix in product(steps, repeat=length)]
    cases = [(problem, prefix) for problem in all_problems(settings) for prefix in prefixes][::keep]
    seen = set()
    for problem, prefix in cases:
        classes = after(problem.text, 3, prefix).classes()
        state = State.start(problem)
        for step in prefix:
            _, state = advance(state, step)
        for step in steps:
            expected = next((name for name, listed in classes if step in listed), "malformed")
            verdict, _ = advance(state, step)
            assert verdict == expected, (problem.text, prefix, step)
            seen.add(verdict)
    assert seen == set(VERDICTS) - ({"skipped"} if operations == 1 else set())


def test_right_prefixes_of_longer_problems() -> None:
    """Under right prefixes exactly one step is right, and judging a whole solution is judging step by step."""
    problem = Problem.parse("2+1*2-1+1", 3)
    solution = problem.solution()
    assert judge(problem, solution) == ["right"] * 5
    for at in range(len(solution)):
        verdicts = {step: judge_step(problem, solution[:at], step) for step in all_steps(3)}
        assert [step for step, verdict in verdicts.items() if verdict == "right"] == [solution[at]]
        assert verdicts == {step: after(problem.text, 3, tuple(solution[:at])).verdict(step) for step in verdicts}


def test_reads_on_from_what_was_written() -> None:
    problem = Problem.parse("7+6*3-4")
    assert problem.solution() == ["7+6=3", "3*3=9", "9-4=5", "#### 5"]
    steps = ["7+6=4", "4*3=2", "4*3=2", "2-4=8", "#### 8"]
    assert judge(problem, steps) == ["counterfactual", "right", "redundant", "right", "right"]
    assert not solved(problem, steps)
    assert solved(problem, ["#### 5"])
    named = {
        "7+6=4": "counterfactual",
        "1+6=7": "contradiction",
        "7*3=1": "skipped",
        "9-4=5": "premature",
        "#### 5": "premature",
        "7+5=2": "missing_premise",
        "seven": "malformed",
    }
    assert {step: judge_step(problem, [], step) for step in named} == named
    assert judge_step(problem, ["7+6=3"], "3-6=7") == "circular"
    assert judge_step(problem, ["7+6=3"], "7+6=3") == "redundant"
    assert judge_step(problem, problem.solution()[:3], "#### 6") == "contradiction"
    assert set(named.values()) | {"circular", "redundant"} == set(VERDICTS) - {"right"}

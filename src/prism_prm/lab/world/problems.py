"""The problems of the embedded world: chains of modular arithmetic, worked left to right, one step per operation.

`7+6*3-4` modulo 10 is solved by the steps `7+6=3`, `3*3=9`, `9-4=5`, `#### 5`. After a right prefix exactly one next
step is right; the oracle names the reason why any other is wrong (`oracle.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from prism_prm.errors import ConfigError, DataError

OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
"""Symbol → operation, before the remainder is taken."""

UNDO = {"+": "-", "-": "+"}
"""Symbol → the operation that undoes it."""

ANSWER_MARK = "#### "
"""The prefix of the answer in the last step, as in GSM8K."""

_PROBLEM = re.compile(r"(\d+)((?:[-+*]\d+)+)")
_OPERATION = re.compile(r"([-+*])(\d+)")


@dataclass(frozen=True, slots=True)
class ProblemSettings:
    """The distribution of problems; with a seed it determines the problems exactly."""

    modulus: int = 10
    """All numbers are remainders modulo this; a larger modulus is harder to learn."""
    operators: str = "+-*"
    """Which of + - * occur, all with equal probability."""
    min_operations: int = 4
    max_operations: int = 6
    """The number of operations is uniform between the two; longer chains have more places for errors."""

    def __post_init__(self) -> None:
        if self.modulus < 3:
            raise ConfigError(f"modulus {self.modulus} is too small. Use 3 or more.")
        unknown = set(self.operators) - set(OPERATORS)
        if unknown or not self.operators:
            raise ConfigError(f"operators {self.operators!r} must be some of {''.join(OPERATORS)!r}.")
        if not 1 <= self.min_operations <= self.max_operations:
            raise ConfigError(
                f"min_operations {self.min_operations} and max_operations {self.max_operations} must be 1 or more, "
                "the first not above the second."
            )


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a problem, such as `+6`."""

    operator: str
    operand: int

    def apply(self, value: int, modulus: int) -> int:
        return int(OPERATORS[self.operator](value, self.operand)) % modulus

    def __str__(self) -> str:
        return f"{self.operator}{self.operand}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A start value and operations to apply to it from left to right."""

    start: int
    operations: tuple[Operation, ...]
    modulus: int = 10

    @property
    def text(self) -> str:
        """The problem as a policy reads it; `parse` is the inverse."""
        return f"{self.start}{''.join(map(str, self.operations))}"

    @classmethod
    def parse(cls, text: str, modulus: int = 10) -> Problem:
        found = _PROBLEM.fullmatch(text)
        if found is None:
            raise DataError(f"{text!r} is not a problem of the world. One looks like 7+6*3-4.", reason="not-a-problem")
        operations = tuple(Operation(op, int(number)) for op, number in _OPERATION.findall(found[2]))
        numbers = [int(found[1]), *(operation.operand for operation in operations)]
        if max(numbers) >= modulus:
            raise DataError(f"{text!r}: {max(numbers)} is not a remainder modulo {modulus}.", reason="not-a-problem")
        return cls(int(found[1]), operations, modulus)

    def values(self) -> list[int]:
        """The start value, then the value after each operation; the last one is the answer."""
        values = [self.start]
        for operation in self.operations:
            values.append(operation.apply(values[-1], self.modulus))
        return values

    @property
    def answer(self) -> str:
        return str(self.values()[-1])

    def solution(self) -> list[str]:
        """The steps of the right solution, the answer included."""
        values = self.values()
        steps = [f"{v}{op}={w}" for v, op, w in zip(values, self.operations, values[1:], strict=False)]
        return [*steps, f"{ANSWER_MARK}{values[-1]}"]


def operations_of(settings: ProblemSettings) -> dict[str, list[int]]:
    """The operands of each operator, without trivial ones (+0, *0, *1)."""
    return {op: list(range(2 if op == "*" else 1, settings.modulus)) for op in settings.operators}


def draw_problem(settings: ProblemSettings, rng: np.random.Generator) -> Problem:
    count = int(rng.integers(settings.min_operations, settings.max_operations + 1))
    operands = operations_of(settings)
    draws = rng.integers(0, 2**31, size=(count, 2)).tolist()
    operations = []
    for which, operand in draws:
        operator = settings.operators[which % len(settings.operators)]
        operations.append(Operation(operator, operands[operator][operand % len(operands[operator])]))
    return Problem(int(rng.integers(settings.modulus)), tuple(operations), settings.modulus)


def draw_problems(
    settings: ProblemSettings, count: int, rng: np.random.Generator, *, exclude: set[str] | None = None
) -> list[Problem]:
    """`count` different random problems whose texts are not in `exclude`."""
    seen = set(exclude or ())
    problems: list[Problem] = []
    for _ in range(100 * count + 100):
        if len(problems) == count:
            return problems
        problem = draw_problem(settings, rng)
        if problem.text not in seen:
            seen.add(problem.text)
            problems.append(problem)
    raise ConfigError(
        f"Found only {len(problems)} of {count} different problems. Ask for fewer, or raise modulus or max_operations."
    )

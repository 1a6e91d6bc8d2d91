"""The verdicts of the code judge on HumanEval's solutions, and on mutants of them. Only verdicts are stored."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from typing import Any

from golden import check
from prism_prm.data.tasks import problem_of
from prism_prm.grading.graders import TaskGrader

Record = dict[str, Any]
SECONDS = 1.0
"""The limit of a test. Solutions need a tenth of it at most, and mutants that loop would take any."""
OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutant(record: Record, solution: str) -> str | None:
    """The solution with one operator changed, chosen by lot; None where it has none."""
    tree = ast.parse(solution)
    body = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == record["entry_point"])
    places = [
        (owner, field, at)
        for owner in ast.walk(body)
        for field, value in ast.iter_fields(owner)
        for at, one in enumerate(value if isinstance(value, list) else [value])
        if type(one) in OTHER
    ]
    if not places:
        return None
    owner, field, at = random.Random(record["task_id"]).choice(places)
    value = getattr(owner, field)
    if isinstance(value, list):
        value[at] = OTHER[type(value[at])]()
    else:
        setattr(owner, field, OTHER[type(value)]())
    return ast.unparse(tree)


def verdicts(records: list[Record], programs: list[str | None]) -> list[str]:
    asked = []
    for record, program in zip(records, programs, strict=True):
        problem = problem_of(record)
        assert problem.tests is not None
        asked.append((replace(problem, tests=replace(problem.tests, seconds=SECONDS)), program))
    with TaskGrader() as grader:
        found = grader.judge(asked)
    # Whether a program that never ends runs out of time or of memory depends on the machine.
    endings = {"ok": "wrong", "timeout": "stopped", "memory": "stopped"}
    return ["right" if one.correct else endings.get(one.status, one.status) for one in found]


def test_humaneval_and_mutants(humaneval: list[Record]) -> None:
    solutions = [str(record["prompt"] + record["canonical_solution"]) for record in humaneval]
    mutants = [mutant(record, solution) for record, solution in zip(humaneval, solutions, strict=True)]
    ended = verdicts(humaneval * 2, [*solutions, *mutants])
    right, others = ended[: len(humaneval)], ended[len(humaneval) :]
    assert set(right) == {"right"}
    assert sum(one == "right" for one in others) < 0.2 * sum(one is not None for one in mutants)
    numbers = [record["task_id"].partition("/")[2] for record in humaneval]
    found = {"solutions": dict(zip(numbers, right, strict=True)), "mutants": dict(zip(numbers, others, strict=True))}
    check("programs_humaneval", found, tolerance=0)

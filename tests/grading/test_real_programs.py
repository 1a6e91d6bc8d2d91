"""Real programs get the verdicts that others gave them: MBPP's solutions and LiveCodeBench's submissions.

HumanEval's solutions and mutants are run in `tests/golden`. MBPP is read from its `sanitized-mbpp.json` named by
PRISM_MBPP, LiveCodeBench from PRISM_DATA. The slow tests run all of them and print the counts (`pytest -s`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from prism_prm.data.tasks import problem_of
from prism_prm.grading.code_benchmarks import LIVECODEBENCH_PRELUDE
from prism_prm.grading.graders import TaskGrader
from prism_prm.grading.problems import ProgramTests, TaskProblem, read_cases

Record = dict[str, Any]
Submission = tuple[TaskProblem, str, bool]
"""A problem, a program, and whether LiveCodeBench graded it right."""


@pytest.fixture(scope="module")
def grader() -> Iterator[TaskGrader]:
    with TaskGrader() as grader:
        yield grader


def judged(grader: TaskGrader, records: Sequence[Record], programs: Sequence[str]) -> list[bool]:
    problems = [problem_of(record) for record in records]
    return [one.correct for one in grader.judge(list(zip(problems, programs, strict=True)))]


def test_humaneval_is_read_whole(humaneval: list[Record]) -> None:
    tests = [found for record in humaneval if (found := problem_of(record).tests)]
    assert len(tests) == 164
    assert all(one.is_judged for one in tests)
    assert sum(not one.public for one in tests) == 25, "no example that can be read"
    assert (sum(len(one.judged()) for one in tests), sum(one.num_unread for one in tests)) == (1422, 8)


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
            tests = ProgramTests(
                public, read_cases(record["recovered_hidden_tests"], None), prelude=LIVECODEBENCH_PRELUDE
            )
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

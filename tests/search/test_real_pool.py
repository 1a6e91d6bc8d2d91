"""The published pool of 100 MATH-500 problems × 40 solutions, whose `correct` field was judged with math-verify."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from prism_prm.data.pools import read_pool
from prism_prm.data.tasks import TaskGrader, TaskProblem
from prism_prm.grading.extract import Extraction, extract_answer
from prism_prm.search.curves import compute_curves
from prism_prm.search.grade_pool import GradedPool, grade_pool

pytestmark = pytest.mark.real_data
FILE = "best_of_n/math500_pool_100.jsonl"


@dataclass(frozen=True)
class Sample:
    problem: TaskProblem
    solution: str
    parsed_answer: str | None
    correct: bool


@pytest.fixture(scope="module")
def samples(real_data: Path) -> list[Sample]:
    records = [json.loads(line) for line in (real_data / FILE).open()]
    return [
        Sample(TaskProblem(r["problem"], r["answer"]), s["solution"], s["parsed_answer"], s["correct"])
        for r in records
        for s in r["samples"]
    ]


@pytest.fixture(scope="module")
def grader() -> Iterator[TaskGrader]:
    with TaskGrader() as grader:
        yield grader


@pytest.fixture(scope="module")
def graded(real_data: Path, grader: TaskGrader) -> GradedPool:
    return grade_pool(read_pool(real_data / FILE), grader)


def test_judging_the_parsed_answers(samples: list[Sample], grader: TaskGrader) -> None:
    """Three disagree: math-verify rounds to six decimals, and so takes 0.000067 and 0.00006696 for .0000672."""
    verdicts = grader.judge([(sample.problem, sample.parsed_answer) for sample in samples])
    wrong = [s for s, verdict in zip(samples, verdicts, strict=True) if verdict.correct != s.correct]
    assert len(samples) == 4000
    assert len(wrong) / len(samples) <= 0.005
    assert [(s.problem.answer, s.parsed_answer) for s in wrong] == [
        (".0000672", "0.00006696"), (".0000672", "0.000067"), (".0000672", "0.000067"),
    ]  # fmt: skip
    assert {verdict.status for verdict in verdicts} == {"ok", "no answer"}


def test_judging_what_is_extracted_from_whole_solutions(samples: list[Sample], grader: TaskGrader) -> None:
    """Beyond those three we differ only where the pool looked at boxes alone and we find the right answer unboxed."""
    found = [extract_answer(sample.solution) for sample in samples]
    verdicts = grader.judge([(s.problem, extraction.answer) for s, extraction in zip(samples, found, strict=True)])
    rows = zip(samples, found, verdicts, strict=True)
    wrong: list[tuple[Sample, Extraction]] = [(s, e) for s, e, verdict in rows if verdict.correct != s.correct]
    assert len(wrong) / len(samples) <= 0.02
    theirs_right = [s for s, _ in wrong if s.correct]
    assert {s.problem.answer for s in theirs_right} == {".0000672"}
    ours_right = [(s, extraction) for s, extraction in wrong if not s.correct]
    assert all(s.parsed_answer is None and extraction.method != "boxed" for s, extraction in ours_right)
    boxed = [(s, e) for s, e in zip(samples, found, strict=True) if e.method == "boxed"]
    assert all(s.parsed_answer is not None for s, _ in boxed), "where we find a box, so did they"
    assert len(boxed) == sum(s.parsed_answer is not None for s in samples)


def test_groups_of_a_vote_are_all_right_or_all_wrong(graded: GradedPool) -> None:
    """Nothing forces this, since judging is more lenient than grouping; on real answers it holds."""
    for grades in graded.grades:
        verdicts: dict[int, set[bool]] = {}
        for grade in grades:
            verdicts.setdefault(grade.group, set()).add(grade.correct)
        assert all(len(of_group) == 1 for of_group in verdicts.values())


def test_curves(graded: GradedPool) -> None:
    """The exact values are computed here in another way: binomials, and the top group of all 40 (ties shared)."""
    ns = [1, 4, 16, 40]
    mean, majority, oracle = compute_curves(graded, {}, aggregators=["last"], ns=ns)
    right = [sum(grade.correct for grade in grades) for grades in graded.grades]
    assert [point.value for point in mean.points] == pytest.approx([sum(right) / 4000] * 4)
    expected = [sum(1 - math.comb(40 - c, n) / math.comb(40, n) for c in right) / 100 for n in ns]
    assert [point.value for point in oracle.points] == pytest.approx(expected)
    shares = []
    for grades in graded.grades:
        votes = Counter(grade.group for grade in grades if grade.group >= 0)
        top = [group for group, count in votes.items() if count == max(votes.values())]
        is_right = {grade.group: grade.correct for grade in grades}
        shares.append(sum(is_right[group] for group in top) / len(top))
    assert majority.points[-1].value == pytest.approx(sum(shares) / 100, abs=0.002)
    assert majority.points[0].value == pytest.approx(mean.points[0].value)
    values = [point.value for point in majority.points[:3]]
    assert values == sorted(values), "on this pool more votes help, up to 16"
    for curve in (majority, oracle):
        assert all(point.low < point.value < point.high for point in curve.points)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prism_prm import RerankSettings, rerank_pool
from prism_prm.data.pools import Pool, PoolProblem, Solution, pool_problem
from prism_prm.data.tasks import Task, TaskGrader, TaskProblem
from prism_prm.errors import DataError
from prism_prm.search import grade_pool as grading
from prism_prm.search.grade_pool import (
    Grade,
    GradedPool,
    grade_pool,
    grading_hash,
    read_grades,
    with_task,
    write_solutions,
)

POOL = Pool(
    (
        pool_problem(
            {
                "problem": "half of one?",
                "answer": "1/2",
                "solutions": [r"\boxed{0.5}", r"\boxed{2}", r"\boxed{50\%}", "the answer is 2", "I do not know", "",
                              {"text": "so \\boxed{7}", "answer": "1/2"}, r"\boxed{\sqrt{\frac{1}{4}}}"],
            }
        ),
        pool_problem({"problem": "big?", "answer": "12", "solutions": ["\\boxed{9^{9^{9^9}}}", "about 12"]}),
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def graded() -> GradedPool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prism_prm.grading.process_pool.WALL_FACTOR", 1000.0)  # its calls end by their CPU time alone
        with TaskGrader(seconds=0.5, workers=1) as grader:
            return grade_pool(POOL, grader)


def test_grades(graded: GradedPool) -> None:
    assert graded.grades[0] == (
        Grade("0.5", "boxed", True, 0, "ok"),
        Grade("2", "boxed", False, 1, "ok"),
        Grade(r"50\%", "boxed", True, 0, "ok"),
        Grade("2", "answer is", False, 1, "ok"),
        Grade(None, "none", False, -1, "no answer"),
        Grade(None, "none", False, -1, "no answer"),
        Grade("1/2", "given", True, 0, "ok"),
        Grade(r"\sqrt{\frac{1}{4}}", "boxed", True, 0, "ok"),
    )
    assert graded.grades[1] == (
        Grade("9^{9^{9^9}}", "boxed", False, 0, "timeout"),
        Grade("12", "last number", True, 1, "ok"),
    )
    assert graded.count("status") == {"ok": 7, "no answer": 2, "timeout": 1}
    assert graded.correct(1).tolist() == [False, True]
    assert graded.groups(0).tolist() == [0, 1, 0, 1, -1, -1, 0, 0]


def test_grades_are_kept_chunk_by_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before its third chunk, the second start grades what is left, and all is as in one go."""
    made, room = list[str](), [True, True, False, True, True]

    def grade(some: Pool, _grader: object) -> GradedPool:
        if not room[len(made)]:
            made.append("stopped")
            raise DataError("no room")
        made.append(" ".join(entry.problem.text for entry in some.problems))
        grades = [[Grade(one.text, "fences", True, 0, "ok", True, ("passed",), ()) for one in entry.solutions]
                  for entry in some.problems]  # fmt: skip
        return GradedPool(some, tuple(map(tuple, grades)))

    monkeypatch.setattr(grading, "grade_pool", grade)
    monkeypatch.setattr("prism_prm.search.rerank_pool.SOLUTIONS_PER_CHUNK", 6)
    sizes = {"a": 1, "b": 1, "c": 3, "d": 0, "e": 2, "f": 1}
    pool = Pool(
        tuple(
            PoolProblem(TaskProblem(name, "1"), tuple(Solution((name,), f"{name}{k}") for k in range(size)))
            for name, size in sizes.items()
        )
    )
    settings = RerankSettings(judges=1, num_draws=10)
    with pytest.raises(DataError, match="no room"):
        rerank_pool(pool, tmp_path, settings=settings)
    found = rerank_pool(pool, tmp_path, settings=settings).graded
    assert made == ["a b", "c d", "stopped", "e f"]
    assert [[grade.answer for grade in grades] for grades in found.grades] == [
        ["a0"], ["b0"], ["c0", "c1", "c2"], [], ["e0", "e1"], ["f0"],
    ]  # fmt: skip
    assert found.grades[0] == (Grade("a0", "fences", True, 0, "ok", True, ("passed",), ()),)
    assert not (tmp_path / "journal").exists(), "the table has the grades now"
    again = rerank_pool(pool, tmp_path, settings=settings).graded
    assert (again, len(made)) == (found, 4)


def test_without_a_reference_the_pools_own_word_counts() -> None:
    solutions = (Solution(("a",), r"\boxed{1}", correct=True), Solution(("b",), r"\boxed{2}", correct=False))
    with TaskGrader(workers=1) as grader:
        graded = grade_pool(Pool((PoolProblem(TaskProblem("q"), solutions),)), grader)
        assert [grade.correct for grade in graded.grades[0]] == [True, False]
        assert graded.measured == (0,)
        entries = (
            PoolProblem(TaskProblem("q"), (*solutions, Solution(("c",), "c"))),
            PoolProblem(TaskProblem("r", "1"), ()),
        )
        unknown = grade_pool(Pool(entries), grader)
        assert [grade.correct for grade in unknown.grades[0]] == [None, None, None], "not a word on the third"
        assert [grade.group for grade in unknown.grades[0]] == [0, 1, -1]
        assert (unknown.measured, unknown.num_unmeasured) == ((1,), 1)
        by_word = grade_pool(
            Pool((PoolProblem(TaskProblem("q"), solutions), PoolProblem(TaskProblem("r"), ()))), grader
        )
        assert by_word.measured == (0, 1), "a problem without a solution is not solved"


def test_answers_can_come_from_a_task() -> None:
    task = Task("mine", (TaskProblem(" half of one? ", "0.5", tolerance=0.1), TaskProblem("big?", "13")))
    assert [entry.problem.answer for entry in with_task(POOL, task).problems] == ["0.5", "13"]
    with pytest.raises(DataError, match="1 of 2 problems of the pool are not in the task 'mine'"):
        with_task(POOL, Task("mine", task.problems[:1]))


def test_grades_are_kept_and_taken_up_again(graded: GradedPool, tmp_path: Path) -> None:
    path = tmp_path / "solutions.parquet"
    grader = TaskGrader(seconds=0.5)
    graded_as = grading_hash(POOL, grader)
    assert read_grades(path, POOL, graded_as) is None
    write_solutions(path, graded, graded_as)
    assert read_grades(path, POOL, graded_as) == graded
    scores = [np.array([0.5] * len(solution.steps)) if solution.steps else None for solution in POOL.solutions]
    write_solutions(path, graded, graded_as, {"prm": scores}, ["min", "product"])
    assert read_grades(path, POOL, graded_as) == graded
    others = [grading_hash(POOL, TaskGrader(seconds=1)), grading_hash(POOL, TaskGrader(seconds=0.5, methods=["boxed"]))]
    others.append(grading_hash(Pool(POOL.problems[:1]), grader))
    assert all(read_grades(path, POOL, other) is None for other in others)
    path.write_bytes(b"not parquet")
    assert read_grades(path, POOL, graded_as) is None


def test_problems_of_one_text_are_told_apart_by_name() -> None:
    twins = [TaskProblem("how many?", "3", "a"), TaskProblem("how many?", "4", "b")]
    records = [{"problem": "how many?", "name": name, "solutions": ["3"]} for name in ("a", "b")]
    pool = Pool(tuple(map(pool_problem, records)))
    found = with_task(pool, Task("mine", tuple(twins))).problems
    assert [(entry.problem.name, entry.problem.answer) for entry in found] == [("a", "3"), ("b", "4")]
    unnamed = Pool((pool_problem({"problem": "how many?", "solutions": ["3"]}),))
    with pytest.raises(DataError, match=r"2 problems of the task have its text, 'how many\?', and different answers"):
        with_task(unnamed, Task("mine", tuple(twins)))
    alike = (twins[0], TaskProblem("how many?", "3", "c"))
    assert with_task(unnamed, Task("mine", alike)).problems[0].problem.answer == "3"

"""Grade a pool: find the answer of every solution, judge it, and number equal answers of a problem alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from prism_prm.arrays import Bools, Ints
from prism_prm.console import Advance, ignore
from prism_prm.data.pools import Pool, PoolProblem
from prism_prm.data.tasks import Grader, ProblemIndex, Task, TaskProblem
from prism_prm.errors import DataError
from prism_prm.grading.answer_judge import Key, Verdict
from prism_prm.grading.extract import Extraction
from prism_prm.job import Finished


@dataclass(frozen=True, slots=True)
class Grade:
    """How one solution's answer was found and judged."""

    answer: str | None
    method: str
    """How the answer was found; "given" where the pool says it."""
    correct: bool | None
    """None if unknown: the problem has no reference answer, and the pool no verdict of its own."""
    group: int
    """Equal answers of a problem have equal numbers, in order of first sight; −1 has no answer."""
    status: str
    """ "ok", "no answer", or why the answer could only be compared as text: "timeout", "error", "too long". For a
    program: how it ended."""
    passed: bool | None = None
    """Of a program: whether it passes the public tests; None where there are none."""
    public_tests: tuple[str, ...] | None = None
    """Of a program: how each public test ended; None where an answer is asked for."""
    hidden_tests: tuple[str, ...] | None = None
    """Of a program: how each hidden test ended, for people to look at. No selector may read it."""


@dataclass(frozen=True)
class GradedPool:
    """A pool with the grades of its solutions, problem by problem."""

    pool: Pool
    grades: tuple[tuple[Grade, ...], ...]

    def __post_init__(self) -> None:
        sizes = [len(entry.solutions) for entry in self.pool.problems]
        assert [len(grades) for grades in self.grades] == sizes, "one grade per solution"

    @cached_property
    def measured(self) -> tuple[int, ...]:
        """The problems whose solutions are known to be right or wrong: by a reference answer, or by the pool's word."""
        entries = self.pool.problems
        by_word = [not entry.problem.is_judged and bool(entry.solutions) and _is_judged(entry) for entry in entries]
        return tuple(
            i
            for i, entry in enumerate(entries)
            # A pool that goes by its own word says nothing of a problem without solutions, which counts as not solved.
            if entry.problem.is_judged or by_word[i] or (not entry.solutions and any(by_word))
        )

    @property
    def num_unmeasured(self) -> int:
        """How many problems have no reference: they can be selected from, and nothing more."""
        return len(self.pool.problems) - len(self.measured)

    def correct(self, problem: int) -> Bools:
        """Whether each solution of a measured problem is right."""
        assert all(grade.correct is not None for grade in self.grades[problem]), "not measured"
        return np.array([grade.correct for grade in self.grades[problem]], dtype=np.bool_)

    def groups(self, problem: int) -> Ints:
        """Which group each solution of a problem votes for."""
        return np.array([grade.group for grade in self.grades[problem]], dtype=np.int64)

    @cached_property
    def has_tests(self) -> bool:
        """Whether some problem has public tests to select by."""
        return any(entry.problem.tests is not None and entry.problem.tests.public for entry in self.pool.problems)

    def passed(self, problem: int) -> Bools:
        """Whether each solution of a problem is known to pass the public tests."""
        return np.array([grade.passed is True for grade in self.grades[problem]], dtype=np.bool_)

    def count(self, field: str) -> Counter[str]:
        """How often each value of a field (`method`, `status`) occurs."""
        return Counter(str(getattr(grade, field)) for grades in self.grades for grade in grades)


def grade_pool(pool: Pool, grader: Grader, advance: Advance = ignore) -> GradedPool:
    """Grade all solutions; `advance` is told of each answer grouped and, with a reference, of each one judged."""
    solutions = [(entry.problem, solution) for entry in pool.problems for solution in entry.solutions]
    found = [
        Extraction(one.answer, "given") if one.answer is not None else grader.extract(problem, one.text)
        for problem, one in solutions
    ]
    answers = [(problem, extraction.answer) for (problem, _), extraction in zip(solutions, found, strict=True)]
    keys = grader.keys(answers, advance)
    judged = [i for i, (problem, _) in enumerate(answers) if problem.is_judged]
    verdicts = dict(zip(judged, grader.judge([answers[i] for i in judged], advance), strict=True))
    grades: list[tuple[Grade, ...]] = []
    at = 0
    for entry in pool.problems:
        numbers: dict[str, int] = {}
        of_problem = []
        for k, solution in enumerate(entry.solutions):
            key, verdict = keys[at + k], verdicts.get(at + k)
            group = -1 if key.key is None else numbers.setdefault(key.key, len(numbers))
            correct = (solution.correct if _is_judged(entry) else None) if verdict is None else verdict.correct
            status = key.status if verdict is None or verdict.status == "ok" else verdict.status
            extraction = found[at + k]
            tests = _tests(entry.problem, key, verdict)
            of_problem.append(Grade(extraction.answer, extraction.method, correct, group, status, key.passed, *tests))
        grades.append(tuple(of_problem))
        at += len(entry.solutions)
    return GradedPool(pool, tuple(grades))


def grade_chunk(grader: Grader, entries: Mapping[str, PoolProblem]) -> Iterator[Finished[tuple[Grade, ...]]]:
    """Grade some problems of a pool."""
    grades = grade_pool(Pool(tuple(entries.values())), grader).grades
    yield from (Finished(key, own) for key, own in zip(entries, grades, strict=True))


def _tests(
    problem: TaskProblem, key: Key, verdict: Verdict | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """How the public and the hidden tests of a program ended."""
    if problem.tests is None:
        return None, None
    num_public = len(problem.tests.public) if problem.tests.judged_on_public else 0
    return key.tests, () if verdict is None else verdict.tests[num_public:]


def check_measured(graded: GradedPool) -> None:
    """Whoever measures needs a problem with a reference answer, or with the pool's own word on each solution."""
    if not graded.measured:
        raise DataError(
            f"none of the {len(graded.pool.problems):,} problems has a reference answer (`answer`) or tests, so there "
            "is nothing to measure. Add the answers to the pool, or name the task they belong to (--task).",
            reason="missing-field",
        )


def _is_judged(entry: PoolProblem) -> bool:
    return all(solution.correct is not None for solution in entry.solutions)


def with_task(pool: Pool, task: Task) -> Pool:
    """The pool with the task's reference answers and tests; problems are found by their text, and by name among equals.

    Those that the task leaves out are left out here, too.
    """
    unused = [problem for problem, _ in task.left_out]
    index = ProblemIndex([*task.problems, *unused])
    found = [
        (entry, index.find(entry.problem.text, name=entry.problem.name, where=entry.where)) for entry in pool.problems
    ]
    found = [(entry, problem) for entry, problem in found if not any(problem is one for one in unused)]
    missing = [entry.problem.text for entry, problem in found if problem is None]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(found)} problems of the pool are not in the task {task.name!r} "
            f"(the first: {missing[0][:60]!r}). Name another task.",
            reason="unknown-problem",
        )
    return Pool(tuple(replace(entry, problem=problem) for entry, problem in found if problem is not None))

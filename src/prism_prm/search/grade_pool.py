"""A pool's solutions with their grades and step scores, and `solutions.parquet`, which holds both."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from prism_prm import grading
from prism_prm.aggregate import log_score
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.console import Advance, ignore
from prism_prm.data.pools import Pool, PoolProblem
from prism_prm.data.tasks import Grader, ProblemIndex, Task, TaskGrader
from prism_prm.errors import DataError
from prism_prm.files import whole_file
from prism_prm.grading.extract import Extraction
from prism_prm.job import KEY, Finished, is_made_for

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer, TreeScores
    from prism_prm.store import ScoreStore
    from prism_prm.tree import StepTree


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
            public = hidden = None
            if (tests := entry.problem.tests) is not None:
                num_public = len(tests.public) if tests.judged_on_public else 0
                public, hidden = key.tests, () if verdict is None else verdict.tests[num_public:]
            of_problem.append(
                Grade(extraction.answer, extraction.method, correct, group, status, key.passed, public, hidden)
            )
        grades.append(tuple(of_problem))
        at += len(entry.solutions)
    return GradedPool(pool, tuple(grades))


def grade_chunk(grader: Grader, entries: Mapping[str, PoolProblem]) -> Iterator[Finished[tuple[Grade, ...]]]:
    """Grade some problems of a pool."""
    grades = grade_pool(Pool(tuple(entries.values())), grader).grades
    yield from (Finished(key, own) for key, own in zip(entries, grades, strict=True))


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


StepScores = Sequence[Floats | None]
"""Step scores of each solution of a pool, in order; None means no score: ranked last, no weight."""


def log_scores_of(steps: StepScores, aggregator: str) -> Floats:
    """The log of the score of each solution; −inf where it has none."""
    return np.array([-np.inf if step is None else log_score(step, aggregator) for step in steps])


def scores_in_pool(pool: Pool) -> StepScores | None:
    """The scores that the pool itself holds; None where it holds none."""
    found = [None if s.scores is None or not s.steps else np.array(s.scores) for s in pool.solutions]
    return found if any(scores is not None for scores in found) else None


def scores_in_table(path: str | Path, pool: Pool) -> StepScores:
    """The scores of the pool's solutions in a scores table, found by content.

    A solution with a step that is not in the table has no score; a table of other data only is an error.
    """
    from prism_prm.evaluate.score_files import read_scores, scores_of_trees

    table, trees = read_scores(path), pool.trees()
    scores = scores_of_trees(table, trees)
    if table.num_rows and not any(one.scored for one in scores):
        raise DataError(
            f"{path}: it holds the scores of none of the pool's {len(pool.solutions):,} solutions, so it was made from "
            "other data. Score this pool with --prm.",
            reason="missing-scores",
        )
    return _by_solution(pool, trees, scores)


def scores_by_prm(store: ScoreStore, pool: Pool, advance: Advance = ignore) -> StepScores:
    """The scores of the store's PRM; missing ones are computed. A solution with a step that it cannot read has none.
    `advance` is called with finished solutions.
    """
    from prism_prm.store import Request

    trees = scorable(store.scorer, pool)
    scores = store.score([Request.all_of(tree) for tree in trees], advance=advance)
    return _by_solution(pool, trees, scores)


def scorable(scorer: Scorer, pool: Pool) -> list[StepTree]:
    """The solutions all of whose steps a scorer can read."""
    trees = pool.trees()
    return list(itertools.compress(trees, scorer.can_score_all(trees)))


def _by_solution(pool: Pool, trees: Sequence[StepTree], scores: Sequence[TreeScores]) -> list[Floats | None]:
    """For every solution all its scores, or None."""
    found: list[Floats | None] = [None] * len(pool.solutions)
    for tree, one in zip(trees, scores, strict=True):
        if len(one.scored) == len(tree.nodes):
            found[tree.tree_id] = one.probability
    return found


def grading_hash(pool: Pool, grader: TaskGrader) -> str:
    """A hash of all that decides the grades of a pool."""
    kept = [field.name for field in fields(Grade)]
    code = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(Path(grading.__path__[0]).glob("*.py"))]
    parts = [
        pool.content_hash(), kept, grader.methods, grader.seconds, metadata.version("latex2sympy2-extended"), code,
    ]  # fmt: skip
    if any(entry.problem.tests is not None for entry in pool.problems):
        parts += [grader.sandbox, sys.version]
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def write_table(rows: list[dict[str, Any]], path: str | Path, about: Mapping[str, str] | None = None) -> None:
    """Write rows as Parquet, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with whole_file(path) as aside:
        pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(about), aside)


def write_solutions(
    path: str | Path,
    graded: GradedPool,
    graded_as: str = "",
    scores: Mapping[str, StepScores] | None = None,
    aggregators: Sequence[str] = (),
    chosen: Sequence[int | None] | None = None,
) -> None:
    """One row per solution: its grade, and per PRM and aggregator the log of its score (null: no score).

    With `chosen`, one solution's number per problem, there is also a column that says which one was selected.
    """
    rows: list[dict[str, Any]] = []
    for i, (entry, grades) in enumerate(zip(graded.pool.problems, graded.grades, strict=True)):
        for k, (solution, grade) in enumerate(zip(entry.solutions, grades, strict=True)):
            row = {"tree_id": len(rows), "problem_id": i, "name": entry.problem.name, "solution": k}
            row |= {"reference": entry.problem.answer, **asdict(grade), "num_steps": len(solution.steps)}
            for prm, steps in (scores or {}).items():
                own = steps[len(rows)]
                row |= {f"{prm}/{how}": None if own is None else log_score(own, how) for how in aggregators}
            if chosen is not None:
                row["chosen"] = chosen[i] == k
            rows.append(row)
    write_table(rows, path, {KEY: graded_as})


def read_grades(path: str | Path, pool: Pool, graded_as: str) -> GradedPool | None:
    """The grades in a solutions table, if it holds those of this very pool, graded in the same way."""
    import pyarrow.parquet as pq

    if not is_made_for(path, graded_as):
        return None
    table = pq.read_table(path, columns=[field.name for field in fields(Grade)])
    grades = iter(msgspec.convert(table.to_pylist(), list[Grade]))
    return GradedPool(pool, tuple(tuple(next(grades) for _ in entry.solutions) for entry in pool.problems))

"""Grade the solutions of a pool, collect their step scores, and write both to `solutions.parquet`."""

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
from prism_prm.aggregate import CardValues, is_scored, log_score
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.console import Advance, ignore, say
from prism_prm.data.inputs import find_sources
from prism_prm.data.pools import Pool, PoolProblem, check_scores
from prism_prm.data.tasks import Grader, ProblemIndex, Task, TaskGrader
from prism_prm.errors import DataError
from prism_prm.files import atomic_file
from prism_prm.grading.extract import Extraction
from prism_prm.job import KEY, Finished, is_made_for
from prism_prm.stats import number_clusters

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer, TreeScores
    from prism_prm.store import ScoreStore
    from prism_prm.tree import StepTree


@dataclass(frozen=True, slots=True)
class Grade:
    """How one solution's answer was found and judged."""

    answer: str | None
    method: str
    """How the answer was found; "given" if the pool has it."""
    correct: bool | None
    """None if unknown: the problem has no reference answer, and the pool has no verdict."""
    group: int
    """Equal answers of a problem have equal numbers, in order of appearance; −1 means no answer."""
    status: str
    """ "ok", "no answer", or why the answer could only be compared as text: "timeout", "error", "too long". For a
    program: how it ended."""
    passed: bool | None = None
    """For a program: whether it passes the public tests; None if there are none."""
    public_tests: tuple[str, ...] | None = None
    """For a program: how each public test ended; None for problems with an answer."""
    hidden_tests: tuple[str, ...] | None = None
    """For a program: how each hidden test ended, for people to read. No selector may use it."""


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
        """The problems whose solutions are known to be right or wrong, by a reference answer or the pool's verdicts."""
        entries = self.pool.problems
        by_pool = [not entry.problem.is_judged and bool(entry.solutions) and _is_judged(entry) for entry in entries]
        return tuple(
            i
            for i, entry in enumerate(entries)
            # A pool with verdicts cannot have one for a problem without solutions, which counts as not solved.
            if entry.problem.is_judged or by_pool[i] or (not entry.solutions and any(by_pool))
        )

    @cached_property
    def clusters(self) -> Ints:
        """A number per measured problem, the same for equal texts."""
        return number_clusters(self.pool.problems[problem].problem.text for problem in self.measured)[0]

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where the solutions of each problem are in lists of all solutions."""
        ends = itertools.accumulate(map(len, self.grades))
        return tuple(slice(end - len(grades), end) for grades, end in zip(self.grades, ends, strict=True))

    @property
    def num_unmeasured(self) -> int:
        """The number of problems without a reference. Solutions of these can be selected, but not judged."""
        return len(self.pool.problems) - len(self.measured)

    def correct(self, problem: int) -> Bools:
        """Whether each solution of a measured problem is right."""
        assert all(grade.correct is not None for grade in self.grades[problem]), "not measured"
        return np.array([grade.correct for grade in self.grades[problem]], dtype=np.bool_)

    def groups(self, problem: int) -> Ints:
        """The group of equal answers that each solution of a problem votes for."""
        return np.array([grade.group for grade in self.grades[problem]], dtype=np.int64)

    @cached_property
    def has_tests(self) -> bool:
        """Whether any problem has public tests."""
        return any(entry.problem.tests is not None and entry.problem.tests.public for entry in self.pool.problems)

    def passed(self, problem: int) -> Bools | None:
        """Whether each solution of a problem is known to pass the public tests; None if no problem has any."""
        if not self.has_tests:
            return None
        return np.array([grade.passed is True for grade in self.grades[problem]], dtype=np.bool_)

    def count(self, field: str) -> Counter[str]:
        """How often each value of a field (`method`, `status`) occurs."""
        return Counter(str(getattr(grade, field)) for grades in self.grades for grade in grades)


def grade_pool(pool: Pool, grader: Grader, advance: Advance = ignore) -> GradedPool:
    """Grade all solutions. `advance` counts each answer that is grouped and, with a reference, each one judged."""
    solutions = [(entry.problem, solution) for entry in pool.problems for solution in entry.solutions]
    extractions = [
        Extraction(solution.answer, "given") if solution.answer is not None else grader.extract(problem, solution.text)
        for problem, solution in solutions
    ]
    answers = [(problem, extraction.answer) for (problem, _), extraction in zip(solutions, extractions, strict=True)]
    keys = grader.keys(answers, advance)
    judged = [i for i, (problem, _) in enumerate(answers) if problem.is_judged]
    verdicts = dict(zip(judged, grader.judge([answers[i] for i in judged], advance), strict=True))
    grades: list[tuple[Grade, ...]] = []
    start = 0
    for entry in pool.problems:
        numbers: dict[str, int] = {}
        own = []
        for i, solution in enumerate(entry.solutions, start):
            key, verdict = keys[i], verdicts.get(i)
            group = -1 if key.key is None else numbers.setdefault(key.key, len(numbers))
            correct = (solution.correct if _is_judged(entry) else None) if verdict is None else verdict.correct
            status = key.status if verdict is None or verdict.status == "ok" else verdict.status
            extraction = extractions[i]
            public = hidden = None
            if (tests := entry.problem.tests) is not None:
                num_public = len(tests.public) if tests.judged_on_public else 0
                public, hidden = key.tests, () if verdict is None else verdict.tests[num_public:]
            own.append(Grade(extraction.answer, extraction.method, correct, group, status, key.passed, public, hidden))
        grades.append(tuple(own))
        start += len(entry.solutions)
    return GradedPool(pool, tuple(grades))


def grade_chunk(grader: Grader, entries: Mapping[str, PoolProblem]) -> Iterator[Finished[tuple[Grade, ...]]]:
    """Grade some problems of a pool."""
    grades = grade_pool(Pool(tuple(entries.values())), grader).grades
    yield from (Finished(key, own) for key, own in zip(entries, grades, strict=True))


def check_measured(graded: GradedPool) -> None:
    """Raise if no problem has a reference answer or the pool's verdicts."""
    if not graded.measured:
        raise DataError(
            f"none of the {len(graded.pool.problems):,} problems has a reference answer (`answer`) or tests, so there "
            "is nothing to measure. Add the answers to the pool, or name their task with --task.",
            reason="missing-field",
        )


def _is_judged(entry: PoolProblem) -> bool:
    return all(solution.correct is not None for solution in entry.solutions)


def with_task(pool: Pool, task: Task) -> Pool:
    """The pool with the task's reference answers and tests. Problems are found by text; equal ones by name.

    Problems that the task leaves out are left out too.
    """
    unused = [problem for problem, _ in task.left_out]
    index = ProblemIndex([*task.problems, *unused])
    matches = [
        (entry, index.find(entry.problem.text, name=entry.problem.name, where=entry.where)) for entry in pool.problems
    ]
    matches = [(entry, problem) for entry, problem in matches if not any(problem is other for other in unused)]
    missing = [entry.problem.text for entry, problem in matches if problem is None]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(matches)} problems of the pool are not in the task {task.name!r} "
            f"(the first: {missing[0][:60]!r}). Name the right task with --task.",
            reason="unknown-problem",
        )
    return Pool(
        tuple(
            replace(entry, problem=problem, name_in_pool=entry.problem.name)
            for entry, problem in matches
            if problem is not None
        )
    )


StepScores = Sequence[Floats | None]
"""Step scores of each solution of a pool, in order. None means no score: ranked last, without weight."""


def log_scores_of(scores: StepScores, aggregator: str, pool: Pool) -> Floats:
    """The log of each solution's score; −inf without a score."""
    return np.array(
        [
            -np.inf if own is None else log_score(own, aggregator, solution.steps)
            for own, solution in zip(scores, pool.solutions, strict=True)
        ]
    )


def scores_in_pool(pool: Pool) -> StepScores | None:
    """The scores in the pool itself; None if it has none."""
    all_scores = [None if s.scores is None or not s.steps else np.array(s.scores, np.float64) for s in pool.solutions]
    return all_scores if any(scores is not None for scores in all_scores) else None


def scores_in_table(path: str | Path, pool: Pool) -> StepScores:
    """Look up the pool's solutions in a scores table by content.

    A solution with a step that is not in the table has no score. Raises if the table has none of the solutions.
    """
    from prism_prm.evaluate.score_files import card_of_scores, read_scores, scores_of_trees

    table, trees = read_scores(path), pool.trees()
    scores = scores_of_trees(table, trees, card_of_scores(path))
    if table.num_rows and not any(own.scored for own in scores):
        raise DataError(
            f"{path}: has scores of none of the pool's {len(pool.solutions):,} solutions, so it is of other data. "
            "Score this pool with --prm.",
            reason="missing-scores",
        )
    return _by_solution(pool, trees, scores)


def scores_in_file(path: str | Path, pool: Pool) -> tuple[StepScores, CardValues | None]:
    """The scores of a pool in a scores table, or in JSON lines by the names of problems, and the PRM's card values.

    Raises if JSON lines lack a problem of the pool, or do not fit its solutions; those of other problems are unused.
    """
    from prism_prm.evaluate.score_files import card_of_scores, read_scored_problems

    if all(source.kind == "parquet" for source in find_sources(path)):
        return scores_in_table(path, pool), card_of_scores(path)
    found = read_scored_problems(path)
    entries: dict[str, PoolProblem] = {}
    for i, entry in enumerate(pool.problems):
        name = entry.name_in_pool or entry.problem.name
        if not name or name in entries:
            lack = f"the name {name!r} occurs twice" if name else "the problem has no `name`"
            place = entry.where or f"problem {i} of the pool"
            raise DataError(f"{place}: {lack}, but {path} has scores by name; give each problem its own `name`")
        entries[name] = entry
    if missing := [name for name in entries if name not in found]:
        raise DataError(
            f"{path}: no scores for {len(missing):,} of the pool's {len(entries):,} problems "
            f"({', '.join(missing[:3])}{', …' * (len(missing) > 3)}); score them too, or leave them out of the pool",
            reason="missing-scores",
        )
    scores: list[Floats | None] = []
    for name, entry in entries.items():
        where, own = found[name]
        if len(own) != len(entry.solutions):
            raise DataError(
                f"{where}: {len(own)} lists of scores for the {len(entry.solutions)} solutions of {name!r}; give one "
                "per solution, or null for one without scores",
                reason="wrong-type",
            )
        for k, (solution, steps) in enumerate(zip(entry.solutions, own, strict=True)):
            try:
                if steps is not None:
                    check_scores(steps, solution.steps)
            except DataError as error:
                raise DataError(f"{where}: solution {k} of {name!r}: {error}") from error
            scores.append(np.array(steps) if steps else None)
    if unused := len(found) - len(entries):
        say(f"{path}: scores of {unused:,} problems that are not in the pool are not used")
    return scores, None


def scores_by_prm(store: ScoreStore, pool: Pool, advance: Advance = ignore) -> StepScores:
    """The scores of the store's PRM; missing ones are computed. A solution with an unreadable step has none.

    `advance` counts finished solutions.
    """
    from prism_prm.store import Request

    trees = scorable(store.scorer, pool)
    scores = store.score([Request.all_of(tree) for tree in trees], advance=advance)
    return _by_solution(pool, trees, scores)


def scorable(scorer: Scorer, pool: Pool) -> list[StepTree]:
    """The solutions whose steps a scorer can all read."""
    trees = pool.trees()
    return list(itertools.compress(trees, scorer.can_score_all(trees)))


def _by_solution(pool: Pool, trees: Sequence[StepTree], scores: Sequence[TreeScores]) -> list[Floats | None]:
    """The step scores of every solution; None if a step has no score."""
    by_solution: list[Floats | None] = [None] * len(pool.solutions)
    for tree, own in zip(trees, scores, strict=True):
        if is_scored(own.probability, tree.texts(tree.trunk)):
            by_solution[tree.tree_id] = own.probability
    return by_solution


def grading_hash(pool: Pool, grader: TaskGrader) -> str:
    """A hash of everything that the grades of a pool depend on."""
    columns = [field.name for field in fields(Grade)]
    code = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(Path(grading.__path__[0]).glob("*.py"))]
    parts = [
        pool.content_hash(), columns, grader.methods, grader.seconds, metadata.version("latex2sympy2-extended"), code,
    ]  # fmt: skip
    if any(entry.problem.tests is not None for entry in pool.problems):
        parts += [grader.sandbox, sys.version]
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def write_table(rows: list[dict[str, Any]], path: str | Path, about: Mapping[str, str] | None = None) -> None:
    """Write rows to a Parquet file atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_file(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(about), partial)


def write_solutions(
    path: str | Path,
    graded: GradedPool,
    graded_as: str = "",
    scores: Mapping[str, StepScores] | None = None,
    aggregators: Sequence[str] = (),
    chosen: Sequence[int | None] | None = None,
) -> None:
    """Write one row per solution: its grade, and the log of its score by each PRM and aggregator (null: no score).

    With `chosen`, the number of one solution per problem, the column `chosen` marks the selected ones.
    """
    rows: list[dict[str, Any]] = []
    for i, (entry, grades) in enumerate(zip(graded.pool.problems, graded.grades, strict=True)):
        for k, (solution, grade) in enumerate(zip(entry.solutions, grades, strict=True)):
            row = {"tree_id": len(rows), "problem_id": i, "name": entry.problem.name, "solution": k}
            row |= {"reference": entry.problem.answer, **asdict(grade), "num_steps": len(solution.steps)}
            for prm, steps in (scores or {}).items():
                own = steps[len(rows)]
                row |= {
                    f"{prm}/{name}": None if own is None else log_score(own, name, solution.steps)
                    for name in aggregators
                }
            if chosen is not None:
                row["chosen"] = chosen[i] == k
            rows.append(row)
    write_table(rows, path, {KEY: graded_as})


def read_grades(path: str | Path, pool: Pool, graded_as: str) -> GradedPool | None:
    """Read the grades in a solutions table, if they are of the same pool, graded in the same way; else None."""
    import pyarrow.parquet as pq

    if not is_made_for(path, graded_as):
        return None
    table = pq.read_table(path, columns=[field.name for field in fields(Grade)])
    grades = iter(msgspec.convert(table.to_pylist(), list[Grade]))
    return GradedPool(pool, tuple(tuple(next(grades) for _ in entry.solutions) for entry in pool.problems))

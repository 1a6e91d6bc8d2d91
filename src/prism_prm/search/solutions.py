"""`solutions.parquet`: one row per solution with its grade and scores; also how an interrupted run finds its grades."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from prism_prm import grading
from prism_prm.aggregate import log_score
from prism_prm.data.pools import Pool
from prism_prm.data.tasks import TaskGrader
from prism_prm.files import whole_file
from prism_prm.job import KEY, is_made_for
from prism_prm.search.grade_pool import Grade, GradedPool
from prism_prm.search.step_scores import StepScores


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
    names = [field.name for field in fields(Grade)]
    table = pq.read_table(path, columns=names)
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    grades = iter([Grade(*map(_frozen, row)) for row in rows])
    return GradedPool(pool, tuple(tuple(next(grades) for _ in entry.solutions) for entry in pool.problems))


def _frozen(value: Any) -> Any:
    """A list of the table as the tuple that it was."""
    return tuple(value) if isinstance(value, list) else value

"""Pools: problems with several sampled solutions each; `prism search` writes them too.

One record per problem, as JSON lines (or Parquet, JSON, a folder, a hub dataset):

    {"problem": "…", "answer": "12", "name": "test/7", "solutions": [
        {"text": "…"}, {"steps": ["…", "…"], "answer": "12", "scores": [0.9, 0.7], "tokens": 310}]}

A solution is a text, which is split into steps, or a list of steps; it may also be a plain string or list. `answer`
(the solution's final answer), `scores` (P(right) per step), `tokens`, `correct` and `source` (what wrote it) are
optional. Other tools' names for these fields also work.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from prism_prm.aggregate import is_scored
from prism_prm.console import Advance, ignore
from prism_prm.data.formats import POOL_FIELDS
from prism_prm.data.inputs import decode, find_sources, read_records, rows
from prism_prm.data.tasks import no_answer, problem_of, seems_to_have_an_answer
from prism_prm.errors import DataError
from prism_prm.files import atomic_file
from prism_prm.grading.problems import TaskProblem
from prism_prm.segments import split_text
from prism_prm.steps import split_steps
from prism_prm.tree import StepTree, iter_unique_names

_TEXT_FIELDS = ("text", "solution", "completion", "response", "output", "generation", "generated_text")
MOST_TOKENS = 10**12
"""A larger token count for one solution is an error."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One sampled solution."""

    steps: tuple[str, ...]
    """Empty if the solution is blank; it then has no score and no answer."""
    text: str
    answer: str | None = None
    """Its answer, if the pool has one; otherwise it is extracted from the text."""
    scores: tuple[float | None, ...] | None = None
    """P(right) of each step, if the pool has them."""
    tokens: int | None = None
    correct: bool | None = None
    """The pool's own judgment; only used for problems without a reference answer."""
    source: str = field(default="", repr=False)
    """The policy or prompt that wrote it, if the pool says so. Not in `repr`, because no grade depends on it."""


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """A problem and its solutions; without any, it counts as not solved."""

    problem: TaskProblem
    solutions: tuple[Solution, ...]
    where: str = field(default="", compare=False, repr=False)
    """For messages: `file:line`."""
    name_in_pool: str = field(default="", compare=False, repr=False)
    """The name of the problem in the pool, if `problem` comes from a task."""


@dataclass(frozen=True, slots=True)
class Pool:
    """All problems of a pool. Solutions are numbered consecutively; the number is the `tree_id` of their scores."""

    problems: tuple[PoolProblem, ...]

    @property
    def solutions(self) -> list[Solution]:
        """All solutions of all problems, in order."""
        return [solution for entry in self.problems for solution in entry.solutions]

    @property
    def num_empty(self) -> int:
        """The number of problems without solutions."""
        return sum(not entry.solutions for entry in self.problems)

    def trees(self) -> list[StepTree]:
        """Return each solution as a tree named `problem#k`; those without steps leave gaps in the numbers."""
        return list(trees_of(self.problems))

    def content_hash(self) -> str:
        """Hash the content of the pool."""
        digest = hashlib.blake2b(digest_size=16)
        for entry in self.problems:
            digest.update(repr(entry).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def trees_of(entries: Iterable[PoolProblem]) -> Iterator[StepTree]:
    """Yield the trees of `Pool.trees`."""
    number = 0
    for_names, entries = itertools.tee(entries)
    names = iter_unique_names(entry.problem.name or str(i) for i, entry in enumerate(for_names))
    for name, entry in zip(names, entries, strict=True):
        for k, solution in enumerate(entry.solutions):
            if solution.steps:
                tree = StepTree.chain(entry.problem.text, solution.steps, tree_id=number, name=f"{name}#{k}")
                yield replace(tree, where=entry.where)
            number += 1


def read_pool(
    source: str | Path | Sequence[str | Path],
    advance: Advance = ignore,
    *,
    answer_field: str | None = None,
    with_answers: bool = True,
    segmenter: str | None = None,
) -> Pool:
    """Read a pool: problems with several solutions each.

    Args:
        source: a file, a folder, a hub dataset, or several of them.
        advance: a callback, called with the number of newly read bytes.
        answer_field: the field that holds the reference answer. By default `answer` and its common synonyms.
        with_answers: whether to read reference answers.
        segmenter: how solutions that are texts are cut into steps, a key of `SEGMENTERS`. By default by `split_steps`.

    Example:
        >>> pool = read_pool("pool.jsonl")
        >>> len(pool.problems), len(pool.solutions)
        (2, 6)
    """
    entries = iter_pool(source, advance, answer_field=answer_field, with_answers=with_answers, segmenter=segmenter)
    return Pool(tuple(entries))


def iter_pool(
    source: str | Path | Sequence[str | Path],
    advance: Advance = ignore,
    *,
    answer_field: str | None = None,
    with_answers: bool = True,
    segmenter: str | None = None,
) -> Iterator[PoolProblem]:
    """Yield the problems of `read_pool`."""
    read = partial(pool_problem, answer_field=answer_field, with_answer=with_answers, segmenter=segmenter)
    for row, problem in read_records(source, read, advance=advance):
        yield replace(problem, where=row.where)


def holds_pool(source: str | Path | Sequence[str | Path]) -> bool:
    """Whether the first record of the first source has several solutions of a problem."""
    row = next(rows(find_sources(source)[0]))
    try:
        record = decode(row, dict[str, Any])
    except DataError:
        return False
    lists = [field for field in POOL_FIELDS if isinstance(record.get(field), list)]
    if not lists or any(isinstance(record.get(field), list) for field in ("labels", "steps")):
        return False
    # TRL calls the steps of one solution `completions`; with a reference answer in the record, they are solutions.
    return lists != ["completions"] or "prompt" not in record or record.get("answer") is not None


def pool_problem(
    record: Mapping[str, Any],
    *,
    answer_field: str | None = None,
    with_answer: bool = True,
    segmenter: str | None = None,
) -> PoolProblem:
    """Read a record of a pool."""
    field = next((name for name in POOL_FIELDS if isinstance(record.get(name), list)), None)
    if field is None:
        raise DataError(
            f"no list of solutions in any of the fields {', '.join(POOL_FIELDS)}; found {sorted(record)}",
            reason="missing-field",
        )
    items = record[field]
    if field == "completions" and isinstance(record.get("labels"), list):
        raise DataError(
            "`labels` beside `completions`: these are labeled steps of one solution, not a pool of solutions; "
            "`prism pairs` and `prism eval --bench labeled` read them",
            reason="wrong-type",
        )
    try:  # search-and-learn writes all scores into one field of the record
        scores = msgspec.convert(record.get("scores"), list[list[float | None] | None] | None)
    except msgspec.ValidationError as error:
        reason = str(error).replace("$", "")
        raise DataError(
            f"`scores` of the record: {reason}; it must be a list of step scores per solution", reason="wrong-type"
        ) from error
    if scores is not None and len(scores) != len(items):
        raise DataError(f"{len(scores)} lists of scores for {len(items)} solutions", reason="wrong-type")
    solutions = []
    for k, item in enumerate(items):
        try:
            solutions.append(_solution(item, scores[k] if scores else None, segmenter))
        except (DataError, msgspec.ValidationError) as error:
            raise DataError(f"solution {k}: {error}", reason="wrong-type") from error
    problem = problem_of(record, answer_field=answer_field, with_answer=with_answer)
    if problem.answer is None and problem.tests is None and with_answer and seems_to_have_an_answer(record):
        raise no_answer(record)
    return PoolProblem(problem, tuple(solutions))


class _SolutionFields(msgspec.Struct):
    """The fields of a solution besides its text."""

    steps: list[str] | None = None
    answer: str | int | float | None = None
    scores: list[float | None] | None = None
    tokens: int | None = None
    correct: bool | None = None
    source: str | int | None = None


def _solution(item: Any, scores: list[float | None] | None, segmenter: str | None) -> Solution:
    if isinstance(item, str):
        item = {"text": item}
    elif isinstance(item, list):
        item = {"steps": item}
    elif not isinstance(item, dict):
        raise DataError(f"expected a string, a list of steps or an object, found {type(item).__name__}")
    fields = msgspec.convert(item, _SolutionFields)
    text = next((item[name] for name in _TEXT_FIELDS if isinstance(item.get(name), str)), None)
    if fields.steps is not None:
        steps = tuple(fields.steps)
    elif text is None:
        raise DataError(f"neither `steps` nor a text in any of the fields {', '.join(_TEXT_FIELDS)}")
    else:
        steps = tuple(split_steps(text) if segmenter is None else split_text(text, segmenter))
    if not all(step.strip() for step in steps):
        raise DataError("a step is empty; every step needs a text")
    step_scores = fields.scores if fields.scores is not None else scores
    if step_scores is not None:
        check_scores(step_scores, steps)
    if fields.tokens is not None and not 0 <= fields.tokens <= MOST_TOKENS:
        raise DataError(f"{fields.tokens} tokens; expected 0 to {MOST_TOKENS:,}")
    if isinstance(fields.answer, float) and not math.isfinite(fields.answer):
        raise DataError(f"`answer` is {fields.answer}, expected a string or a number")
    return Solution(
        steps,
        "\n\n".join(steps) if text is None else text,
        None if fields.answer is None else str(fields.answer),
        None if step_scores is None else tuple(None if score is None else float(score) for score in step_scores),
        fields.tokens,
        fields.correct,
        "" if fields.source is None else str(fields.source),
    )


def check_scores(scores: Sequence[float | None], steps: Sequence[str]) -> None:
    """Raise unless these are the probabilities of a solution's steps; None only for thinking that was not scored."""
    if len(scores) != len(steps):
        raise DataError(f"{len(scores)} scores for {len(steps)} steps; the pool must have the `steps` that were scored")
    if None in scores and not is_scored(scores, steps):
        raise DataError("a score is null, but not those of all thinking steps and only those")
    for score in scores:
        if score is not None and not 0 <= score <= 1:
            raise DataError(f"the score {score} is not in [0, 1]; scores are probabilities that a step is right")


def write_pool(path: str | Path, problems: Sequence[PoolProblem]) -> None:
    """Write a pool as JSON lines, atomically."""
    optional = ("answer", "scores", "tokens", "correct")
    with atomic_file(path) as aside, aside.open("wb") as file:
        for entry in problems:
            problem = entry.problem
            record: dict[str, Any] = {"problem": problem.text, "answer": problem.answer, "name": problem.name}
            more = {"level": problem.level, "tolerance": problem.tolerance, "date": problem.date}
            record |= {key: value for key, value in more.items() if value}
            if problem.tests is not None:  # hidden tests stay with the task, because a selector may read this file
                record["public_tests"] = problem.tests.public_only().reference()
            record["solutions"] = [
                {"steps": solution.steps}
                | {key: value for key in optional if (value := getattr(solution, key)) is not None}
                | ({"source": solution.source} if solution.source else {})
                for solution in entry.solutions
            ]
            file.write(msgspec.json.encode(record) + b"\n")

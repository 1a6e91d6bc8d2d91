"""Pools: problems with N solutions each, as people sample them and as search writes them.

One record per problem, as JSON lines (or Parquet, JSON, a folder, a hub dataset):

    {"problem": "…", "answer": "12", "name": "test/7", "solutions": [
        {"text": "…"}, {"steps": ["…", "…"], "answer": "12", "scores": [0.9, 0.7], "tokens": 310}]}

A solution is a text, which is cut into steps, or a list of steps; it may also be given directly, as a string or a list.
`answer` (what it answers), `scores` (P(right) per step), `tokens` and `correct` are optional. Other tools' names for
the same things are understood.
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

from prism_prm.console import Advance, ignore
from prism_prm.data.formats import POOL_FIELDS
from prism_prm.data.inputs import decode, find_sources, read_records, rows
from prism_prm.data.tasks import no_answer, problem_of, seems_to_have_an_answer
from prism_prm.errors import DataError
from prism_prm.files import whole_file
from prism_prm.grading.problems import TaskProblem
from prism_prm.steps import split_steps
from prism_prm.tree import StepTree, iter_unique_names

_TEXT_FIELDS = ("text", "solution", "completion", "response", "output", "generation", "generated_text")
MOST_TOKENS = 10**12
"""The limit for one solution; a larger count is nonsense."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One sampled solution."""

    steps: tuple[str, ...]
    """Empty where the solution says nothing; such a solution has no score and no answer."""
    text: str
    answer: str | None = None
    """Its answer, where the pool says it; otherwise it is found in the text."""
    scores: tuple[float, ...] | None = None
    """P(right) of each step, where the pool says it."""
    tokens: int | None = None
    correct: bool | None = None
    """What the pool says; only used for problems without a reference answer."""


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """A problem and its solutions; one without any (nothing was found) counts as not solved."""

    problem: TaskProblem
    solutions: tuple[Solution, ...]
    where: str = field(default="", compare=False, repr=False)
    """Where it was read, for messages: `file:line`."""


@dataclass(frozen=True, slots=True)
class Pool:
    """All problems of a pool; solutions are numbered consecutively: the `tree_id` of their scores."""

    problems: tuple[PoolProblem, ...]

    @property
    def solutions(self) -> list[Solution]:
        """All solutions, in order."""
        return [solution for entry in self.problems for solution in entry.solutions]

    @property
    def num_empty(self) -> int:
        """How many problems have no solution."""
        return sum(not entry.solutions for entry in self.problems)

    def trees(self) -> list[StepTree]:
        """Each solution as a tree to score, named `problem#k`; one without steps is left out, its number too."""
        return list(trees_of(self.problems))

    def content_hash(self) -> str:
        """A hash of all that the pool says."""
        digest = hashlib.blake2b(digest_size=16)
        for entry in self.problems:
            digest.update(repr(entry).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def trees_of(entries: Iterable[PoolProblem]) -> Iterator[StepTree]:
    """The trees of `Pool.trees`, as a stream."""
    number = 0
    for_names, entries = itertools.tee(entries)
    names = iter_unique_names(entry.problem.name or str(i) for i, entry in enumerate(for_names))
    for named, entry in zip(names, entries, strict=True):
        for k, solution in enumerate(entry.solutions):
            if solution.steps:
                tree = StepTree.chain(entry.problem.text, solution.steps, tree_id=number, name=f"{named}#{k}")
                yield replace(tree, where=entry.where)
            number += 1


def read_pool(
    source: str | Path | Sequence[str | Path],
    advance: Advance = ignore,
    *,
    answer_field: str | None = None,
    with_answers: bool = True,
) -> Pool:
    """A pool: problems with several solutions each.

    Args:
        source: a file, a folder, a hub dataset, or several of them.
        advance: called with the number of further bytes read.
        answer_field: the field that holds the reference answer; default: `answer` and its common synonyms.
        with_answers: whether to read reference answers; if not, problems have none.

    Example:
        >>> pool = read_pool("pool.jsonl")
        >>> len(pool.problems), len(pool.solutions)
        (2, 6)
    """
    return Pool(tuple(iter_pool(source, advance, answer_field=answer_field, with_answers=with_answers)))


def iter_pool(
    source: str | Path | Sequence[str | Path],
    advance: Advance = ignore,
    *,
    answer_field: str | None = None,
    with_answers: bool = True,
) -> Iterator[PoolProblem]:
    """The problems of `read_pool`, as a stream."""
    read = partial(pool_problem, answer_field=answer_field, with_answer=with_answers)
    for row, found in read_records(source, read, advance=advance):
        yield replace(found, where=row.where)


def holds_pool(source: str | Path | Sequence[str | Path]) -> bool:
    """Whether the first record of the first source is one of a pool: several solutions of a problem."""
    row = next(rows(find_sources(source)[0]))
    try:
        record = decode(row, dict[str, Any])
    except DataError:
        return False
    lists = [field for field in POOL_FIELDS if isinstance(record.get(field), list)]
    if not lists or any(isinstance(record.get(field), list) for field in ("labels", "steps")):
        return False
    # TRL calls the steps of one solution `completions`; a reference answer beside them shows that they are solutions.
    return lists != ["completions"] or "prompt" not in record or record.get("answer") is not None


def pool_problem(
    record: Mapping[str, Any], *, answer_field: str | None = None, with_answer: bool = True
) -> PoolProblem:
    """A record of a pool."""
    listed = next((name for name in POOL_FIELDS if isinstance(record.get(name), list)), None)
    if listed is None:
        raise DataError(
            f"no list of solutions in any of the fields {', '.join(POOL_FIELDS)}; found {sorted(record)}",
            reason="missing-field",
        )
    given = record[listed]
    try:  # search-and-learn writes the scores of each solution beside the solutions
        beside = msgspec.convert(record.get("scores"), list[list[float] | None] | None)
    except msgspec.ValidationError as error:
        why = str(error).replace("$", "")
        raise DataError(
            f"`scores` of the record: {why}; give a list of step scores per solution", reason="wrong-type"
        ) from error
    if beside is not None and len(beside) != len(given):
        raise DataError(f"{len(beside)} lists of scores for {len(given)} solutions", reason="wrong-type")
    solutions = []
    for k, item in enumerate(given):
        try:
            solutions.append(_solution(item, beside[k] if beside else None))
        except (DataError, msgspec.ValidationError) as error:
            raise DataError(f"solution {k}: {error}", reason="wrong-type") from error
    problem = problem_of(record, answer_field=answer_field, with_answer=with_answer)
    if problem.answer is None and problem.tests is None and with_answer and seems_to_have_an_answer(record):
        raise no_answer(record)
    return PoolProblem(problem, tuple(solutions))


class _Given(msgspec.Struct):
    """The fields of a solution beside its text."""

    steps: list[str] | None = None
    answer: str | int | float | None = None
    scores: list[float] | None = None
    tokens: int | None = None
    correct: bool | None = None


def _solution(item: Any, scores: list[float] | None) -> Solution:
    if isinstance(item, str):
        item = {"text": item}
    elif isinstance(item, list):
        item = {"steps": item}
    elif not isinstance(item, dict):
        raise DataError(f"expected a string, a list of steps or an object, found {type(item).__name__}")
    given = msgspec.convert(item, _Given)
    text = next((item[name] for name in _TEXT_FIELDS if isinstance(item.get(name), str)), None)
    if text is None and given.steps is None:
        raise DataError(f"neither `steps` nor a text in any of the fields {', '.join(_TEXT_FIELDS)}")
    steps = tuple(split_steps(text or "")) if given.steps is None else tuple(given.steps)
    if not all(step.strip() for step in steps):
        raise DataError("a step is empty; every step needs a text")
    found = given.scores if given.scores is not None else scores
    if found is not None and len(found) != len(steps):
        raise DataError(f"{len(found)} scores for {len(steps)} steps; give `steps` together with `scores`")
    for score in found or ():
        if not 0 <= score <= 1:
            raise DataError(f"the score {score} is not in [0, 1]; scores are probabilities that a step is right")
    if given.tokens is not None and not 0 <= given.tokens <= MOST_TOKENS:
        raise DataError(f"{given.tokens} tokens; expected 0 to {MOST_TOKENS:,}")
    if isinstance(given.answer, float) and not math.isfinite(given.answer):
        raise DataError(f"`answer` is {given.answer}, expected a string or a number")
    return Solution(
        steps,
        "\n\n".join(steps) if text is None else text,
        None if given.answer is None else str(given.answer),
        None if found is None else tuple(map(float, found)),
        given.tokens,
        given.correct,
    )


def write_pool(path: str | Path, problems: Sequence[PoolProblem]) -> None:
    """Write a pool as JSON lines, whole or not at all."""
    optional = ("answer", "scores", "tokens", "correct")
    with whole_file(path) as aside, aside.open("wb") as file:
        for entry in problems:
            problem = entry.problem
            record: dict[str, Any] = {"problem": problem.text, "answer": problem.answer, "name": problem.name}
            more = {"level": problem.level, "tolerance": problem.tolerance, "date": problem.date}
            record |= {key: value for key, value in more.items() if value}
            if problem.tests is not None:  # hidden ones stay with the task: a selector may read this file
                record["public_tests"] = problem.tests.shown().reference()
            record["solutions"] = [
                {"steps": one.steps} | {key: value for key in optional if (value := getattr(one, key)) is not None}
                for one in entry.solutions
            ]
            file.write(msgspec.json.encode(record) + b"\n")

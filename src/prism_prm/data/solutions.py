"""Plain solutions: a problem and one text, cut into steps by `split_steps` (only with `--split-steps`)."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from prism_prm.data.draft import Draft, require_texts
from prism_prm.data.options import ReadOptions
from prism_prm.data.steps import split_steps
from prism_prm.errors import DataError

PROBLEM_FIELDS = ("problem", "question", "prompt")
SOLUTION_FIELDS = ("solution", "response", "completion", "answer")
POOL_FIELDS = ("solutions", "samples", "completions", "responses", "generations", "outputs")
"""Names for a list of solutions: a record with one is of a pool."""
POOL = "a pool: `{}` lists several solutions. `prism rerank` reads it, and scores it with --prm."


class Record(msgspec.Struct):
    """Several data sets' names for the same two things."""

    problem: str | None = None
    question: str | None = None
    prompt: str | None = None
    solution: str | None = None
    response: str | None = None
    completion: str | None = None
    answer: str | int | float | None = None
    id: str | int = ""
    solutions: Any = None
    samples: Any = None
    completions: Any = None
    responses: Any = None
    generations: Any = None
    outputs: Any = None


KEYS = tuple(frozenset({problem, solution}) for solution in SOLUTION_FIELDS for problem in PROBLEM_FIELDS)


def read(record: Record, options: ReadOptions) -> list[Draft]:
    """The record as one solution, unlabelled unless its user trusts it."""
    for field in POOL_FIELDS:
        if isinstance(getattr(record, field), list):
            refuse_pool(field)
    problem = next((value for field in PROBLEM_FIELDS if (value := getattr(record, field))), "")
    found = [(field, value) for field in SOLUTION_FIELDS if (value := getattr(record, field))]
    if not found or not isinstance(found[0][1], str):
        raise DataError(f"no solution text in any of the fields {', '.join(SOLUTION_FIELDS)}", reason="empty-text")
    field, text = found[0]
    texts = split_steps(text)
    require_texts(problem, texts)
    labels = [1.0 if options.trust_solutions else None] * len(texts)
    # The field `answer` is the solution itself in some data sets, and the reference answer beside one in others.
    answer = None if field == "answer" or record.answer is None else str(record.answer)
    return [Draft.chain(problem, texts, labels, name=str(record.id), answer=answer, ended=True)]


def refuse_pool(field: str) -> NoReturn:
    """A record with several solutions is not one solution; its `answer` is the reference, not a text to score."""
    raise DataError(f"this is {POOL.format(field)}", reason="wrong-format")

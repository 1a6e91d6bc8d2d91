"""A problem with its reference answer or tests in a record, under the names that datasets use for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prism_prm.errors import DataError
from prism_prm.grading.code_benchmarks import read_code_problem
from prism_prm.grading.extract import after_hashes, last_boxed
from prism_prm.grading.plain_answers import normalize, numeral
from prism_prm.grading.problems import TaskProblem

PROBLEM_FIELDS = ("problem", "question", "prompt")
ANSWER_FIELDS = ("answer", "final_answer", "expected_answer", "ground_truth")
_NAME_FIELDS = ("name", "unique_id", "id", "idx", "problem_id")
_PERHAPS_ANSWERS = (
    "gold", "gold_answer", "target", "target_answer", "reference", "reference_answer", "correct_answer", "true_answer",
    "gt", "gt_answer",
)  # fmt: skip
"""Names that count as the answer only if the user says so: some datasets use them for something else."""


MOST_TOLERANCE = 1e6
"""Relative to the reference; a larger one is nonsense."""


def problem_of(
    record: Mapping[str, Any],
    tolerance: float = 0.0,
    *,
    answer_field: str | None = None,
    with_answer: bool = True,
) -> TaskProblem:
    """The problem in a record; its answer under `answer_field` alone, if that is given, or none at all.

    A record with tests asks for a program, and has no answer.
    """
    if answer_field is None and (problem := read_code_problem(record)) is not None:
        return problem if with_answer or problem.tests is None else replace(problem, tests=problem.tests.shown())
    field, text = _first(record, PROBLEM_FIELDS)
    if text is None:
        raise DataError(
            f"no problem text in any of the fields {', '.join(PROBLEM_FIELDS)}; found the fields {sorted(record)}",
            reason="missing-field",
        )
    if not isinstance(text, str):
        raise _unfit(field, text, "a string")
    answer = _answer_of(record, answer_field) if with_answer else None
    name = _word(*_first(record, _NAME_FIELDS))
    tolerance = _tolerance_of(record, answer, tolerance)
    return TaskProblem(text, answer, name, _word("level", record.get("level")), tolerance)


def no_answer(record: Mapping[str, Any]) -> DataError:
    """The error of a record that needs a reference answer and has none under the names we know."""
    meant = next((field for field in _PERHAPS_ANSWERS if not _is_empty(record.get(field))), "FIELD")
    return DataError(
        f"no reference answer in any of the fields {', '.join(ANSWER_FIELDS)}, and no \\boxed{{}} in `solution`; "
        f"found the fields {sorted(record)}. Name the field that holds it: --answer-field {meant}",
        reason="missing-field",
    )


def seems_to_have_an_answer(record: Mapping[str, Any]) -> bool:
    """Whether a record has something that may be its answer, under none of the names we know."""
    is_silent = not any(field in record for field in ANSWER_FIELDS)
    return is_silent and any(not _is_empty(record.get(field)) for field in _PERHAPS_ANSWERS)


def _answer_of(record: Mapping[str, Any], answer_field: str | None) -> str | None:
    field, value = _first(record, ANSWER_FIELDS if answer_field is None else (answer_field,))
    if value is None and answer_field is not None:
        raise DataError(
            f"no `{answer_field}`, which --answer-field names; found the fields {sorted(record)}",
            reason="missing-field",
        )
    if value is None:  # Minerva's own release has it only as the box in its solution
        return last_boxed(str(record.get("solution") or ""))
    parts = [scalar_text(part) for part in (value if isinstance(value, list) else [value])]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        raise _unfit(field, value, "a string, a number, or a list of them")
    answer = ", ".join(part.replace("$", "") for part in known) if isinstance(value, list) else known[0]
    return (after_hashes(answer) or answer).strip()


def _tolerance_of(record: Mapping[str, Any], answer: str | None, tolerance: float) -> float:
    error = _number(record, "error", math.inf)  # OlympiadBench: how far off, absolutely
    number = numeral(normalize(answer)) if answer and error else None
    if number and number.value and error:
        try:
            tolerance = error / abs(float(number.value))
        except (OverflowError, ZeroDivisionError):
            tolerance = math.inf
        if tolerance > MOST_TOLERANCE:
            raise DataError(f"`error` is {error:g}, too large for the answer {answer!r:.60}", reason="out-of-range")
    return _number(record, "tolerance", MOST_TOLERANCE) or tolerance


def scalar_text(value: Any) -> str | None:
    """A string or a finite number as a string; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = int(value) if value.is_integer() else value
    return str(value)


def _number(record: Mapping[str, Any], field: str, most: float) -> float | None:
    """A number, also one that is written as a string."""
    value = record.get(field)
    if value is None or value == "":
        return None
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 <= found <= most or found == math.inf:
        upper = "that is 0 or more" if most == math.inf else f"from 0 to {most:,.0f}"
        raise _unfit(field, value, f"a number {upper}")
    return found


def _word(field: str, value: Any) -> str:
    text = "" if value is None else scalar_text(value)
    if text is None:
        raise _unfit(field, value, "a string or a number")
    return text


def _first(record: Mapping[str, Any], fields: tuple[str, ...]) -> tuple[str, Any]:
    """The first of these fields that holds something, and what; None where none does."""
    return next(((field, record[field]) for field in fields if not _is_empty(record.get(field))), (fields[0], None))


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, list) and not value)


def _unfit(field: str, value: Any, expected: str) -> DataError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return DataError(f"`{field}` is {shown}, expected {expected}", reason="wrong-type")

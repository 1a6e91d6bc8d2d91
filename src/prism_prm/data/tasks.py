"""Tasks: named lists of problems, each with a reference answer or with tests.

    task = load_task("math-500-100", "math500/test.jsonl")   # without a file: from the Hugging Face hub
    task = load_task("my-problems.jsonl")                    # fields `problem` and `answer`

`grading.graders` finds, judges and groups the answers.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from prism_prm.data.formats import PROBLEM_FIELDS
from prism_prm.data.inputs import read_records
from prism_prm.errors import DataError, SettingError, shown
from prism_prm.grading.code_benchmarks import read_code_problem
from prism_prm.grading.extract import after_hashes, last_boxed
from prism_prm.grading.graders import Grader as Grader
from prism_prm.grading.graders import Level as Level
from prism_prm.grading.graders import TaskGrader as TaskGrader
from prism_prm.grading.plain_answers import normalize, numeral
from prism_prm.grading.problems import TaskProblem as TaskProblem
from prism_prm.plugins import Plugins


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The source of a known task, and how to judge it."""

    place: str
    """`owner/name[:config]:split` on the hub, or a file."""
    about: str
    tolerance: float = 0.0
    subsample: int | None = None
    """Take this many problems, from all levels in proportion."""


TASKS: dict[str, TaskSource] = {
    "math-500": TaskSource("HuggingFaceH4/MATH-500:test", "500 problems of the MATH test set"),
    "math-500-100": TaskSource("HuggingFaceH4/MATH-500:test", "100 of them, over all levels", subsample=100),
    "aime-2024": TaskSource("HuggingFaceH4/aime_2024:train", "30 problems of AIME I and II 2024"),
    "amc-2023": TaskSource("math-ai/amc23:test", "40 problems of AMC 12 2023"),
    "amc-83": TaskSource("AI-MO/aimo-validation-amc:train", "83 problems of AMC 12 2022 and 2023"),
    "gsm8k": TaskSource("openai/gsm8k:main:test", "1,319 word problems"),
    "minerva": TaskSource("math-ai/minervamath:test", "272 problems of university science", tolerance=0.01),
    "olympiadbench": TaskSource("math-ai/olympiadbench:test", "675 olympiad problems in English, text only"),
    "humaneval": TaskSource("openai/openai_humaneval:test", "164 Python functions to complete"),
    "mbpp": TaskSource("google-research-datasets/mbpp:sanitized:test", "257 short Python functions"),
    "livecodebench": TaskSource("lighteval/code_generation_lite:release_v6:test", "as livecodebench-v6"),
}
"""Minerva's reference answers are rounded to two or three digits, so there numbers within 1 % are right."""
_LIVECODEBENCH = {1: "400", 2: "511", 3: "612", 4: "713", 5: "880", 6: "1,055"}
TASKS |= {
    f"livecodebench-v{release}": TaskSource(
        f"lighteval/code_generation_lite:release_v{release}:test", f"{size} contest problems, judged by tests"
    )
    for release, size in _LIVECODEBENCH.items()
}
_PLUGINS = Plugins(
    "task", TASKS, "prism_prm.tasks", "a TaskSource", lambda found: isinstance(found, TaskSource),
    also="; or a file of problems",
)  # fmt: skip


Errata = Literal["keep", "drop"]
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Window:
    """Which problems of a task to use."""

    since: str | None = None
    """The first day, YYYY-MM-DD."""
    until: str | None = None
    """The last day, YYYY-MM-DD."""
    errata: Errata = "keep"
    """Whether to keep problems that the benchmark's own errata list."""

    def __post_init__(self) -> None:
        for name, day in (("since", self.since), ("until", self.until)):
            if day is not None and not _DAY.fullmatch(day):
                raise SettingError(name, day, "must be a day, such as 2024-08-01")

    def reason_against(self, problem: TaskProblem) -> str:
        """Return why a problem is not used; "" if it is."""
        if not problem.is_judged:
            return "no hidden test that can be read"
        if (self.since or self.until) and not problem.date:
            raise DataError(
                f"the problem {problem.name or problem.text[:60]!r} has no date; leave out `since` and `until`",
                reason="missing-field",
            )
        if (self.since and problem.date < self.since) or (self.until and problem.date > self.until):
            return "outside the dates"
        return "in the errata" if self.errata == "drop" and problem.in_errata else ""


@dataclass(frozen=True, slots=True)
class Task:
    """A named list of problems, each with its answer or tests."""

    name: str
    problems: tuple[TaskProblem, ...]
    left_out: tuple[tuple[TaskProblem, str], ...] = ()
    """Problems that are not used, and why."""

    def notes(self) -> list[str]:
        """Describe what the problems lack and what was left out, in one line each."""
        notes = [
            f"{count:,} problems of {self.name} are left out: {why}."
            for why, count in Counter(why for _, why in self.left_out).items()
        ]
        coded = [problem.tests for problem in self.problems if problem.tests is not None]
        if bare := sum(not tests.public for tests in coded):
            notes.append(
                f"{bare:,} of {len(coded):,} code problems have no public tests: votes cannot tell programs apart."
            )
        if unread := sum(tests.num_unread for tests in coded):
            notes.append(f"{unread:,} tests of {self.name} cannot be read as arguments and a value, and are not used.")
        return notes


class ProblemIndex:
    """Finds the problem that a record of another file refers to."""

    def __init__(self, problems: Iterable[TaskProblem]) -> None:
        self._by_text: dict[str, list[TaskProblem]] = defaultdict(list)
        for problem in problems:
            self._by_text[problem.text.strip()].append(problem)

    def find(self, text: str, *, name: str = "", answer: str | None = None, where: str = "") -> TaskProblem | None:
        """Return the problem with this text, or None; of several, the one with this name, or else with this answer.

        Problems with the same text that are judged alike count as one. Raises if several different ones are left.
        """
        matches = self._by_text.get(text.strip(), [])
        named = [problem for problem in matches if name and problem.name == name]
        for candidates in (named, matches, [problem for problem in matches if answer and problem.answer == answer]):
            judged_by = [(problem.answer, problem.tolerance, problem.tests) for problem in candidates]
            if candidates and all(each == judged_by[0] for each in judged_by):
                return candidates[0]
        if not matches:
            return None
        names = ", ".join(repr(problem.name) for problem in matches[:3] if problem.name) or "none"
        raise DataError(
            f"{where or 'a record'}: {len(matches)} problems of the task have its text, {text.strip()[:60]!r}, and "
            f"different answers or tests; give it the `name` of one of them (their names: {names})",
            reason="ambiguous-problem",
        )


def load_problems(place: str, source: str | Path | None = None) -> Task:
    """Load a task, a file of problems, or a hub dataset by its id (`owner/name[:config]:split`)."""
    if source is None and "/" in place and place not in _PLUGINS.names() and not Path(place).exists():
        return _make_task(place, list(read_problems(place)))
    return load_task(place, source)


def load_task(
    name: str | Path,
    source: str | Path | None = None,
    *,
    answer_field: str | None = None,
    window: Window | None = None,
) -> Task:
    """Load a known task from a local copy or the hub, or your own problems from a file.

    Installed packages may add tasks (docs/guides/plugins.md).
    Hyphens in a task's name are optional: `math500` is `math-500`.

    Args:
        name: math-500, aime-2024, gsm8k, …, or a file of problems with answers.
        source: a local copy of the task. By default the hub's.
        answer_field: the field that holds the reference answer. By default `answer` and its common synonyms.
        window: the days to take problems from, and whether to keep flawed ones. By default all.

    Example:
        >>> task = load_task("problems.jsonl")
        >>> task.problems[0].answer
        '3'
    """
    name, names = str(name), _PLUGINS.names()
    name = next((task for task in names if task.replace("-", "") == name.lower().replace("-", "")), name)
    is_file = name not in names and (source is not None or Path(name).exists())
    known = None if is_file else _PLUGINS.find(name)
    where = source or (known.place if known else name)
    problems = list(read_problems(where, tolerance=known.tolerance if known else 0.0, answer_field=answer_field))
    if known and known.subsample:
        problems = subsample(problems, known.subsample)
    return _make_task(name if known else Path(name).stem, problems, window or Window())


def _make_task(name: str, problems: Sequence[TaskProblem], window: Window = Window()) -> Task:  # noqa: B008  frozen
    """Make a task of the problems that can be judged and lie in the window."""
    reasons = [(problem, window.reason_against(problem)) for problem in problems]
    used = tuple(problem for problem, reason in reasons if not reason)
    if not used:
        counts = Counter(reason for _, reason in reasons)
        summary = "; ".join(f"{reason}: {count:,}" for reason, count in counts.items())
        raise DataError(f"{name}: none of its {len(problems):,} problems is left. {summary or 'It is empty'}.")
    return Task(name, used, tuple((problem, reason) for problem, reason in reasons if reason))


def read_problems(
    source: str | Path, *, tolerance: float = 0.0, answer_field: str | None = None
) -> Iterator[TaskProblem]:
    """Yield the problems of a file, folder or hub dataset; each must have an answer or tests, even unreadable ones."""

    def read(record: dict[str, Any]) -> TaskProblem:
        problem = problem_of(record, tolerance, answer_field=answer_field)
        if problem.tests is None and not problem.is_judged:
            raise no_answer(record)
        if problem.tests is not None and not (problem.is_judged or problem.tests.num_unread):
            raise DataError("no `tests` to judge programs by, only public ones", reason="missing-field")
        return problem

    return (problem for _, problem in read_records(source, read))


def subsample(problems: Sequence[TaskProblem], size: int) -> list[TaskProblem]:
    """Choose `size` problems, each level in proportion, in their order. The choice depends only on their texts."""
    if size >= len(problems):
        return list(problems)
    levels: dict[str, list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        levels[problem.level].append(i)
    quotas = {level: size * len(members) / len(problems) for level, members in levels.items()}
    seats = Counter({level: int(quota) for level, quota in quotas.items()})
    for level in sorted(quotas, key=lambda level: (seats[level] - quotas[level], level))[: size - seats.total()]:
        seats[level] += 1

    def rank(i: int) -> bytes:
        return hashlib.blake2b(problems[i].text.strip().encode(), digest_size=8).digest()

    chosen = [i for level in levels for i in sorted(levels[level], key=rank)[: seats[level]]]
    return [problems[i] for i in sorted(chosen)]


# --- the problem in a record, under the names that datasets use for its parts

ANSWER_FIELDS = ("answer", "final_answer", "expected_answer", "ground_truth")
_NAME_FIELDS = ("name", "unique_id", "id", "idx", "problem_id")
_PERHAPS_ANSWERS = (
    "gold", "gold_answer", "target", "target_answer", "reference", "reference_answer", "correct_answer", "true_answer",
    "gt", "gt_answer",
)  # fmt: skip
"""Fields that hold the answer only if the user names them: some datasets use them for something else."""


MOST_TOLERANCE = 1e6
"""A larger tolerance, relative to the reference, is an error."""


def problem_of(
    record: Mapping[str, Any],
    tolerance: float = 0.0,
    *,
    answer_field: str | None = None,
    with_answer: bool = True,
) -> TaskProblem:
    """Read the problem of a record; its answer only from `answer_field`, if that is given.

    A record with tests asks for a program and has no answer.
    """
    if answer_field is None and (problem := read_code_problem(record)) is not None:
        return problem if with_answer or problem.tests is None else replace(problem, tests=problem.tests.public_only())
    field, text = _first(record, PROBLEM_FIELDS)
    if text is None:
        raise DataError(
            f"no problem text in any of the fields {', '.join(PROBLEM_FIELDS)}; found the fields {sorted(record)}",
            reason="missing-field",
        )
    if not isinstance(text, str):
        raise _wrong_type(field, text, "a string")
    answer = None
    if with_answer:
        field, value = _first(record, ANSWER_FIELDS if answer_field is None else (answer_field,))
        if value is None and answer_field is not None:
            raise DataError(
                f"no `{answer_field}`, which answer_field names; found the fields {sorted(record)}",
                reason="missing-field",
            )
        if value is None:  # Minerva's own release has it only in the \boxed{} of its solution
            answer = last_boxed(str(record.get("solution") or ""))
        else:
            parts = [scalar_text(part) for part in (value if isinstance(value, list) else [value])]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                raise _wrong_type(field, value, "a string, a number, or a list of them")
            joined = ", ".join(part.replace("$", "") for part in known) if isinstance(value, list) else known[0]
            answer = (after_hashes(joined) or joined).strip() or None  # [""] is no answer
    name = _word(*_first(record, _NAME_FIELDS))
    error = _number(record, "error", math.inf)  # OlympiadBench: an absolute tolerance
    number = numeral(normalize(answer)) if answer and error else None
    if number and number.value and error:
        try:
            tolerance = error / abs(float(number.value * 100 if number.is_percent else number.value))
        except (OverflowError, ZeroDivisionError):
            tolerance = math.inf
        if tolerance > MOST_TOLERANCE:
            raise DataError(f"`error` is {error:g}, too large for the answer {answer!r:.60}", reason="out-of-range")
    tolerance = _number(record, "tolerance", MOST_TOLERANCE) or tolerance
    return TaskProblem(text, answer, name, _word("level", record.get("level")), tolerance)


def no_answer(record: Mapping[str, Any]) -> DataError:
    """Make the error for a record without a reference answer in any known field."""
    guess = next((field for field in _PERHAPS_ANSWERS if not _is_empty(record.get(field))), "FIELD")
    return DataError(
        f"no reference answer in any of the fields {', '.join(ANSWER_FIELDS)}, and no \\boxed{{}} in `solution`; "
        f"found the fields {sorted(record)}. Name the field that holds it: --set answer_field={guess}",
        reason="missing-field",
    )


def seems_to_have_an_answer(record: Mapping[str, Any]) -> bool:
    """Whether a record has no known answer field, but one that may hold its answer."""
    has_none = not any(field in record for field in ANSWER_FIELDS)
    return has_none and any(not _is_empty(record.get(field)) for field in _PERHAPS_ANSWERS)


def scalar_text(value: Any) -> str | None:
    """Convert a string or a finite number to a string; None for anything else."""
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
    """Read a number, also one that is written as a string."""
    value = record.get(field)
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= most or number == math.inf:
        limits = "that is 0 or more" if most == math.inf else f"from 0 to {most:,.0f}"
        raise _wrong_type(field, value, f"a number {limits}")
    return number


def _word(field: str, value: Any) -> str:
    text = "" if value is None else scalar_text(value)
    if text is None:
        raise _wrong_type(field, value, "a string or a number")
    return text


def _first(record: Mapping[str, Any], fields: tuple[str, ...]) -> tuple[str, Any]:
    """Return the first of these fields that is not empty, with its value; None if all are empty."""
    return next(((field, record[field]) for field in fields if not _is_empty(record.get(field))), (fields[0], None))


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, list) and not value)


def _wrong_type(field: str, value: Any, expected: str) -> DataError:
    return DataError(f"`{field}` is {shown(value)}, expected {expected}", reason="wrong-type")

"""Tasks: problems with reference answers, and how answers to them are found, judged and grouped.

    task = load_task("math-500-100", "math500/test.jsonl")   # without a file: from the Hugging Face hub
    task = load_task("my-problems.jsonl")                    # fields `problem` and `answer`

Mathematics is graded by `MathGrader`; another kind of task (code, say) needs only another `Grader`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prism_prm.answers import EXTRACTORS, Extraction, Judge, Verdict, extract_answer
from prism_prm.answers.judge import Key
from prism_prm.data.inputs import find_sources, rows
from prism_prm.data.problem_records import TaskProblem as TaskProblem
from prism_prm.data.problem_records import no_answer, problem_of
from prism_prm.data.reader import decode
from prism_prm.errors import ConfigError, DataError
from prism_prm.plugins import Plugins
from prism_prm.types import Advance, ignore


class Grader(Protocol):
    """Finds, judges and groups the answers to one kind of task."""

    def extract(self, text: str) -> Extraction:
        """The answer in a solution, and how it was found."""

    def judge(self, answers: Sequence[tuple[TaskProblem, str | None]], advance: Advance = ignore) -> list[Verdict]:
        """Whether each answer is right."""

    def keys(self, answers: Sequence[str | None], advance: Advance = ignore) -> list[Key]:
        """What each answer votes under; equal keys are equal answers."""


class MathGrader:
    """Grades final answers, with algebra in killable workers; use as a context manager, or call `close`."""

    def __init__(
        self, *, methods: Sequence[str] = tuple(EXTRACTORS), workers: int | None = None, seconds: float = 5.0
    ) -> None:
        unknown = [method for method in methods if method not in EXTRACTORS]
        if unknown or not methods:
            raise ConfigError(f"Unknown ways to extract an answer {unknown}. Known: {', '.join(EXTRACTORS)}.")
        self.methods = tuple(methods)
        self.seconds = seconds
        self._judge = Judge(workers=workers, seconds=seconds)

    def __enter__(self) -> MathGrader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._judge.close()

    def extract(self, text: str) -> Extraction:
        """The answer in a solution, and how it was found."""
        return extract_answer(text, self.methods)

    def judge(self, answers: Sequence[tuple[TaskProblem, str | None]], advance: Advance = ignore) -> list[Verdict]:
        """Whether each answer is right; every problem must have a reference answer."""
        pairs = []
        for problem, answer in answers:
            assert problem.answer is not None, f"a problem without an answer: {problem.text[:60]}"
            pairs.append((problem.answer, answer))
        return self._judge.judge(pairs, [problem.tolerance for problem, _ in answers], advance)

    def keys(self, answers: Sequence[str | None], advance: Advance = ignore) -> list[Key]:
        """What each answer votes under."""
        return self._judge.keys(answers, advance)


@dataclass(frozen=True, slots=True)
class TaskSource:
    """Where a known task comes from and what is special about it."""

    place: str
    """`owner/name[:config]:split` on the hub, or a file."""
    about: str
    tolerance: float = 0.0
    subsample: int | None = None
    """Take this many problems, over all levels in proportion."""


TASKS: dict[str, TaskSource] = {
    "math-500": TaskSource("HuggingFaceH4/MATH-500:test", "500 problems of the MATH test set"),
    "math-500-100": TaskSource("HuggingFaceH4/MATH-500:test", "100 of them, over all levels", subsample=100),
    "aime-2024": TaskSource("HuggingFaceH4/aime_2024:train", "30 problems of AIME I and II 2024"),
    "amc-2023": TaskSource("math-ai/amc23:test", "40 problems of AMC 12 2023"),
    "amc-83": TaskSource("AI-MO/aimo-validation-amc:train", "83 problems of AMC 12 2022 and 2023"),
    "gsm8k": TaskSource("openai/gsm8k:main:test", "1,319 word problems"),
    "minerva": TaskSource("math-ai/minervamath:test", "272 problems of university science", tolerance=0.01),
    "olympiadbench": TaskSource("math-ai/olympiadbench:test", "675 olympiad problems in English, text only"),
}
"""Minerva's references are rounded to two or three digits, so numbers within 1 % are right there."""
_PLUGINS = Plugins(
    "task", TASKS, "prism_prm.tasks", "a TaskSource", lambda found: isinstance(found, TaskSource),
    also="; or a file of problems",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A named list of problems, each with its answer."""

    name: str
    problems: tuple[TaskProblem, ...]


def load_problems(place: str, source: str | Path | None = None) -> Task:
    """A task, a file of problems, or a hub dataset named by its id (`owner/name[:config]:split`)."""
    if source is None and "/" in place and place not in _PLUGINS.names() and not Path(place).exists():
        return Task(place, tuple(read_problems(place)))
    return load_task(place, source)


def load_task(name: str, source: str | Path | None = None, *, answer_field: str | None = None) -> Task:
    """A task of TASKS, from a local `source` or else from the hub; or, if `name` is a file, your own problems.

    Installed packages may add tasks (docs/plugins.md).
    Hyphens in a task's name may be left out: `math500` is `math-500`.

    Args:
        name: math-500, aime-2024, gsm8k, …, or a file of problems with answers.
        source: a local copy of the task.
        answer_field: the field that holds the reference answer; default: `answer` and its common synonyms.

    Example:
        >>> task = load_task("problems.jsonl")
        >>> task.problems[0].answer
        '3'
    """
    names = _PLUGINS.names()
    name = next((task for task in names if task.replace("-", "") == name.lower().replace("-", "")), name)
    its_own = name not in names and (source is not None or Path(name).exists())
    known = None if its_own else _PLUGINS.find(name)
    where = source or (known.place if known else name)
    problems = list(read_problems(where, tolerance=known.tolerance if known else 0.0, answer_field=answer_field))
    if known and known.subsample:
        problems = subsample(problems, known.subsample)
    return Task(name if known else Path(name).stem, tuple(problems))


def read_problems(
    source: str | Path, *, tolerance: float = 0.0, answer_field: str | None = None
) -> Iterator[TaskProblem]:
    """The problems of a file, folder or hub dataset; each must have an answer."""
    for found in find_sources([source]):
        for row in rows(found):
            try:
                record = decode(row, dict[str, Any])
                problem = problem_of(record, tolerance, answer_field=answer_field)
                if problem.answer is None:
                    raise no_answer(record)
            except DataError as error:
                raise DataError(f"{row.where}: {error}", reason=error.reason) from error
            yield problem


def subsample(problems: Sequence[TaskProblem], size: int) -> list[TaskProblem]:
    """`size` problems in their order, each level in proportion to its share; which ones depends on their text alone."""
    if size >= len(problems):
        return list(problems)
    levels: dict[str, list[int]] = defaultdict(list)
    for i, problem in enumerate(problems):
        levels[problem.level].append(i)
    quotas = {level: size * len(members) / len(problems) for level, members in levels.items()}
    seats = Counter({level: int(quota) for level, quota in quotas.items()})
    for level in sorted(quotas, key=lambda level: (seats[level] - quotas[level], level))[: size - seats.total()]:
        seats[level] += 1
    chosen = [i for level in levels for i in sorted(levels[level], key=lambda i: _lot(problems[i]))[: seats[level]]]
    return [problems[i] for i in sorted(chosen)]


def _lot(problem: TaskProblem) -> bytes:
    """A random-looking rank that neither a seed nor the order of a file can change."""
    return hashlib.blake2b(problem.text.strip().encode(), digest_size=8).digest()

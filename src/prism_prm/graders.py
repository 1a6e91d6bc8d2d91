"""How the answers to problems are found, judged and grouped: a final answer is compared, a program is run.

    with TaskGrader() as grader:
        right = right_ones(grader, problem, texts)

A problem says itself how it is judged: by its `answer`, or by its `tests`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from prism_prm.answers import EXTRACTORS, Extraction, Judge, Verdict, extract_answer
from prism_prm.answers.judge import Key
from prism_prm.console import Advance, ignore
from prism_prm.data.problem_records import TaskProblem
from prism_prm.errors import ConfigError
from prism_prm.programs import Level
from prism_prm.programs.cases import Tests
from prism_prm.programs.extract import find_program

if TYPE_CHECKING:
    from prism_prm.programs.judge import ProgramJudge

T = TypeVar("T")
Answers = Sequence[tuple[TaskProblem, str | None]]
"""Problems and answers to them; None where a solution has none. The answer to a code problem is a program."""


class Grader(Protocol):
    """Finds, judges and groups the answers to problems."""

    def extract(self, problem: TaskProblem, text: str) -> Extraction:
        """The answer in a solution, and how it was found."""

    def judge(self, answers: Answers, advance: Advance = ignore) -> list[Verdict]:
        """Whether each answer is right."""

    def keys(self, answers: Answers, advance: Advance = ignore) -> list[Key]:
        """What each answer votes under; equal keys of a problem are equal answers."""


def unguarded(sandbox: str, problems: Iterable[TaskProblem]) -> list[str]:
    """A warning for reports where programs ran without a sandbox."""
    ran = sandbox == "none" and any(problem.tests is not None for problem in problems)
    return ["Warning: programs ran WITHOUT a sandbox (--sandbox none): they could do whatever you may do."] * ran


def right_ones(grader: Grader, problem: TaskProblem, texts: Sequence[str]) -> list[bool]:
    """Whether each solution of a problem is right."""
    answers = [(problem, grader.extract(problem, text).answer) for text in texts]
    return [verdict.correct for verdict in grader.judge(answers)]


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

    def extract(self, _problem: TaskProblem, text: str) -> Extraction:
        """The answer in a solution, and how it was found."""
        return extract_answer(text, self.methods)

    def judge(self, answers: Answers, advance: Advance = ignore) -> list[Verdict]:
        """Whether each answer is right; every problem must have a reference answer."""
        pairs = []
        for problem, answer in answers:
            assert problem.answer is not None, f"a problem without an answer: {problem.text[:60]}"
            pairs.append((problem.answer, answer))
        return self._judge.judge(pairs, [problem.tolerance for problem, _ in answers], advance)

    def keys(self, answers: Answers, advance: Advance = ignore) -> list[Key]:
        """What each answer votes under."""
        return self._judge.keys([answer for _, answer in answers], advance)


class TaskGrader:
    """Grades every problem in its own way: final answers by `MathGrader`, programs by running them in a sandbox.

    The sandbox is opened for the first program, or by `prepare`.
    """

    def __init__(
        self,
        *,
        methods: Sequence[str] = tuple(EXTRACTORS),
        workers: int | None = None,
        seconds: float = 5.0,
        sandbox: Level = "auto",
    ) -> None:
        self.math = MathGrader(methods=methods, workers=workers, seconds=seconds)
        self.sandbox = sandbox
        self.workers = workers
        self._programs: ProgramJudge | None = None

    def __enter__(self) -> TaskGrader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self.math.close()
        if self._programs is not None:
            self._programs.close()

    def prepare(self, problems: Iterable[TaskProblem]) -> None:
        """Open the sandbox where a problem needs it: one that does not hold is to stop work before it begins."""
        if any(problem.tests is not None for problem in problems):
            self.programs.open()

    @property
    def programs(self) -> ProgramJudge:
        """The judge of programs."""
        if self._programs is None:
            from prism_prm.programs.judge import ProgramJudge

            self._programs = ProgramJudge(sandbox=self.sandbox, workers=self.workers)
        return self._programs

    def extract(self, problem: TaskProblem, text: str) -> Extraction:
        """The answer in a solution, or its program, and how it was found."""
        return self.math.extract(problem, text) if problem.tests is None else find_program(text)

    def judge(self, answers: Answers, advance: Advance = ignore) -> list[Verdict]:
        """Whether each answer is right: equal to the reference, or a program that passes all tests."""
        return self._each(answers, self.math.judge, lambda some: self.programs.judge(some, advance), advance)

    def keys(self, answers: Answers, advance: Advance = ignore) -> list[Key]:
        """What each answer votes under: its value, or what the program does on the public tests."""
        return self._each(answers, self.math.keys, lambda some: self.programs.keys(some, advance), advance)

    def _each(
        self,
        answers: Answers,
        by_answer: Callable[[Answers, Advance], list[T]],
        by_tests: Callable[[list[tuple[Tests, str | None]]], list[T]],
        advance: Advance,
    ) -> list[T]:
        """What one or the other says, in order."""
        programs = [(problem.tests, program) for problem, program in answers if problem.tests is not None]
        rest = [pair for pair in answers if pair[0].tests is None]
        ran, compared = iter(by_tests(programs) if programs else []), iter(by_answer(rest, advance) if rest else [])
        return [next(compared) if problem.tests is None else next(ran) for problem, _ in answers]

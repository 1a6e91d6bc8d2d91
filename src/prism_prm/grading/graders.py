"""Extract, judge and group the answers to problems: final answers are compared, programs are run.

    with TaskGrader() as grader:
        answers = [(problem, grader.extract(problem, text).answer) for text in texts]
        verdicts = grader.judge(answers)

A problem is judged by its `answer` or by its `tests`. Plain numbers and words are compared directly; only if that is
not enough, worker processes use algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError
from prism_prm.grading.extract import EXTRACTORS, Extraction, extract_answer, find_program
from prism_prm.grading.plain_answers import normalize, plain_key, same_plainly, text_key
from prism_prm.grading.problems import ProgramTests, TaskProblem
from prism_prm.grading.process_pool import Outcome, PoolCall, ProcessPool

if TYPE_CHECKING:
    from prism_prm.grading.program_judge import ProgramJudge

_MAX_LENGTH = 2_000
"""Longer answers are compared only as text: no final answer is that long."""
Status = Literal[
    "ok", "timeout", "error", "too long", "no answer", "memory", "output", "sandbox", "no public tests",
]  # fmt: skip
"""The outcome of a comparison. After "timeout", "error" and "too long", an answer was compared only as text; a program
that ended with "timeout", "error" or "memory" did not pass. All are counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and whether the comparison finished."""

    correct: bool
    status: Status = "ok"
    tests: tuple[str, ...] = field(default=(), compare=False)
    """For a program: how each test ended, "passed", "failed", a `Status`, or "not run"; public tests come first."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key under which an answer votes: equal keys of one problem are one answer. None casts no vote."""

    key: str | None
    status: Status = "ok"
    passed: bool | None = None
    """For a program: whether it passes the public tests; None if there are none."""
    tests: tuple[str, ...] = field(default=(), compare=False)
    """For a program: how each public test ended, as in a `Verdict`."""


class Judge:
    """Judges final answers and caches its verdicts. Use it as a context manager, or call `close`."""

    def __init__(self, *, workers: int | None = None, seconds: float = 5.0) -> None:
        self._pool = ProcessPool("prism_prm.grading.symbolic", count=workers, cpu_seconds=seconds)
        self._known: dict[PoolCall, Outcome] = {}

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def judge(
        self,
        pairs: Sequence[tuple[object, object | None]],
        tolerances: Sequence[float] | None = None,
        advance: Advance = ignore,
    ) -> list[Verdict]:
        """Judge every (reference, answer); `tolerances` are relative, for numbers, one per pair.

        Values other than strings (`true` or 12 in a file) are converted to strings; None means no answer.
        """
        results: list[Verdict | PoolCall] = []
        for (reference, answer), tolerance in zip(pairs, tolerances or [0.0] * len(pairs), strict=True):
            a, b = str(reference), str(answer)
            if answer is None:
                results.append(Verdict(False, "no answer"))
            elif max(len(a), len(b)) > _MAX_LENGTH:
                results.append(Verdict(text_key(a) == text_key(b), "too long"))
            else:
                a, b = normalize(a), normalize(b)
                same = same_plainly(a, b, tolerance)
                results.append(("equivalent", (a, b, tolerance)) if same is None else Verdict(same))
        self._run([call for call in results if isinstance(call, tuple)], len(pairs), advance)
        return [
            each if isinstance(each, Verdict) else Verdict(bool(self._known[each].value), self._known[each].status)
            for each in results
        ]

    def keys(self, answers: Sequence[object | None], advance: Advance = ignore) -> list[Key]:
        """Return the key of every answer."""
        results: list[Key | PoolCall] = []
        for answer in answers:
            text = str(answer)
            if answer is None:
                results.append(Key(None, "no answer"))
            elif len(text) > _MAX_LENGTH:
                results.append(Key(text_key(text), "too long"))
            else:
                text = normalize(text)
                key = plain_key(text)
                results.append(("key", (text,)) if key is None else Key(key))
        self._run([call for call in results if isinstance(call, tuple)], len(answers), advance)
        for i, call in enumerate(results):
            if isinstance(call, tuple):
                outcome = self._known[call]
                results[i] = Key(outcome.value if outcome.status == "ok" else text_key(call[1][0]), outcome.status)
        return [key for key in results if isinstance(key, Key)]

    def forget(self, most: int) -> None:
        """Clear the cache if it has more than this many outcomes."""
        if len(self._known) > most:
            self._known.clear()

    def _run(self, calls: Sequence[PoolCall], num_items: int, advance: Advance) -> None:
        """Run the calls whose outcomes are not cached; equal calls run once."""
        new = [call for call in dict.fromkeys(calls) if call not in self._known]
        advance(num_items - len(new))
        if new:
            self._known.update(zip(new, self._pool.run(new, advance), strict=True))


T = TypeVar("T")
Answers = Sequence[tuple[TaskProblem, str | None]]
"""Problems and answers to them; None if a solution has none. The answer to a code problem is a program."""


class Grader(Protocol):
    """Extracts, judges and groups the answers to problems."""

    def extract(self, problem: TaskProblem, text: str) -> Extraction:
        """Extract the answer from a solution."""

    def judge(self, answers: Answers, advance: Advance = ignore) -> list[Verdict]:
        """Judge whether each answer is right."""

    def keys(self, answers: Answers, advance: Advance = ignore) -> list[Key]:
        """Return the key under which each answer votes; equal keys of a problem are equal answers."""


def unguarded(sandbox: str, problems: Iterable[TaskProblem]) -> list[str]:
    """Return a warning for reports if programs ran without a sandbox."""
    ran = sandbox == "none" and any(problem.tests is not None for problem in problems)
    return ["Warning: programs ran WITHOUT a sandbox (sandbox=none): they could do whatever you may do."] * ran


class TaskGrader:
    """Grades final answers with a `Judge`, and programs by running them in a sandbox.

    Use it as a context manager, or call `close`. The sandbox opens with the first program, or in `prepare`.
    """

    def __init__(
        self,
        *,
        methods: Sequence[str] = tuple(EXTRACTORS),
        workers: int | None = None,
        seconds: float = 5.0,
        sandbox: str = "auto",
    ) -> None:
        unknown = [method for method in methods if method not in EXTRACTORS]
        if unknown or not methods:
            raise ConfigError(f"Unknown methods to extract an answer {unknown}. Known: {', '.join(EXTRACTORS)}.")
        self.methods = tuple(methods)
        self.workers = workers
        self.seconds = seconds
        self.sandbox = sandbox
        self._answers = Judge(workers=workers, seconds=seconds)
        self._programs: ProgramJudge | None = None

    def __enter__(self) -> TaskGrader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._answers.close()
        if self._programs is not None:
            self._programs.close()

    def prepare(self, problems: Iterable[TaskProblem]) -> None:
        """Open the sandbox if a problem needs it, to report one that does not work before long work starts."""
        if any(problem.tests is not None for problem in problems):
            self.programs.open()

    def extract(self, problem: TaskProblem, text: str) -> Extraction:
        """Extract the answer, or the program, from a solution."""
        return extract_answer(text, self.methods) if problem.tests is None else find_program(text)

    def judge(self, answers: Answers, advance: Advance = ignore) -> list[Verdict]:
        """Judge whether each answer equals the reference, or is a program that passes all tests."""

        def compare(plain: Answers) -> list[Verdict]:
            for problem, _ in plain:
                assert problem.answer is not None, f"a problem without an answer: {problem.text[:60]}"
            pairs = [(problem.answer, answer) for problem, answer in plain]
            return self._answers.judge(pairs, [problem.tolerance for problem, _ in plain], advance)

        return _in_order(answers, compare, lambda programs: self.programs.judge(programs, advance))

    def keys(self, answers: Answers, advance: Advance = ignore) -> list[Key]:
        """Return the key under which each answer votes: its value, or the program's output on the public tests."""
        return _in_order(
            answers,
            lambda plain: self._answers.keys([answer for _, answer in plain], advance),
            lambda programs: self.programs.keys(programs, advance),
        )

    @property
    def programs(self) -> ProgramJudge:
        """The judge of programs, opened on first use."""
        if self._programs is None:
            from prism_prm.grading.program_judge import ProgramJudge

            self._programs = ProgramJudge(sandbox=self.sandbox, workers=self.workers)
        return self._programs


def _in_order(
    answers: Answers,
    compare: Callable[[Answers], list[T]],
    run: Callable[[list[tuple[ProgramTests, str | None]]], list[T]],
) -> list[T]:
    """Call `compare` on final answers and `run` on programs; returns the results in the answers' order."""
    programs = [(problem.tests, program) for problem, program in answers if problem.tests is not None]
    others = [pair for pair in answers if pair[0].tests is None]
    ran, compared = iter(run(programs) if programs else []), iter(compare(others) if others else [])
    return [next(compared) if problem.tests is None else next(ran) for problem, _ in answers]


Level = Literal["auto", "bubblewrap", "landlock", "none"]
"""The sandbox for programs; auto is the best that works on this machine, and never none."""

"""Run programs on tests, and say which are right and which do the same.

Expected values stay here: the sandbox gets a program and its input, and gives back what was printed or returned.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from prism_prm.answers.judge import Key, Status, Verdict
from prism_prm.answers.workers import Workers
from prism_prm.programs import Level, compare, values
from prism_prm.programs.cases import SECONDS, Case, Tests
from prism_prm.programs.compare import is_right, printed_key, returned_key, returned_right
from prism_prm.sandbox import WALL_PER_CPU, Call, Limits, Program, Run, Sandbox, SandboxError
from prism_prm.types import Advance, ignore

AT_ONCE = 64
"""Programs that are judged side by side; only their problems' tests are in memory."""
WAITS = (1.0, 5.0, 15.0)
"""Seconds before a program that could not be started is tried again: machines are short of something for a while."""
COMPARING = 5.0
"""Seconds of CPU time for comparing one returned value."""
SHORT = 10_000
"""Characters of a returned value, as JSON, that is compared in this process. To compare a longer one may take any time,
so another process does, with a limit."""
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
"""How a test may end, beside the ways in which a run may fail; a program is not run behind the first that it fails."""
T = TypeVar("T")
Asked = tuple[Tests, str | None]
"""A problem's tests and a program; None where a solution has no program."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A program on some tests."""

    tests: Tests
    program: str
    cases: Sequence[Case]


class ProgramJudge:
    """Judges programs in a sandbox, which is opened when it is needed."""

    def __init__(self, *, sandbox: Level = "auto", workers: int | None = None) -> None:
        self.level = sandbox
        self.workers = workers
        self._box: Sandbox | None = None
        self._comparing = Workers(compare.__name__, count=1, cpu_seconds=COMPARING)

    def close(self) -> None:
        """End the process that compares."""
        self._comparing.close()

    def judge(self, asked: Sequence[Asked], advance: Advance = ignore) -> list[Verdict]:
        """Whether each program passes all its tests; it is stopped at the first that it fails."""
        return self._each(asked, Verdict(False, "no answer"), self._verdicts, advance)

    def keys(self, asked: Sequence[Asked], advance: Advance = ignore) -> list[Key]:
        """What each program votes under: all that it prints or returns on the public tests.

        One that fails to run on any of them casts no vote. Without public tests all programs are one group.
        """
        shown = {id(tests): tests.shown() for tests, _ in asked}
        asked = [(shown[id(tests)], program) for tests, program in asked]
        return self._each(asked, Key(None, "no answer"), self._public_keys, advance)

    def _each(
        self, asked: Sequence[Asked], nothing: T, answer: Callable[[Sequence[tuple[Tests, str]]], list[T]],
        advance: Advance,
    ) -> list[T]:  # fmt: skip
        """One answer per question; equal ones are asked once, in portions."""
        found: dict[tuple[int, str], T] = {}
        open_ones = {(id(tests), program): (tests, program) for tests, program in asked if program is not None}
        waiting = list(open_ones.items())
        advance(len(asked) - len(waiting))
        for start in range(0, len(waiting), AT_ONCE):
            portion = waiting[start : start + AT_ONCE]
            answers = answer([one for _, one in portion])
            found |= zip([key for key, _ in portion], answers, strict=True)
            advance(len(portion))
        return [nothing if program is None else found[id(tests), program] for tests, program in asked]

    def _verdicts(self, asked: Sequence[tuple[Tests, str]]) -> list[Verdict]:
        cases = {id(tests): tests.judged() for tests, _ in asked}
        assert all(cases.values()), "a problem that is judged has tests"
        verdicts: list[Verdict | None] = [None] * len(asked)
        ended: list[list[str]] = [[] for _ in asked]
        waiting = {i: cases[id(tests)] for i, (tests, _) in enumerate(asked)}
        size = 1
        # A wrong program mostly fails at once, so the first round is one test, and each further round twice as many.
        # All calls of a function take one process, which ends with the first call that does not return.
        while waiting:
            sizes = {i: len(some) if asked[i][0].function else size for i, some in waiting.items()}
            trials = [_Trial(*asked[i], some[: sizes[i]]) for i, some in waiting.items()]
            for i, trial, runs in zip(list(waiting), trials, self._run(trials), strict=True):
                ended[i] += self._endings(trial, runs)
                verdicts[i] = _failure(ended[i])
            waiting = {i: rest for i, some in waiting.items() if verdicts[i] is None and (rest := some[sizes[i] :])}
            size *= 2
        return [
            replace(verdict or Verdict(True), tests=(*own, *[NOT_RUN] * (len(cases[id(tests)]) - len(own))))
            for verdict, own, (tests, _) in zip(verdicts, ended, asked, strict=True)
        ]

    def _public_keys(self, asked: Sequence[tuple[Tests, str]]) -> list[Key]:
        trials = [_Trial(tests, program, tests.public) for tests, program in asked]
        return [self._key(trial, runs) for trial, runs in zip(trials, self._run(trials), strict=True)]

    def _endings(self, trial: _Trial, runs: Sequence[Run]) -> list[str]:
        """How each test ended; those behind the first one that is not passed say no more about the program."""
        ended: list[str] = []
        for case, run in zip(trial.cases, runs, strict=True):
            if ended and ended[-1] != PASSED:
                return ended
            ended.append(self._ending(trial, case, run))
        return ended

    def _ending(self, trial: _Trial, case: Case, run: Run) -> str:
        if run.status != "ok":
            return run.status
        if trial.tests.function is None:
            right: bool = is_right(case, _printed(run), tuples_are_lists=False)
        elif _is_short(run.value):
            right = returned_right(case, run.value, trial.tests.tuples_are_lists)
        else:
            arguments = (case.to_json(), run.value, trial.tests.tuples_are_lists)
            (outcome,) = self._comparing.run([("long_returned_right", arguments)])
            if outcome.status != "ok":
                return outcome.status
            right = outcome.value
        return PASSED if right else FAILED

    def _key(self, trial: _Trial, runs: Sequence[Run]) -> Key:
        if not runs:
            return Key("", "no public tests")  # nothing tells the programs apart, so they are one group
        failed = next((run.status for run in runs if run.status != "ok"), None)
        ended = tuple(self._ending(trial, case, run) for case, run in zip(trial.cases, runs, strict=True))
        if failed is not None:
            return Key(None, failed, passed=False, tests=ended)
        did = [self._spelled(trial, run) for run in runs]
        if None in did:
            return Key(None, "error", passed=False, tests=ended)
        digest = hashlib.blake2b(repr(did).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return Key(digest, passed=_failure(ended) is None, tests=ended)

    def _spelled(self, trial: _Trial, run: Run) -> str | None:
        """Equal for equal outputs; None for a value that cannot be told from others, or not in time."""
        if trial.tests.function is None:
            return printed_key(_printed(run))
        if _is_short(run.value):
            return returned_key(run.value, trial.tests.tuples_are_lists)
        (outcome,) = self._comparing.run([("returned_key", (run.value, trial.tests.tuples_are_lists))])
        return cast("str | None", outcome.value)

    def _run(self, trials: Sequence[_Trial]) -> list[list[Run]]:
        """What each program does on each of its tests, over all cores."""
        found: list[list[Run]] = [[] for _ in trials]
        for seconds in {trial.tests.seconds for trial in trials}:
            mine = [i for i, trial in enumerate(trials) if trial.tests.seconds == seconds and trial.cases]
            jobs = [(i, job) for i in mine for job in _jobs(trials[i])]
            for (i, _), runs in zip(jobs, _outcomes(self._within(seconds), [job for _, job in jobs]), strict=True):
                found[i] += runs
        return found

    def open(self) -> None:
        """Open the sandbox now, so that one that does not work is found before long work."""
        self._within(SECONDS)

    def _within(self, seconds: float) -> Sandbox:
        """The sandbox, with this limit; it is opened, and proved to hold, when the first program comes."""
        limits = Limits(cpu=seconds, wall=WALL_PER_CPU * seconds)
        if self._box is None:
            self._box = Sandbox(level=self.level, limits=limits, workers=self.workers)
        return self._box.with_limits(limits)


def _outcomes(box: Sandbox, jobs: Sequence[Program | Call]) -> list[list[Run]]:
    """What each job gives; one that could not be started says nothing about its program, and is tried again alone."""
    found = [_runs(one) for one in box.map(jobs)]
    for i, job in enumerate(jobs):
        for wait in (*WAITS, None):
            lost = next((run for run in found[i] if run.status == "sandbox"), None)
            if lost is None:
                break
            if wait is None:
                why = lost.stderr.decode("utf-8", "replace").strip()[:300]
                raise SandboxError(
                    f"a program could not be started in the sandbox, {len(WAITS) + 1} times: {why}. Free memory or "
                    "processes, and run the same command again."
                )
            time.sleep(wait)
            (found[i],) = map(_runs, box.map([job]))
    return found


def _runs(outcome: Run | list[Run]) -> list[Run]:
    return outcome if isinstance(outcome, list) else [outcome]


def _jobs(trial: _Trial) -> Iterator[Program | Call]:
    """The runs of a program: all calls of a function in one process, or one process per input."""
    code = runnable(trial.program, trial.tests)
    if trial.tests.function is not None:
        yield Call(code, _CALL, [[values.encode(value) for value in case.given] for case in trial.cases])
        return
    for case in trial.cases:
        yield Program(code, case.given.encode("utf-8", "surrogatepass"))


_CALL = "_prism_call"
_GLUE = """
import types as _prism_types
_prism_values = _prism_types.ModuleType("values")
exec({source!r}, _prism_values.__dict__)
_prism_owner = Solution() if "Solution" in globals() else None
_prism_function = getattr(_prism_owner, {function!r}, None) or {function}

def _prism_call(*arguments):
    return _prism_values.encode(_prism_function(*[_prism_values.decode(one) for one in arguments]))
"""


def runnable(program: str, tests: Tests) -> str:
    """The program as it is run: behind its prelude, and with a function that carries values in and out."""
    # Compiled apart, since `from __future__ import …` must come first in its file.
    code = f"{tests.prelude}\nexec(compile({program!r}, 'program.py', 'exec'))\n" if tests.prelude else program
    if tests.function is None:
        return code
    return code + _GLUE.format(source=_values_source(), function=tests.function)


@cache
def _values_source() -> str:
    return Path(values.__file__).read_text(encoding="utf-8")


def _failure(ended: Sequence[str]) -> Verdict | None:
    """The verdict on the first test that is not passed; None where all are."""
    first = next((one for one in ended if one != PASSED), None)
    if first is None:
        return None
    return Verdict(False) if first == FAILED else Verdict(False, cast(Status, first))


def _printed(run: Run) -> str:
    return run.stdout.decode("utf-8", "replace")


def _is_short(value: Any) -> bool:
    try:
        return len(json.dumps(value)) <= SHORT
    except RecursionError:  # nested so deeply that nobody reads it
        return True

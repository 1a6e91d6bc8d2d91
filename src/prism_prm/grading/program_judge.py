"""Run programs on tests, judge which are right, and group those with the same output.

Expected values stay in this process: the sandbox gets only a program and its input, and returns its output.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from prism_prm.console import Advance, ignore
from prism_prm.grading import compare_outputs, value_codec
from prism_prm.grading.compare_outputs import is_right, printed_key, returned_key, returned_right
from prism_prm.grading.graders import Key, Status, Verdict
from prism_prm.grading.problems import SECONDS, Case, ProgramTests
from prism_prm.grading.process_pool import ProcessPool
from prism_prm.grading.sandbox import Call, Program, RunResult, Sandbox
from prism_prm.grading.sandbox_policy import WALL_PER_CPU, Limits, SandboxError

CHUNK = 64
"""The number of programs judged together; only their problems' tests are in memory."""
RETRY_WAITS = (1.0, 5.0, 15.0)
"""Seconds before each retry of a program that could not be started, for example for lack of memory."""
COMPARE_SECONDS = 5.0
"""CPU time for comparing one returned value."""
_SHORT = 10_000
"""Returned values of up to this many characters of JSON are compared in this process. Comparing a longer one may take
any time, so another process does it, with a time limit."""
_PASSED, _FAILED, _NOT_RUN = "passed", "failed", "not run"
"""How a test may end, besides the ways in which a run may fail; tests after the first failure are not run."""
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
T = TypeVar("T")


class _Trial(NamedTuple):
    """A program to run on some tests."""

    tests: ProgramTests
    program: str
    cases: Sequence[Case]


class ProgramJudge:
    """Judges programs in a sandbox, which opens on first use."""

    def __init__(self, *, sandbox: str = "auto", workers: int | None = None) -> None:
        self.level = sandbox
        self.workers = workers
        self._sandbox: Sandbox | None = None
        self._comparing = ProcessPool(compare_outputs.__name__, count=1, cpu_seconds=COMPARE_SECONDS)

    def close(self) -> None:
        """End the process that compares values."""
        self._comparing.close()

    def open(self) -> None:
        """Open the sandbox now, to report one that does not work before long work starts."""
        self._with_limit(SECONDS)

    def judge(self, programs: Sequence[tuple[ProgramTests, str | None]], advance: Advance = ignore) -> list[Verdict]:
        """Judge whether each program passes all its tests; stops at the first test that it fails."""
        return self._each(programs, Verdict(False, "no answer"), self._verdicts, advance)

    def keys(self, programs: Sequence[tuple[ProgramTests, str | None]], advance: Advance = ignore) -> list[Key]:
        """Return the key under which each program votes: its output on all public tests.

        A program that fails to run on any of them casts no vote. Without public tests all programs are one group.
        """
        by_id = {id(tests): tests.public_only() for tests, _ in programs}
        public = [(by_id[id(tests)], program) for tests, program in programs]
        return self._each(public, Key(None, "no answer"), self._keys, advance)

    def _each(
        self, programs: Sequence[tuple[ProgramTests, str | None]], nothing: T,
        answer: Callable[[Sequence[tuple[ProgramTests, str]]], list[T]], advance: Advance,
    ) -> list[T]:  # fmt: skip
        """Call `answer` on the distinct programs in chunks; returns one result per program."""
        results: dict[tuple[int, str], T] = {}
        distinct = {(id(tests), program): (tests, program) for tests, program in programs if program is not None}
        keys = list(distinct)
        advance(len(programs) - len(keys))
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            results |= zip(chunk, answer([distinct[key] for key in chunk]), strict=True)
            advance(len(chunk))
        return [nothing if program is None else results[id(tests), program] for tests, program in programs]

    def _verdicts(self, programs: Sequence[tuple[ProgramTests, str]]) -> list[Verdict]:
        cases = {id(tests): tests.judged() for tests, _ in programs}
        assert all(cases.values()), "a problem that is judged has tests"
        ended: list[list[str]] = [[] for _ in programs]
        pending = {i: cases[id(tests)] for i, (tests, _) in enumerate(programs)}
        size = 1
        # Wrong programs mostly fail at once, so the first round is one test, and each further round twice as many.
        # All calls of a function share one process, which ends with the first call that does not return.
        while pending:
            sizes = {i: len(left) if programs[i][0].function else size for i, left in pending.items()}
            trials = [_Trial(*programs[i], left[: sizes[i]]) for i, left in pending.items()]
            for i, trial, runs in zip(pending, trials, self._run(trials), strict=True):
                for case, run in zip(trial.cases, runs, strict=True):
                    ended[i].append(self._ending(trial.tests, case, run))
                    if ended[i][-1] != _PASSED:  # later tests do not change the verdict
                        break
            pending = {i: rest for i, left in pending.items() if ended[i][-1] == _PASSED and (rest := left[sizes[i] :])}
            size *= 2
        return [
            Verdict(
                own[-1] == _PASSED,
                "ok" if own[-1] in (_PASSED, _FAILED) else cast(Status, own[-1]),
                (*own, *[_NOT_RUN] * (len(cases[id(tests)]) - len(own))),
            )
            for own, (tests, _) in zip(ended, programs, strict=True)
        ]

    def _keys(self, programs: Sequence[tuple[ProgramTests, str]]) -> list[Key]:
        trials = [_Trial(tests, program, tests.public) for tests, program in programs]
        keys = []
        for trial, runs in zip(trials, self._run(trials), strict=True):
            if not runs:  # without tests, all programs are one group
                keys.append(Key("", "no public tests"))
                continue
            ended = tuple(self._ending(trial.tests, case, run) for case, run in zip(trial.cases, runs, strict=True))
            failed = next((run.status for run in runs if run.status != "ok"), None)
            outputs = [] if failed else [self._output_key(trial.tests, run) for run in runs]
            if failed or None in outputs:
                keys.append(Key(None, failed or "error", passed=False, tests=ended))
                continue
            digest = hashlib.blake2b(repr(outputs).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
            keys.append(Key(digest, passed=set(ended) == {_PASSED}, tests=ended))
        return keys

    def _ending(self, tests: ProgramTests, case: Case, run: RunResult) -> str:
        """Return how one test ended."""
        if run.status != "ok":
            return run.status
        if tests.function is None:
            right: bool = is_right(case, run.stdout.decode("utf-8", "replace"), tuples_are_lists=False)
        elif _is_short(run.value):
            right = returned_right(case, run.value, tests.tuples_are_lists)
        else:
            arguments = (case.to_json(), run.value, tests.tuples_are_lists)
            (outcome,) = self._comparing.run([("returned_right", arguments)])
            if outcome.status != "ok":
                return outcome.status
            right = outcome.value
        return _PASSED if right else _FAILED

    def _output_key(self, tests: ProgramTests, run: RunResult) -> str | None:
        """Return a key that equal outputs share; None for a value that cannot be compared, or not in time."""
        if tests.function is None:
            return printed_key(run.stdout.decode("utf-8", "replace"))
        if _is_short(run.value):
            return returned_key(run.value, tests.tuples_are_lists)
        (outcome,) = self._comparing.run([("returned_key", (run.value, tests.tuples_are_lists))])
        return cast("str | None", outcome.value)

    def _run(self, trials: Sequence[_Trial]) -> list[list[RunResult]]:
        """Run each program on each of its tests, on all cores."""
        results: list[list[RunResult]] = [[] for _ in trials]
        for seconds in {trial.tests.seconds for trial in trials}:
            jobs: list[tuple[int, Program | Call]] = []
            for i, (tests, program, cases) in enumerate(trials):
                if tests.seconds != seconds or not cases:
                    continue
                code = _with_harness(program, tests)
                if tests.function is not None:
                    arguments = [[value_codec.encode(value) for value in case.given] for case in cases]
                    jobs.append((i, Call(code, _CALL, arguments)))
                else:
                    jobs += [(i, Program(code, case.given.encode("utf-8", "surrogatepass"))) for case in cases]
            outcomes = _run_with_retries(self._with_limit(seconds), [job for _, job in jobs])
            for (i, _), runs in zip(jobs, outcomes, strict=True):
                results[i] += runs
        return results

    def _with_limit(self, seconds: float) -> Sandbox:
        """Return the sandbox with this time limit; the first call opens it and runs its self-test."""
        limits = Limits(cpu=seconds, wall=WALL_PER_CPU * seconds)
        if self._sandbox is None:
            self._sandbox = Sandbox(level=self.level, limits=limits, workers=self.workers)
        return self._sandbox.with_limits(limits)


def _run_with_retries(sandbox: Sandbox, jobs: Sequence[Program | Call]) -> list[list[RunResult]]:
    """Run jobs; a job that could not be started is retried alone, because that is no verdict on its program."""

    def run(batch: Sequence[Program | Call]) -> list[list[RunResult]]:
        return [runs if isinstance(runs, list) else [runs] for runs in sandbox.map(batch)]

    results = run(jobs)
    for i, job in enumerate(jobs):
        for wait in (*RETRY_WAITS, None):
            failed = next((result for result in results[i] if result.status == "sandbox"), None)
            if failed is None:
                break
            if wait is None:
                reason = failed.stderr.decode("utf-8", "replace").strip()[:300]
                raise SandboxError(
                    f"a program could not be started in the sandbox, {len(RETRY_WAITS) + 1} times: {reason}. Free "
                    "memory or processes, and rerun the same command."
                )
            time.sleep(wait)
            (results[i],) = run([job])
    return results


def _with_harness(program: str, tests: ProgramTests) -> str:
    """Add the prelude to a program, and a function that converts arguments and results."""
    # Compiled separately, because `from __future__ import …` must come first in its file.
    code = f"{tests.prelude}\nexec(compile({program!r}, 'program.py', 'exec'))\n" if tests.prelude else program
    if tests.function is None:
        return code
    source = Path(value_codec.__file__).read_text(encoding="utf-8")
    return code + _GLUE.format(source=source, function=tests.function)


def _is_short(value: Any) -> bool:
    try:
        return len(json.dumps(value)) <= _SHORT
    except RecursionError:  # nested too deeply to compare in either process
        return True

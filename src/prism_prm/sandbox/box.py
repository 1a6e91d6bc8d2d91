"""The sandbox: runs programs that nobody has read, at the best level of isolation that works on this machine."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import marshal
import platform
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from prism_prm.cores import available_cores
from prism_prm.errors import SettingError
from prism_prm.ranges import Count, fault
from prism_prm.sandbox import inside, seccomp
from prism_prm.sandbox.levels import ENVIRONMENT, LEVELS, Level, check_machine, resource_limits, start, user_at
from prism_prm.sandbox.process import Ended, run_process
from prism_prm.sandbox.records import MEBI, Job, Limits, Program, Run, SandboxError, Status
from prism_prm.sandbox.self_test import prove

Item = TypeVar("Item")
Result = TypeVar("Result")
_BOOT = """
import marshal
with open({}, "rb") as sent:
    code, job = marshal.load(sent)
names = dict(__name__="inside")
exec(code, names)
names["main"](job)
"""
_PLACES = 256
"""Runs at the same time, each as a user of its own where the sandbox is started by root."""
_REPORTED: tuple[Status, ...] = ("ok", "memory", "error")


@functools.cache
def _inside() -> Any:
    path = Path(inside.__file__)
    return compile(path.read_text(encoding="utf-8"), path.name, "exec")


class Sandbox:
    """Runs programs and functions in isolation, on several cores; may be shared by threads."""

    def __init__(
        self,
        level: Level | Literal["auto"] = "auto",
        limits: Limits = Limits(),  # noqa: B008  frozen
        workers: int | None = None,
    ) -> None:
        """Find the level that works here and prove it by a self-test; `auto` never means `none`."""
        if reason := fault(level, Literal["auto", "bubblewrap", "landlock", "none"]):
            raise SettingError("sandbox", level, reason)
        if reason := fault(workers, Count | None):
            raise SettingError("workers", workers, reason)
        self.limits = limits
        self._thread = threading.local()
        self._places: queue.LifoQueue[int] = queue.LifoQueue()
        for place in reversed(range(_PLACES)):
            self._places.put(place)
        self.level: Level
        self.refused = self._prove(LEVELS[:-1] if level == "auto" else (level,))
        """What the self-test has seen refused; nothing at level `none`"""
        self.workers = workers or available_cores()

    def _prove(self, levels: Sequence[Level]) -> list[str]:
        """Settle for the first level that passes the self-test."""
        reasons = []
        for self.level in levels:
            try:
                check_machine(self.level)
                return prove(self)
            except SandboxError as error:
                reasons.append(f"\n- {self.level}: {error}")
        raise SandboxError(f"Programs cannot be run in isolation on this machine:{''.join(reasons)}")

    def with_limits(self, limits: Limits) -> Sandbox:
        """The same sandbox with other limits; it is not proved again."""
        other = copy.copy(self)
        other.limits = limits
        return other

    def run(self, code: str, stdin: str | bytes = b"") -> Run:
        """Run a program with this standard input."""
        given = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
        ended = self._end(given, lines=1, code=code)
        seconds = ended.at - ended.lines[0][0] if ended.lines else 0.0
        return Run(self._status(ended), bytes(ended.stdout), bytes(ended.stderr), seconds)

    def call(self, code: str, function: str, arguments: Sequence[list[Any]]) -> list[Run]:
        """Call a function of the program once for each list of arguments, in one process.

        A call that ends the process (by its time) leaves those after it without a result: they get its status.
        """
        calls = {"function": function, "arguments": json.dumps(list(arguments))}
        ended = self._end(b"", lines=len(arguments) + 2, calls=len(arguments), code=code, **calls)
        status = self._status(ended)
        lost = Run("error" if status == "ok" else status, stderr=bytes(ended.stderr))  # without a report it is not ok
        loaded, *reports = [_reported(line) for _, line in ended.lines[1 : len(arguments) + 2]] or [lost]
        if loaded.status != "ok":
            return [loaded] * len(arguments)
        times = [at for at, _ in ended.lines[1:]]
        runs = [dataclasses.replace(run, seconds=times[i + 1] - times[i]) for i, run in enumerate(reports)]
        if len(runs) < len(arguments):
            runs.append(lost)
            after = Run(lost.status, stderr=f"not called: call {len(runs)} has ended the process".encode())
            runs += [after] * (len(arguments) - len(runs))
        return runs

    def map(self, jobs: Iterable[Job]) -> Iterator[Run | list[Run]]:
        """Do the jobs on all workers; the outcomes come in the jobs' order."""
        return self.each(self._do, jobs)

    def each(self, act: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """`act` on each item, in as many threads as there are workers; results in order, few items read ahead.

        Whoever stops asking stops what still runs.
        """
        waiting: deque[Future[Result]] = deque()
        stop = threading.Event()
        pool = ThreadPoolExecutor(self.workers, initializer=setattr, initargs=(self._thread, "stop", stop))
        try:
            for item in items:
                waiting.append(pool.submit(act, item))
                if len(waiting) > 2 * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    def _do(self, job: Job) -> Run | list[Run]:
        if isinstance(job, Program):
            return self.run(job.code, job.stdin)
        return self.call(job.code, job.function, job.arguments)

    def _end(self, stdin: bytes, *, lines: int, calls: int = 0, **job: Any) -> Ended:
        """Run one process to its end."""
        place = self._places.get()
        try:
            user = user_at(place)
            begin = start(self.level, user)
            limits = resource_limits(self.level, self.limits, calls, user)
            rules = seccomp.filter_for(platform.machine()) if begin.filtered else None
            rights = {"is_first": self.level == "bubblewrap", "confine": begin.confine, "filter": rules}
            job = {"function": "", **job, "limits": limits, **rights}
            return run_process(
                lambda sent: [*begin.command, "-P", "-s", "-S", "-c", _BOOT.format(sent)],
                lambda report: marshal.dumps((_inside(), {**job, "report": report})),
                stdin=stdin,
                cpu=self.limits.cpu,
                wall=self.limits.wall,
                most=self.limits.output_mb * MEBI,
                lines=lines,
                cwd="/",
                env=ENVIRONMENT,
                stop=getattr(self._thread, "stop", threading.Event()),
            )
        except InterruptedError:
            raise
        except OSError as error:
            return Ended(stderr=bytearray(f"no process could be started: {error}".encode()))
        finally:
            self._places.put(place)

    def _status(self, ended: Ended) -> Status:
        """How a process has ended, from what was seen outside."""
        if not ended.lines:
            return "sandbox"
        if ended.by != "itself":
            return ended.by
        # bubblewrap turns the signal that ended the program into an exit code.
        code = 128 - ended.exit_code if ended.exit_code < 0 else ended.exit_code
        seconds = ended.at - ended.lines[0][0]
        if code == 128 + signal.SIGKILL and seconds >= self.limits.cpu:
            return "timeout"
        if code and any(line == b"memory" for _, line in ended.lines):
            return "memory"
        return "error" if code else "ok"


def _reported(line: bytes) -> Run:
    """What the process says about one call; anything else than a report is an error of the program."""
    try:
        status, value = json.loads(line)
    except (ValueError, RecursionError, TypeError):
        status, value = "error", "what was written in place of a result cannot be read"
    if status not in _REPORTED:
        status, value = "error", "what was written in place of a result cannot be read"
    if status == "ok":
        return Run(status, value=value)
    return Run(status, stderr=str(value).encode("utf-8", "surrogatepass"))

"""A pool of processes for calls that may hang, crash or exhaust memory; each call is limited, and its failure reported.

The workers are plain child processes that exchange JSON lines: nothing is forked from a process with torch, nothing is
pickled, scripts need no `if __name__ == "__main__"`, and results do not depend on the number of processes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import math
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from prism_prm.console import Advance, ignore
from prism_prm.errors import PrismError


def available_cores(root: Path = Path("/")) -> int:
    """Count the cores of this process; a quota of one and a half (`docker run --cpus 1.5`) counts as two."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min([bound, *map(math.ceil, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of this process's control group (v1 or v2) and its parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        here = Path(path.lstrip("/"))
        for folder in (here, *here.parents):
            with contextlib.suppress(OSError, ValueError):  # it is missing, or sets no limit: "max"
                values = " ".join((top / folder / file).read_text() for file in files)
                quota, period = map(float, values.split())
                if quota > 0 and period > 0:
                    yield quota / period


PoolCall = tuple[str, tuple[Any, ...]]
"""The name of a function in the pool's module, and its arguments; all of it JSON."""
WALL_FACTOR = 6.0
"""A call that sleeps uses no CPU time; it is ended after this many times the CPU limit."""
_START_SECONDS = 120.0
"""The maximum time for a process to import its module; generous, for cold disks."""
_CHUNK = 16
"""Calls sent to a process at a time."""
_HAS_TIMERS = hasattr(signal, "setitimer")  # not on Windows
_TIMED_OUT = (-signal.SIGPROF, -signal.SIGALRM) if _HAS_TIMERS else (1,)
"""The exit statuses of a process that reached a time limit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call."""

    status: Literal["ok", "timeout", "error"]
    value: Any = None
    detail: str = ""


class _Worker:
    """One child process that serves calls in sequence, and is restarted after a call that killed it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None

    def serve(self, calls: Sequence[PoolCall], stopped: threading.Event) -> list[Outcome]:
        """Send calls together and return their outcomes; fewer if the run is stopped."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(calls) and not stopped.is_set():
            process = self._live_process()
            if stopped.is_set():  # meanwhile: `stop` may have missed this new process
                break
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # if it died, no reply comes
                process.stdin.write(json.dumps(calls[len(outcomes) :]) + "\n")
                process.stdin.flush()
            while len(outcomes) < len(calls) and (line := process.stdout.readline()):
                outcomes.append(Outcome(**json.loads(line)))
            if len(outcomes) < len(calls):  # the next call killed it; later calls are sent again
                status = self.end()
                is_late = status in _TIMED_OUT
                detail = "ended by the time limit" if is_late else f"the worker died with status {status}"
                outcomes.append(Outcome("timeout" if is_late else "error", detail=detail))
        return outcomes

    def end(self) -> int:
        """Kill the process, if there is one; returns its exit status (negative: the signal)."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        status = process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError, ValueError):
                assert stream is not None
                stream.close()
        return status

    def kill(self) -> None:
        """Kill the process; a thread that waits for its reply sees it end."""
        if (process := self._process) is not None:
            process.kill()

    def _live_process(self) -> subprocess.Popen[str]:
        """Return the process; start a new one if there is none, or if it died while idle."""
        if self._process is not None:
            if self._process.poll() is None:
                return self._process
            self.end()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=self._environment, start_new_session=True,  # Ctrl-C reaches only the parent, which ends its workers
        )  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            status = self.end()
            raise PrismError(
                f"A worker process could not start (status {status}). To see why, run: {shlex.join(self._command)}"
            )
        return self._process


@dataclass(slots=True, eq=False)
class _ActiveRun:
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set when the run is canceled: no more calls start."""
    busy: set[_Worker] = field(default_factory=set)
    """The workers that serve this run now; they serve no other run meanwhile."""

    def stop(self) -> None:
        """Cancel the run and kill the processes of calls in progress."""
        self.stopped.set()
        for worker in tuple(self.busy):
            worker.kill()


class ProcessPool:
    """Runs functions of a module in processes that can be killed; they start on first use and stay.

    Use it as a context manager, or call `close`. Threads may share it: a worker serves one of them at a time. A call
    ends after `cpu_seconds` of CPU time, so that a busy machine changes no outcome, or after WALL_FACTOR times as much
    wall-clock time.
    """

    def __init__(
        self, module: str, *, count: int | None = None, cpu_seconds: float = 5.0, memory_bytes: int = 4 << 30
    ) -> None:
        program = [sys.executable, "-P", "-c", f"from {__name__} import _serve_calls; _serve_calls()"]
        command = [*program, module, str(cpu_seconds), str(cpu_seconds * WALL_FACTOR), str(memory_bytes)]
        # The child must find the same code as its parent, and the order of sets must not vary.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
        self.count = count or available_cores()
        self._workers = [_Worker(command, environment) for _ in range(self.count)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._runs: set[_ActiveRun] = set()
        self._closing = threading.Lock()

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; runs of other threads fail. A later `run` starts new processes."""
        with self._closing:
            for run in tuple(self._runs):
                run.stop()
            workers = [self._idle.get() for _ in self._workers]
            for worker in workers:
                worker.end()
                self._idle.put(worker)

    def run(self, calls: Sequence[PoolCall], advance: Advance = ignore) -> list[Outcome]:
        """Return the outcome of every call, in order; `advance` is called with the number of finished calls."""
        run = _ActiveRun()

        def serve(chunk: Sequence[PoolCall]) -> list[Outcome]:
            worker = self._idle.get()
            run.busy.add(worker)
            outcomes: list[Outcome] = []
            try:
                outcomes = worker.serve(chunk, run.stopped)
            finally:
                if len(outcomes) < len(chunk):  # unread replies must not reach the next run
                    worker.end()
                run.busy.remove(worker)
                self._idle.put(worker)
            return outcomes

        # Neighboring calls often share a reference, which a worker then parses once; small chunks balance the load.
        size = max(1, min(_CHUNK, len(calls) // (4 * self.count)))
        threads = ThreadPoolExecutor(self.count)
        self._runs.add(run)
        try:
            futures = [threads.submit(serve, calls[start : start + size]) for start in range(0, len(calls), size)]
            for future in as_completed(futures):
                advance(len(future.result()))
            if run.stopped.is_set():
                raise PrismError("The worker processes were closed by another thread while calls were running.")
            return [outcome for future in futures for outcome in future.result()]
        except BaseException:  # also Ctrl-C
            run.stop()
            raise
        finally:
            threads.shutdown(cancel_futures=True)
            self._runs.remove(run)


def _serve_calls() -> None:
    """Serve lists of calls in a worker until standard input ends; the system ends the process at a limit."""
    module_name, cpu_seconds, wall_seconds, memory_bytes = sys.argv[1], *map(float, sys.argv[2:4]), int(sys.argv[4])
    _limit_time(0, _START_SECONDS)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the output of libraries must not mix with the replies
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    module = importlib.import_module(module_name)
    getattr(module, "warm_up", lambda: None)()
    _limit_time(0, 0)
    out.write("ready\n")
    out.flush()
    for line in sys.stdin:
        for name, arguments in json.loads(line):
            _limit_time(cpu_seconds, wall_seconds)
            try:
                reply = {"status": "ok", "value": getattr(module, name)(*arguments)}
            except Exception as error:  # a parser may raise anything on unexpected text; the caller counts it
                reply = {"status": "error", "detail": f"{type(error).__name__}: {error}"[:300]}
            _limit_time(0, 0)
            out.write(json.dumps(reply) + "\n")
            out.flush()


def _limit_time(cpu_seconds: float, wall_seconds: float) -> None:
    """End this process after this much time; 0 means no limit.

    CPU time decides, so that a busy machine changes no verdict. The default action of both signals ends the process,
    even in the middle of C code that never checks for signals.
    """
    if _HAS_TIMERS:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)
    elif wall_seconds:
        faulthandler.dump_traceback_later(wall_seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()

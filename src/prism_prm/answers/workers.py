"""A few processes that run calls which may hang, crash or eat memory; each call is bounded, its failure reported.

Plain child processes that speak JSON lines: nothing is forked from a process that holds torch, nothing is pickled, a
script needs no `if __name__ == "__main__"`, and what a call returns does not depend on how many workers there are.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prism_prm.errors import PrismError

Call = tuple[str, tuple[Any, ...]]
"""The name of a function of the workers' module, and its arguments; all of it JSON."""

Advance = Callable[[int], None]
"""Is told how many more calls are done."""

_START_SECONDS = 120.0
"""How long a worker may take to import its module; generous, for cold disks."""
WALL_FACTOR = 6.0
"""A call that sleeps uses no CPU time; it is ended after this many times the CPU limit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call."""

    status: Literal["ok", "timeout", "error"]
    value: Any = None
    detail: str = ""


def ignore(_: int) -> None:
    """Show no progress."""


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class _Worker:
    """One child process that serves one call after another, and is started anew after a call that killed it."""

    def __init__(self, command: list[str], environment: dict[str, str], wall_seconds: float) -> None:
        self._command, self._environment, self._wall_seconds = command, environment, wall_seconds
        self._process: subprocess.Popen[str] | None = None
        self._was_late = False

    def call(self, call: Call) -> Outcome:
        """Run one call; whatever happens to the process, there is an outcome."""
        process = self._process or self._start()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died while idle: the empty reply below says so
            process.stdin.write(json.dumps(call) + "\n")
            process.stdin.flush()
        line = self._read_line(process, self._wall_seconds)
        if line:
            reply = json.loads(line)
            return Outcome("error", detail=reply["error"]) if "error" in reply else Outcome("ok", reply["value"])
        ended = self.end()
        if self._was_late or ended == -getattr(signal, "SIGPROF", 0):
            return Outcome("timeout", detail="ended by the time limit")
        return Outcome("error", detail=f"the worker died with status {ended}")

    def end(self) -> int:
        """Kill the process, if there is one; returns how it ended (negative: by which signal)."""
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

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=self._environment, start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its workers
        )  # fmt: skip
        if self._read_line(self._process, _START_SECONDS) != "ready\n":
            ended = self.end()
            raise PrismError(
                f"A worker process could not start (status {ended}). To see why, run: {' '.join(self._command)}"
            )
        return self._process

    def _read_line(self, process: subprocess.Popen[str], seconds: float) -> str:
        """The next line; "" if the process ends first or takes longer than `seconds`."""
        assert process.stdout is not None
        self._was_late = False
        timer = threading.Timer(seconds, self._expire, [process])
        timer.daemon = True
        timer.start()
        try:
            return process.stdout.readline()
        except ValueError:  # closed under us by `Workers.close` in another thread
            return ""
        finally:
            timer.cancel()

    def _expire(self, process: subprocess.Popen[str]) -> None:
        self._was_late = True
        process.kill()


class Workers:
    """Run calls of the functions of a module in killable processes; they start when first needed, and stay.

    Use as a context manager, or call `close`. A call ends after `cpu_seconds` of CPU time, so that a busy machine
    changes no outcome, or after WALL_FACTOR times as much on the clock.
    """

    def __init__(
        self, module: str, *, count: int | None = None, cpu_seconds: float = 5.0, memory_bytes: int = 4 << 30
    ) -> None:
        command = [sys.executable, "-m", "prism_prm.answers.worker", module, str(cpu_seconds), str(memory_bytes)]
        # The child must find the same code as its parent, and hash seeds must not change the order of a set.
        path = os.pathsep.join([str(Path(__file__).parents[2]), *(entry for entry in sys.path if entry)])
        environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
        self.count = count or available_cores()
        self._workers = [_Worker(command, environment, cpu_seconds * WALL_FACTOR) for _ in range(self.count)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; a later `run` starts new ones."""
        for worker in self._workers:
            worker.end()

    def run(self, calls: Sequence[Call], advance: Advance = ignore) -> list[Outcome]:
        """The outcome of every call, in order; `advance` is told of each call that is done."""
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            idle.put(worker)

        def serve(call: Call) -> Outcome:
            worker = idle.get()
            try:
                return worker.call(call)
            finally:
                idle.put(worker)

        threads = ThreadPoolExecutor(min(self.count, max(1, len(calls))))
        try:
            futures = [threads.submit(serve, call) for call in calls]
            for _ in as_completed(futures):
                advance(1)
            return [future.result() for future in futures]
        except BaseException:  # Ctrl-C too: no call is started any more, and those under way lose their process
            threads.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        finally:
            threads.shutdown()

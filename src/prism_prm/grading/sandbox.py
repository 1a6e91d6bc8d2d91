"""Run untrusted programs: isolated, with limits, and with outcomes that no program can fake.

`sandbox_policy` defines what a program may do.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import platform
import queue
import signal
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prism_prm.config import Count, fault
from prism_prm.errors import SettingError
from prism_prm.grading import sandbox_policy as policy
from prism_prm.grading.process_pool import available_cores
from prism_prm.grading.sandbox_policy import (
    FIRST_USER,
    LEVELS,
    Limits,
    SandboxError,
    interpreter,
    landlock_abi,
    readable_paths,
)
from prism_prm.grading.sandbox_process import ProcessResult, run_process

RunStatus = Literal["ok", "timeout", "memory", "output", "error", "sandbox"]
"""How a run ended: by itself; at the limit of time, memory or output; by an exception, a signal or a nonzero exit code;
or "sandbox" if the program could not be started, which is no verdict on the program."""
_NUM_SLOTS = 256
"""The maximum number of concurrent runs; under root, each has its own user."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run with the given standard input."""

    code: str
    stdin: str | bytes = b""


@dataclass(frozen=True, slots=True)
class Call:
    """A function to call once for each list of arguments, all in one process."""

    code: str
    function: str
    """The name of a function, or of a method of class `Solution` (`f` or `Solution.f`)"""
    arguments: Sequence[list[Any]]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How one run or call ended. `ok` means that it ended by itself, not that its result is right."""

    status: RunStatus
    stdout: bytes = b""
    """The output of a program; empty for calls"""
    stderr: bytes = b""
    """The traceback and other messages"""
    seconds: float = 0.0
    value: Any = None
    """The returned value, as JSON (a tuple becomes a list)"""


class Sandbox:
    """Runs programs and functions in isolation, on several cores; threads may share it."""

    def __init__(
        self,
        level: str = "auto",
        limits: Limits = Limits(),  # noqa: B008  frozen
        workers: int | None = None,
    ) -> None:
        """Find the first level that passes a self-test on this machine; `auto` never means `none`."""
        if level not in ("auto", *LEVELS):
            raise SettingError("sandbox", level, f"must be one of auto, {', '.join(LEVELS)}")
        if reason := fault(workers, Count | None):
            raise SettingError("workers", workers, reason)
        self.limits = limits
        self.workers = workers or available_cores()
        self._thread = threading.local()
        self._slots: queue.LifoQueue[int] = queue.LifoQueue()
        for slot in reversed(range(_NUM_SLOTS)):
            self._slots.put(slot)
        reasons = []
        for self.level in LEVELS[:-1] if level == "auto" else (level,):
            try:
                policy.check_machine(self.level)
                self.refused = self_test(self)
                """What the self-test's program was not allowed to do; empty at level `none`"""
                return
            except SandboxError as error:
                reasons.append(f"\n- {self.level}: {error}")
        raise SandboxError(f"Programs cannot be run in isolation on this machine:{''.join(reasons)}")

    def with_limits(self, limits: Limits) -> Sandbox:
        """Return the same sandbox with other limits, without repeating the self-test."""
        other = copy.copy(self)
        other.limits = limits
        return other

    def run(self, code: str, stdin: str | bytes = b"") -> RunResult:
        """Run a program with this standard input."""
        data = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
        ended = self._run_process(data, num_lines=1, code=code)
        seconds = ended.ended_at - ended.lines[0][0] if ended.lines else 0.0
        return RunResult(self._status(ended), bytes(ended.stdout), bytes(ended.stderr), seconds)

    def call(self, code: str, function: str, arguments: Sequence[list[Any]]) -> list[RunResult]:
        """Call a function of the program once for each list of arguments, in one process.

        If a call ends the process (for example by a timeout), later calls are not made and get its status.
        """
        num_calls = len(arguments)
        calls = {"function": function, "arguments": json.dumps(list(arguments))}
        ended = self._run_process(b"", num_lines=num_calls + 2, num_calls=num_calls, code=code, **calls)
        status = self._status(ended)
        # A call without a report is not ok.
        lost = RunResult("error" if status == "ok" else status, stderr=bytes(ended.stderr))
        loaded, *reports = [_reported(line) for _, line in ended.lines[1 : num_calls + 2]] or [lost]
        if loaded.status != "ok":
            return [loaded] * num_calls
        times = [at for at, _ in ended.lines[1:]]
        runs = [dataclasses.replace(run, seconds=times[i + 1] - times[i]) for i, run in enumerate(reports)]
        if len(runs) < num_calls:
            runs.append(lost)
            after = RunResult(lost.status, stderr=f"not called: call {len(runs)} ended the process".encode())
            runs += [after] * (num_calls - len(runs))
        return runs

    def map(self, jobs: Iterable[Program | Call]) -> Iterator[RunResult | list[RunResult]]:
        """Run jobs on all workers; yields their outcomes in order, and reads few jobs ahead.

        Closing the iterator stops jobs that still run.
        """

        def do(job: Program | Call) -> RunResult | list[RunResult]:
            if isinstance(job, Program):
                return self.run(job.code, job.stdin)
            return self.call(job.code, job.function, job.arguments)

        waiting: deque[Future[RunResult | list[RunResult]]] = deque()
        stop = threading.Event()
        pool = ThreadPoolExecutor(self.workers, initializer=setattr, initargs=(self._thread, "stop", stop))
        try:
            for job in jobs:
                waiting.append(pool.submit(do, job))
                if len(waiting) > 2 * self.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    def _run_process(self, stdin: bytes, *, num_lines: int, num_calls: int = 0, **job: Any) -> ProcessResult:
        slot = self._slots.get()
        try:
            user = policy.user_of_slot(slot)
            command, confine = policy.start(self.level, user)
            job = {
                "function": "", **job, "limits": policy.resource_limits(self.level, self.limits, num_calls, user),
                "is_first": self.level == "bubblewrap", "confine": confine,
                "filter": policy.system_call_filter(platform.machine()) if confine else None,
            }  # fmt: skip
            stop = getattr(self._thread, "stop", threading.Event())
            return run_process(command, job, stdin, limits=self.limits, num_lines=num_lines, stop=stop)
        except InterruptedError:
            raise
        except OSError as error:
            return ProcessResult(stderr=bytearray(f"no process could be started: {error}".encode()))
        finally:
            self._slots.put(slot)

    def _status(self, ended: ProcessResult) -> RunStatus:
        """Determine how a process ended, from outside."""
        if not ended.lines:
            return "sandbox"
        if ended.ended_by != "itself":
            return ended.ended_by
        # bubblewrap converts the signal that ended the program to an exit code.
        code = 128 - ended.exit_code if ended.exit_code < 0 else ended.exit_code
        if code == 128 + signal.SIGKILL and ended.ended_at - ended.lines[0][0] >= self.limits.cpu:
            return "timeout"
        if code and any(line == b"memory" for _, line in ended.lines):
            return "memory"
        return "error" if code else "ok"


def _reported(line: bytes) -> RunResult:
    """Parse the report of one call; anything but a valid report is an error of the program."""
    try:
        status, value = json.loads(line)
    except (ValueError, RecursionError, TypeError):
        status, value = "", None
    if status == "ok":
        return RunResult(status, value=value)
    if status not in ("memory", "error"):
        status, value = "error", "the result cannot be read"
    return RunResult(status, stderr=str(value).encode("utf-8", "surrogatepass"))


_PROBE = """
import os, socket, sys

def read(path):
    open(path, "rb").read(1)

def fork():
    if os.fork() == 0:
        os._exit(0)

def connect(kind, address):
    with socket.socket(kind, socket.SOCK_DGRAM) as made:
        made.connect(address)

def send(folder):
    os.chdir(folder)  # a socket's path may have 107 characters
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", "socket")

folder = sys.stdin.readline().strip()
attempts = {
    "read your files": lambda: read(folder + "/canary"),
    "list your files": lambda: os.listdir(folder),
    "write files": lambda: open(folder + "/written", "w"),
    "delete your files": lambda: os.unlink(folder + "/canary"),
    "change your files' modes": lambda: os.chmod(folder + "/canary", 0),
    "write temporary files": lambda: open("/tmp/prism-sandbox-" + str(os.getpid()), "w"),
    "read the environment of processes": lambda: read("/proc/1/environ"),
    "open kernel settings": lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "use the network": lambda: connect(socket.AF_INET, ("127.0.0.1", 9)),
    "use the network (IPv6)": lambda: connect(socket.AF_INET6, ("::1", 9)),
    "send to your sockets": lambda: send(folder),
    "start processes": fork,
    "start other programs": lambda: os.execv("/bin/true", ["true"]),
    "send signals": lambda: os.kill(os.getppid(), 0),
}
for name, attempt in attempts.items():
    try:
        attempt()
        print("could", name)
    except OSError:
        print("could not", name)
print("could" if "PRISM_CANARY" in os.environ else "could not", "see your environment")
print("done", sys.stdin.readline().strip())
"""
_HARMLESS = "input()\nprint('done', input())"
"""The self-test without isolation, where the probe would do harm."""


def self_test(sandbox: Sandbox) -> list[str]:
    """Run the probe and list what it could not do. Raises if it could do anything, or did not end normally."""
    word = os.urandom(8).hex()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if sandbox.level != "none":
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                listener.bind(f"/proc/self/fd/{descriptor}/socket")  # short, however long the folder's path is
                os.chmod("socket", 0o777, dir_fd=descriptor)
            except OSError as error:
                raise SandboxError(f"no socket can be made in {folder} ({error}): set TMPDIR to a local one") from None
            finally:
                os.close(descriptor)
        canary = Path(folder) / "canary"
        canary.write_text(word, encoding="utf-8")
        for path in (Path(folder), canary):
            path.chmod(0o777)  # only the sandbox restricts access
        os.environ["PRISM_CANARY"] = word
        try:
            run = sandbox.run(_HARMLESS if sandbox.level == "none" else _PROBE, f"{folder}\n{word}\n")
        finally:
            del os.environ["PRISM_CANARY"]
    *attempts, last = run.stdout.decode(errors="replace").split("\n")[:-1] or [""]
    if run.status != "ok" or last != f"done {word}":
        lines = run.stderr.decode(errors="replace").strip().splitlines()
        raise SandboxError(f"the self-test did not run ({run.status}): {lines[-1] if lines else 'no message'}")
    if could := [line for line in attempts if not line.startswith("could not ")]:
        raise SandboxError(f"the self-test's program {', '.join(could)}")
    return [line.removeprefix("could not ") for line in attempts]


def main() -> int:
    """Report which levels work; returns 0 if programs can be run in isolation."""
    who = f"root; programs run as users from {FIRST_USER} on" if os.geteuid() == 0 else f"user {os.getuid()}"
    print(f"{platform.machine()}, landlock ABI {landlock_abi()}, {who}, interpreter {interpreter()}")
    working = []
    for level in LEVELS[:-1]:
        try:
            box = Sandbox(level)
        except SandboxError as error:
            print(str(error).splitlines()[-1])
            continue
        working.append(level)
        print(f"- {level}: works. The self-test's program could not {', '.join(box.refused)}.")
    print(f"Programs can read {', '.join(readable_paths())}.")
    print(f"Level auto is {working[0]}." if working else "There is no isolation here.")
    return 0 if working else 1


if __name__ == "__main__":
    sys.exit(main())

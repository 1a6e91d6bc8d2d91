"""One sandboxed process from start to end: feed it, read its output up to the limits, keep the clock, and end it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import marshal
import os
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from prism_prm.grading import sandbox_child
from prism_prm.grading.sandbox_policy import ENVIRONMENT, Limits

_ADD_SEALS, _ALL_SEALS = 1033, 15
_START_SECONDS = 20.0
"""How long a process may take to be ready on a busy machine."""
_CLOSE_SECONDS = 1.0
"""How soon the pipes must close once the process has ended."""
_MAX_POLL, _MIN_POLL = 0.2, 0.01
"""Seconds between looks at whether to stop: at most, and at least where little CPU time is left."""
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group."""
_CHUNK = 1 << 16
_BOOT = """
import marshal
with open({}, "rb") as sent:
    code, job = marshal.load(sent)
names = dict(__name__="sandbox_child")
exec(code, names)
names["main"](job)
"""


@dataclass(slots=True)
class ProcessResult:
    """What a process has left."""

    ended_by: Literal["itself", "timeout", "output"] = "itself"
    exit_code: int = 0
    """Negative: the signal that ended it"""
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    lines: list[tuple[float, bytes]] = field(default_factory=list)
    """What it has reported, and when; the first says that it is ready"""
    ended_at: float = 0.0


def run_process(
    command: Sequence[str], job: dict[str, Any], stdin: bytes, *, limits: Limits, num_lines: int, stop: threading.Event
) -> ProcessResult:
    """Run the child's `main` on a job, in the interpreter that `command` starts, to its end.

    It may take `limits.wall` seconds, or `limits.cpu` of CPU time, after each of its first `num_lines` reports. The
    report counts as output. Setting `stop` ends it with an `InterruptedError`.
    """
    with contextlib.ExitStack() as reading:
        names, held = {}, []
        try:
            # A pipe could be opened through /proc and read by the program, which would then seem never to have started.
            mine, its = socket.socketpair()
            held.append(its.detach())
            names[reading.enter_context(mine).fileno()] = "report"
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            for name in ("stdout", "stderr"):
                read, write = os.pipe2(os.O_CLOEXEC)
                held.append(write)
                names[reading.enter_context(open(read, "rb", buffering=0)).fileno()] = name
                os.fchmod(read, 0o222)  # the unprivileged user too may open `/dev/stdout`, to write
            report, stdout, stderr = held
            for content in (stdin, marshal.dumps((_child_code(), {**job, "report": report}))):
                file = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                held.append(file)
                with open(file, "wb", closefd=False) as writer:
                    writer.write(content)
                os.lseek(file, 0, os.SEEK_SET)
                fcntl.fcntl(file, _ADD_SEALS, _ALL_SEALS)  # nobody can change it any more
            *_, its_stdin, its_job = held
            process = subprocess.Popen(
                [*command, "-P", "-s", "-S", "-c", _BOOT.format(its_job)], stdin=its_stdin, stdout=stdout,
                stderr=stderr, pass_fds=(its_job, report), start_new_session=True, cwd="/", env=ENVIRONMENT,
            )  # fmt: skip
        finally:
            for descriptor in held:
                os.close(descriptor)
        return _Watcher(process, mine, names, limits, num_lines, stop).watch_to_the_end()


@functools.cache
def _child_code() -> CodeType:
    path = Path(sandbox_child.__file__)
    return compile(path.read_text(encoding="utf-8"), path.name, "exec")


@dataclass(slots=True, eq=False)
class _Watcher:
    """Reads a process's pipes until it has ended or must be."""

    process: subprocess.Popen[bytes]
    report: socket.socket
    names: dict[int, str]
    """Descriptor of a pipe → "report", "stdout" or "stderr"."""
    limits: Limits
    num_lines: int
    stop: threading.Event
    result: ProcessResult = field(default_factory=ProcessResult)
    program: int = 0
    """The process that reports: bubblewrap starts it as a child of its own."""
    handle: int | None = None
    """Its descriptor, which is never that of another process."""
    cpu_before: float = 0.0
    """CPU seconds up to the last reported line."""
    unread: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + _START_SECONDS)
    selector: selectors.BaseSelector = field(default_factory=lambda: selectors.DefaultSelector())

    def watch_to_the_end(self) -> ProcessResult:
        for pipe in self.names:
            os.set_blocking(pipe, False)
            self.selector.register(pipe, selectors.EVENT_READ)
        result, max_bytes = self.result, self.limits.output_mb << 20
        try:
            with open(os.pidfd_open(self.process.pid), "rb", buffering=0) as end:
                self.selector.register(end, selectors.EVENT_READ)
                try:
                    while result.ended_by == "itself":
                        # Measured before reading: if no line is read now, all of it was used for what is not reported.
                        spent, known = self.cpu_seconds() - self.cpu_before, len(result.lines)
                        if end.fileno() in self.read(self.limits.cpu - spent):
                            break
                        if self.stop.is_set():
                            raise InterruptedError("stopped")
                        is_late = time.monotonic() >= self.deadline
                        if self.num_bytes > max_bytes:
                            result.ended_by = "output"
                        elif is_late or (spent > self.limits.cpu and len(result.lines) == known):
                            result.ended_by = "timeout"
                finally:
                    result.ended_at = time.monotonic()
                    self.kill_program(end.fileno())
                self.selector.unregister(end)
        finally:
            # It is not yet waited for, so its number cannot be another's, and whoever it has left behind goes with it.
            os.killpg(self.process.pid, signal.SIGKILL)
            result.exit_code = self.process.wait()
        self.deadline = time.monotonic() + _CLOSE_SECONDS
        while self.selector.get_map() and self.num_bytes <= max_bytes and time.monotonic() < self.deadline:
            self.read()
        if self.num_bytes > max_bytes:
            result.ended_by = "output"
        self.selector.close()
        if not result.lines:
            late = f"not ready within {_START_SECONDS:g} s"
            why = late if result.ended_by == "timeout" else f"ended with code {result.exit_code} before it was ready"
            result.stderr[:0] = f"the process {why}\n".encode()
        return result

    def kill_program(self, end: int) -> None:
        """End the program itself first: bubblewrap then waits for its own children, which nobody else may do."""
        if self.handle is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        os.close(self.handle)
        self.deadline = until = time.monotonic() + _CLOSE_SECONDS
        while end not in self.read() and time.monotonic() < until:
            pass

    def cpu_seconds(self) -> float:
        """CPU seconds of the program, by the kernel's clock of it: the program's own limits do not matter."""
        try:
            return time.clock_gettime(~self.program << 3 | 2) if self.program else 0.0
        except OSError:  # it has ended
            return self.cpu_before

    def read(self, seconds: float = _MAX_POLL) -> set[int]:
        """Wait until something can be read, at most so long and to the deadline; read it and return what was ready."""
        left = max(0.0, self.deadline - time.monotonic())
        ready = {key.fd for key, _ in self.selector.select(min(left, max(seconds, _MIN_POLL), _MAX_POLL))}
        for pipe in ready & set(self.names):
            is_report = self.names[pipe] == "report"
            try:
                chunk = self.receive() if is_report else os.read(pipe, _CHUNK)
            except BlockingIOError:  # a program that may read everything has taken it back
                continue
            if not chunk:
                self.selector.unregister(pipe)
            self.num_bytes += len(chunk)
            if is_report:
                self.take_lines(chunk)
            else:
                getattr(self.result, self.names[pipe]).extend(chunk)
        return ready

    def receive(self) -> bytes:
        """A chunk of the report, which the kernel signs with the number of its writer."""
        chunk, signed, *_ = self.report.recvmsg(_CHUNK, socket.CMSG_SPACE(_CREDENTIALS.size))
        if chunk and not self.program:
            self.program, *_ = _CREDENTIALS.unpack(signed[0][2])
            with contextlib.suppress(OSError):  # it has ended
                self.handle = os.pidfd_open(self.program)
        return chunk

    def take_lines(self, chunk: bytes) -> None:
        """Keep whole lines of the report, each of which restarts the clock, and one line more, which does not."""
        lines = self.result.lines
        if len(lines) > self.num_lines:
            return
        first, *others = chunk.split(b"\n", self.num_lines + 1)
        self.unread.append(first)
        for other in others:
            now = time.monotonic()
            if len(lines) < self.num_lines and self.result.ended_by == "itself":
                self.deadline, self.cpu_before = now + self.limits.wall, self.cpu_seconds()
            lines.append((now, b"".join(self.unread)))
            self.unread = [other]

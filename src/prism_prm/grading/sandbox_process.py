"""Run one sandboxed process: feed it, read its output up to the limits, enforce time limits, and end it."""

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
"""The maximum time until a process is ready, on a busy machine."""
_CLOSE_SECONDS = 1.0
"""The maximum time until the pipes close after the process has ended."""
_MAX_POLL, _MIN_POLL = 0.2, 0.01
"""Seconds between checks whether to stop; the minimum applies when little CPU time is left."""
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
    """The output and exit status of a process."""

    ended_by: Literal["itself", "timeout", "output"] = "itself"
    exit_code: int = 0
    """If negative, the signal that ended it"""
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    lines: list[tuple[float, bytes]] = field(default_factory=list)
    """Its reports with their times; the first one says that it is ready"""
    ended_at: float = 0.0


def run_process(
    command: Sequence[str], job: dict[str, Any], stdin: bytes, *, limits: Limits, num_lines: int, stop: threading.Event
) -> ProcessResult:
    """Run the child's `main` on a job to its end, in the interpreter that `command` starts.

    It may take `limits.wall` seconds, or `limits.cpu` of CPU time, after each of its first `num_lines` reports. The
    report counts as output. Setting `stop` ends it with an `InterruptedError`.
    """
    with contextlib.ExitStack() as reading:
        names, child_ends = {}, []
        try:
            # A socket, because the program could open a pipe through /proc and read its own report.
            receiver, sender = socket.socketpair()
            child_ends.append(sender.detach())
            names[reading.enter_context(receiver).fileno()] = "report"
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            for name in ("stdout", "stderr"):
                read, write = os.pipe2(os.O_CLOEXEC)
                child_ends.append(write)
                names[reading.enter_context(open(read, "rb", buffering=0)).fileno()] = name
                os.fchmod(read, 0o222)  # lets the unprivileged user open `/dev/stdout` for writing
            report, stdout, stderr = child_ends
            for content in (stdin, marshal.dumps((_child_code(), {**job, "report": report}))):
                file = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                child_ends.append(file)
                with open(file, "wb", closefd=False) as writer:
                    writer.write(content)
                os.lseek(file, 0, os.SEEK_SET)
                fcntl.fcntl(file, _ADD_SEALS, _ALL_SEALS)  # makes it read-only
            *_, child_stdin, child_job = child_ends
            process = subprocess.Popen(
                [*command, "-P", "-s", "-S", "-c", _BOOT.format(child_job)], stdin=child_stdin, stdout=stdout,
                stderr=stderr, pass_fds=(child_job, report), start_new_session=True, cwd="/", env=ENVIRONMENT,
            )  # fmt: skip
        finally:
            for descriptor in child_ends:
                os.close(descriptor)
        return _Watcher(process, receiver, names, limits, num_lines, stop).watch()


@functools.cache
def _child_code() -> CodeType:
    path = Path(sandbox_child.__file__)
    return compile(path.read_text(encoding="utf-8"), path.name, "exec")


@dataclass(slots=True, eq=False)
class _Watcher:
    """Reads a process's pipes until it ends, or ends it at a limit."""

    process: subprocess.Popen[bytes]
    report: socket.socket
    names: dict[int, str]
    """Descriptor of a pipe → "report", "stdout" or "stderr"."""
    limits: Limits
    num_lines: int
    stop: threading.Event
    result: ProcessResult = field(default_factory=ProcessResult)
    program: int = 0
    """The id of the process that reports; bubblewrap starts it as its child."""
    handle: int | None = None
    """Its pidfd, which never refers to another process."""
    cpu_before: float = 0.0
    """CPU seconds up to the last reported line."""
    unread: list[bytes] = field(default_factory=list)
    num_bytes: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + _START_SECONDS)
    selector: selectors.BaseSelector = field(default_factory=lambda: selectors.DefaultSelector())

    def watch(self) -> ProcessResult:
        for pipe in self.names:
            os.set_blocking(pipe, False)
            self.selector.register(pipe, selectors.EVENT_READ)
        result, max_bytes = self.result, self.limits.output_mb << 20
        try:
            with open(os.pidfd_open(self.process.pid), "rb", buffering=0) as end:
                self.selector.register(end, selectors.EVENT_READ)
                try:
                    while result.ended_by == "itself":
                        # Measured before reading: if no line comes now, all of it was spent on the unreported call.
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
            # The process is not reaped yet, so its id is still its own; the signal also ends its descendants.
            os.killpg(self.process.pid, signal.SIGKILL)
            result.exit_code = self.process.wait()
        self.deadline = time.monotonic() + _CLOSE_SECONDS
        while self.selector.get_map() and self.num_bytes <= max_bytes and time.monotonic() < self.deadline:
            self.read()
        if self.num_bytes > max_bytes:
            result.ended_by = "output"
        self.selector.close()
        if not result.lines:
            late = f"was not ready within {_START_SECONDS:g} s"
            reason = late if result.ended_by == "timeout" else f"ended with code {result.exit_code} before it was ready"
            result.stderr[:0] = f"the process {reason}\n".encode()
        return result

    def kill_program(self, end: int) -> None:
        """Kill the program itself first, so that bubblewrap can reap its own children, which only it may do."""
        if self.handle is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        os.close(self.handle)
        self.deadline = until = time.monotonic() + _CLOSE_SECONDS
        while end not in self.read() and time.monotonic() < until:
            pass

    def cpu_seconds(self) -> float:
        """Return the program's CPU seconds by the kernel's clock, which the program cannot influence."""
        try:
            return time.clock_gettime(~self.program << 3 | 2) if self.program else 0.0
        except OSError:  # it has ended
            return self.cpu_before

    def read(self, seconds: float = _MAX_POLL) -> set[int]:
        """Wait for output, at most this long and until the deadline; read it and return the ready descriptors."""
        left = max(0.0, self.deadline - time.monotonic())
        ready = {key.fd for key, _ in self.selector.select(min(left, max(seconds, _MIN_POLL), _MAX_POLL))}
        for pipe in ready & set(self.names):
            is_report = self.names[pipe] == "report"
            try:
                chunk = self.receive() if is_report else os.read(pipe, _CHUNK)
            except BlockingIOError:  # a program with enough rights has read it back
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
        """Receive a chunk of the report, to which the kernel attaches its writer's process id."""
        chunk, signed, *_ = self.report.recvmsg(_CHUNK, socket.CMSG_SPACE(_CREDENTIALS.size))
        if chunk and not self.program:
            self.program, *_ = _CREDENTIALS.unpack(signed[0][2])
            with contextlib.suppress(OSError):  # it has ended
                self.handle = os.pidfd_open(self.program)
        return chunk

    def take_lines(self, chunk: bytes) -> None:
        """Store complete lines of the report, each of which restarts the clock, and one more, which does not."""
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

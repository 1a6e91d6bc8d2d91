"""One process from start to end: feeds it, reads what it writes up to the limits, keeps the clock, and ends it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_ADD_SEALS, _ALL_SEALS = 1033, 15
_STARTING = 20.0
"""Seconds that a process may take to be ready on a busy machine."""
_LINGERING = 1.0
"""Seconds in which the pipes must close once the process has ended."""
_GLANCE, _BLINK = 0.2, 0.01
"""Seconds between looks at whether to stop; at least, where little CPU time is left."""
_SIGNATURE = struct.Struct("3i")
"""Process, user and group."""
_PIECE = 1 << 16


@dataclass
class Ended:
    """What a process has left."""

    by: Literal["itself", "timeout", "output"] = "itself"
    exit_code: int = 0
    """Negative: the signal that ended it"""
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    lines: list[tuple[float, bytes]] = field(default_factory=list)
    """What it has reported, and when; the first says that it is ready"""
    at: float = 0.0


def in_memory(content: bytes) -> int:
    """A descriptor to read the content from, which nobody can change."""
    file = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(file, "wb", closefd=False) as writer:
        writer.write(content)
    os.lseek(file, 0, os.SEEK_SET)
    fcntl.fcntl(file, _ADD_SEALS, _ALL_SEALS)
    return file


def run_process(
    command: Callable[[int], Sequence[str]],
    job: Callable[[int], bytes],
    *,
    stdin: bytes,
    cpu: float,
    wall: float,
    most: int,
    lines: int,
    stop: threading.Event,
    **options: Any,
) -> Ended:
    """Run a command to its end: at most `wall` seconds, or `cpu` of CPU time, after any of its first `lines` reports.

    `command` is told the descriptor of the job and `job` that of the report, which exist only now. The output, which
    includes the report, may have `most` bytes. Whoever sets `stop` ends it with an `InterruptedError`. Options are
    those of `subprocess.Popen`.
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
            held += [in_memory(stdin), in_memory(job(report))]
            process = subprocess.Popen(
                command(held[4]), stdin=held[3], stdout=stdout, stderr=stderr, pass_fds=(held[4], report),
                start_new_session=True, **options,
            )  # fmt: skip
        finally:
            for descriptor in held:
                os.close(descriptor)
        return _Watch(process, mine, names, cpu, wall, most, lines, stop).until_the_end()


class _Watch:
    """Reads a process's pipes until it has ended or must be."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        report: socket.socket,
        names: dict[int, str],
        cpu: float,
        wall: float,
        most: int,
        lines: int,
        stop: threading.Event,
    ) -> None:
        self.process, self.report, self.names, self.stop = process, report, names, stop
        self.cpu, self.wall, self.most, self.lines = cpu, wall, most, lines
        self.ended = Ended()
        self.program = 0
        """The process that reports: bubblewrap starts it as a child of its own."""
        self.handle: int | None = None
        """Its descriptor, which is never that of another process"""
        self.used_before = 0.0
        """CPU seconds up to the last reported line"""
        self.unread: list[bytes] = []
        self.size = 0
        self.deadline = time.monotonic() + _STARTING
        self.selector = selectors.DefaultSelector()
        for pipe in names:
            os.set_blocking(pipe, False)
            self.selector.register(pipe, selectors.EVENT_READ)

    def until_the_end(self) -> Ended:
        ended = self.ended
        try:
            with open(os.pidfd_open(self.process.pid), "rb", buffering=0) as end:
                self.selector.register(end, selectors.EVENT_READ)
                try:
                    self.watch(end.fileno())
                finally:
                    ended.at = time.monotonic()
                    self.kill_program(end.fileno())
                self.selector.unregister(end)
        finally:
            # It is not yet waited for, so its number cannot be another's, and whoever it has left behind goes with it.
            os.killpg(self.process.pid, signal.SIGKILL)
            ended.exit_code = self.process.wait()
        self.deadline = time.monotonic() + _LINGERING
        while self.selector.get_map() and self.size <= self.most and time.monotonic() < self.deadline:
            self.read()
        if self.size > self.most:
            ended.by = "output"
        self.selector.close()
        if not ended.lines:
            late = f"not ready within {_STARTING:g} s"
            why = late if ended.by == "timeout" else f"ended with code {ended.exit_code} before it was ready"
            ended.stderr[:0] = f"the process {why}\n".encode()
        return ended

    def watch(self, end: int) -> None:
        """Read until the process has ended or must be."""
        ended = self.ended
        while ended.by == "itself":
            # Measured before reading: if no line is read now, all of it was used for what is not yet reported.
            spent, known = self.used() - self.used_before, len(ended.lines)
            if end in self.read(self.cpu - spent):
                break
            if self.stop.is_set():
                raise InterruptedError("stopped")
            if self.size > self.most:
                ended.by = "output"
            elif time.monotonic() >= self.deadline or (spent > self.cpu and len(ended.lines) == known):
                ended.by = "timeout"

    def kill_program(self, end: int) -> None:
        """End the program itself first: bubblewrap then waits for its own children, which nobody else may do."""
        if self.handle is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        os.close(self.handle)
        self.deadline = until = time.monotonic() + _LINGERING
        while end not in self.read() and time.monotonic() < until:
            pass

    def used(self) -> float:
        """CPU seconds of the program; whatever limits it has given itself, the kernel's clock of it tells."""
        try:
            return time.clock_gettime(~self.program << 3 | 2) if self.program else 0.0
        except OSError:  # it has ended
            return self.used_before

    def read(self, seconds: float = _GLANCE) -> set[int]:
        """Wait for something until the deadline, at most so long; read it, and say what was ready."""
        left = max(0.0, self.deadline - time.monotonic())
        ready = {key.fd for key, _ in self.selector.select(min(left, max(seconds, _BLINK), _GLANCE))}
        for pipe in ready & set(self.names):
            try:
                piece = self.receive() if self.names[pipe] == "report" else os.read(pipe, _PIECE)
            except BlockingIOError:  # a program that may read everything has taken it back
                continue
            if not piece:
                self.selector.unregister(pipe)
            self.size += len(piece)
            if self.names[pipe] == "report":
                self.take_lines(piece)
            else:
                getattr(self.ended, self.names[pipe]).extend(piece)
        return ready

    def receive(self) -> bytes:
        """A piece of the report, which the kernel signs with the number of its writer."""
        piece, signed, *_ = self.report.recvmsg(_PIECE, socket.CMSG_SPACE(_SIGNATURE.size))
        if piece and not self.program:
            self.program, *_ = _SIGNATURE.unpack(signed[0][2])
            with contextlib.suppress(OSError):  # it has ended
                self.handle = os.pidfd_open(self.program)
        return piece

    def take_lines(self, piece: bytes) -> None:
        """Keep whole lines of the report, each of which starts the clock anew, and one line more, which does not."""
        if len(self.ended.lines) > self.lines:
            return
        first, *others = piece.split(b"\n", self.lines + 1)
        self.unread.append(first)
        for other in others:
            now = time.monotonic()
            if len(self.ended.lines) < self.lines and self.ended.by == "itself":
                self.deadline, self.used_before = now + self.wall, self.used()
            self.ended.lines.append((now, b"".join(self.unread)))
            self.unread = [other]

"""One process from start to end: feeds it, reads what it writes up to the limits, keeps the clock, and ends it."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_ADD_SEALS, _ALL_SEALS = 1033, 15
_STARTING = 20.0
"""Seconds that a process may take to be ready on a busy machine."""
_LINGERING = 1.0
"""Seconds in which the pipes must close once the process has ended."""
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
    *,
    stdin: bytes,
    job: Callable[[int], bytes],
    wall: float,
    most: int,
    lines: int,
    options: dict[str, Any],
) -> Ended:
    """Run a command to its end; each of the first `lines` reported lines starts the clock anew.

    `command` is told the descriptor of the job and `job` that of the report, which exist only now.
    """
    report, report_end = os.pipe2(os.O_CLOEXEC)
    held = [report_end, in_memory(stdin), in_memory(job(report_end))]
    try:
        process = subprocess.Popen(
            command(held[2]), stdin=held[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=(held[2], report_end), start_new_session=True, **options,
        )  # fmt: skip
    except BaseException:
        os.close(report)
        raise
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert process.stdout is not None and process.stderr is not None
    with process.stdout as out, process.stderr as err, open(report, "rb", buffering=0) as told:
        return _Watch(process, {out.fileno(): "stdout", err.fileno(): "stderr", told.fileno(): "report"}).end(
            wall, most, lines
        )


class _Watch:
    """Reads a process's pipes until it has ended or must be."""

    def __init__(self, process: subprocess.Popen[bytes], pipes: dict[int, str]) -> None:
        self.process, self.pipes, self.ended = process, pipes, Ended()
        self.unread: list[bytes] = []
        self.size = 0
        self.selector = selectors.DefaultSelector()
        for pipe in pipes:
            os.set_blocking(pipe, False)
            self.selector.register(pipe, selectors.EVENT_READ)

    def end(self, wall: float, most: int, lines: int) -> Ended:
        ended = self.ended
        pid = os.pidfd_open(self.process.pid)
        try:
            self.selector.register(pid, selectors.EVENT_READ)
            deadline, seen = time.monotonic() + _STARTING, 0
            while ended.by == "itself" and pid not in self.read(deadline):
                if seen < len(ended.lines):
                    seen = len(ended.lines)
                    deadline = ended.lines[min(seen, lines) - 1][0] + wall
                if self.size > most:
                    ended.by = "output"
                elif time.monotonic() >= deadline:
                    ended.by = "timeout"
            ended.at = time.monotonic()
        finally:
            # The process is not yet waited for, so that its number cannot be another's.
            os.killpg(self.process.pid, signal.SIGKILL)
            ended.exit_code = self.process.wait()
            self.selector.unregister(pid)
            os.close(pid)
        until = time.monotonic() + _LINGERING
        while self.selector.get_map() and self.size <= most and time.monotonic() < until:
            self.read(until)
        if self.size > most:
            ended.by = "output"
        self.selector.close()
        return ended

    def read(self, deadline: float) -> set[int]:
        """Wait for something, read it, and say what was ready."""
        ready = {key.fd for key, _ in self.selector.select(max(0.0, deadline - time.monotonic()))}
        for pipe in ready & set(self.pipes):
            piece = os.read(pipe, _PIECE)
            if not piece:
                self.selector.unregister(pipe)
            self.size += len(piece)
            if self.pipes[pipe] == "report":
                first, *others = piece.split(b"\n")
                self.unread.append(first)
                for other in others:
                    self.ended.lines.append((time.monotonic(), b"".join(self.unread)))
                    self.unread = [other]
            else:
                getattr(self.ended, self.pipes[pipe]).extend(piece)
        return ready

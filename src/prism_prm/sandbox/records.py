"""What goes into a sandbox and what comes out: limits, jobs, and the outcome of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from prism_prm.errors import PrismError
from prism_prm.ranges import Count, Positive, Range, check

Status = Literal["ok", "timeout", "memory", "output", "error", "sandbox"]
"""How a run ended: by itself; over the limit of time, memory or output; by an exception, a signal or an exit code other
than 0; or without the program having been started, which says nothing about the program."""

MEBI = 2**20
PATIENCE = 4
"""Seconds on the clock for each of CPU time. The clock is there to end programs that sleep; one that computes is not to
fail because others use the cores."""


class SandboxError(PrismError):
    """No sandbox of the wanted level works on this machine; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use; times hold for each run and for each call of a function."""

    cpu: Positive = 6.0
    """CPU time in seconds"""
    wall: Positive = 6.0 * PATIENCE
    """Elapsed time in seconds, counted from the program's start"""
    memory_mb: Annotated[int, Range(64)] = 1024
    """Address space in MiB, the interpreter's own included (about 30)"""
    output_mb: Count = 16
    """Standard output and error together in MiB; for calls, the results too"""
    threads: Count = 32
    """Threads at once; further processes are never allowed"""
    files: Annotated[int, Range(16)] = 64
    """Open files at once; files can only be read, so their size needs no limit"""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run with some standard input."""

    code: str
    stdin: str | bytes = b""


@dataclass(frozen=True, slots=True)
class Call:
    """A function to call once for each list of arguments, all in one process."""

    code: str
    function: str
    """The name of a function, or of a method of class `Solution` (`f` or `Solution.f`)"""
    arguments: Sequence[list[Any]]


Job = Program | Call


@dataclass(frozen=True, slots=True)
class Run:
    """How one run or call ended. `ok` says that it ended by itself, never that its result is right."""

    status: Status
    stdout: bytes = b""
    """What a program has printed; empty for calls"""
    stderr: bytes = b""
    """The traceback and other messages"""
    seconds: float = 0.0
    value: Any = None
    """What the function has returned, as a JSON value (a tuple comes as a list)"""

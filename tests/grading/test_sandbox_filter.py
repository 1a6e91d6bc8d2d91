"""The filter of system calls says what it should on every architecture, and its numbers are the kernel's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prism_prm.grading.sandbox_policy import ALLOW, KILL, MACHINES, NOT_THERE, OWN_PID, REFUSE, system_call_filter

PID = 4711


def verdict(machine: str, number: int, *arguments: int, word: int | None = None) -> int:
    """What the filter returns: a machine for the six instructions that it uses."""
    words = [number, word if word is not None else MACHINES[machine][0], 0, 0]
    for argument in (*arguments, *[0] * (6 - len(arguments))):
        words += [argument & 0xFFFFFFFF, (argument >> 32) & 0xFFFFFFFF]
    program, at, a = system_call_filter(machine), 0, 0
    while True:
        code, then, other, value = program[at]
        assert 0 <= then < 256
        assert 0 <= other < 256
        value = PID if value == OWN_PID else value
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            a = words[value // 4]
        elif code == 0x54:
            a &= value
        else:
            true = {0x15: a == value, 0x35: a >= value, 0x45: bool(a & value)}[code]
            at += then if true else other


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("read", (), ALLOW),
        ("exit_group", (), ALLOW),
        ("clone", (0x3D0F00,), ALLOW),  # a thread of the C library
        ("clone", (17,), REFUSE),
        ("clone", (0x10000011,), REFUSE),
        ("clone3", (), NOT_THERE),
        ("openat", (0, 0, 0), ALLOW),
        ("openat", (0, 0, 0o1000), REFUSE),  # O_RDONLY | O_TRUNC
        ("openat", (0, 0, 0o1003), REFUSE),
        ("openat", (0, 0, 0o1101), ALLOW),  # landlock decides
        ("openat", (0, 0, 0o1002), ALLOW),
        ("kill", (PID,), ALLOW),
        ("kill", (1,), REFUSE),
        ("kill", (-1,), REFUSE),
        ("kill", (0,), REFUSE),
        ("tgkill", (PID, PID), ALLOW),
        ("tgkill", (1, 1), REFUSE),
        ("prlimit64", (0,), ALLOW),
        ("prlimit64", (PID,), ALLOW),
        ("prlimit64", (1,), REFUSE),
        ("socketpair", (1,), ALLOW),
        ("socketpair", (2,), REFUSE),
        ("sendto", (3, 4096, 1, 0, 0, 0), ALLOW),
        ("sendto", (3, 4096, 1, 0, 4096, 12), REFUSE),  # to an address
        ("fcntl", (0, 4), ALLOW),
        ("fcntl", (0, 8), REFUSE),  # F_SETOWN
        ("fcntl", (0, 10), REFUSE),  # F_SETSIG
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), REFUSE),  # TIOCSTI
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), REFUSE),
    ],
)
def test_decisions(machine: str, call: str, arguments: tuple[int, ...], expected: int) -> None:
    assert verdict(machine, MACHINES[machine][1][call], *arguments) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_only_the_listed_calls(machine: str) -> None:
    listed = set(MACHINES[machine][1].values())
    assert all((verdict(machine, number) == REFUSE) for number in set(range(600)) - listed)
    assert verdict(machine, MACHINES[machine][1]["read"], word=0x40000003) == KILL  # 32-bit x86


def test_x86_64_has_no_second_numbering() -> None:
    assert verdict("x86_64", 0x40000000) == KILL


HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+) (\d+)"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+) (\d+)"),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    path, pattern = HEADERS[machine]
    if not path.exists():
        pytest.skip(f"no {path}")
    numbers = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))
    assert {name: numbers[name] for name in MACHINES[machine][1]} == MACHINES[machine][1]


NEVER = {
    "socket", "connect", "bind", "sendmsg", "sendmmsg", "execve", "fork", "vfork", "ptrace", "chmod", "unlink", "mount",
}  # fmt: skip


def test_what_must_not_be_listed() -> None:
    assert all(not NEVER & set(numbers) for _, numbers in MACHINES.values())

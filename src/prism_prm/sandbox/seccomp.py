"""The system calls that a program may use: a list of permitted ones as a seccomp filter; all others are refused.

No network, no other processes, no change of files, no signals to others, nothing that inspects processes, and nothing
that later kernels will add.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

# fmt: off
X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35,
    "getitimer": 36, "alarm": 37, "setitimer": 38, "getpid": 39, "sendto": 44, "recvfrom": 45, "shutdown": 48,
    "getsockname": 51, "getpeername": 52, "socketpair": 53, "getsockopt": 55, "clone": 56, "exit": 60, "wait4": 61,
    "kill": 62, "uname": 63, "fcntl": 72, "getdents": 78, "getcwd": 79, "chdir": 80, "readlink": 89, "umask": 95,
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104,
    "geteuid": 107, "getegid": 108, "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118,
    "getresgid": 120, "getpgid": 121, "getsid": 124, "rt_sigpending": 127, "rt_sigtimedwait": 128,
    "rt_sigsuspend": 130, "sigaltstack": 131, "prctl": 157, "arch_prctl": 158, "setrlimit": 160, "gettid": 186,
    "time": 201, "futex": 202, "sched_getaffinity": 204, "epoll_create": 213, "getdents64": 217,
    "set_tid_address": 218, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "epoll_wait": 232, "epoll_ctl": 233, "tgkill": 234, "waitid": 247, "openat": 257,
    "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273,
    "get_robust_list": 274, "epoll_pwait": 281, "eventfd2": 290, "epoll_create1": 291, "dup3": 292, "pipe2": 293,
    "prlimit64": 302, "getcpu": 309, "getrandom": 318, "membarrier": 324, "statx": 332, "rseq": 334, "clone3": 435,
    "close_range": 436, "faccessat2": 439, "epoll_pwait2": 441,
}
AARCH64 = {
    "getcwd": 17, "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "dup": 23, "dup3": 24,
    "fcntl": 25, "ioctl": 29, "faccessat": 48, "chdir": 49, "openat": 56, "close": 57, "pipe2": 59, "getdents64": 61,
    "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68, "pselect6": 72,
    "ppoll": 73, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "waitid": 95,
    "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "get_robust_list": 100, "nanosleep": 101,
    "getitimer": 102, "setitimer": 103, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
    "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "kill": 129, "tgkill": 131,
    "sigaltstack": 132, "rt_sigsuspend": 133, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigpending": 136,
    "rt_sigtimedwait": 137, "rt_sigreturn": 139, "getresuid": 148, "getresgid": 150, "times": 153, "getpgid": 155,
    "getsid": 156, "getgroups": 158, "uname": 160, "getrlimit": 163, "setrlimit": 164, "getrusage": 165, "umask": 166,
    "prctl": 167, "getcpu": 168, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175,
    "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179, "socketpair": 199, "getsockname": 204,
    "getpeername": 205, "sendto": 206, "recvfrom": 207, "getsockopt": 209, "shutdown": 210, "brk": 214, "munmap": 215,
    "mremap": 216, "clone": 220, "mmap": 222, "mprotect": 226, "madvise": 233, "wait4": 260, "prlimit64": 261,
    "getrandom": 278, "membarrier": 283, "statx": 291, "rseq": 293, "clone3": 435, "close_range": 436,
    "faccessat2": 439, "epoll_pwait2": 441,
}
# fmt: on
MACHINES = {"x86_64": (0xC000003E, X86_64), "aarch64": (0xC00000B7, AARCH64)}
"""`platform.machine()` → the kernel's word for the architecture, and the numbers of the permitted calls."""

OWN_PID = -1
"""Stands for the program's process id, which is known only inside."""
_EPERM, _ENOSYS = 1, 38
ALLOW, KILL, REFUSE, NOT_THERE = 0x7FFF0000, 0x80000000, 0x00050000 | _EPERM, 0x00050000 | _ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_X32 = 0x40000000
"""From here on x86_64 has a second numbering of the same calls."""
_O_TRUNC, _O_ACCMODE, _CLONE_THREAD = 0o1000, 3, 0x10000

ARGUMENTS = {
    "kill": (0, (OWN_PID,)),
    "tgkill": (0, (OWN_PID,)),
    "prlimit64": (0, (0, OWN_PID)),
    "socketpair": (0, (1,)),  # AF_UNIX; asyncio needs one
    "sendto": (5, (0,)),  # only to the other end of a pair: an address could be that of any socket outside
    "prctl": (0, (15, 16)),  # the thread's name
    # Not F_SETOWN and F_SETSIG, which let the kernel send any signal to another process.
    "fcntl": (1, (0, 1, 2, 3, 4, 1030, 1032)),  # duplicate, get and set flags, size of a pipe
    "ioctl": (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # is it a terminal, bytes to read, flags
}
"""Calls permitted for some values of one argument: its place, and the values."""

Instruction = tuple[int, int, int, int]


@dataclass
class _Program:
    """Instructions of a filter; every block ends by returning, so that no jump is long."""

    instructions: list[Instruction] = field(default_factory=list)

    def add(self, code: int, value: int, then: int = 0, other: int = 0) -> None:
        self.instructions.append((code, then, other, value))

    def load_argument(self, place: int) -> None:
        self.add(_LOAD, 16 + 8 * place)  # the lower half; the kernel ignores the upper half of int arguments


@functools.cache
def filter_for(machine: str) -> tuple[Instruction, ...]:
    """The filter as (code, jump if true, jump if false, value) of each instruction."""
    word, numbers = MACHINES[machine]
    program = _Program()
    program.add(_LOAD, 4)
    program.add(_EQUAL, word, 1)
    program.add(_RETURN, KILL)
    program.add(_LOAD, 0)
    if machine == "x86_64":
        program.add(_AT_LEAST, _X32, 0, 1)
        program.add(_RETURN, KILL)
    for name, number in numbers.items():
        block = _Program()
        _decide(block, name)
        program.add(_EQUAL, number, 0, len(block.instructions))
        program.instructions += block.instructions
    program.add(_RETURN, REFUSE)
    return tuple(program.instructions)


def _decide(block: _Program, name: str) -> None:
    """What happens to the call of this name."""
    if name == "clone3":  # its flags are in memory, where no filter can look; libraries then fall back to clone
        block.add(_RETURN, NOT_THERE)
    elif name == "clone":  # threads only
        block.load_argument(0)
        block.add(_ANY_BIT, _CLONE_THREAD, 0, 1)
        block.add(_RETURN, ALLOW)
        block.add(_RETURN, REFUSE)
    elif name in ("open", "openat"):  # older landlock lets a file be emptied that is opened for reading
        block.load_argument(1 if name == "open" else 2)
        block.add(_ANY_BIT, _O_TRUNC, 0, 4)
        block.add(_MASK, _O_ACCMODE)
        block.add(_EQUAL, 1, 2)
        block.add(_EQUAL, 2, 1)
        block.add(_RETURN, REFUSE)
        block.add(_RETURN, ALLOW)
    elif name in ARGUMENTS:
        place, values = ARGUMENTS[name]
        block.load_argument(place)
        for i, value in enumerate(values):
            block.add(_EQUAL, value, len(values) - i)
        block.add(_RETURN, REFUSE)
        block.add(_RETURN, ALLOW)
    else:
        block.add(_RETURN, ALLOW)

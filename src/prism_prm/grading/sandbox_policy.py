"""The sandbox's policy: limits, readable files, the user a program runs as, and the allowed system calls.

No network, no other processes, no changes to files, no signals to others, no inspection of processes, and no system
calls that later kernels add. `sandbox_child` applies the policy in the new process, before the program starts.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from prism_prm.config import Count, Positive, Range, check
from prism_prm.errors import PrismError
from prism_prm.grading.sandbox_child import CREATE_RULESET

LEVELS = ("bubblewrap", "landlock", "none")
"""From the strongest isolation to none."""
WALL_PER_CPU = 4
"""Wall-clock seconds per second of CPU time. The wall clock ends programs that sleep; a program that computes must not
fail because the machine is busy."""
FIRST_USER = 60_600
"""Under root, programs run as users from this id on, one per concurrent run; no distribution assigns these ids."""
NUM_USERS = 512
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
"""The program's whole environment; the hash seed gives sets the same order in every run."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_MOUNT_POINTS = ("/mnt", "/media", "/srv")
"""Mount points for an interpreter that only root can read; only the sandbox's processes see the mount."""
_PREFIX = os.path.realpath(sys.base_prefix)


class SandboxError(PrismError):
    """No sandbox of the requested level works on this machine; the message names what to install."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of a program; times apply to each run and to each call of a function."""

    cpu: Positive = 6.0
    """CPU time in seconds"""
    wall: Positive = 6.0 * WALL_PER_CPU
    """Elapsed time in seconds, from the program's start"""
    memory_mb: Annotated[int, Range(64)] = 1024
    """Address space in MiB, including the interpreter's own (about 30)"""
    output_mb: Count = 16
    """Standard output and error together in MiB; for calls, including the results"""
    threads: Count = 32
    """Concurrent threads; further processes are never allowed"""
    files: Annotated[int, Range(16)] = 64
    """Open files; files can only be read, so their size needs no limit"""

    def __post_init__(self) -> None:
        check(self)


@functools.cache
def interpreter() -> str:
    """Return the path of this interpreter, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def readable_paths() -> tuple[str, ...]:
    """List the paths that a program may read: the interpreter, its library, and the system's shared libraries."""
    folders = [f"{_PREFIX}/lib", f"{_PREFIX}/lib64", "/lib", "/lib64", "/usr/lib", "/usr/lib64"]
    paths = [interpreter(), *folders, "/etc/ld.so.cache"]
    return tuple(dict.fromkeys(path for path in paths if os.path.exists(path)))


@functools.cache
def _is_public(path: str) -> bool:
    """Whether any user may read the path, through all folders above it."""
    above = all(parent.stat().st_mode & 0o001 for parent in Path(path).parents)
    return above and Path(path).stat().st_mode & 0o004 != 0


@functools.cache
def landlock_abi() -> int:
    """Return the version of landlock in this kernel; 0 if it has none."""
    version: int = ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(version, 0)


def check_machine(level: str) -> None:
    """Raise if a level cannot work on this machine, with the remedy."""
    if sys.platform != "linux":
        raise SandboxError(f"the sandbox needs Linux; this is {sys.platform}")
    if level == "none":
        return
    if platform.machine() not in MACHINES:
        known = ", ".join(MACHINES)
        raise SandboxError(f"no list of system calls for this architecture ({platform.machine()}; known: {known})")
    if level == "bubblewrap" and not shutil.which("bwrap"):
        raise SandboxError("bwrap is not installed: apt install bubblewrap (or dnf, pacman, apk)")
    if level == "bubblewrap" and os.geteuid() == 0 and not shutil.which("setpriv"):
        raise SandboxError("setpriv, which root needs, is not installed: apt install util-linux")
    if not landlock_abi():
        raise SandboxError("this kernel has no landlock: Linux 5.13 or newer, with landlock in the boot option lsm=")


def user_of_slot(slot: int) -> int:
    """Return the id of the user that runs the program; concurrent runs have different slots.

    Two processes rarely share a user, because the kernel counts threads by user.
    """
    return FIRST_USER + (16 * os.getpid() + slot) % NUM_USERS if os.geteuid() == 0 else os.getuid()


def start(level: str, user: int) -> tuple[list[str], dict[str, Any] | None]:
    """Return the command that starts the interpreter as this user, and how the child confines itself (None: not)."""
    command = [interpreter()]
    is_root = os.geteuid() == 0
    if level == "none":
        return command, None
    rights = {"readable": list(readable_paths()), "devices": list(_DEVICES)}
    if level == "landlock":
        hidden = not all(map(_is_public, readable_paths()))
        return command, {
            "user": user if is_root else 0, "keep_reading": hidden, "parent": os.getpid(), **rights,
        }  # fmt: skip
    confine = {"user": 0, "keep_reading": False, "parent": 0, **rights}
    if not is_root:
        return [*_bubblewrap(_PREFIX), *command], confine
    drop = [_tool("setpriv"), f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    if all(map(_is_public, (interpreter(), f"{_PREFIX}/lib"))):
        return [*drop, *_bubblewrap(_PREFIX), *command], confine
    # First, as root, mount an interpreter in a private home where the unprivileged user can read it.
    public = next((point for point in _MOUNT_POINTS if os.path.isdir(point)), "/tmp")
    outer = [_tool("bwrap"), "--die-with-parent", "--dev-bind", "/", "/", "--ro-bind", _PREFIX, public]
    return [*outer, *drop, *_bubblewrap(public), *command], confine


def _tool(name: str) -> str:
    """Return the full path of a program, because the sandbox's environment has no PATH."""
    path = shutil.which(name)
    assert path, f"check_machine found {name}"
    return path


@functools.cache
def _bubblewrap(source: str) -> tuple[str, ...]:
    """Return the bwrap command before the program's own; outside, the interpreter's folder is at `source`."""
    command = [_tool("bwrap"), "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL", "--as-pid-1"]
    if "--disable-userns" in subprocess.run([_tool("bwrap"), "--help"], capture_output=True, text=True).stdout:
        command.append("--disable-userns")
    for path in readable_paths():
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            is_own = path.startswith(f"{_PREFIX}/")
            command += ["--ro-bind", source + path[len(_PREFIX) :] if is_own else path, path]
    command += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for folder in ("/dev", "/"):
        command += ["--remount-ro", folder]
    return (*command, "--chdir", "/", "--")


def resource_limits(level: str, limits: Limits, num_calls: int, user: int) -> dict[str, int]:
    """Map names in `resource` to limits. The CPU limit covers all calls; the parent limits each of them.

    The kernel counts all threads of the user, but from zero in bubblewrap's namespace, which has one process.
    """
    cpu = math.ceil(limits.cpu * (num_calls + 1)) + 1
    values = {"RLIMIT_CPU": cpu, "RLIMIT_AS": limits.memory_mb << 20, "RLIMIT_NOFILE": limits.files, "RLIMIT_CORE": 0}
    if level != "none":
        others = 1 if level == "bubblewrap" else _num_threads(user)
        values |= {"RLIMIT_NPROC": others + limits.threads, "RLIMIT_FSIZE": 0, "RLIMIT_MSGQUEUE": 0}
    return values


def _num_threads(user: int) -> int:
    total = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                stat = Path(f"/proc/{process}/stat").read_bytes()
                total += int(stat[stat.rindex(b")") :].split()[18])
        except OSError:  # it has ended
            continue
    return total


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
"""`platform.machine()` → the kernel's id of the architecture, and the numbers of the allowed calls."""

OWN_PID = -1
"""Stands for the program's process id, which is known only in the child."""
_EPERM, _ENOSYS = 1, 38
ALLOW, KILL, REFUSE, NOT_THERE = 0x7FFF0000, 0x80000000, 0x00050000 | _EPERM, 0x00050000 | _ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_X32 = 0x40000000
"""The first number of x32, a second numbering of the calls on x86_64."""
_O_TRUNC, _O_ACCMODE, _CLONE_THREAD = 0o1000, 3, 0x10000

ARGUMENTS = {
    "kill": (0, (OWN_PID,)),
    "tgkill": (0, (OWN_PID,)),
    "prlimit64": (0, (0, OWN_PID)),
    "socketpair": (0, (1,)),  # AF_UNIX; asyncio needs one
    "sendto": (5, (0,)),  # only to the other end of a pair: an address could be any socket outside
    "prctl": (0, (15, 16)),  # the thread's name
    # Not F_SETOWN and F_SETSIG, which let the kernel send any signal to another process.
    "fcntl": (1, (0, 1, 2, 3, 4, 1030, 1032)),  # duplicate, get and set flags, size of a pipe
    "ioctl": (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # is it a terminal, bytes to read, flags
}
"""Calls that are allowed only for some values of one argument: its position, and the values."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, value."""


@functools.cache
def system_call_filter(machine: str) -> tuple[Instruction, ...]:
    """Build the seccomp filter: it allows the machine's listed calls and refuses all others."""
    word, numbers = MACHINES[machine]
    program: list[Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, word), (_RETURN, 0, 0, KILL), (_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, KILL)]
    for name, number in numbers.items():
        rule = _rule(name)  # ends with a return, so that all jumps are short
        program += [(_EQUAL, 0, len(rule), number), *rule]
    return (*program, (_RETURN, 0, 0, REFUSE))


def _rule(name: str) -> list[Instruction]:
    """Return the instructions for a listed call."""
    allow, refuse = (_RETURN, 0, 0, ALLOW), (_RETURN, 0, 0, REFUSE)

    def load_argument(place: int) -> Instruction:
        return _LOAD, 0, 0, 16 + 8 * place  # the lower half; the kernel ignores the upper half of int arguments

    if name == "clone3":  # a filter cannot read its flags, which are in memory; libraries fall back to clone
        return [(_RETURN, 0, 0, NOT_THERE)]
    if name == "clone":  # threads only
        return [load_argument(0), (_ANY_BIT, 0, 1, _CLONE_THREAD), allow, refuse]
    if name in ("open", "openat"):  # older versions of landlock allow truncating a file opened for reading
        flags = load_argument(1 if name == "open" else 2)
        writes = [(_MASK, 0, 0, _O_ACCMODE), (_EQUAL, 2, 0, 1), (_EQUAL, 1, 0, 2)]
        return [flags, (_ANY_BIT, 0, 4, _O_TRUNC), *writes, refuse, allow]
    if name in ARGUMENTS:
        place, values = ARGUMENTS[name]
        is_permitted = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
        return [load_argument(place), *is_permitted, refuse, allow]
    return [allow]

"""The levels of isolation: for each, the command that starts a process, and what the process gives up on its own."""

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
from typing import Any, Literal, get_args

from prism_prm.sandbox import inside, seccomp
from prism_prm.sandbox.records import MEBI, Limits, SandboxError

Level = Literal["bubblewrap", "landlock", "none"]
LEVELS: tuple[Level, ...] = get_args(Level)

FIRST_USER = 60_600
"""As root, programs run as users from here on, one for each of the runs at a time; no distribution assigns them."""
NUM_USERS = 512
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0"}
"""All that a program sees of an environment; sets have the same order in every run."""
_MOUNT_POINTS = ("/mnt", "/media", "/srv")
"""Where root's mount of a hidden interpreter can lie, seen by the sandbox's processes alone."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to start one process."""

    command: list[str]
    confine: dict[str, Any] | None
    """What `inside` is told to give up; None: nothing"""
    filtered: bool


@functools.cache
def interpreter() -> str:
    """This interpreter, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def prefix() -> str:
    """The folder that the interpreter is installed in."""
    return os.path.realpath(sys.base_prefix)


@functools.cache
def readable_places() -> tuple[str, ...]:
    """What a program may read: the interpreter, its library, and the system's shared libraries."""
    folders = [*(f"{prefix()}/{name}" for name in ("lib", "lib64")), "/lib", "/lib64", "/usr/lib", "/usr/lib64"]
    places = [interpreter(), *folders, "/etc/ld.so.cache"]
    return tuple(dict.fromkeys(place for place in places if os.path.exists(place)))


@functools.cache
def landlock_abi() -> int:
    """The version of landlock in this kernel; 0 if it has none."""
    found: int = ctypes.CDLL(None).syscall(inside.CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(found, 0)


@functools.cache
def is_public(path: str) -> bool:
    """Whether any user may read the path, through all folders above it."""
    above = all(parent.stat().st_mode & 0o001 for parent in Path(path).parents)
    return above and Path(path).stat().st_mode & 0o004 != 0


def check_machine(level: Level) -> None:
    """Refuse a level that cannot work here, with the remedy."""
    if sys.platform != "linux":
        raise SandboxError(f"the sandbox needs Linux; this is {sys.platform}")
    if level == "none":
        return
    if platform.machine() not in seccomp.MACHINES:
        known = ", ".join(seccomp.MACHINES)
        raise SandboxError(f"no list of system calls for this architecture ({platform.machine()}; known: {known})")
    if level == "bubblewrap" and not shutil.which("bwrap"):
        raise SandboxError("bwrap is not installed: apt install bubblewrap (or dnf, pacman, apk)")
    if level == "bubblewrap" and os.geteuid() == 0 and not shutil.which("setpriv"):
        raise SandboxError("setpriv, which root needs, is not installed: apt install util-linux")
    if not landlock_abi():
        raise SandboxError("this kernel has no landlock: Linux 5.13 or newer, with landlock in the boot option lsm=")


def user_at(place: int) -> int:
    """Who runs the program; runs at the same time have different places.

    Two processes seldom share a user: the kernel counts threads by user.
    """
    return FIRST_USER + (16 * os.getpid() + place) % NUM_USERS if os.geteuid() == 0 else os.getuid()


def start(level: Level, user: int) -> Start:
    """How to start the interpreter at a level as this user."""
    command = [interpreter()]
    is_root = os.geteuid() == 0
    if level == "none":
        return Start(command, None, filtered=False)
    rights = {"readable": list(readable_places()), "devices": list(DEVICES)}
    if level == "landlock":
        hidden = not all(map(is_public, readable_places()))
        own = {"user": user if is_root else 0, "keep_reading": hidden, "parent": os.getpid()}
        return Start(command, {**own, **rights}, filtered=True)
    confine = {"user": 0, "keep_reading": False, "parent": 0, **rights}
    if not is_root:
        return Start([*_bubblewrap(prefix()), *command], confine, filtered=True)
    drop = [_tool("setpriv"), f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    if all(map(is_public, (interpreter(), f"{prefix()}/lib"))):
        return Start([*drop, *_bubblewrap(prefix()), *command], confine, filtered=True)
    # Root's own mounts first: an interpreter in a private home gets a place where the unprivileged user can read it.
    public = next((point for point in _MOUNT_POINTS if os.path.isdir(point)), "/tmp")
    outer = [_tool("bwrap"), "--die-with-parent", "--dev-bind", "/", "/", "--ro-bind", prefix(), public]
    return Start([*outer, *drop, *_bubblewrap(public), *command], confine, filtered=True)


def _tool(name: str) -> str:
    """The full name of a program, since none is looked for in the sandbox's environment."""
    found = shutil.which(name)
    assert found, f"{name} was there when the level was chosen"
    return found


@functools.cache
def _bubblewrap(source: str) -> tuple[str, ...]:
    """The command up to the program's own; the interpreter's folder lies at `source` outside."""
    command = [_tool("bwrap"), "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--cap-drop", "ALL", "--as-pid-1"]
    if "--disable-userns" in subprocess.run([_tool("bwrap"), "--help"], capture_output=True, text=True).stdout:
        command.append("--disable-userns")
    for place in readable_places():
        if os.path.islink(place):
            command += ["--symlink", os.readlink(place), place]
        else:
            own = place.startswith(f"{prefix()}/")
            command += ["--ro-bind", source + place[len(prefix()) :] if own else place, place]
    command += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for folder in ("/dev", "/"):
        command += ["--remount-ro", folder]
    return (*command, "--chdir", "/", "--")


def threads_of(user: int) -> int:
    """How many threads the user has now: the kernel's limit counts all of them."""
    total = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}").st_uid == user:
                stat = Path(f"/proc/{process}/stat").read_bytes()
                total += int(stat[stat.rindex(b")") :].split()[18])
        except OSError:  # it has ended
            continue
    return total


def resource_limits(level: Level, limits: Limits, calls: int, user: int) -> dict[str, int]:
    """Names of `resource` → limits. That of the CPU has room for all calls; whoever watches the process limits each.

    The kernel counts the user's threads elsewhere too, but afresh in bubblewrap's namespace, where it has one process.
    """
    cpu = math.ceil(limits.cpu * (calls + 1)) + 1
    found = {"RLIMIT_CPU": cpu, "RLIMIT_AS": limits.memory_mb * MEBI, "RLIMIT_NOFILE": limits.files, "RLIMIT_CORE": 0}
    if level != "none":
        others = 1 if level == "bubblewrap" else threads_of(user)
        found |= {"RLIMIT_NPROC": others + limits.threads, "RLIMIT_FSIZE": 0, "RLIMIT_MSGQUEUE": 0}
    return found

"""Prove a level before it is used: a program tries what no program may do, and every attempt must fail."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from prism_prm.sandbox.records import Run, SandboxError

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
"""What is tried without isolation, where the probe would succeed."""


class Box(Protocol):
    """What the self-test needs of a sandbox."""

    @property
    def level(self) -> str: ...

    def run(self, code: str, stdin: str) -> Run: ...


@contextmanager
def _listening(folder: str) -> Iterator[None]:
    """A socket of datagrams in the folder, to which all may send."""
    at = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            try:
                made.bind(f"/proc/self/fd/{at}/socket")  # short, however long the folder's own path is
                os.chmod("socket", 0o777, dir_fd=at)
            except OSError as error:
                raise SandboxError(f"no socket can be made in {folder} ({error}): set TMPDIR to a local one") from None
            yield
    finally:
        os.close(at)


def prove(box: Box) -> list[str]:
    """What the probe could not do; anything it could do, and anything else than its normal end, refutes the level."""
    word = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, _listening(folder) if box.level != "none" else nullcontext():
        canary = Path(folder) / "canary"
        canary.write_text(word, encoding="utf-8")
        for path in (Path(folder), canary):
            path.chmod(0o777)  # only the sandbox stands in the way
        os.environ["PRISM_CANARY"] = word
        try:
            run = box.run(_PROBE if box.level != "none" else _HARMLESS, f"{folder}\n{word}\n")
        finally:
            del os.environ["PRISM_CANARY"]
    *found, last = run.stdout.decode(errors="replace").split("\n")[:-1] or [""]
    if run.status != "ok" or last != f"done {word}":
        lines = run.stderr.decode(errors="replace").strip().splitlines()
        raise SandboxError(f"the self-test did not run ({run.status}): {lines[-1] if lines else 'no message'}")
    if could := [line for line in found if not line.startswith("could not ")]:
        raise SandboxError(f"the self-test's program {', '.join(could)}")
    return [line.removeprefix("could not ") for line in found]

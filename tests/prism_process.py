"""Processes of `prism` without their seconds of imports: a server that has imported everything forks for each one.

`run` and `Process` stand in for `subprocess.run` and `subprocess.Popen` of `python -m prism_prm WORDS…`. A process has
its own arguments, folder, environment, streams and signals, and ends as any Python does. Tests of imports, of
installation and of what is set before torch is loaded start a Python of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

PRISM = "from prism_prm.cli import main; main()"


class Process:
    """A running `prism WORDS…`, or other code with the same imports. Its output and errors are pipes of text."""

    def __init__(
        self,
        *words: object,
        code: str = PRISM,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        quiet: bool = False,
    ) -> None:
        """Start it; `quiet` throws away what it prints, so that nobody has to read it."""
        self.args = ["prism", *map(str, words)]
        self.returncode: int | None = None
        self.stdout, out = _pipe(quiet)
        self.stderr, err = _pipe(quiet)
        with open(os.devnull, "rb") as nothing, out, err:
            self._keeper = _request(_server(), [nothing, out, err], self.args, code, cwd or Path.cwd(), env)
        self.pid = int(self._keeper.readline())

    def poll(self) -> int | None:
        """Its status, if it has ended."""
        if self.returncode is None and select.select([self._keeper], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its status, when it has ended."""
        if self.returncode is None:
            if not select.select([self._keeper], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._keeper.readline())
            self._keeper.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of its output and errors, when it has ended."""
        said = {"stdout": "", "stderr": ""}

        def read(name: str) -> None:
            said[name] = getattr(self, name).read()

        readers = [threading.Thread(target=read, args=[name], daemon=True) for name in said if getattr(self, name)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:  # they may wait for a grandchild that has the pipe, too
            reader.join(timeout)
        return said["stdout"], said["stderr"]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def run(*words: object, timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """`prism WORDS…` to its end, whatever its status; for options see `Process`."""
    with Process(*words, **options) as process:
        try:
            out, err = process.communicate(timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def write_command(path: Path) -> None:
    """A file that does what `prism` does, for shell scripts."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "{_server()}" "$@"\n')
    path.chmod(0o755)


def _pipe(quiet: bool) -> tuple[IO[str] | None, IO[bytes]]:
    if quiet:
        return None, open(os.devnull, "wb")
    read, write = os.pipe()
    return open(read, encoding="utf-8"), open(write, "wb")


def _request(
    server: str, streams: list[IO[Any]], argv: list[str], code: str, cwd: Path, env: Mapping[str, str] | None
) -> IO[str]:
    """Start a process; a stream of two lines: its number, and in the end its status."""
    asked = json.dumps({"argv": argv, "code": code, "cwd": str(cwd), "env": dict(os.environ if env is None else env)})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server)
        socket.send_fds(connection, [b"\n"], [stream.fileno() for stream in streams])
        connection.sendall(asked.encode() + b"\n")
        return connection.makefile("r", encoding="utf-8")


@cache
def _server() -> str:
    """The address of the server of this process, which ends with it."""
    address = f"{tempfile.mkdtemp(prefix='prism-server-')}/socket"
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline(), "the server did not start"
    atexit.register(process.communicate)  # it ends when its standard input does
    return address


def _import_everything() -> None:
    import importlib
    import pkgutil

    import prism_prm

    for module in pkgutil.walk_packages(prism_prm.__path__, "prism_prm."):
        if not module.name.endswith("__main__") and not module.name.startswith("prism_prm.rl.connectors."):
            importlib.import_module(module.name)  # connectors import their framework
    for name in ("torch", "transformers.models.qwen2.modeling_qwen2", "peft", "accelerate", "datasets", "trl"):
        importlib.import_module(name)


def _serve(address: str) -> dict[str, Any]:
    """Fork for each request until standard input ends. It returns in the forked process, with what was requested."""
    running: dict[int, socket.socket] = {}
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in (ready := select.select([listener, sys.stdin, ended], [], [])[0]):
            if ended in ready:
                os.read(ended, 4096)
                while running and (found := os.waitpid(-1, os.WNOHANG))[0]:
                    with running.pop(found[0]) as connection:
                        _tell(connection, os.waitstatus_to_exitcode(found[1]))
            if listener in ready:
                connection, _ = listener.accept()
                streams = socket.recv_fds(connection, 1, 3)[1]
                with connection.makefile("r", encoding="utf-8") as lines:
                    asked: dict[str, Any] = json.loads(lines.readline())
                if (pid := os.fork()) == 0:
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                running[pid] = connection
                for stream in streams:
                    os.close(stream)
                if pid == 0:
                    break
                _tell(connection, pid)
        else:
            shutil.rmtree(Path(address).parent)
            sys.exit()
    for connection in running.values():
        connection.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return asked


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits any more
        connection.sendall(f"{number}\n".encode())


def main() -> None:
    if sys.argv[1] != "--serve":
        streams = [sys.stdin, sys.stdout, sys.stderr]
        lines = _request(sys.argv[1], streams, ["prism", *sys.argv[2:]], PRISM, Path.cwd(), None)
        lines.readline()
        sys.exit(int(lines.readline()) % 256)
    _import_everything()
    gc.freeze()
    asked = _serve(sys.argv[2])
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv, sys.path[0] = asked["argv"], ""
    status = 0
    try:
        exec(asked["code"], {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    # As Python ends, but without taking apart what was imported: that would copy all memory shared with the server.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()

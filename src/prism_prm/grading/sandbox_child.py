"""Runs in the new process: drops every right that `sandbox_policy` does not grant, then runs the program.

The parent sends the compiled code of this file, so it uses only the standard library and imports little: each module
costs milliseconds per run. Its reports are not trusted: the parent decides what is right.
"""

from __future__ import annotations

import builtins
import os
import resource
import sys

TYPE_CHECKING = False  # importing it from typing would cost as much as all the rest
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_KEEPCAPS, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 1, 4, 8, 22, 38
CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_DAC_READ_SEARCH = 1 << 2
_MAX_TRACEBACK = 4_000
"""The maximum length of a reported traceback, in characters."""


def main(job: dict[str, Any]) -> None:
    """Confine this process, report that it is ready, and run the job."""
    report = job["report"]
    try:
        if job["is_first"]:
            _fork_from_first_process()
        if job["confine"]:
            _confine(**job["confine"])
        _limit(job["limits"])
        if job["filter"]:
            _filter_calls(job["filter"])
    except BaseException as error:  # after any error, the program must not run unconfined
        os.write(2, f"the sandbox could not be set up: {error!r}\n".encode())
        os._exit(1)
    from _sitebuiltins import Quitter  # `site` would add these, but it is not loaded, to save time

    builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D"), Quitter("quit", "Ctrl-D")
    os.write(report, b"ready\n")
    if job["function"]:
        _call(report, job["code"], job["function"], job["arguments"])
    try:
        _execute(job["code"], "__main__")
    except MemoryError:
        os.write(report, b"memory\n")
        raise


def _execute(code: str, name: str) -> dict[str, Any]:
    """Run the code as its own module and return its names."""
    module = type(sys)(name)
    sys.modules[name] = module
    exec(compile(code, "<program>", "exec"), module.__dict__)
    return module.__dict__


def _call(report: int, code: str, function: str, arguments: str) -> NoReturn:
    """Call the function for each list of arguments; report a line of JSON for loading and one for each call."""
    import json

    def send(*outcome: Any) -> None:
        line = json.dumps(outcome).encode() + b"\n"
        while line:
            line = line[os.write(report, line) :]

    def attempt(action: Any) -> None:
        try:
            send("ok", action())
        except MemoryError:  # there is no memory left for a traceback
            send("memory", "MemoryError")
        except BaseException:  # whatever a program raises is its outcome
            import traceback

            send("error", traceback.format_exc()[-_MAX_TRACEBACK:])

    loaded: dict[str, Any] = {}
    attempt(lambda: loaded.update(f=_find_function(_execute(code, "program"), function)))
    for values in json.loads(arguments) if loaded else ():
        attempt(lambda values=values: loaded["f"](*values))
    os._exit(0)


def _find_function(names: dict[str, Any], function: str) -> Any:
    """Return the function, or the method of class `Solution`; one object serves all calls."""
    owner, _, method = function.rpartition(".")
    if not owner and (function in names or "Solution" not in names):
        return names[function]
    return getattr(names[owner or "Solution"](), method)


def _limit(limits: dict[str, int]) -> None:
    """Set resource limits, unless stricter ones apply already."""
    for name, value in limits.items():
        which = getattr(resource, name)
        _, most = resource.getrlimit(which)
        limit = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(which, (limit, limit))


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    """Return the result of a C library call; raise if it is -1."""
    if result < 0:
        import ctypes

        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _fork_from_first_process() -> None:
    """Continue in a child, because the first process of a namespace ignores signals. It waits and exits like the child.

    bubblewrap could do the same, but exits without waiting for that process.
    """
    child = os.fork()
    if child:
        os.closerange(0, 1024)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(ended if ended >= 0 else 128 - ended)


def _confine(*, user: int, keep_reading: bool, parent: int, readable: list[str], devices: list[str]) -> None:
    """Become an unprivileged user, die with the parent, and restrict file access to reading the interpreter."""
    libc = _libc()
    if user:
        _become(libc, user, keep_reading)
    _check(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")  # a crash must not start a core-dump handler
    if parent:
        _check(libc.prctl(_SET_PDEATHSIG, 9, 0, 0, 0), "pdeathsig")
        if os.getppid() != parent:
            raise OSError("the parent has ended")
    _landlock(libc, readable, devices)


def _become(libc: Any, user: int, keep_reading: bool) -> None:
    """Change to the user, and drop all capabilities except, if needed, reading root's files."""
    import struct

    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        _check(libc.prctl(_SET_KEEPCAPS, 1, 0, 0, 0), "keepcaps")
        os.setresuid(user, user, user)
    except OSError as error:
        raise OSError(f"root cannot become user {user} here: {error}") from None
    kept = _DAC_READ_SEARCH if keep_reading else 0  # landlock still restricts which files
    _check(libc.capset(struct.pack("II", 0x20080522, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0)), "capset")


def _landlock(libc: Any, readable: list[str], devices: list[str]) -> None:
    """Allow access only to these paths; also forbid connections and signals to others, if the kernel can."""
    import ctypes
    import struct

    abi = _check(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock")
    files = (1 << (13 if abi < 2 else 14 if abi < 3 else 15 if abi < 5 else 16)) - 1
    words = [files] if abi < 4 else [files, 3] if abi < 6 else [files, 3, 3]
    attributes = struct.pack(f"{len(words)}Q", *words)
    ruleset = _check(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock")
    for path in (*readable, *devices):
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rights = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        if path in devices:
            rights |= _WRITE_FILE | (_TRUNCATE & files)
        rule = struct.pack("=Qi", rights, descriptor)
        _check(libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"landlock rule for {path}")
        os.close(descriptor)
    _check(libc.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def _filter_calls(instructions: list[tuple[int, int, int, int]]) -> None:
    """Allow only the filter's system calls; -1 stands for this process's id."""
    import ctypes
    import struct

    own = os.getpid()
    code = b"".join(struct.pack("HBBI", a, b, c, own if k == -1 else k) for a, b, c, k in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(buffer))
    _check(_libc().prctl(_SET_SECCOMP, 2, program, 0, 0), "seccomp")

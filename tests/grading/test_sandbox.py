"""What a sandbox gives for honest programs, for cheating ones, and on machines that lack something."""

from __future__ import annotations

import json
import os
import platform
import selectors
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from docs_code import blocks
from prism_prm.errors import PrismError
from prism_prm.grading import sandbox_policy, sandbox_process
from prism_prm.grading.sandbox import Call, Program, RunResult, Sandbox
from prism_prm.grading.sandbox_policy import Limits, SandboxError

needs_bwrap = pytest.mark.skipif(
    not shutil.which("bwrap"), reason="NOT TESTED: bubblewrap is not installed (apt install bubblewrap)"
)


@pytest.fixture(scope="module", params=[pytest.param("bubblewrap", marks=needs_bwrap), "landlock", "none"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """A sandbox of each level: honest programs see no difference."""
    return Sandbox(request.param, Limits(cpu=5, wall=300), workers=2)


@pytest.fixture(scope="module")
def quick() -> Sandbox:
    """One that needs nothing installed, for what does not depend on the level."""
    return Sandbox("landlock", Limits(cpu=5, wall=300), workers=2)


HONEST: dict[str, tuple[str, str, bytes]] = {
    "input": ("a, b = map(int, input().split())\nprint(a + b)", "2 3\n", b"5\n"),
    "lines": ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", "ab\ncd\n", b"ba\ndc\n"),
    "descriptor": ("print(len(open(0).read()))", "abc", b"3\n"),
    "buffer": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", "ä€", "ä€".encode()),
    "dev_stdin": ("open('/dev/stdout', 'w').write(open('/dev/stdin').read())", "ab", b"ab"),
    "dev_null": ("import os\nprint(open(os.devnull, 'w').write('abc'))", "", b"3\n"),
    "main": ("import __main__\nx = 5\nif __name__ == '__main__': print(__main__.x)", "", b"5\n"),
    "exit": ("print(1)\nexit()\nprint(2)", "", b"1\n"),
    "sys_exit": ("import sys\nprint(1, end='')\nsys.exit(0)", "", b"1"),
    "no_newline": ("print('a', end='')", "", b"a"),
    "set_order": ("print(hash('a'))", "", b"4644417185603328019\n"),
    "deep_recursion": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\n"
        "def f(n): return n and 1 + f(n - 1)\nthreading.Thread(target=lambda: print(f(10**5))).start()",
        "",
        b"100000\n",
    ),
    "asyncio": ("import asyncio\nasync def f(): return 3\nprint(asyncio.run(f()))", "", b"3\n"),
    "socket_pair": ("import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(9))", "", b"b'x'\n"),
    "own_limits": ("import resource as r\nr.setrlimit(r.RLIMIT_STACK, (-1, -1))\nprint(1)", "", b"1\n"),
    "own_signals": ("import os, signal\nsignal.signal(10, lambda *_: print(1))\nos.kill(os.getpid(), 10)", "", b"1\n"),
    "atexit": ("import atexit\natexit.register(print, 'end')", "", b"end\n"),
    "libraries": (
        "import bisect, collections, copy, dataclasses, datetime, decimal, fractions, functools, hashlib, heapq\n"
        "import itertools, json, math, operator, random, re, statistics, string, typing, zlib\n"
        "print(decimal.Decimal(1) / 8, hashlib.md5(b'').hexdigest()[:4], zlib.crc32(b'a'))",
        "",
        b"0.125 d41d 3904355907\n",
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs(sandbox: Sandbox, name: str) -> None:
    code, stdin, expected = HONEST[name]
    run = sandbox.run(code, stdin)
    assert (run.status, run.stdout, run.stderr) == ("ok", expected, b"")
    assert run.seconds > 0


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("1 / 0", "error", b"ZeroDivisionError"),
        ("def f(:", "error", b"SyntaxError"),
        ("x = '\0'", "error", b"null bytes"),
        ("import sys; sys.exit(3)", "error", b""),
        ("import sys; sys.exit('reason')", "error", b"reason"),
        ("x = bytearray(2**40)", "memory", b"MemoryError"),
        ("raise MemoryError", "memory", b"MemoryError"),
        ("print(input())", "error", b"EOFError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "error", b""),
        ("import prism_prm", "error", b"No module named 'prism_prm'"),
        ("import pip", "error", b"No module named 'pip'"),
    ],
)
def test_how_programs_end(quick: Sandbox, code: str, status: str, says: bytes) -> None:
    run = quick.run(code)
    assert run.status == status
    assert says in run.stderr


@pytest.fixture
def late_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process comes late to watch a program, as on a busy machine."""

    class Late(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            time.sleep(0.3)

    monkeypatch.setattr("prism_prm.grading.sandbox_process.subprocess.Popen", Late)


@pytest.mark.usefixtures("late_watch")
def test_pipes_can_be_opened_from_the_start(sandbox: Sandbox) -> None:
    code, given, expected = HONEST["dev_stdin"]
    assert sandbox.run(code, given).stdout == expected


STEALS = """
import os
for pipe in range(64):
    try:
        os.read(os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK), 1 << 20)
    except OSError:
        pass
"""
TAKES_BACK = """
import contextlib, os, time
taken = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
for _ in range(5):
    os.write(1, b"x")
    time.sleep(0.03)
    with contextlib.suppress(BlockingIOError):  # on a busy machine the other side may read it first
        os.read(taken, 1)
    time.sleep(0.1)
"""


@pytest.mark.usefixtures("late_watch")
def test_a_program_cannot_take_the_report_that_it_was_started(sandbox: Sandbox) -> None:
    assert sandbox.run(STEALS).status == "ok"
    assert outcomes(sandbox.call(f"{STEALS}\ndef f(x): return x", "f", [[1]])) == [("ok", 1)]


def test_a_program_that_empties_its_pipe_has_run(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the moment when this process sees that there is output, and that when it reads it."""

    class Slow(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            found = super().select(timeout)
            time.sleep(0.05)
            return found

    monkeypatch.setattr("prism_prm.grading.sandbox_process.selectors.DefaultSelector", Slow)
    assert sandbox.run(TAKES_BACK).status in ("ok", "error")


def test_a_threads_limit_is_exact(sandbox: Sandbox) -> None:
    if sandbox.level == "none" or os.geteuid() != 0:
        pytest.skip("the kernel counts all of this user's threads")
    some = Sandbox(sandbox.level, Limits(threads=8))
    code = "import threading\ngo = threading.Event()\n"
    code += "for i in range({}): threading.Thread(target=go.wait, daemon=True).start()\ngo.set()"
    # The kernel also counts what another run of the same user has left for a moment: hence several tries.
    assert any(some.run(code.format(7)).status == "ok" for _ in range(5))
    assert any(b"can't start new thread" in some.run(code.format(8)).stderr for _ in range(5))


# Calls


def outcomes(runs: list[RunResult]) -> list[tuple[str, Any]]:
    return [(run.status, run.value) for run in runs]


def test_calls(sandbox: Sandbox) -> None:
    runs = sandbox.call("def f(a, b):\n    print('noise')\n    return a / b", "f", [[1, 2], [1, 0], [3, 4]])
    assert outcomes(runs) == [("ok", 0.5), ("error", None), ("ok", 0.75)]
    assert b"ZeroDivisionError" in runs[1].stderr
    assert [run.stdout for run in runs] == [b""] * 3


@pytest.mark.parametrize("function", ["f", "Solution.f"])
def test_methods(quick: Sandbox, function: str) -> None:
    runs = quick.call("class Solution:\n    def f(self, x): return [x, {'a': (x,)}]", function, [[1], ["é"]])
    assert outcomes(runs) == [("ok", [1, {"a": [1]}]), ("ok", ["é", {"a": ["é"]}])]


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("1 / 0", "error", b"ZeroDivisionError"),
        ("def g(): pass", "error", b"KeyError: 'f'"),
        ("class Solution: pass", "error", b"no attribute 'f'"),
        ("while True: pass", "timeout", b""),
        ("import os\nos._exit(0)", "error", b""),
        ("def f(x): return {1, 2}", "error", b"not JSON serializable"),
        ("def f(x): raise SystemExit(0)", "error", b"SystemExit"),
        ("def f(x): return bytearray(2**40)", "memory", b"MemoryError"),
        ("def f(x): return [0] * 2**20", "output", b""),
    ],
)
def test_calls_that_fail(code: str, status: str, says: bytes) -> None:
    runs = Sandbox("landlock", Limits(cpu=1, wall=300, output_mb=1)).call(code, "f", [[1], [2]])
    assert [run.status for run in runs] == [status] * 2
    assert says in runs[0].stderr


def test_a_call_that_ends_the_process_leaves_the_others_without_result() -> None:
    code = "def f(x):\n    while x == 1: pass\n    return x"
    runs = Sandbox("landlock", Limits(cpu=1, wall=300)).call(code, "f", [[0], [1], [2]])
    assert outcomes(runs) == [("ok", 0), ("timeout", None), ("timeout", None)]
    assert runs[2].stderr == b"not called: call 2 ended the process"


def test_each_call_has_the_time_of_one(quick: Sandbox) -> None:
    """Seven calls of half a second, under a limit of three seconds."""
    code = "import time\ndef f(x):\n    time.sleep(0.5)\n    return x"
    some = Sandbox("landlock", Limits(wall=3))
    assert outcomes(some.call(code, "f", [[i] for i in range(7)])) == [("ok", i) for i in range(7)]
    assert quick.call(code, "f", []) == []


BURNS = """
import resource, time
def f(seconds):
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    until = time.process_time() + seconds
    while time.process_time() < until: pass
    return seconds
"""


def test_a_program_cannot_give_itself_more_cpu_time(sandbox: Sandbox) -> None:
    some = sandbox.with_limits(Limits(cpu=1, wall=60))
    assert some.run(f"{BURNS}\nf(1.7)").status == "timeout"
    runs = some.call(BURNS, "f", [[0.5], [0.7], [5], [0], [0], [0]])
    assert outcomes(runs) == [("ok", 0.5), ("ok", 0.7)] + [("timeout", None)] * 4


# Cheating: nothing that decides is inside, so all a program can do is to return something else.

ALWAYS_EQUAL = "    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
CHEATS: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "prints_the_verdict": ("def f(x):\n    print('ok passed 42')\n    return 0", [("ok", 0)] * 2),
    "exits_early": ("import os\ndef f(x):\n    print('ok')\n    os._exit(0)", [("error", None)] * 2),
    "equal_to_all": (f"class E:\n{ALWAYS_EQUAL}def f(x): return E()", [("error", None)] * 2),
    "a_number_equal_to_all": (f"class E(int):\n{ALWAYS_EQUAL}def f(x): return E(7)", [("ok", 7)] * 2),
    "patches_equality": (
        "import builtins, json\nclass L(list):\n" + ALWAYS_EQUAL + "builtins.list = L\njson.loads = lambda s: [[1]]\n"
        "def f(x): return L([x])",
        [("ok", [1])],
    ),
    "closes_descriptors": ("import os\ndef f(x):\n    os.closerange(0, 4096)\n    return x", [("error", None)] * 2),
    "closes_its_report": ("import os\ndef f(x):\n    os.closerange(3, 4096)\n    return x", [("error", None)] * 2),
    "writes_nonsense_as_result": (
        "import os\ndef f(x):\n    for d in range(3, 4096):\n        try: os.write(d, b'PASSED\\n')\n"
        "        except OSError: pass\n    return x",
        [("error", None), ("ok", 1)],
    ),
    "writes_a_result": (
        "import os\ndef f(x):\n    for d in range(3, 4096):\n        try: os.write(d, b'[\"ok\", 5]\\n')\n"
        "        except OSError: pass\n    os._exit(0)",
        [("ok", 5), ("error", None)],
    ),
    "writes_another_status": (
        "import os\ndef f(x):\n    for d in range(3, 4096):\n        try: os.write(d, b'[\"passed\", 5]\\n' * 2)\n"
        "        except OSError: pass\n    os._exit(0)",
        [("error", None)] * 2,
    ),
    "nests_deeply": (
        "import os\ndef f(x):\n    for d in range(3, 4096):\n        try: os.write(d, b'[' * 60000 + b'\\n')\n"
        "        except OSError: pass\n    os._exit(0)",
        [("error", None)] * 2,
    ),
    "patches_json": ("import json\njson.dumps = lambda _: '[\"ok\", 9]'\ndef f(x): return x", [("ok", 9)] * 2),
    "replaces_stdout": ("import sys\nsys.stdout = None\ndef f(x): return x", [("ok", 1), ("ok", 2)]),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats(quick: Sandbox, name: str) -> None:
    code, expected = CHEATS[name]
    runs = quick.call(code, "f", [[1], [2]][: len(expected)])
    assert outcomes(runs) == expected
    assert all(type(run.value) in (int, list, type(None)) for run in runs)


def test_what_enters_the_sandbox(quick: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what the caller gives: there is no place for an expected output."""
    sent: list[Any] = []
    real = sandbox_process.marshal.dumps
    monkeypatch.setattr(sandbox_process.marshal, "dumps", lambda value: sent.append(value[1]) or real(value))
    quick.call("def f(x): return x", "f", [[1]])
    (job,) = sent
    assert set(job) == {"function", "code", "arguments", "limits", "is_first", "confine", "filter", "report"}
    assert json.loads(job["arguments"]) == [[1]]


# Many jobs


def test_map_keeps_the_order(sandbox: Sandbox) -> None:
    jobs = [Program("import time\ntime.sleep(0.2 * (input() == '0'))\nprint(1)", str(i)) for i in range(4)]
    found = list(sandbox.map([*jobs, Call("def f(x): return x", "f", [[3]])]))
    assert [run.stdout for run in found[:4]] == [b"1\n"] * 4  # type: ignore[union-attr]
    assert outcomes(found[4]) == [("ok", 3)]  # type: ignore[arg-type]


def test_map_reads_few_jobs_ahead(quick: Sandbox) -> None:
    read: list[int] = []

    def jobs() -> Iterator[Program]:
        for i in range(1000):
            read.append(i)
            yield Program(f"print({i} ** 2)")

    results = quick.map(jobs())
    assert [next(results).stdout for _ in range(3)] == [b"0\n", b"1\n", b"4\n"]  # type: ignore[union-attr]
    assert len(read) <= 3 + 2 * quick.workers
    results.close()  # type: ignore[attr-defined]


def test_who_stops_asking_stops_what_runs() -> None:
    """The second program would run for a day, and the test with it."""
    some = Sandbox("landlock", Limits(wall=86_400), workers=2)
    results = some.map([Program("print(1)"), Program("import time\ntime.sleep(86400)")])
    assert next(results).stdout == b"1\n"  # type: ignore[union-attr]
    results.close()  # type: ignore[attr-defined]


def test_other_limits_need_no_other_proof(quick: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.grading.sandbox.self_test", None)
    assert quick.with_limits(Limits(memory_mb=64)).run("x = bytearray(2**26)").status == "memory"
    assert quick.run("x = bytearray(2**26)").status == "ok"


def test_threads_share_a_sandbox(quick: Sandbox) -> None:
    found: dict[int, bytes] = {}

    def one(i: int) -> None:
        found[i] = quick.run(f"print({i})").stdout

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"{i}\n".encode() for i in range(6)}


# Machines that lack something


def refuse(*_: object, **__: object) -> NoReturn:
    raise OSError("no sockets here")


@pytest.mark.parametrize(
    ("change", "level", "says"),
    [
        (lambda m: m.setattr(sandbox_policy.shutil, "which", lambda _: None), "bubblewrap", "apt install bubblewrap"),
        (lambda m: m.setattr(sandbox_policy, "landlock_abi", lambda: 0), "landlock", "Linux 5.13 or newer"),
        (lambda m: m.setattr(platform, "machine", lambda: "riscv64"), "landlock", "riscv64; known: x86_64, aarch64"),
        (lambda m: m.setattr(sys, "platform", "darwin"), "none", "needs Linux; this is darwin"),
        (lambda m: m.setattr(sandbox_policy, "interpreter", lambda: "/nowhere/python"), "landlock", "No such file"),
        (lambda m: m.setattr(os, "chmod", refuse), "landlock", "(no sockets here): set TMPDIR to a"),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None], level: Any, says: str
) -> None:
    change(monkeypatch)
    with pytest.raises(SandboxError, match="cannot be run in isolation") as caught:
        Sandbox(level)
    assert says in str(caught.value)


def test_auto_never_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_policy.shutil, "which", lambda _: None)
    assert Sandbox().level == "landlock"
    monkeypatch.setattr(sandbox_policy, "landlock_abi", lambda: 0)
    with pytest.raises(SandboxError, match=r"- bubblewrap: bwrap is not(.|\n)*- landlock: this kernel"):
        Sandbox()


def test_limits_that_hold_already_are_kept() -> None:
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n"
        "from prism_prm.grading.sandbox import Sandbox\n"
        "asks = 'import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))'\n"
        "print(Sandbox('landlock').run(asks).stdout)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "b'(50, 50)\\n'\n"


def test_a_process_that_cannot_start_says_nothing_about_the_program(
    quick: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_policy, "interpreter", lambda: "/nowhere/python")
    run = quick.run("print(1)")
    assert (run.status, run.stdout) == ("sandbox", b"")
    assert b"/nowhere/python" in run.stderr
    assert [one.status for one in quick.call("def f(x): return x", "f", [[1]])] == ["sandbox"]


@pytest.mark.parametrize(
    ("command", "says"),
    [("sleep 60", "was not ready within 0.1 s"), ("exit 7", "ended with code 7 before it was ready")],
)
def test_a_process_that_is_never_ready_says_why(
    quick: Sandbox, monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    monkeypatch.setattr(sandbox_policy, "start", lambda *_: (["/bin/sh", "-c", command], None))
    if "sleep" in command:
        monkeypatch.setattr("prism_prm.grading.sandbox_process._START_SECONDS", 0.1)
    run = quick.run("print(1)")
    assert (run.status, run.stderr) == ("sandbox", f"the process {says}\n".encode())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Limits(cpu=0), "cpu = 0: must be above 0"),
        (lambda: Limits(memory_mb=10), "memory_mb = 10: must be 64 or more"),
        (lambda: Limits(output_mb=0), "output_mb = 0: must be 1 or more"),
        (lambda: Sandbox("docker"), "sandbox = 'docker': must be one of auto, bubblewrap, landlock, none"),
        (lambda: Sandbox(workers=0), "workers = 0: must be 1 or more"),
    ],
)
def test_settings_are_checked(make: Callable[[], object], says: str) -> None:
    with pytest.raises(PrismError) as caught:
        make()
    assert says in str(caught.value)


def test_the_example_in_the_docs() -> None:
    (example,) = (block for block in blocks("docs/guides/code.md", "python") if "import Call" in block)
    *made, run, call, jobs = example.strip().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(made), names)
    for line in (run, call):
        code, expected = line.split("  # ")
        assert eval(code, names) == eval(expected)
    first, (second,) = eval(jobs, names)
    assert (first.stdout, second.value) == (b"1\n", 2)


def test_the_command_shows_the_self_test() -> None:
    done = subprocess.run([sys.executable, "-m", "prism_prm.grading.sandbox"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "- landlock: works. The self-test's program could not read your files, list your files" in done.stdout
    assert "Level auto is " in done.stdout

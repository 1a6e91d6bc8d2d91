"""The code of a GenPRM critic in the real sandbox: what it prints comes back as the critic's next turn."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scripted import PROBLEM, VLLM, chat, critic, said

from loopback import Answer, serve
from prism_prm.backends.critic import code_runner
from prism_prm.cli import app
from prism_prm.grading.sandbox import RunResult, Sandbox
from prism_prm.grading.sandbox_policy import Limits, SandboxError

CODE = "```python\n"
OUTPUT = "[Code Output]\n\n```\n"
CANARY = "the secret canary"


@pytest.fixture(autouse=True)
def own_runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little time per program; what other tests have made of the runner is not used."""
    monkeypatch.setattr("prism_prm.backends.critic.LIMITS", Limits(cpu=1, wall=300))
    code_runner.cache_clear()
    yield
    code_runner.cache_clear()


class Scripted:
    """A critic that sends one program per step and remembers what it was shown of it."""

    def __init__(self, programs: dict[str, str]) -> None:
        self.programs = programs
        """Step → the code sent about it."""
        self.shown: dict[str, str] = {}
        """Step → the output that came back."""

    def __call__(self, body: dict[str, Any]) -> Answer:
        step = str(body["messages"][-2]["content"]).split("\n")[-1]
        if said(body).endswith(CODE):
            return chat(self.programs[step], stop_reason="\n```\n")
        if OUTPUT in said(body):
            self.shown[step] = said(body).split(OUTPUT)[-1].removesuffix("\n```\n")
            return chat("So it is.</verify>\n<output>\n**Judgement**: $\\boxed{Yes}$\n", stop_reason="</output>\n")
        return chat("Let us see.\n")


def run(folder: Path, programs: list[str], **more: Any) -> list[str]:
    """What the critic sees of each program, one per step of one solution."""
    steps = [f"step {i}" for i in range(len(programs))]
    scripted = Scripted(dict(zip(steps, programs, strict=True)))
    with critic(folder, scripted, models=VLLM, format="genprm", code=True, timeout=300.0, **more) as (prm, _):
        assert prm.score(PROBLEM, steps) == pytest.approx([1.0] * len(steps), abs=1e-9)
    return [scripted.shown[step] for step in steps]


def test_output_comes_back_and_a_program_that_is_stopped_spoils_no_later_one(tmp_path: Path) -> None:
    endless, much, late, fails = run(
        tmp_path,
        [
            "x = 3\nprint(x * 4, flush=True)\nwhile True: pass",
            "while True: print('x' * 1000)",
            "print(7 * 8)",
            "y = 1\nprint(y / 0)",
        ],
    )
    assert endless == "12\nThe code ran out of time."
    assert much.startswith("x" * 1000)
    assert much.endswith("\nThe code printed too much.")
    assert len(much) < 5000
    assert late == "56"
    assert fails == "ZeroDivisionError: division by zero"


def test_later_code_may_use_what_earlier_code_has_defined(tmp_path: Path) -> None:
    assert run(tmp_path, ["def f(n): return n + 1\nprint(f(1))", "print(f(41))\nexit()", "print(f(2))"]) == [
        "2", "42", "3",
    ]  # fmt: skip


def test_an_attack_reads_nothing_and_reaches_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "canary.txt").write_text(CANARY)
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    reached: list[Any] = []

    class Listener(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            reached.append(self.request.recv(100))

    with socketserver.TCPServer(("127.0.0.1", 0), Listener) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        written = tmp_path / "written.txt"
        attacks = [
            f"print(open({str(tmp_path / 'canary.txt')!r}).read())",
            "import os\nprint(os.environ)\nprint(open('/proc/%d/environ' % os.getppid(), 'rb').read())",
            f"import socket\nsocket.create_connection(('127.0.0.1', {listener.server_address[1]})).sendall(b'hello')",
            f"open({str(written)!r}, 'w').write('x')",
            f"import os\nos.system('touch {written}')\nos.kill({os.getpid()}, 9)",
        ]
        shown = run(tmp_path, attacks)
        listener.shutdown()
    assert not [text for text in shown if CANARY in text]
    assert all("Error" in text for text in shown[:1] + shown[2:4]), shown
    assert reached == []
    assert not written.exists()


def test_a_resumed_run_sees_the_output_that_was_kept(tmp_path: Path) -> None:
    """Otherwise code that prints a time or a random number would make every later question a new one."""
    first = run(tmp_path, ["import random\nprint(random.random())"])
    scripted = Scripted({})
    with critic(tmp_path, scripted, models=VLLM, format="genprm", code=True) as (prm, asked):
        assert prm.score(PROBLEM, ["step 0"]) == pytest.approx([1.0], abs=1e-9)
        assert asked == []
    kept = (tmp_path / "replies" / "replies-000.jsonl").read_text()
    assert float(first[0]) > 0
    assert first[0] in kept


def test_no_code_is_run_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism_prm.backends.critic.Sandbox", lambda **_: pytest.fail("there is no code to run"))

    def answer(body: dict[str, Any]) -> Answer:
        return chat("{Yes}") if said(body).endswith("$\\boxed") else chat("```python\nprint(1)\n```\n")

    with critic(tmp_path, answer, models=VLLM, format="genprm") as (prm, asked):
        assert prm.score(PROBLEM, ["step 0"]) == pytest.approx([1.0], abs=1e-9)
    assert len(asked) == 2
    assert OUTPUT not in str(asked)


def test_where_no_sandbox_works_the_option_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_works(level: str) -> None:
        raise SandboxError(f"no {level} here")

    monkeypatch.setattr("prism_prm.grading.sandbox_policy.check_machine", nothing_works)
    (tmp_path / "solutions.jsonl").write_text('{"problem": "1?", "steps": ["a"]}\n')
    with serve(lambda _: chat("Yes"), models=VLLM) as (url, asked):
        command = ["score", str(tmp_path / "solutions.jsonl"), "--prm", f"critic:openai:{url}", "-C", "format=genprm"]
        options = ["-C", "code=true", "--out", str(tmp_path / "s.parquet"), "-C", f"replies={tmp_path / 'replies'}"]
        result = CliRunner().invoke(app, [*command, *options])
    said_aloud = " ".join(str(result.exception or result.output).split())
    assert result.exit_code != 0
    assert "-C code=true: Programs cannot be run in isolation on this machine" in said_aloud
    assert "no bubblewrap here" in said_aloud
    assert "Without -C code=true the critic's code is not run" in said_aloud
    assert asked == []


def test_a_program_that_could_not_be_started_says_nothing_about_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code_runner()  # its self-test still works
    monkeypatch.setattr(Sandbox, "run", lambda *_: RunResult("sandbox", stderr=b"no more processes"))
    with pytest.raises(SandboxError, match=r"could not start the critic's code: no more processes"):
        run(tmp_path, ["print(1)"])

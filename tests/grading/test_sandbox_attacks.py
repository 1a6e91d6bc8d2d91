"""Every attack is contained at every level, leaves nothing behind, and works where there is no isolation."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attacks
import pytest

from prism_prm.grading import sandbox_policy
from prism_prm.grading.sandbox import Sandbox
from prism_prm.grading.sandbox_policy import Limits, SandboxError
from waiting import until

needs_bwrap = pytest.mark.skipif(
    not shutil.which("bwrap"), reason="NOT TESTED: bubblewrap is not installed (apt install bubblewrap)"
)
LEVELS = [pytest.param("bubblewrap", marks=needs_bwrap), "landlock"]
IS_ROOT = os.geteuid() == 0
HERE = Path(__file__).parent
PUBLIC_PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def orphanage() -> Iterator[set[int]]:
    """The children that were there before; meanwhile also orphans of sandboxes would be found among them."""
    attacks.adopt_orphans()
    yield attacks.children()
    attacks.adopt_orphans(False)


@pytest.fixture
def aim(orphanage: set[int]) -> Iterator[dict[str, Any]]:
    """A fresh scene; afterwards no process is left."""
    with attacks.scene() as made:
        yield made
    until(lambda: not attacks.children(orphanage))


def test_there_are_enough_attacks() -> None:
    names = [attack.name for attack in attacks.ATTACKS]
    assert len(set(names)) == len(names) >= 100


AT_EACH_LEVEL = [
    pytest.param(attack, level, id=f"{attack.name}-{level}", marks=marks)
    for i, attack in enumerate(attacks.ATTACKS)
    for level, marks in {"landlock": [], "bubblewrap": [needs_bwrap, *[pytest.mark.slow][: i % 6]]}.items()
]
"""`make test` has all attacks at the weaker level, and every sixth at the other, which has the same filter below."""


@pytest.mark.parametrize(("attack", "level"), AT_EACH_LEVEL)
def test_contained(attack: attacks.Attack, level: str, aim: dict[str, Any]) -> None:
    run = attacks.run_attack(attack, level, aim)
    assert attacks.fault_of(attack, run) == ""
    assert attacks.harm_done(aim) == []
    assert len(run.stdout) + len(run.stderr) <= attack.limits.output_mb * 2**20 + 2**17


CONTROLS = [a for a in attacks.ATTACKS if a.harmless == "for all" or (IS_ROOT and a.harmless == "for root")]


@pytest.mark.parametrize("attack", CONTROLS, ids=lambda attack: attack.name)
def test_works_without_isolation(attack: attacks.Attack, aim: dict[str, Any]) -> None:
    run = attacks.run_attack(attack, "none", aim)
    assert b"BREACH" in run.stdout, run


@pytest.mark.parametrize("level", LEVELS)
def test_signal_to_all(level: str, aim: dict[str, Any]) -> None:
    if level == "landlock" and sandbox_policy.landlock_abi() < 6:
        pytest.skip("only the filter of system calls would stand between the program and every process of the user")
    attack = attacks.Attack("signal_to_all", "os.kill(-1, 0)\nbreach()", says=attacks.REFUSED)
    assert attacks.fault_of(attack, attacks.run_attack(attack, level, aim)) == ""


@pytest.mark.parametrize("level", LEVELS)
def test_after_attacks_others_run_and_no_descriptor_is_lost(level: str) -> None:
    flood = next(attack for attack in attacks.ATTACKS if attack.name == "endless_report")
    box = Sandbox(level, flood.limits)
    before = os.listdir("/proc/self/fd")
    assert box.run(flood.code, "{}\n").status == "output"
    until(lambda: len(os.listdir("/proc/self/fd")) <= len(before))  # other threads may have theirs for a moment
    assert box.run("print(sum(range(10)))").stdout == b"45\n"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("code", ["print(1)", "while True: pass", "import os\nos.abort()"])
def test_no_process_is_left_for_others_to_bury(level: Any, code: str, orphanage: set[int]) -> None:
    """In a container the first process may bury none, so that one would stay for each run."""
    attacks.children()
    Sandbox(level, Limits(cpu=0.3)).run(code)
    assert attacks.offspring() - orphanage == set()


def faults_with_the_systems_python(user: int, *names: str) -> str:
    """What goes wrong with these attacks (all, if none is named) at all levels, started by this user."""
    version = [PUBLIC_PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if not IS_ROOT or not os.path.exists(PUBLIC_PYTHON) or subprocess.run(version).returncode:
        pytest.skip("NOT TESTED as another user: needs root, and a Python 3.11 that all may use")
    if not all(folder.stat().st_mode & 0o001 for folder in (HERE, *HERE.parents)):
        pytest.skip(f"NOT TESTED as another user, who cannot read {HERE}")
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    command = [*become, PUBLIC_PYTHON, "-B", HERE / "as_user.py", "bubblewrap" if shutil.which("bwrap") else "", *names]
    environment = {"PYTHONPATH": f"{HERE.parent.parent / 'src'}:{HERE}:{HERE.parent}", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


NOBODY, ROOT = 65534, 0
OWN = (
    "read_a_file_of_the_user", "change_a_mode", "delete_a_file", "signal_to_the_parent", "queued_signal", "pidfd",
    "environment_of_the_parent", "limits_of_the_parent", "unix_socket", "fork", "thread_bomb", "ptrace",
    "datagram_to_a_unix_socket", "nested_user_namespace", "write_a_temporary_file",
)  # fmt: skip
"""Attacks on what belongs to the user who runs the sandbox; root's programs are another user."""


def test_as_an_ordinary_user() -> None:
    assert faults_with_the_systems_python(NOBODY, *OWN) == f"{len(OWN)} attacks\n"


def test_as_root_with_an_interpreter_that_all_can_read() -> None:
    assert faults_with_the_systems_python(ROOT, "thread_bomb", "core_pattern", "become_root") == "3 attacks\n"


@pytest.mark.slow
@pytest.mark.parametrize("user", [NOBODY, ROOT])
def test_all_attacks_with_the_systems_python(user: int) -> None:
    assert faults_with_the_systems_python(user) == f"{len(attacks.ATTACKS)} attacks\n"


def test_a_level_that_does_not_isolate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_policy, "system_call_filter", lambda _: None)
    with pytest.raises(SandboxError, match="could start processes"):
        Sandbox("landlock")


def test_a_filter_that_lets_datagrams_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sandbox_policy.ARGUMENTS, "sendto")
    monkeypatch.setattr(sandbox_policy, "system_call_filter", sandbox_policy.system_call_filter.__wrapped__)
    with pytest.raises(SandboxError, match=r"program could send to your sockets$"):
        Sandbox("landlock")

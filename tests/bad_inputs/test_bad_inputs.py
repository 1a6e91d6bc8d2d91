"""Every command with bad input: one line that says where, what was found and the way out, status 2, nothing written."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bad_files
import bad_options
import bad_places
import bad_recipes
import bad_records
import pytest
from bad_rows import Row
from valid_inputs import COMMANDS, write_inputs

from prism_prm.cli import main

LONG = {"demo": "prism_prm.lab.demo.run_demo.run_demo", "grpo": "prism_prm.rl.rounds.train_rounds"}
"""Command → the function that does its work."""
ROWS: list[Row] = [*bad_options.rows(), *bad_recipes.rows(), *bad_records.rows(), *bad_files.rows(), *bad_places.rows()]


def run(folder: Path, command: tuple[str, ...] | list[str]) -> int:
    """Run a prism command in the folder; its status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["prism", *command])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code if isinstance(ended.value.code, int) else 0


@pytest.fixture(scope="session")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of valid inputs. Shared: do not change it."""
    folder = tmp_path_factory.mktemp("valid")

    def made(*command: str) -> None:
        assert run(folder, command) == 0, command

    write_inputs(folder, made)
    return folder


@pytest.fixture(scope="session")
def shared(valid: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the valid inputs, which each bad input changes and `restore` mends."""
    return shutil.copytree(valid, tmp_path_factory.mktemp("shared") / "work")


@pytest.fixture
def work(valid: Path, shared: Path) -> Iterator[Path]:
    """A folder with the valid inputs, to be changed."""
    yield shared
    right, now = contents(valid), contents(shared)
    for name in sorted((name for name in right.keys() | now.keys() if right.get(name) != now.get(name)), reverse=True):
        path = shared / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if (valid / name).is_dir():
            shutil.copytree(valid / name, path)
        elif name in right:
            path.parent.mkdir(exist_ok=True)
            shutil.copy2(valid / name, path)
    assert contents(shared) == right, "all is as it was"


def contents(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All that is there, and when it was last written."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else ()
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_the_unchanged_input_is_accepted(
    name: str, valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(valid, tmp_path / "work")
    if name in LONG:  # a minute of training, which is tested elsewhere: here, that its options are accepted
        seen: list[Any] = []
        monkeypatch.setattr(LONG[name], lambda *given, **_: seen.append(given[-1]) or sys.exit(0))
        assert run(folder, COMMANDS[name]) == 0
        assert seen == [Path("out")]
        return
    assert run(folder, COMMANDS[name]) == 0
    assert [path for path in folder.iterdir() if path.name.startswith("out")] != []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_bad_input(row: Row, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row.change(work)
    before = contents(work)
    status = run(work, row.command)
    out, err = capsys.readouterr()
    assert status == 2, err
    *remarks, said = err.strip().splitlines()
    assert said.startswith("error: "), err
    assert [line for line in remarks if "error" in line or "Traceback" in line] == [], err
    assert [word for word in row.words if word not in said] == [], said
    assert out == ""
    assert contents(work) == before


def test_every_command_has_rows() -> None:
    """And no two rows have one name."""
    names = Counter(row.name for row in ROWS)
    assert [name for name, count in names.items() if count > 1] == []
    assert {row.command[0] for row in ROWS} == {name.split()[0] for name in COMMANDS}

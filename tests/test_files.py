"""Files appear whole or not at all, and others can read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prism_prm import files
from prism_prm.errors import PrismError
from prism_prm.files import locked, whole_file, whole_folder


def _private(path: Path) -> None:
    path.write_text("x")
    path.chmod(0o600)


def test_others_can_read_what_a_library_wrote_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("x")
    usual = (tmp_path / "usual").stat().st_mode
    with whole_file(tmp_path / "file") as aside:
        _private(aside)
    with whole_folder(tmp_path / "folder") as aside:
        (aside / "inner").mkdir()
        _private(aside / "inner" / "file")
    assert (tmp_path / "file").stat().st_mode == usual
    assert (tmp_path / "folder/inner/file").stat().st_mode == usual


def test_a_failed_block_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    with whole_file(tmp_path / "file") as aside:
        aside.write_text("old")

    def half_a_file() -> None:
        with whole_file(tmp_path / "file") as aside:
            aside.write_text("ne")
            raise KeyboardInterrupt

    def half_a_folder() -> None:
        with whole_folder(tmp_path / "folder") as aside:
            (aside / "part").write_text("x")
            raise KeyboardInterrupt

    for half in (half_a_file, half_a_folder):
        with pytest.raises(KeyboardInterrupt):
            half()
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@contextmanager
def another_process_in(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """One that holds the folder until it is killed."""
    code = "import sys, time, prism_prm.files as f\nwith f.locked(sys.argv[1]): print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.communicate()


def test_a_folder_is_one_process_s_until_it_ends_or_dies(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "too"
    with another_process_in(folder) as process:
        with pytest.raises(PrismError, match=r"too: another process is running here; wait for it, or name another"):
            locked(folder).__enter__()
        process.send_signal(signal.SIGKILL)
        process.wait()
        with locked(folder), pytest.raises(PrismError, match="another process"):
            locked(folder).__enter__()
    with locked(folder):
        pass


def test_a_lock_without_fcntl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    with locked(tmp_path), pytest.raises(PrismError, match=r"another process.*If none is running.*remove .*\.lock"):
        locked(tmp_path).__enter__()
    with pytest.raises(KeyboardInterrupt), locked(tmp_path):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())

"""Files appear whole or not at all, and others can read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prism_prm.files import whole_file, whole_folder


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

"""Files appear whole or not at all, and others can read them."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prism_prm.errors import DataError, PrismError
from prism_prm.files import JsonLines, atomic_file, atomic_folder, waiting_lock


def _private(path: Path) -> None:
    path.write_text("x")
    path.chmod(0o600)


def test_others_can_read_what_a_library_wrote_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("x")
    usual = (tmp_path / "usual").stat().st_mode
    with atomic_file(tmp_path / "file") as aside:
        _private(aside)
    with atomic_folder(tmp_path / "folder") as aside:
        (aside / "inner").mkdir()
        _private(aside / "inner" / "file")
    assert (tmp_path / "file").stat().st_mode == usual
    assert (tmp_path / "folder/inner/file").stat().st_mode == usual


def test_a_failed_block_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file") as aside:
        aside.write_text("old")

    def half_a_file() -> None:
        with atomic_file(tmp_path / "file") as aside:
            aside.write_text("ne")
            raise KeyboardInterrupt

    def half_a_folder() -> None:
        with atomic_folder(tmp_path / "folder") as aside:
            (aside / "part").write_text("x")
            raise KeyboardInterrupt

    for half in (half_a_file, half_a_folder):
        with pytest.raises(KeyboardInterrupt):
            half()
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_json_lines_cut_off_anywhere_keep_all_whole_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "made" / "x.jsonl"
    records = [{"a": 1}, {"text": "é\n\u2028"}, [1, None, 2.5]]
    lines = JsonLines(path, sync=True)
    assert lines.read() == []
    assert not path.exists()
    for record in records:
        lines.append(record)
    lines.close()
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        caplog.clear()
        kept = records[: sum(end <= length for end in ends)]
        lines = JsonLines(path)
        assert lines.read() == kept
        assert path.read_bytes() == whole[:length], "reading changes nothing"
        lines.append("more")
        lines.append("and more")
        lines.close()
        said = [record.getMessage() for record in caplog.records]
        is_torn = length not in (0, *ends)
        assert said == [f"{path}: dropped the last line, truncated by a full disk or a killed process"] * is_torn
        assert JsonLines(path).read() == [*kept, "more", "and more"]


def test_json_lines_are_replaced_as_a_whole(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "x.jsonl")
    for i in range(4):
        lines.append(i)
    lines.rewrite([0, 1])
    lines.append(9)
    assert lines.read() == [0, 1, 9]
    (tmp_path / "x.jsonl").write_text("1\noops\n2\n")
    with pytest.raises(DataError, match=r"x\.jsonl:2: not a JSON record"):
        JsonLines(tmp_path / "x.jsonl").read()


def test_a_disc_without_room_leaves_whole_lines(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disc: half of a line is written, then writing fails."""
    code = """
import resource, sys
from prism_prm.files import JsonLines
lines = JsonLines(sys.argv[1])
lines.append("x" * 57)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
lines.append("y" * 57)
"""
    path = tmp_path / "x.jsonl"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert "PrismError" in done.stderr
    assert f"{path}: a line could not be written" in done.stderr
    assert path.read_text() == '"' + "x" * 57 + '"\n'


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EFBIG])
def test_what_cannot_be_written_is_named(number: int, tmp_path: Path) -> None:
    """The system's error has no path when a write fails, and the path of a file aside when opening one does."""
    for write in (atomic_file, atomic_folder):
        with pytest.raises(PrismError) as caught, write(tmp_path / "out.bin"):
            raise OSError(number, os.strerror(number))
        assert str(caught.value).startswith(
            f"{tmp_path}/out.bin: cannot be written ({os.strerror(number)}); no partial file is left."
        )
        assert str(caught.value).endswith("and rerun the same command.")
        with pytest.raises(PrismError, match="cannot be written"), write(tmp_path / "out.bin") as aside:
            raise OSError(number, os.strerror(number), str(aside))
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_file_that_is_read_is_not_taken_for_one_of_writing(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), atomic_file(tmp_path / "out.bin"):
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/input.jsonl")


@pytest.mark.parametrize(
    "write",
    [
        "files.write_text(path, 'x' * 9999)",
        "\nwith files.atomic_file(path) as aside:\n    pq.write_table(pa.table({'x': list(range(9999))}), aside)",
        "\nwith files.atomic_folder(path) as aside:\n    save_file({'x': np.arange(9999.0)}, aside / 'x.safetensors')",
    ],
)
def test_libraries_that_meet_a_full_disc(write: str, tmp_path: Path) -> None:
    code = f"""
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from safetensors.numpy import save_file
from prism_prm import files
path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
{write}
"""
    path = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"prism_prm.errors.PrismError: {path}: cannot be written (File too large)")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disc_ends_a_command_with_its_path(tmp_path: Path) -> None:
    line = {"prompt": "1 + 1?", "completions": [f"step {i}" for i in range(99)], "labels": [True] * 99}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    code = """
import resource, sys
from prism_prm.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
sys.argv = ["prism", "pairs", "in.jsonl", "--set", "pairs.audit=off", "--out", "out"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"error: out/\w+\.\w+: cannot be written \(File too large\); .*", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_waiting_lock_waits_only_where_there_are_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("prism_prm.files.fcntl.flock", no_locks)
    with waiting_lock(tmp_path / "new" / ".lock"):
        assert (tmp_path / "new" / ".lock").exists()

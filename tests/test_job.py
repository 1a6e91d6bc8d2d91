"""Work that was stopped is resumed: by one command at a time, with the same settings, and nothing is done twice."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prism_prm import job
from prism_prm.errors import ConfigError, PrismError
from prism_prm.files import atomic_file
from prism_prm.job import KEY, Journal, content_key, is_made_for, locked, locked_file, once, refuse_changes


@dataclass(frozen=True)
class Cake:
    sugar: int
    layers: tuple[str, ...] = ()


def test_keys_are_of_content() -> None:
    assert content_key(Cake(1, ("a",)), "x") == content_key(Cake(1, ("a",)), "x")
    keys = [content_key(Cake(1)), content_key(Cake(2)), content_key(1), content_key("1"), content_key(Cake(1), None)]
    assert len(set(keys)) == len(keys)


def test_changes_are_named_with_what_was_there() -> None:
    before = {"train": {"lr": 0.1, "epochs": 2}, "cache": "here"}
    refuse_changes("runs/x", before, {"train": {"lr": 0.1, "epochs": 2}, "cache": "there"}, free=("cache",))
    with pytest.raises(ConfigError, match=r"runs/x was started with other settings; now: train.lr = 0.5 \(was 0.1\)"):
        refuse_changes("runs/x", before, {"train": {"lr": 0.5, "epochs": 2}, "cache": "here"})
    with pytest.raises(ConfigError, match=r"train.new = 1 \(was None\)"):
        refuse_changes("runs/x", before, {**before, "train": {**before["train"], "new": 1}})  # type: ignore[dict-item]


def test_a_result_is_made_once_for_its_key(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> list[int]:
        made.append(len(made))
        return made

    path = tmp_path / "deep" / "result.json"
    assert [once(path, key, make) for key in ("a", "a", "b")] == [[0], [0], [0, 1]]
    path.write_text(path.read_text()[:10])
    assert once(path, "b", make) == [0, 1, 2], "a broken file is made anew"


def test_a_table_says_what_it_was_made_for(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    assert not is_made_for(path, "a")
    pq.write_table(pa.table({"x": [1]}).replace_schema_metadata({KEY: "a"}), path)
    assert [is_made_for(path, key) for key in ("a", "b")] == [True, False]
    path.write_bytes(b"no table")
    assert not is_made_for(path, "a")


def test_a_journal_that_holds_nothing_yet_does_not_claim_its_folder(tmp_path: Path) -> None:
    """The work failed as it began; the mended command is not one with other settings."""
    path = tmp_path / "n2.jsonl"
    Journal(path, {"policy": "with a typo"}, Cake).__exit__(None, None, None)
    with Journal(path, {"policy": "p"}, Cake) as journal:
        journal.append("a problem", Cake(3, ("b",)))
    with Journal(path, {"policy": "p"}, Cake) as journal:
        assert journal.done == {"a problem": Cake(3, ("b",))}
    with pytest.raises(PrismError, match=r"n2.jsonl was started with other settings; now: policy = another \(was p\)"):
        Journal(path, {"policy": "another"}, Cake)


def test_a_strange_journal_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "n2.jsonl"
    path.write_text("[1, 2]\nhello\n")
    with pytest.raises(PrismError, match="not a journal of this work"):
        Journal(path, {"policy": "p"}, Cake)
    assert path.read_text() == "[1, 2]\nhello\n"


@contextmanager
def another_process_in(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """One that holds the folder until it is killed."""
    code = "import sys, time, prism_prm.job as r\nwith r.locked(sys.argv[1]): print(flush=True); time.sleep(3600)"
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


def test_what_a_killed_process_left_of_a_file_is_removed(tmp_path: Path) -> None:
    names = [".a[1].parquet.0123abcd.part", ".b.parquet.0123abcd.part", ".a[1].parquet.mine.part", "a[1].parquet"]
    for name in names:
        (tmp_path / name).touch()
    with locked_file(tmp_path / "a[1].parquet"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_whoever_locks_a_folder_removes_what_killed_processes_left_in_it(tmp_path: Path) -> None:
    code = (
        "import os; from prism_prm.files import atomic_file, atomic_folder\n"
        "with atomic_file('a/file') as file, atomic_folder('model') as folder:\n"
        "    file.write_text('x'); (folder / 'weights').write_text('x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    left = sorted(path.name for path in tmp_path.rglob("*.part"))
    assert [name[:6] for name in left] == [".file.", ".model"]
    with atomic_file(tmp_path / "a" / "mine") as mine, locked(tmp_path):
        assert list(tmp_path.rglob("*.part")) == [mine], "what a live process writes stays"
        mine.write_text("x")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "mine"]


def test_a_lock_leaves_no_trace_unless_something_was_written(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"), locked_file(tmp_path / "c" / "d.parquet"):
        assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*.lock"))] == [
            "a/b/.lock", "c/.d.parquet.lock",
        ]  # fmt: skip
    assert not list(tmp_path.iterdir())
    with locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "file").touch()
    assert list(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "file"]


def test_a_lock_that_was_removed_as_it_was_opened_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or two processes would each hold a lock: one on the removed file, one on a new file of that name."""
    real, calls = job.fcntl.flock, []

    def flock(lock: object, how: int) -> None:
        if not calls:
            (tmp_path / ".lock").unlink()
        calls.append(how)
        real(lock, how)  # type: ignore[arg-type]

    monkeypatch.setattr(job.fcntl, "flock", flock)
    with locked(tmp_path):
        assert len(calls) == 2
        with pytest.raises(PrismError, match="another process"):
            locked(tmp_path).__enter__()


def test_a_lock_without_fcntl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "fcntl", None)
    with locked(tmp_path), pytest.raises(PrismError, match=r"another process.*If none is running.*remove .*\.lock"):
        locked(tmp_path).__enter__()
    with pytest.raises(KeyboardInterrupt), locked(tmp_path):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_lock_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(job.fcntl, "flock", no_locks)
    with locked(tmp_path), pytest.raises(PrismError, match=r"another process.*If none is running.*remove .*\.held"):
        locked(tmp_path).__enter__()
    assert not list(tmp_path.iterdir())

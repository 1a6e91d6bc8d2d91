"""Files are written whole or not at all: write aside, then rename."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


def _aside(path: Path) -> Path:
    """A name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")


def _usual_mode(path: Path) -> int:
    """The mode of a new file, seen by making one: the umask cannot be read without setting it for all threads."""
    path.touch()
    mode = path.stat().st_mode
    path.unlink()
    return mode


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without error it becomes `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    mode = _usual_mode(aside)
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.chmod(mode)  # some libraries write files that only their owner can read
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder; when the block ends without error it becomes `path`, replacing it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    aside.mkdir()
    mode = _usual_mode(aside / ".mode")
    try:
        yield aside
        for file in aside.rglob("*"):
            if file.is_file():
                file.chmod(mode)
        if path.exists():
            old = _aside(path)
            os.replace(path, old)
            os.replace(aside, path)
            shutil.rmtree(old)
        else:
            os.replace(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")

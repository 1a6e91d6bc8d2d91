"""Files are written whole or not at all: write aside, then rename."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

_UMASK = os.umask(0)  # there is no way to read it without setting it
os.umask(_UMASK)


def _share(path: Path) -> None:
    """Give a file the usual mode: some libraries write files that only their owner can read."""
    path.chmod(0o666 & ~_UMASK)


def _aside(path: Path) -> Path:
    """A name beside `path` that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path; when the block ends without error it becomes `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(path)
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        _share(aside)
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
    try:
        yield aside
        for file in aside.rglob("*"):
            if file.is_file():
                _share(file)
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

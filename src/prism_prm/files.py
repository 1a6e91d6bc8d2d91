"""Atomic writes: files and folders are written to a temporary path and renamed; truncated lines are dropped."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from prism_prm.errors import DataError, PrismError

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

CONVERTED = ".converted"
"""The ending of folders beside a file that hold it in another format; each machine makes its own."""


def _aside(path: Path, suffix: str = "part") -> Path:
    """A temporary path next to `path` that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{suffix}")


def remove_parts(folder: Path, pattern: str = "**/.*") -> None:
    """Remove partial files and folders of killed processes; those of live processes are locked and stay."""
    for part in list(folder.glob(f"{pattern}.{'[0-9a-f]' * 8}.part")):
        with contextlib.suppress(FileNotFoundError), _lock(part) as is_abandoned:
            if is_abandoned and part.is_dir():
                shutil.rmtree(part)
            elif is_abandoned:
                part.unlink()


@contextlib.contextmanager
def _lock(part: Path) -> Iterator[bool]:
    """Lock a file or folder; yields False if another process holds the lock, or if the system has no locks."""
    if fcntl is None:
        yield False  # type: ignore[unreachable]
        return
    opened = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
    except OSError:
        is_locked = False
    try:
        yield is_locked
    finally:
        os.close(opened)


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, after waiting for a process that holds it; without waiting, if the system has no locks."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    with lock:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # some network file systems have none
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


_CANNOT_WRITE = {
    errno.ENOSPC: "free some space there", errno.EDQUOT: "free some space there", errno.EFBIG: "free some space there",
    errno.EACCES: "change the permissions, or name another place",
    errno.EPERM: "change the permissions, or name another place", errno.EROFS: "name a place that can be written",
}  # fmt: skip
"""Error number of a failed write → remedy."""
_TORCH_CANNOT_WRITE = ("PytorchStreamWriter failed", "inline_container.cc:", "iostream error")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Add the path to errors such as a full disk or a missing permission; the system's messages often lack it."""
    try:
        yield
    except PrismError:
        raise
    except Exception as error:
        reason, remedy = _explain(error)
        if not remedy or not _is_about(error, path):
            raise
        raise PrismError(
            f"{path}: cannot be written ({reason}); no partial file is left. To resume, {remedy} and rerun the same "
            f"command."
        ) from error


def _explain(error: Exception) -> tuple[str, str]:
    """The system's reason for a failed write, and the remedy; ("", "") for other errors.

    safetensors gives the error number only in its message, and torch.save gives no reason at all.
    """
    if any(text in str(error) for text in _TORCH_CANNOT_WRITE):
        return "torch.save failed", "free some space there"
    found = re.search(r"\(os error (\d+)\)", str(error))
    number = error.errno if isinstance(error, OSError) and error.errno else int(found[1]) if found else 0
    return (os.strerror(number), _CANNOT_WRITE[number]) if number in _CANNOT_WRITE else ("", "")


def _is_about(error: Exception, path: Path) -> bool:
    """Whether an error concerns this path, not a file that is read at the same time."""
    named = getattr(error, "filename", None)
    return named is None or Path(os.fsdecode(named)).absolute().is_relative_to(path.absolute().parent)


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error."""
    path = Path(path)
    aside = _aside(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.touch()
        mode = aside.stat().st_mode  # of a new file: the umask cannot be read without setting it for all threads
        try:
            with _lock(aside):
                yield aside
                with aside.open("rb") as written:
                    os.fsync(written.fileno())
                aside.chmod(mode)  # some libraries write files that only their owner can read
                os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `path` when the block ends without an error."""
    path = Path(path)
    aside = _aside(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        (probe := aside / ".mode").touch()
        mode = probe.stat().st_mode
        probe.unlink()
        try:
            with _lock(aside):
                yield aside
                for file in aside.rglob("*"):
                    if file.is_file():
                        file.chmod(mode)
                if path.exists():
                    old = _aside(path, "old")
                    os.replace(path, old)
                    os.replace(aside, path)
                    shutil.rmtree(old)
                else:
                    os.replace(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


class JsonLines:
    """An append-only file of JSON records, one per line, created with its first record.

    A last line that was truncated by a full disk or a killed process is dropped with a warning; all lines before it
    are kept.
    """

    def __init__(self, path: str | Path, *, sync: bool = False) -> None:
        self.path = Path(path)
        self.sync = sync
        """Whether `append` calls fsync, so that a record survives a crash of the machine."""
        self._end: int | None = None
        self._file: FileIO | None = None

    def read(self) -> list[Any]:
        """The records of all complete lines."""
        records = []
        for number, line in enumerate(self._complete_lines().splitlines(), start=1):
            try:
                records.append(msgspec.json.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise DataError(
                    f"{self.path}:{number}: not a JSON record ({error}); correct or remove the file."
                ) from None
        return records

    def append(self, record: Any) -> None:
        """Add a record; if writing it fails, the file is as it was before."""
        if self._file is None:
            self._complete_lines()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "ab")
            self._truncate()
        assert self._end is not None, "set when the file was opened"
        line = memoryview(msgspec.json.encode(record) + b"\n")
        try:
            rest = line
            while rest:
                rest = rest[self._file.write(rest) :]
            if self.sync:
                os.fsync(self._file.fileno())
        except BaseException as error:  # Ctrl-C too
            with contextlib.suppress(OSError):
                self._truncate()
            if not isinstance(error, OSError):
                raise
            raise PrismError(
                f"{self.path}: a line could not be written ({error}). Earlier lines are complete; free some space and "
                f"rerun the same command."
            ) from error
        self._end += len(line)

    def rewrite(self, records: Iterable[Any]) -> None:
        """Replace all records."""
        self.close()
        with atomic_file(self.path) as aside:
            aside.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
        self._end = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _complete_lines(self) -> bytes:
        data = self.path.read_bytes() if self.path.exists() else b""
        end = data.rfind(b"\n") + 1
        if end < len(data) and self._end is None:
            log.warning("%s: dropped the last line, truncated by a full disk or a killed process", self.path)
        self._end = end
        return data[:end]

    def _truncate(self) -> None:
        """Remove a partial last line."""
        assert self._file is not None
        if self._file.seek(0, os.SEEK_END) != self._end:
            self._file.truncate(self._end)

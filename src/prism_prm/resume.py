"""Resuming: the one answer to "same settings? done before? claimed by another?" for all work on disk.

- `locked`, `locked_file`: a folder, or a file, is written by one command at a time;
- `refuse_changes`: work is resumed only with the settings it began with;
- `once`, `is_made_for`: a result is made once for its key, a hash of all that it is made from (`content_key`);
- `Journal`: results that come one by one, each under its own key.

Scores are kept separately, in the score store (`scorer/store.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from prism_prm.errors import ConfigError, DataError, PrismError
from prism_prm.files import JsonLines, remove_parts, write_text, writing

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

KEY = "prism_prm.key"
"""Under this name the metadata of a Parquet table say what it was made for."""


def content_key(*parts: Any) -> str:
    """12 hexadecimal digits of plain values and settings (dataclasses): equal for equal content."""
    text = json.dumps(parts, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _plain(value: Any) -> Any:
    assert dataclasses.is_dataclass(value), f"cannot key {value!r}"
    return {"type": type(value).__name__, **{f.name: getattr(value, f.name) for f in dataclasses.fields(value)}}


def refuse_changes(
    where: str | Path, before: Mapping[str, Any], now: Mapping[str, Any], *, free: Collection[str] = ()
) -> None:
    """An error that names the settings that differ; those that are `free` change no result."""
    old, new = _flat(before), _flat(now)
    names = [name for name in {**old, **new} if name not in free and old.get(name) != new.get(name)]
    if names:
        changed = "; ".join(f"{name} = {new.get(name)} (was {old.get(name)})" for name in names[:5])
        raise ConfigError(
            f"{where} was started with other settings; now: {changed}. Name another --out, or remove it to start again."
        )


def _flat(settings: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """All settings by their full names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        full = f"{section}{name}"
        flat |= _flat(value, f"{full}.") if isinstance(value, Mapping) else {full: value}
    return flat


def once(path: str | Path, key: str, make: Callable[[], Any]) -> Any:
    """A result in a JSON file, made unless it was made for this key before."""
    path = Path(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        made = json.loads(path.read_text(encoding="utf-8"))
        if made["key"] == key:
            return made["result"]
    write_text(path, json.dumps({"key": key, "result": make()}) + "\n")
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def is_made_for(table: str | Path, key: str) -> bool:
    """Whether a Parquet table for this key exists; one that cannot be read is made again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(table).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return False
    return bool(metadata.get(KEY.encode()) == key.encode())


@contextlib.contextmanager
def stoppable(resumed: Callable[[], str]) -> Iterator[None]:
    """When the block is stopped (Ctrl-C), say where it resumes: "from update 20". Outer blocks add to it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if text := resumed():
            stop.add_note(text)
        raise


class Journal(Generic[T]):
    """Records under keys, appended as they are made; it opens only onto work that was made in the same way."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any], kind: type[T]) -> None:
        self.path = Path(path)
        self.done: dict[str, T] = {}
        made = msgspec.to_builtins(made_with)
        self._lines = JsonLines(self.path, sync=True)
        before = self._read(kind)
        if self.done:
            refuse_changes(self.path, before, made)
        else:  # work that has done nothing yet may be mended
            self._lines.rewrite([{"made_with": made}])

    def _read(self, kind: type[T]) -> dict[str, Any]:
        """Take in what is there; what it was made with."""
        try:
            first, *rest = self._lines.read() or [{"made_with": {}}]
            self.done = {line["key"]: msgspec.convert(line["record"], kind) for line in rest}
            return dict(first["made_with"])
        except (DataError, msgspec.MsgspecError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path}: not a journal of this work ({error}). Name another --out.") from error

    def append(self, key: str, record: T) -> None:
        """File a record; it is on disk when this returns."""
        self.done[key] = record
        self._lines.append({"key": key, "record": record})

    def __enter__(self) -> Journal[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()


LOCK = ".lock"
"""The file in a folder that says that it is in use; what it holds is of no meaning."""


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Lock a folder, created if needed, while the block runs; a PrismError if another process holds it.

    What killed processes have left half-written anywhere in the folder is removed.
    The system releases the lock however a process ends. Where Python has no `fcntl` (Windows), a lock file is used
    instead: a killed process leaves it behind, and the message says to remove it.
    """
    if Path(folder).is_file():
        raise ConfigError(f"{folder} is a file; name a folder for the output")
    message = f"{folder}: another process is running here; wait for it, or name another --out."
    with _held(Path(folder) / LOCK, message):
        remove_parts(Path(folder))
        yield


@contextlib.contextmanager
def locked_file(path: str | Path) -> Iterator[None]:
    """The same for one file that will be written; the others of its folder are free.

    What a killed process has left of the file is removed.
    """
    path = Path(path)
    message = f"{path}: another process is writing it; wait for it, or name another --out."
    with _held(path.with_name(f".{path.name}{LOCK}"), message):
        remove_parts(path.parent, f".{glob.escape(path.name)}")
        yield


@contextlib.contextmanager
def _held(lock: Path, message: str) -> Iterator[None]:
    """Hold a lock file; neither it nor folders that were made for it alone stay behind."""
    made = [folder for folder in lock.parents if not folder.exists()]
    with writing(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _system_lock(lock, message) if fcntl is not None else _exclusive_file(lock, message):
            yield
    finally:
        with contextlib.suppress(OSError):  # not empty: something was written
            for folder in made:
                folder.rmdir()


@contextlib.contextmanager
def _system_lock(path: Path, message: str) -> Iterator[None]:
    while True:
        with writing(path):
            lock = path.open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PrismError(message) from None
            if not _is_still(path, lock.fileno()):
                continue  # whoever held it before has removed it, after we had opened it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_still(path: Path, opened: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _exclusive_file(path: Path, message: str) -> Iterator[None]:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise PrismError(f"{message} If none is running because it was killed, remove {path}.") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)

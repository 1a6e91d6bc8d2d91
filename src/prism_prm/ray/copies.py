"""Folders for nodes that do not see the driver's files: through Ray's object store, onto each node's disk once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_prm.errors import PrismError
from prism_prm.files import whole_folder, writing

CHUNK = 64 * 2**20
"""Bytes that travel as one object, so that a node writes them before it fetches more. The driver's node keeps the whole
folder in its object store, which spills to disk when it is full."""


@dataclass(frozen=True, slots=True)
class FolderCopy:
    """A folder in Ray's object store."""

    content: str
    """A hash of its files."""
    files: tuple[tuple[str, tuple[Any, ...]], ...]
    """Each file's name, and references to its chunks."""


def pack(ray: Any, folder: str) -> FolderCopy:
    """Put a folder into the object store."""
    digest = hashlib.blake2b(digest_size=12)
    files = []
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        refs = []
        for chunk in _chunks(path):
            digest.update(chunk)
            refs.append(ray.put(chunk))
        files.append((name, tuple(refs)))
    return FolderCopy(digest.hexdigest(), tuple(files))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def unpack(copy: FolderCopy) -> str:
    """The copy as a folder of this node: written by whoever comes first, and used by all workers of the node."""
    import ray

    folder = _own_folder() / copy.content
    with _held(folder):
        if not folder.is_dir():
            with whole_folder(folder) as aside:
                for name, refs in copy.files:
                    (aside / name).parent.mkdir(parents=True, exist_ok=True)
                    with (aside / name).open("wb") as file:
                        for ref in refs:
                            file.write(ray.get(ref))
    return str(folder)


def _own_folder() -> Path:
    """The folder of this node's copies, which nobody else may have put there."""
    folder = Path(tempfile.gettempdir()) / f"prism-prm-{os.getuid()}"
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PrismError(f"{folder} belongs to another user; remove it, or set TMPDIR")
    return folder


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder. Output is written by one process at a time; this is worth waiting for."""
    import fcntl

    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

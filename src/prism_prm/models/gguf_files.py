"""Models in GGUF files, converted once to ordinary model folders: reading a GGUF file itself takes minutes.

Conversions are in `FILE.gguf.converted` beside the file, or in the user's cache folder if that cannot be written. They
are keyed by the SHA-256 of the file, which is computed again only if the file's size or time has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from prism_prm.console import say
from prism_prm.errors import MissingExtraError, ModelError, PrismError
from prism_prm.files import CONVERTED, atomic_folder, remove_parts, waiting_lock, write_text

STAMP = "source.json"
"""The size, time and SHA-256 of the file."""


def find_gguf(folder: Path) -> Path | None:
    """Return the GGUF file of a model folder; None if the folder has a config, so that its files are ordinary ones."""
    files = [] if (folder / "config.json").exists() else sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise ModelError(f"{folder}: GGUF files {', '.join(f.name for f in files)}; leave one of them in the folder")
    return files[0] if files else None


def converted(file: Path, part: str, convert: Callable[[Path], None]) -> Path:
    """Return the folder with a part of the converted file; the first call makes it with `convert`."""
    beside = file.with_name(f"{file.name}{CONVERTED}")
    users = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    cache = users / "prism-prm" / "gguf" / hashlib.sha256(os.fsencode(file.absolute())).hexdigest()[:16]
    is_writable = os.access(beside if beside.is_dir() else file.parent, os.W_OK)
    other, root = (cache, beside) if is_writable else (beside, cache)
    sha256 = _sha256(file, other / STAMP, root / STAMP)
    for place in (beside, cache):
        if (place / sha256 / part).is_dir():
            return place / sha256 / part
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MissingExtraError("gguf", "gguf") from None
    made = root / sha256 / part
    with waiting_lock(root / ".lock"):
        if not made.is_dir():
            remove_parts(root)
            say(f"{file}: converting its {part}, once, into {root}")
            with atomic_folder(made) as partial:
                convert(partial)
                if _sha256(file, root / STAMP) != sha256:
                    raise ModelError(f"{file}: changed while it was converted; load it again when it is complete")
            for old in root.iterdir():
                if old.is_dir() and old.name != sha256:
                    shutil.rmtree(old, ignore_errors=True)
    return made


def _sha256(file: Path, *stamps: Path) -> str:
    """The SHA-256 of the file, from a stamp with the same size and time; else computed, and kept in the last stamp."""
    stat = file.stat()
    facts = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    for stamp in stamps:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
            before = json.loads(stamp.read_text(encoding="utf-8"))
            if all(before[name] == value for name, value in facts.items()):
                return str(before["sha256"])
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    with contextlib.suppress(PrismError):  # it may be read-only
        write_text(stamps[-1], json.dumps({**facts, "sha256": sha256}) + "\n")
    return sha256

"""What is in a folder, to see whether a command has changed it."""

from __future__ import annotations

from pathlib import Path


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Of every file when it was written, and what it holds."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

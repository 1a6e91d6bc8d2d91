"""Packages as `pip install` leaves them behind: modules, and their distribution's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(site: Path, name: str, files: Mapping[str, str], entry_points: str) -> None:
    """A distribution in the folder `site`; a `pyproject.toml`'s way to write entry points does as well."""
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(content, encoding="utf-8")
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points.replace("project.entry-points.", "").replace('"', ""))

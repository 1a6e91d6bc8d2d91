"""Users' names for PRMs and runs: read from `NAME=PLACE`, and made into safe file names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from prism_prm.errors import ConfigError

_ANY = "surrogatepass"
"""A path on the command line may be no UTF-8; Python then gives it with half characters in it."""
_LONGEST = 120
"""Bytes of a file name before endings; most file systems end at 255."""


def split_name(given: str) -> tuple[str, str]:
    """(name, place) of `NAME=PLACE`; the name is "" where none is given, as for a path that itself has a `=`."""
    name, equals, place = given.partition("=")
    if not equals or os.path.exists(given):  # Path.exists raises where a name is too long
        return "", given
    if not place:
        raise ConfigError(f"{given!r} names no folder or file; write NAME=PLACE")
    return check_name(name), place


def own_name(place: str) -> str:
    """The last part of a path or hub id; of `.` and `..` that of the folder they stand for; `critic` for a critic."""
    if place.startswith("critic:"):
        return "critic"
    last = Path(place).name
    return last if last not in ("", "..") else Path(place).resolve().name or place


def named_places(given: Sequence[str]) -> dict[str, str]:
    """Name → place, each given as `NAME=PLACE` or as a place that is its own name."""
    named: dict[str, str] = {}
    for text in given:
        name, place = split_name(text)
        name = name or own_name(place).removesuffix(".parquet")
        if name in named:
            raise ConfigError(f"Two PRMs are called {name!r}; give them names, e.g. --prm base={place}")
        named[name] = place
    return named


def check_name(name: str) -> str:
    """The name, if it can be shown in one line."""
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"the name {name!r} cannot be shown; a name needs visible characters and no line breaks")
    return name


def file_name(name: str) -> str:
    """The name as one part of a path: different for different names, and never hidden or a way out of the folder."""
    plain = "".join(char if char.isalnum() or char in "._-+=@ " else quote(char, safe="", errors=_ANY) for char in name)
    plain = f"%2E{plain[1:]}" if plain.startswith(".") else plain
    if len(plain.encode()) <= _LONGEST:
        return plain
    digest = hashlib.blake2b(name.encode(errors=_ANY), digest_size=8).hexdigest()
    return f"{plain.encode()[: _LONGEST - 17].decode(errors='ignore')}-{digest}"

"""Check the names, paths and hub ids that users give, before any long work starts."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from prism_prm.errors import ConfigError

HUB = "https://huggingface.co"
SECONDS_TO_REACH = 5.0
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_FILE_ENDINGS = (
    ".csv", ".gz", ".html", ".json", ".jsonl", ".log", ".md", ".parquet", ".pdf", ".png", ".safetensors", ".svg",
    ".toml", ".tsv", ".txt", ".xlsx", ".yaml", ".yml", ".zip",
)  # fmt: skip
"""A name with one of these endings is meant as a file."""

_ALIKE = 0.7
"""The similarity at which an existing name is suggested for a missing one."""


def is_hub_id(name: str) -> bool:
    """Whether a name can be a hub id, not a mistyped path: `owner/name`, where `owner` is not a local folder."""
    return _HUB_ID.fullmatch(name) is not None and not Path(name.split("/")[0]).exists()


def nearest(place: str | Path) -> str:
    """ "Did you mean …?" with existing names that are similar to the missing one; "" if there are none."""
    path = Path(place)
    for parent in path.parents:
        if parent.is_dir():
            missing = path.relative_to(parent).parts[0]
            try:
                names = [one.name for one in parent.iterdir() if not one.name.startswith(".")]
            except OSError:
                return ""
            similar = ((_similarity(missing, name), name) for name in names)
            close = sorted((-similarity, name) for similarity, name in similar if similarity >= _ALIKE)
            return f" Did you mean {' or '.join(str(parent / name) for _, name in close[:3])}?" if close else ""
    return ""


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _similarity(a: str, b: str) -> float:
    """From 0 to 1, without file endings: many files share theirs."""
    return difflib.SequenceMatcher(None, Path(a).stem.lower(), Path(b).stem.lower()).ratio()


def no_connection() -> str:
    """Why the hub cannot be reached, or "". A quick check: the hub's client would retry for half a minute."""
    if is_offline():
        return "HF_HUB_OFFLINE is set"
    import httpx

    address = os.environ.get("HF_ENDPOINT") or HUB
    found = [f"no answer within {SECONDS_TO_REACH:g} seconds"]

    def ask() -> None:
        try:
            httpx.head(address, timeout=SECONDS_TO_REACH)
            found[0] = ""
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            found[0] = str(error) or type(error).__name__

    # In a thread, since DNS lookups have no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_REACH)
    return found[0] and f"{address} cannot be reached ({found[0]})"


def check_folder(text: str | Path, option: str = "--out") -> Path:
    """Check a folder to write into, which need not exist yet."""
    path = _given(text, option, "folder")
    if path.is_file():
        raise ConfigError(f"{option} {text}: is a file; name a folder")
    if path.suffix.lower() in _FILE_ENDINGS and not path.exists():
        raise ConfigError(f"{option} {text}: looks like the name of a file; name a folder, e.g. {path.with_suffix('')}")
    _check_writable(path, option)
    return path


def check_file(text: str, ending: str, option: str = "--out") -> Path:
    """Check a file to write, which must have this ending."""
    path = _given(text, option, "file")
    if path.is_dir():
        raise ConfigError(f"{option} {text}: is a directory; name a file, e.g. {path / f'name{ending}'}")
    if path.suffix.lower() != ending:
        raise ConfigError(f"{option} {text}: the file will be {ending}; name it e.g. {path.with_suffix(ending)}")
    _check_writable(path.parent, option)
    if path.exists() and not os.access(path, os.W_OK):
        raise ConfigError(f"{option} {text}: not writable; change its permissions or name another file")
    return path


def _given(text: str | Path, option: str, what: str) -> Path:
    if not str(text).strip():
        raise ConfigError(f'{option} "": is empty; name a {what}')
    return Path(text)


def _check_writable(folder: Path, option: str) -> None:
    """Raise ConfigError for a folder that cannot be created or written; creates nothing."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{option} {folder}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {folder}: {there} is not writable; change its permissions, or name another.")


_ANY = "surrogatepass"
"""A path on the command line may not be UTF-8; Python then represents it with lone surrogates."""
_LONGEST = 120
"""The size limit of a file name without endings, in bytes; most file systems allow 255 in all."""


def split_name(given: str) -> tuple[str, str]:
    """(name, place) of `NAME=PLACE`; the name is "" if none is given, also for an existing path with a `=`."""
    name, equals, place = given.partition("=")
    if not equals or os.path.exists(given):  # Path.exists raises if a name is too long
        return "", given
    if not place:
        raise ConfigError(f"{given!r} names no folder or file; write NAME=PLACE")
    return check_name(name), place


def own_name(place: str) -> str:
    """The last part of a path or hub id (`.` and `..` are resolved); `critic` for a critic.

    Scorers made of others have their names: `ensemble:mean:prms/a,prms/b` is `ensemble:mean:a,b`.
    """
    if rival := re.match("implicit:|orm:|(?:logprob|self-certainty|lowest-group|tail)[-0-9]*:(?:hf|openai):", place):
        return rival[0].removesuffix("hf:") + "+".join(map(own_name, place[rival.end() :].split("+")))
    if place.startswith("ensemble:"):
        *kind, members = place.split(":", 2)
        return ":".join([*kind, ",".join(map(own_name, members.split(",")))])
    if place.startswith("critic:"):
        return "critic"
    last = Path(place).name
    return last if last not in ("", "..") else Path(place).resolve().name or place


def named_places(given: Sequence[str]) -> dict[str, str]:
    """Name → place, each given as `NAME=PLACE` or as a plain place, which is then named by its last part."""
    named: dict[str, str] = {}
    for text in given:
        name, place = split_name(text)
        name = name or own_name(place).removesuffix(".parquet").removesuffix(".jsonl")
        if name in named:
            raise ConfigError(f"Two PRMs are called {name!r}; give them names, e.g. --prm base={place}")
        named[name] = place
    return named


def check_name(name: str) -> str:
    """Return the name if it can be shown in one line, else raise ConfigError."""
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"the name {name!r} cannot be shown; a name needs visible characters and no line breaks")
    return name


def file_name(name: str) -> str:
    """The name as a file name: different for different names, never hidden, and never outside of the folder."""
    plain = "".join(char if char.isalnum() or char in "._-+=@ " else quote(char, safe="", errors=_ANY) for char in name)
    plain = f"%2E{plain[1:]}" if plain.startswith(".") else plain
    if len(plain.encode()) <= _LONGEST:
        return plain
    digest = hashlib.blake2b(name.encode(errors=_ANY), digest_size=8).hexdigest()
    return f"{plain.encode()[: _LONGEST - 17].decode(errors='ignore')}-{digest}"

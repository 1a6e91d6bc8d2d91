"""API keys: read from a file and the environment, held as digests, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from prism_prm.errors import ConfigError
from prism_prm.serve.settings import ServeSettings

VARIABLE = "PRISM_API_KEY"


class KeyRing:
    """The keys that a server accepts."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in dict.fromkeys(keys)]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, header: str | None) -> int | None:
        """Which key an `Authorization` header has; None if it has none of them. Takes as long whichever it is."""
        scheme, _, key = (header or "").partition(" ")
        given = _digest(key.strip())
        found = None
        for number, digest in enumerate(self._digests):
            if hmac.compare_digest(given, digest):
                found = number
        return found if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(settings: ServeSettings, upstream: str = "") -> KeyRing:
    """The keys of the file and the environment; an error where a server for others would have none.

    Where PRMs of another server of ours (`upstream`) are served, the key in the environment is for that one alone.
    """
    keys = [] if settings.keys is None else _in_file(settings.keys)
    own = os.environ.get(VARIABLE, "").strip()
    if own and upstream and not keys and not settings.allow_anyone:
        raise ConfigError(
            f"--prm {upstream}: ${VARIABLE} is sent to that server, so it is no key of this one. Name a file of this "
            "server's own keys with --keys, or allow anyone with --allow-anyone."
        )
    if own and not upstream:
        keys.append(_checked(own, f"${VARIABLE}"))
    if not keys and not settings.is_local and not settings.allow_anyone:
        raise ConfigError(
            f"--host {settings.host}: others could use this server, and it has no keys. Set ${VARIABLE} or name a file "
            "of keys with --keys; or allow anyone with --allow-anyone."
        )
    return KeyRing(keys)


def _in_file(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--keys {path}: cannot be read ({type(error).__name__}); name a text file of keys") from None
    named = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    keys = [_checked(key, f"{path}:{number}") for number, key in named if not key.startswith("#")]
    if not keys:
        raise ConfigError(f"--keys {path}: has no key; write one per line")
    return keys


def _checked(key: str, where: str) -> str:
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(f"{where}: a key has letters, digits and signs of ASCII, and no spaces")
    return key

"""Settings of a server, and its API keys: read from a file and the environment, stored as digests."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prism_prm.config import Count, Natural, NotNegative, Positive, Range, check
from prism_prm.errors import ConfigError

KEY_VARIABLE = "PRISM_API_KEY"
Port = Annotated[int, Range(0, 65535)]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Address, access and limits of a server."""

    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach needs keys, or allow_anyone=true."""
    port: Port = 8000
    """The port to listen on; 0 picks a free one."""
    keys: Path | None = None
    """A file of API keys, one per line; $PRISM_API_KEY is added. All routes but /health and the page need a key."""
    allow_anyone: bool = False
    """Serve other machines without a key."""
    max_requests: Count = 512
    """The limit of waiting and running requests. Further ones get 429."""
    max_tokens: Count = 262_144
    """The limit of waiting and running tokens. Further requests get 429."""
    max_body: Count = 2_000_000
    """The size limit of a request in bytes. Larger ones get 413."""
    deadline: Positive = 30.0
    """Seconds until a request is answered or gets 504. Requests that would wait too long get 429 at once."""
    for_training: bool = False
    """Serve a trainer: requests wait for room, up to training_seconds, instead of getting 429."""
    training_seconds: Positive = 150.0
    """With for_training: the deadline. Clients must wait longer; OpenRLHF waits for 180 seconds."""
    client_seconds: Positive = 10.0
    """Seconds that a client may take to send a request, and to read part of a response."""
    batch_items: Count = 256
    """The most solutions or trees per batch; 1 turns batching off."""
    batch_tokens: Count = 16_384
    """The most tokens per batch, unless a single solution has more."""
    cache_mb: NotNegative = 512.0
    """Megabytes of the prefix cache of each PRM; 0 turns it off."""
    searches: Count = 4
    """With a policy: the number of answers that are searched at the same time."""
    max_searches: Count = 64
    """With a policy: the limit of waiting and running searches. Further ones get 429."""
    search_seconds: Positive = 300.0
    """With a policy: seconds until a searched answer is sent or the request gets 504."""
    max_n: Count = 64
    """With a policy: the largest n in a model's name, such as my-policy@beam-64."""
    kept_searches: Natural = 20
    """With a policy: how many of the last searches the page shows, to those with the same key."""
    log_text: bool = False
    """Write the text of requests to the log."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def answer_seconds(self) -> float:
        """Seconds until a request is answered, or fails."""
        return self.training_seconds if self.for_training else self.deadline

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class KeyRing:
    """The keys that a server accepts."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = list(map(_digest, dict.fromkeys(keys)))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, header: str) -> int | None:
        """The index of the key in an `Authorization` header, in constant time; None if the key is not known."""
        scheme, _, key = header.partition(" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return matches.index(True) if any(matches) and scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(settings: ServeSettings, upstream: str = "") -> KeyRing:
    """Read the keys from the file and the environment; ConfigError if a server for other machines would have none.

    If it serves PRMs of another prism server (`upstream`), the key in the environment is used for that server only.
    """
    found: list[tuple[str, str]] = []
    if settings.keys is not None:
        try:
            lines = settings.keys.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--keys {settings.keys}: cannot be read ({type(error).__name__}); name a text file with keys"
            ) from None
        stripped = [(line.strip(), f"{settings.keys}:{number}") for number, line in enumerate(lines, 1)]
        found = [(key, where) for key, where in stripped if key and not key.startswith("#")]
        if not found:
            raise ConfigError(f"--keys {settings.keys}: no keys found; write one per line")
    own = os.environ.get(KEY_VARIABLE, "").strip()
    if own and upstream and not found and not settings.allow_anyone:
        raise ConfigError(
            f"--prm {upstream}: ${KEY_VARIABLE} is sent to that server, so this server needs keys of its own. Name a "
            "file of keys with --keys, or serve anyone with --set allow_anyone=true."
        )
    if own and not upstream:
        found.append((own, f"${KEY_VARIABLE}"))
    for key, where in found:
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(f"{where}: invalid key; use printable ASCII characters without spaces")
    if not found and not settings.is_local and not settings.allow_anyone:
        raise ConfigError(
            f"--host {settings.host}: other machines could use this server without a key. Set ${KEY_VARIABLE}, name a "
            "file of keys with --keys, or serve anyone with --set allow_anyone=true."
        )
    return KeyRing([key for key, _ in found])

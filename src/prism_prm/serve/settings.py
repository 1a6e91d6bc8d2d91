"""Settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prism_prm.ranges import Count, NotNegative, Positive, Range, check

Port = Annotated[int, Range(0, 65535)]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where a server listens, whom it serves, and how much it takes on."""

    host: str = "127.0.0.1"
    """The address to listen on. Any other than this machine's own needs keys or --allow-anyone."""
    port: Port = 8000
    """The port to listen on. With 0 the system chooses a free one."""
    keys: Path | None = None
    """A file of API keys, one per line. $PRISM_API_KEY is one more. All routes but /health and the page need one."""
    allow_anyone: bool = False
    """Serve other machines without a key."""
    max_requests: Count = 512
    """How many requests may wait or be worked on. More are answered with 429."""
    max_tokens: Count = 262_144
    """How many tokens may wait or be worked on. More are answered with 429."""
    max_body: Count = 2_000_000
    """The size limit of a request in bytes. Longer ones are answered with 413."""
    deadline: Positive = 30.0
    """Seconds until a request is answered or gets 504. Requests that would wait too long get 429 at once."""
    client_seconds: Positive = 10.0
    """Seconds that a client may take to send a request, and to read some of an answer."""
    batch_items: Count = 256
    """How many solutions or trees are scored together. With 1 nothing is batched."""
    batch_tokens: Count = 16_384
    """How many tokens are scored together, unless one solution alone has more."""
    cache_mb: NotNegative = 512.0
    """Megabytes of model states kept for prefixes that come again, for each PRM. With 0 nothing is kept."""
    log_text: bool = False
    """Write the text of requests to the log."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

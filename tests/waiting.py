"""Tests wait for a condition, never for a time, and listen where nobody else does."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def until(done: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait for something that must happen; the limit is only for what never does."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listens on, for servers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Tests wait for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(done: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait for something that must happen; the limit is only for what never does."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)

"""Import torch and transformers without the garbage collector, which would search their objects again and again.

They make a million objects that all stay: searching them took a quarter of the time of scoring one solution.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

freezes = False
"""Whether what imports make is never searched later either. `prism` sets this, because its process is its own."""


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage inside the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freezes:
            gc.freeze()
        if was_enabled:
            gc.enable()

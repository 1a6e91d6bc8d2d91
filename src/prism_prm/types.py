"""Types that everything shares: arrays, and how long work tells of its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Advance = Callable[[int], None]
"""Hears how many more items are done."""
Bars = Callable[[str, float], AbstractContextManager[Advance]]
"""(description, total) → a progress bar."""


def ignore(_done: int) -> None:
    """An `Advance` for callers that show nothing."""


def no_bars(_description: str, _total: float) -> AbstractContextManager[Advance]:
    """`Bars` for callers that show nothing."""
    return contextlib.nullcontext(ignore)

"""Time alternatives side by side in one run, so that a noisy machine disturbs them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def side_by_side(alternatives: Mapping[str, Callable[[], object]], *, repeats: int = 3) -> dict[str, float]:
    """Median seconds of each alternative over `repeats` rounds; every round runs all of them once, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in alternatives}
    for _ in range(repeats):
        for name, run in alternatives.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_ratios(medians: Mapping[str, float], *, peer: str) -> None:
    """A line per alternative: its median time, and how many times faster than `peer` it is."""
    for name, median in medians.items():
        print(f"{name:50s} {median:10.3f} s   {medians[peer] / median:8.2f}x of {peer}")

"""How idle OpenMP threads wait; set before torch is loaded."""

from __future__ import annotations

from collections.abc import MutableMapping

SPIN_COUNT = "10000"
"""How often a thread of libgomp, the OpenMP that torch brings, checks for work before it sleeps.

Its own default of 300,000 keeps a core for milliseconds after each of thousands of small operations. On a busy
machine, the slowest thread needs that time; see docs/lab/performance.md.
"""
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Variables with which the user may have set it already."""


def limit_openmp_spin(environment: MutableMapping[str, str]) -> None:
    """Make idle threads sleep soon, unless the user has set how they wait. OpenMP reads this when it is loaded."""
    if not any(name in environment for name in SETTINGS):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT

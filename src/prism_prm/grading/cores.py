"""How many cores this process may use: those it is bound to, and no more than its container's share of CPU time."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """The cores of this process; a quota of one and a half (`docker run --cpus 1.5`) counts as two."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min([bound, *map(math.ceil, _quotas(root))]))


def _quotas(root: Path) -> Iterator[float]:
    """The limits that control groups, old and new, set for this process and for what it is part of."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        here = Path(path.lstrip("/"))
        for folder in (here, *here.parents):
            with contextlib.suppress(OSError, ValueError):  # it is not there, or sets no limit: "max"
                said = " ".join((top / folder / file).read_text() for file in files)
                quota, period = map(float, said.split())
                if quota > 0 and period > 0:
                    yield quota / period

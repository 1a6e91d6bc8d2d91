"""Time alternatives in one run, in turn, so that a noisy machine affects all alike; print times and peak memory."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from prism_prm.cli.threads import SETTINGS

Seconds = dict[str, list[float]]
"""Alternative → its seconds in each round."""

_SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"


def options(doc: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks share; `doc` is the description."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="keep N cores busy with other processes")
    return parser


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes that keep a core busy. They end with the block, or with this process."""
    with contextlib.ExitStack() as ending:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())])
            ending.callback(process.wait)
            ending.callback(process.kill)
        yield


class Peak:
    """The peak memory of this process and its children in a block."""

    gib = 0.0


@contextlib.contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure the peak memory of a block, including memory that was allocated before and is still in use. 0 if not on
    Linux."""
    peak, others, done = Peak(), [0.0], threading.Event()
    if sys.platform != "linux":
        yield peak
        return
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the current use

    def watch() -> None:
        while not done.wait(0.1):
            others[0] = max(others[0], sum(_gib(process, "RssAnon") for process in _descendants(os.getpid())))

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield peak
    finally:
        done.set()
        watching.join()
        peak.gib = _gib(os.getpid(), "VmHWM") + others[0]


def _gib(process: int, field: str) -> float:
    with contextlib.suppress(OSError):  # the process has ended
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return int(found[1]) / 2**20 if found else 0.0
    return 0.0


def _descendants(process: int) -> list[int]:
    children: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += map(int, thread.read_text().split())
    return children + [one for child in children for one in _descendants(child)]


def side_by_side(alternatives: Mapping[str, Callable[[], object]], *, repeats: int, beside: int = 0) -> Seconds:
    """Time each alternative `repeats` times, next to `beside` busy processes; every round runs each of them once.

    Prints the peak memory of each.
    """
    seconds: Seconds = {name: [] for name in alternatives}
    memory = dict.fromkeys(alternatives, 0.0)
    waiting = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    print(f"{beside} busy processes; idle threads wait by {' '.join(waiting) or 'the default'}")
    with busy(beside):
        for _ in range(repeats):
            for name, run in alternatives.items():
                with peak_memory() as peak:
                    started = time.perf_counter()
                    run()
                    seconds[name].append(time.perf_counter() - started)
                memory[name] = max(memory[name], peak.gib)
    print("peak memory: " + ", ".join(f"{name} {gib:.2f} GiB" for name, gib in memory.items()))
    return seconds


def median(seconds: Seconds, name: str) -> float:
    """The median time of an alternative."""
    return statistics.median(seconds[name])


def print_ratios(seconds: Seconds, *, peer: str) -> None:
    """Print the median time of each alternative, and how many times faster than `peer` it is."""
    for name in seconds:
        ratio = median(seconds, peer) / median(seconds, name)
        print(f"{name:50s} {median(seconds, name):10.3f} s   {ratio:8.2f}x of {peer}")


def conclude(ours: Sequence[float], others: Sequence[float], *, peer: str) -> None:
    """Print the last line of a benchmark: how many times faster, as median and range over rounds."""
    ratios = [other / own for own, other in zip(ours, others, strict=True)]
    spread = f"{min(ratios):.2f}–{max(ratios):.2f}"
    print(f"{Path(sys.argv[0]).stem}: {statistics.median(ratios):.2f}x over {peer} ({spread})")

"""Time alternatives side by side in one run, so that a noisy machine disturbs them alike; print all in one form."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from prism_prm.cli.threads import SETTINGS

Seconds = dict[str, list[float]]
"""Alternative → its seconds in each round."""

_SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"


def options(doc: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """A parser with what every benchmark has; `doc` begins with its purpose."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="run beside N processes that keep a core busy")
    return parser


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that only use a core. They end with the block, and with this process however it ends."""
    with contextlib.ExitStack() as ending:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())])
            ending.callback(process.wait)
            ending.callback(process.kill)
        yield


def side_by_side(alternatives: Mapping[str, Callable[[], object]], *, repeats: int, beside: int = 0) -> Seconds:
    """Time each alternative `repeats` times beside busy processes; every round runs all of them once, in turn."""
    seconds: Seconds = {name: [] for name in alternatives}
    waiting = [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    print(f"beside {beside} busy processes; idle threads wait by {' '.join(waiting) or 'the default'}")
    with busy(beside):
        for _ in range(repeats):
            for name, run in alternatives.items():
                started = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - started)
    return seconds


def median(seconds: Seconds, name: str) -> float:
    """The median of an alternative's rounds."""
    return statistics.median(seconds[name])


def print_ratios(seconds: Seconds, *, peer: str) -> None:
    """A line per alternative: its median time, and how many times faster than `peer` it is."""
    for name in seconds:
        ratio = median(seconds, peer) / median(seconds, name)
        print(f"{name:50s} {median(seconds, name):10.3f} s   {ratio:8.2f}x of {peer}")


def conclude(ours: Sequence[float], others: Sequence[float], *, peer: str) -> None:
    """The last line of a benchmark, the same for all: how many times faster, as median and range of the rounds."""
    ratios = [other / own for own, other in zip(ours, others, strict=True)]
    spread = f"{min(ratios):.2f}–{max(ratios):.2f}"
    print(f"{Path(sys.argv[0]).stem}: {statistics.median(ratios):.2f}x over {peer} ({spread})")

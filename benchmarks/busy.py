"""Score trees on a busy machine with several spin counts of idle threads: packed trees against two sequences per pair.

torch uses the threads of libgomp. After each operation an idle thread spins before it sleeps, 300,000 times by default.
That is fast on an idle machine; on a busy one, spinning takes the core from the thread that all others wait for.
`prism` sets GOMP_SPINCOUNT (see src/prism_prm/cli/threads.py); this shows the gain and the cost. libgomp reads its
settings once, so each setting has its own process; only one of them works at a time. The peer gets its best setting
and is timed on every third sequence.

Run: PRISM_DATA=… python benchmarks/busy.py [--busy 2] [--threads 2] [--trajectories 6] [--repeats 4]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from _side_by_side import Seconds, busy, conclude, median, options, peak_memory
from prism_prm.cli.threads import SETTINGS, SPIN_COUNT

SPIN_SETTINGS: dict[str, dict[str, str]] = {
    "libgomp's default": {},
    **{f"GOMP_SPINCOUNT={count}": {"GOMP_SPINCOUNT": count} for count in ("10000", "1000", "100")},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
}
"""Settings to compare."""
OURS = f"GOMP_SPINCOUNT={SPIN_COUNT}"
JOBS = ("packed", "separate")
PACKED_RUNS = 4
"""Runs in a row, for the mean: the system favors a process that has just woken up, which would hide the cost."""


class Worker:
    """A process with one setting that runs jobs on request."""

    def __init__(self, setting: dict[str, str], arguments: argparse.Namespace) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        environment |= {**setting, "OMP_NUM_THREADS": str(arguments.threads)}
        command = [sys.executable, __file__, "--worker", "--trajectories", str(arguments.trajectories)]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, job: str) -> str:
        """Run a job; returns the line that the process prints."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{job}\n")
        self.process.stdin.flush()
        reply = self.process.stdout.readline().strip()
        if not reply:
            sys.exit(f"a process of this benchmark ended with status {self.process.wait()}")
        return reply


def work(trajectories: int) -> None:
    """The worker process: load once, then time the jobs on standard input."""
    from _real_trees import real_trees, score_sequences, small_prm, with_pairs
    from tree_scoring import sequences

    trees = real_trees(trajectories, 12)
    prm = small_prm([node.text for tree in trees for node in tree.nodes], hidden=192, layers=4)
    works = [with_pairs(tree, 4) for tree in trees]
    wanted = [sorted({node for pair in work.pairs for node in pair}) for work in works]
    both = [side for tree in sequences(prm, works) for pair in tree for side in pair]
    some = both[::3]
    scale = sum(map(len, both)) / sum(map(len, some))
    for line in sys.stdin:
        started = time.perf_counter()
        if line == "packed\n":
            for _ in range(PACKED_RUNS):
                prm.score_trees([work.tree for work in works], wanted)
            print((time.perf_counter() - started) / PACKED_RUNS, flush=True)
        elif line == "separate\n":
            score_sequences(prm, some)
            print(scale * (time.perf_counter() - started), flush=True)
        else:
            print(f"{len(works)} trajectories, {len(both) // 2} pairs", flush=True)


@contextlib.contextmanager
def workers(arguments: argparse.Namespace) -> Iterator[dict[str, Worker]]:
    """One process per setting, after a warm-up."""
    started = {name: Worker(setting, arguments) for name, setting in SPIN_SETTINGS.items()}
    try:
        for worker in started.values():
            worker.ask("packed")
        yield started
    finally:
        for worker in started.values():
            worker.process.kill()
            worker.process.wait()


def measure(started: dict[str, Worker], beside: int, repeats: int) -> dict[tuple[int, str], Seconds]:
    """(busy processes, job) → the seconds of each setting."""
    found: dict[tuple[int, str], Seconds] = {
        (load, job): {name: [] for name in SPIN_SETTINGS} for load in (0, beside) for job in JOBS
    }
    for number in range(repeats):
        print(f"round {number + 1} of {repeats}; load of the machine: {os.getloadavg()[0]:.1f}", flush=True)
        for load in (0, beside):
            with busy(load):
                for name, worker in started.items():
                    for job in JOBS:
                        found[load, job][name].append(float(worker.ask(job)))
                    packed, separate = (found[load, job][name][-1] for job in JOBS)
                    print(f"{name}, {load} busy: packed {packed:.2f} s, separate {separate:.2f} s", flush=True)
    return found


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    parser = options(__doc__, repeats=4)
    parser.set_defaults(busy=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trajectories", type=int, default=6)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.trajectories)
        return
    if not os.environ.get("PRISM_DATA"):
        print("skipped: set PRISM_DATA to the folder with prm800k/phase1_train.jsonl")
        return
    with peak_memory() as peak, workers(arguments) as started:
        print(f"{started[OURS].ask('about')}; {arguments.threads} threads; seconds: median (range)")
        found = measure(started, arguments.busy, arguments.repeats)
    print(f"peak memory: {peak.gib:.2f} GiB, of the workers of all settings together")
    columns = [(load, job) for load in (0, arguments.busy) for job in JOBS]
    print("| | " + " | ".join(f"{job}, {load} busy" for load, job in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name in SPIN_SETTINGS:
        print(f"| {name} | " + " | ".join(cell(found[column][name]) for column in columns) + " |")
    idle, beside = found[0, "packed"], found[arguments.busy, "separate"]
    best, peer = (min(seconds, key=partial(median, seconds)) for seconds in (idle, beside))
    lost = median(idle, OURS) / median(idle, best) - 1
    print(f"packed trees with {OURS} and no busy process: {100 * lost:+.0f} % against the best setting ({best})")
    conclude(found[arguments.busy, "packed"][OURS], beside[peer], peer=f"two sequences per pair with {peer}")


if __name__ == "__main__":
    main()

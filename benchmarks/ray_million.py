"""A million solutions through `prism score --ray`: the driver's memory and the rate, from the first to the last tenth.

It creates the input and a tiny PRM in a folder, runs the command with two workers of one thread each, and samples the
number of stored scores and the driver's memory (resident, and without file pages). Run it again in the same folder to
resume a stopped run; the table then covers the rest.

Run: python benchmarks/ray_million.py [--solutions 1000000] [--folder FOLDER] [--minutes 20]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _real_trees import small_prm
from _side_by_side import conclude, options, peak_memory

STEPS = 5
SECONDS = 2.0
"""The interval of samples."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The progress of the command at one time."""

    seconds: float
    solutions: int
    """Stored since the start."""
    resident: float
    """Megabytes."""
    own: float
    """Without file pages."""


def steps_of(i: int) -> list[str]:
    """A synthetic solution; no two have a step in common."""
    return [f"Step {k}: {i} + {k} = {i + k}, so we add." for k in range(STEPS)]


def make_input(folder: Path, count: int) -> None:
    """Write the solutions, unless they exist."""
    path = folder / f"{count}.jsonl"
    if path.exists():
        return
    with path.with_suffix(".part").open("w") as file:
        for i in range(count):
            file.write(json.dumps({"problem": f"What is {i} + {i % 7}?", "steps": steps_of(i)}) + "\n")
    path.with_suffix(".part").rename(path)


def memory(process: int) -> tuple[float, float]:
    """Megabytes of a process: resident, and anonymous."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return kb["VmRSS"] / 1024, kb["RssAnon"] / 1024


def run(folder: Path, count: int, workers: int, minutes: float) -> tuple[list[Sample], bool]:
    """Score and sample; also returns whether it finished in time."""
    out = folder / f"{count}.parquet"
    command = [
        sys.executable, "-m", "prism_prm", "score", str(folder / f"{count}.jsonl"), "--prm", str(folder / "prm"),
        "--out", str(out), "--ray", "-R", f"workers={workers}",
    ]  # fmt: skip
    store = folder / f".{count}.parquet.scores"
    chunks = _count(store)
    samples: list[Sample] = []
    begun = time.monotonic()
    with (folder / "log.txt").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while process.poll() is None:
            time.sleep(SECONDS)
            try:
                samples.append(Sample(time.monotonic() - begun, 64 * (_count(store) - chunks), *memory(process.pid)))
            except (FileNotFoundError, KeyError):  # it has just ended
                break
            if len(samples) > 1 and samples[-1].solutions < samples[-2].solutions:  # it is done and removes its store
                samples.pop()
                break
            if samples[-1].seconds > 60 * minutes:
                process.send_signal(signal.SIGINT)
                process.wait(60)
    samples = [sample for sample in samples if sample.solutions > 0]
    return samples, process.returncode == 0


def _count(folder: Path) -> int:
    """Chunks in the score store."""
    return sum(len(os.listdir(own)) for own in folder.glob("*"))


def show(samples: list[Sample]) -> list[float]:
    """Print a row per tenth of the solutions; returns the seconds per solution of each tenth."""
    print("| tenth | solutions | solutions/s | driver, MB | without file pages, MB |\n|---|---|---|---|---|")
    most, before = samples[-1].solutions, samples[0]
    costs = []
    for tenth in range(1, 11):
        part = [sample for sample in samples if (tenth - 1) * most < 10 * sample.solutions <= tenth * most]
        if part and part[-1].solutions > before.solutions:
            costs.append((part[-1].seconds - before.seconds) / (part[-1].solutions - before.solutions))
            before = part[-1]
            resident, own = max(sample.resident for sample in part), max(sample.own for sample in part)
            print(f"| {tenth} | {before.solutions:,} | {1 / costs[-1]:,.0f} | {resident:,.0f} | {own:,.0f} |")
    return costs


def main() -> None:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--solutions", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="folder for input and output (default: a temporary folder)")
    parser.add_argument("--minutes", type=float, default=20.0, help="time limit (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        folder = arguments.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "prm").exists():
            small_prm([text for i in range(100) for text in steps_of(i)], hidden=64, layers=2).save(folder / "prm")
        make_input(folder, arguments.solutions)
        with peak_memory() as peak:
            samples, is_whole = run(folder, arguments.solutions, arguments.workers, arguments.minutes)
        log = (folder / "log.txt").read_text()
    if len(samples) < 2:
        sys.exit(f"too few scores for a result:\n{log}")
    costs = show(samples)
    mean = (samples[-1].solutions - samples[0].solutions) / (samples[-1].seconds - samples[0].seconds)
    print(f"{mean:,.0f} solutions/s: {20 * 60 * mean:,.0f} in 20 minutes")
    print(f"peak memory: {peak.gib:.2f} GiB, of the driver, its workers and Ray")
    print("all are scored" if is_whole else f"not all are scored; run it again with its --folder to resume\n{log}")
    conclude(costs[-1:], costs[:1], peer="its first tenth")


if __name__ == "__main__":
    main()

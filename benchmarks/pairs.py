"""`prism pairs` against a bare `json.loads` pass over the same bytes: 20 copies of PRM800K phase 1 train, 150 MB.

Targets: reading, pairing and writing at most 3 times the pass; the audit's own cost at most 5 times; peak memory on 20
copies at most 1.2 times that on one.

Run: PRISM_DATA=… python benchmarks/pairs.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _side_by_side import conclude, median, options, side_by_side
from prism_prm.data.build_pairs import PairRecipe, build_pairs
from prism_prm.data.pair_rules import Audit, PairSettings
from prism_prm.data.reader import Reader

COPIES = 20
PEER = "a bare json.loads pass"

PEAK_MEMORY = """
import sys
from prism_prm.data.reader import Reader
from prism_prm.data.pair_rules import PairSettings
from prism_prm.data.build_pairs import PairRecipe, build_pairs
build_pairs(Reader([sys.argv[1]]), sys.argv[2], PairRecipe(PairSettings(audit=sys.argv[3])))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
"""VmHWM of Linux: the value of `getrusage` would start with the memory of the parent process."""


def json_pass(file: Path) -> None:
    """The peer: decode every line and discard it."""
    with file.open("rb") as lines:
        for line in lines:
            json.loads(line)


def build(file: Path, out: Path, audit: Audit) -> int:
    """All of `prism pairs --lookahead all`; returns the number of pairs."""
    summary = build_pairs(Reader([file]), out, PairRecipe(PairSettings(audit=audit)))
    return int(summary["pairs"]["total"])


def peak_megabytes(file: Path, out: Path, audit: Audit) -> float:
    """Peak memory of a new process."""
    command = [sys.executable, "-c", PEAK_MEMORY, str(file), str(out), audit]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024


def main() -> None:
    arguments = options(__doc__, repeats=3).parse_args()
    data = os.environ.get("PRISM_DATA")
    if not data:
        print("skipped: set PRISM_DATA to the folder with prm800k/phase1_train.jsonl")
        return
    once = Path(data) / "prm800k" / "phase1_train.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        copies, out = Path(folder) / "copies.jsonl", Path(folder) / "out"
        copies.write_bytes(once.read_bytes() * COPIES)
        print(f"{copies.stat().st_size / 1e6:.0f} MB, {build(copies, out, 'off'):,} pairs without the audit")
        seconds = side_by_side(
            {
                PEER: lambda: json_pass(copies),
                "audit off": lambda: build(copies, out, "off"),
                "audit drop": lambda: build(copies, out, "drop"),
            },
            repeats=arguments.repeats,
            beside=arguments.busy,
        )
        bare, off, drop = (median(seconds, name) for name in (PEER, "audit off", "audit drop"))
        for name, cost in (
            ("bare json.loads pass", bare),
            ("read, pair and write, audit off", off),
            ("the audit's own cost", drop - off),
        ):
            print(f"{name:32} {cost:6.2f} s  {cost / bare:5.2f}x the time of the pass")
        for mode in ("off", "drop"):
            one, many = peak_megabytes(once, out, mode), peak_megabytes(copies, out, mode)
            print(f"peak memory, audit {mode}: 1 copy {one:.0f} MB, {COPIES} copies {many:.0f} MB, {many / one:.2f}x")
        conclude(seconds["audit off"], seconds[PEER], peer=PEER)


if __name__ == "__main__":
    main()

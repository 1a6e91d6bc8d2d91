"""Judge 4,000 answers with workers on all cores, against a serial loop.

With PRISM_DATA the answers are those of the pool of 100 MATH-500 problems × 40 solutions; without it, they are
synthetic. The peer is a plain loop over the same function in one process, without a time limit. Compared with it: the
same calls in killable workers, each with a time limit; and `Judge`, which also compares plain numbers without algebra
and judges equal answers once. Every round starts new processes, since parsers and algebra have caches; the startup is
part of the time.

Run: PRISM_DATA=… python benchmarks/judging.py
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm.grading import symbolic
from prism_prm.grading.graders import Judge
from prism_prm.grading.process_pool import ProcessPool, available_cores

NUM_ANSWERS = 4_000


def real_pairs(folder: Path) -> list[tuple[str, str]]:
    """(reference, answer) of the pool's solutions that have one."""
    records = [json.loads(line) for line in (folder / "best_of_n/math500_pool_100.jsonl").open(encoding="utf-8")]
    pairs = [(r["answer"], s["parsed_answer"]) for r in records for s in r["samples"] if s["parsed_answer"]]
    return (pairs * 2)[:NUM_ANSWERS]


def synthetic_pairs() -> list[tuple[str, str]]:
    """Fractions, roots and polynomials, half of them wrong; repeated, like answers in a pool."""
    draw = random.Random(0)
    distinct = []
    for _ in range(NUM_ANSWERS // 10):
        a, b, c = (draw.randint(2, 99) for _ in range(3))
        wrong = draw.randint(0, 1)
        kinds = [
            (rf"\frac{{{a}}}{{{b}}}\sqrt{{{c}}}", rf"\frac{{{a * c}}}{{{b}\sqrt{{{c}}}}}+{wrong}"),
            (f"(x+{a})({b}x-{c})", f"{b}x^2+{a * b - c}x-{a * c - wrong}"),
            (rf"({a}, \frac{{{b}}}{{{c}}})", rf"\left({a + wrong}, \frac{{{2 * b}}}{{{2 * c}}}\right)"),
        ]
        distinct.append(draw.choice(kinds))
    return [pair for pair in distinct for _ in range(10)]


def answer_pairs() -> list[tuple[str, str]]:
    """The answers to judge."""
    folder = os.environ.get("PRISM_DATA")
    return real_pairs(Path(folder)) if folder else synthetic_pairs()


def in_a_loop() -> list[bool]:
    """A serial loop in a new process."""
    out = subprocess.run([sys.executable, __file__, "--loop"], capture_output=True, text=True, check=True)
    return [bool(verdict) for verdict in json.loads(out.stdout)]


def in_workers() -> list[bool]:
    """The same calls in a pool of workers."""
    with ProcessPool("prism_prm.grading.symbolic") as workers:
        return [bool(outcome.value) for outcome in workers.run([("equivalent", pair) for pair in answer_pairs()])]


def with_judge() -> list[bool]:
    """`Judge`, as in `prism rerank`."""
    with Judge() as judge:
        return [verdict.correct for verdict in judge.judge(answer_pairs())]


def child_seconds() -> float:
    """CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the ratios."""
    parser = options(__doc__, repeats=3)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loop:
        print(json.dumps([symbolic.equivalent(*pair) for pair in answer_pairs()]))
        return
    verdicts: dict[str, list[bool]] = {}

    busy: dict[str, float] = {}

    def record(name: str, run: Callable[[], list[bool]]) -> Callable[[], None]:
        def run_and_record() -> None:
            cpu, started = child_seconds(), time.perf_counter()
            verdicts[name] = run()
            busy[name] = (child_seconds() - cpu) / (time.perf_counter() - started)

        return run_and_record

    peer = "a serial loop, no time limit"
    alternatives = {peer: in_a_loop, f"killable workers, {available_cores()} cores": in_workers, "Judge": with_judge}
    seconds = side_by_side(
        {name: record(name, run) for name, run in alternatives.items()},
        repeats=arguments.repeats,
        beside=arguments.busy,
    )
    print(f"{len(verdicts[peer]):,} answers, {sum(verdicts[peer]):,} right by the loop")
    for name, found in verdicts.items():
        differ = sum(a != b for a, b in zip(verdicts[peer], found, strict=True))
        print(f"{name}: {differ} verdicts differ from the loop's; {busy[name]:.2f} cores busy")
    print_ratios(seconds, peer=peer)
    conclude(seconds["Judge"], seconds[peer], peer=peer)


if __name__ == "__main__":
    main()

"""Run 1,000 programs in the sandbox, against the same programs in a bare interpreter each.

The programs are small: they read numbers and print a result, as in stdin tasks; all ways must print the same. The peer
starts the interpreter without isolation, from as many threads as the sandbox has workers, and without `site` (`-I -S`),
like the sandbox. Also compared: the interpreter with `site`; and a serial in-process run with a signal as the time
limit, which is how LiveCodeBench runs them, without processes and without isolation.

The overhead of each isolation level over each of these is printed with its range over rounds.

Run: python benchmarks/sandbox.py [--programs 300 --repeats 3]
"""

from __future__ import annotations

import io
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout

from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm.grading.sandbox import Program, RunResult, Sandbox
from prism_prm.grading.sandbox_policy import LEVELS, SandboxError, interpreter

WORKERS = 2
PEER = "a bare interpreter without site"
KINDS = [
    "print(sum(map(int, input().split())))",
    "print(*sorted(map(int, input().split()), reverse=True))",
    "from collections import Counter\nprint(Counter(input().split()).most_common(1)[0][0])",
    "import heapq\nh = list(map(int, input().split()))\nheapq.heapify(h)\nwhile len(h) > 1:\n"
    "    heapq.heappush(h, heapq.heappop(h) + heapq.heappop(h))\nprint(h[0])",
    "n = max(map(int, input().split()))\ns = [True] * (n + 1)\nfor i in range(2, n + 1):\n    if s[i]:\n"
    "        for j in range(2 * i, n + 1, i): s[j] = False\nprint(sum(s) - 2)",
]


def programs(count: int) -> list[tuple[str, str]]:
    """(code, stdin) of small programs."""
    draw = random.Random(0)
    return [
        (KINDS[i % len(KINDS)], " ".join(str(draw.randint(1, 2000)) for _ in range(50)) + "\n") for i in range(count)
    ]


def bare(chosen: list[tuple[str, str]], *flags: str) -> list[bytes]:
    """Each program in a new interpreter."""

    def one(program: tuple[str, str]) -> bytes:
        code, stdin = program
        command = [interpreter(), *flags, "-c", code]
        return subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=60).stdout

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(one, chosen))


def in_process(chosen: list[tuple[str, str]]) -> list[bytes]:
    """All programs in this process, one after the other."""
    found = []
    real = sys.stdin
    for code, stdin in chosen:
        printed = io.StringIO()
        signal.alarm(6)
        sys.stdin = io.StringIO(stdin)
        with redirect_stdout(printed):
            exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
        signal.alarm(0)
        found.append(printed.getvalue().encode())
    sys.stdin = real
    return found


def sandboxed(box: Sandbox, chosen: list[tuple[str, str]]) -> list[bytes]:
    """In the sandbox."""
    runs = box.map(Program(code, stdin) for code, stdin in chosen)
    return [run.stdout for run in runs if isinstance(run, RunResult)]


def main() -> None:
    """Time all ways, and check that their outputs are equal."""
    parser = options(__doc__, repeats=3)
    parser.add_argument("--programs", type=int, default=1000, help="number of programs (default: %(default)s)")
    arguments = parser.parse_args()
    chosen = programs(arguments.programs)
    ways: dict[str, Callable[[], list[bytes]]] = {
        PEER: lambda: bare(chosen, "-I", "-S"),
        "a bare interpreter": lambda: bare(chosen),
        "in this process, with signals": lambda: in_process(chosen),
    }
    for level in LEVELS:
        try:
            box = Sandbox(level, workers=WORKERS)
        except SandboxError as error:
            print(error)
            continue
        ways[f"sandbox: {level}"] = lambda box=box: sandboxed(box, chosen)  # type: ignore[misc]
    printed: dict[str, list[bytes]] = {}

    def keep(name: str) -> Callable[[], None]:
        return lambda: printed.update({name: ways[name]()})

    seconds = side_by_side({name: keep(name) for name in ways}, repeats=arguments.repeats, beside=arguments.busy)
    assert all(outputs == printed[PEER] for outputs in printed.values()), "the ways print different results"
    print(f"{len(chosen):,} programs, {WORKERS} at a time; all ways print the same")
    for name, rounds in seconds.items():
        print(f"{name:50s} {1000 * sorted(rounds)[len(rounds) // 2] / len(chosen):7.1f} ms per program")
    print_ratios(seconds, peer=PEER)
    for name in (name for name in seconds if name.startswith("sandbox")):
        for peer in (name for name in seconds if not name.startswith("sandbox")):
            ratios = [own / other for own, other in zip(seconds[name], seconds[peer], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{name} takes {statistics.median(ratios):.2f} times as long as {peer} (rounds: {spread})")
    best = next(f"sandbox: {level}" for level in LEVELS if f"sandbox: {level}" in ways)
    conclude(seconds[best], seconds[PEER], peer=PEER)


if __name__ == "__main__":
    main()

"""Serve beam-search traffic: a server that batches and caches, against the same server without batches and cache.

In each iteration, every beam of every problem sends a request with the problem, its steps so far and one more step (a
real one of PRM800K); all requests of an iteration are concurrent. The best quarter of a problem's beams is kept and
copied to fill up again. The peer is the same `prism serve` with batch_items=1 and cache_mb=0, and gets the same
requests.

Run: PRISM_DATA=… python benchmarks/serve.py [--problems 8] [--beams 8] [--steps 20]
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx

from _real_trees import real_trees, small_prm
from _side_by_side import conclude, options, print_ratios, side_by_side

Beam = tuple[str, tuple[str, ...]]
"""Problem and steps."""
Ask = Callable[[httpx.AsyncClient, Beam], Awaitable[list[float]]]


def traffic(problems: list[str], texts: list[str], beams: int, steps: int) -> list[list[Beam]]:
    """The requests of each iteration; the kept beams are random, so that all servers get the same requests."""
    rng = random.Random(0)
    live: list[Beam] = [(problem, ()) for problem in problems for _ in range(beams)]
    iterations = []
    for _ in range(steps):
        asked = [(problem, (*before, rng.choice(texts))) for problem, before in live]
        iterations.append(asked)
        live = []
        for start in range(0, len(asked), beams):
            best = rng.sample(asked[start : start + beams], beams // 4)
            live += [beam for beam in best for _ in range(beams // len(best))]
    return iterations


@contextlib.contextmanager
def server(folder: str, *more: str) -> Iterator[str]:
    """The address of `prism serve`, once it is ready."""
    command = [sys.executable, "-m", "prism_prm", "serve", "--prm", f"m={folder}", "--port", "0", *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+:\d+", process.stderr.readline())
            assert found is not None, "the first line has the address"
            while httpx.get(f"{found[0]}/ready").status_code != 200:
                time.sleep(0.2)
            yield found[0]
        finally:
            process.terminate()
            process.wait()


async def ask(client: httpx.AsyncClient, beam: Beam) -> list[float]:
    """The scores of a beam's steps, by `prism serve`."""
    body = {"items": [{"problem": beam[0], "steps": list(beam[1])}]}
    answer = await client.post("/v1/steps", json=body)
    answer.raise_for_status()
    scores: list[float] = answer.json()["items"][0]["probabilities"]
    return scores


def search(url: str, iterations: list[list[Beam]], ask: Ask = ask) -> list[list[float]]:
    """The scores of the last iteration's beams."""

    async def run() -> list[list[float]]:
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
            found: list[list[float]] = []
            for asked in iterations:
                found = list(await asyncio.gather(*(ask(client, beam) for beam in asked)))
            return found

    return asyncio.run(run())


def main() -> None:
    parser = options(__doc__, repeats=2)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--beams", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    arguments = parser.parse_args()

    trees = real_trees(50, 30)
    texts = [node.text for tree in trees for node in tree.nodes]
    iterations = traffic(
        [tree.problem for tree in trees[: arguments.problems]], texts, arguments.beams, arguments.steps
    )
    requests = sum(map(len, iterations))
    peer = "one sequence per request"
    long: Any = ("--set", "deadline=600")
    with contextlib.ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        small_prm(texts, hidden=arguments.hidden, layers=arguments.layers).save(f"{folder}/prm")
        urls = {
            "batched and cached": running.enter_context(server(f"{folder}/prm", *long)),
            "batched": running.enter_context(server(f"{folder}/prm", *long, "--set", "cache_mb=0")),
            peer: running.enter_context(
                server(f"{folder}/prm", *long, "--set", "batch_items=1", "--set", "cache_mb=0")
            ),
        }
        print(f"{arguments.problems} problems, {arguments.beams} beams, {arguments.steps} steps: {requests} requests")
        last = {name: search(url, iterations[-1:]) for name, url in urls.items()}
        worst = max(
            abs(one - other)
            for name in urls
            for scores, right in zip(last[name], last[peer], strict=True)
            for one, other in zip(scores, right, strict=True)
        )
        print(f"largest difference of a probability: {worst:.1e}")
        seconds = side_by_side(
            {name: lambda url=url: search(url, fresh(iterations)) for name, url in urls.items()},  # type: ignore[misc]
            repeats=arguments.repeats,
            beside=arguments.busy,
        )
    print_ratios(seconds, peer=peer)
    conclude(seconds["batched and cached"], seconds[peer], peer=peer)


_round = iter(range(10**6))


def fresh(iterations: list[list[Beam]]) -> list[list[Beam]]:
    """The same traffic with new problems, so that nothing is cached from an earlier round."""
    mark = f" ({next(_round)})"
    return [[(problem + mark, steps) for problem, steps in asked] for asked in iterations]


if __name__ == "__main__":
    main()

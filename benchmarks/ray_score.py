"""Score solutions on Ray: two workers of one thread each against one, and one against this process.

All three fill a new score store in chunks, like `prism score`. Workers are started before the timing, which covers
scoring, the transfer of chunks, and writing. The targets are 1.7 times for two workers on two free cores, and an
overhead below 10 % for one.

Run: python benchmarks/ray_score.py [--solutions 1000] [--hidden 256] [--layers 6]
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from pathlib import Path

import torch

from _real_trees import small_prm
from _side_by_side import conclude, median, options, print_ratios, side_by_side
from prism_prm import Scorer, load_prm
from prism_prm.backends.open_scorer import PrmOptions, opened_prm
from prism_prm.ray import RaySettings
from prism_prm.store import CHUNK, Request, ScoreStore
from prism_prm.tree import StepTree


def solutions(count: int) -> list[StepTree]:
    """Synthetic solutions of three to eight steps."""
    return [
        StepTree.chain(
            f"What is {i} + {i % 7}?", [f"Step {k}: {i} + {k} = {i + k}, so we add." for k in range(3 + i % 6)]
        )
        for i in range(count)
    ]


def fill(prm: Scorer, trees: list[StepTree], chunk: int) -> None:
    """Score all trees into a new store."""
    with tempfile.TemporaryDirectory() as folder:
        ScoreStore(folder, prm, chunk=chunk).fill([Request.all_of(tree) for tree in trees])


def main() -> None:
    import ray

    parser = options(__doc__, repeats=5)
    parser.add_argument("--solutions", type=int, default=1000)
    parser.add_argument("--chunk", type=int, default=CHUNK)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trees = solutions(arguments.solutions)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "prm"
        texts = [node.text for tree in trees for node in tree.nodes]
        small_prm(texts, hidden=arguments.hidden, layers=arguments.layers).save(folder)
        # Cores for the workers of both pools, of which only one works at a time.
        ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        stack.callback(ray.shutdown)
        here, one, two = "this process, one thread", "one worker", "two workers"
        prms = {here: load_prm(folder)} | {
            name: stack.enter_context(opened_prm(folder, PrmOptions(ray=RaySettings(address="local", workers=count))))
            for name, count in {one: 1, two: 2}.items()
        }
        for prm in prms.values():
            fill(prm, trees[: 8 * arguments.chunk], arguments.chunk)  # until all workers are warm
        seconds = side_by_side(
            {name: lambda prm=prm: fill(prm, trees, arguments.chunk) for name, prm in prms.items()},  # type: ignore[misc]
            repeats=arguments.repeats,
            beside=arguments.busy,
        )
    print_ratios(seconds, peer=one)
    for name in seconds:
        print(f"{name}: {arguments.solutions / median(seconds, name):,.0f} solutions/s")
    print(f"overhead of one worker: {median(seconds, one) / median(seconds, here) - 1:.1%}")
    conclude(seconds[two], seconds[one], peer=one)


if __name__ == "__main__":
    main()

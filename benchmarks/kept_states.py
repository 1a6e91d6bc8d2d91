"""Train with frozen layers: their activations cached on disk, against computed in every pass.

Both train the same upper layers of the same PRM (with all layers frozen, its head) on the same updates of real PRM800K
pairs, so their losses agree up to rounding, which is checked. The peer is our own training with `frozen_layers` and no
cache. Filling the cache is timed separately, since it happens once for all epochs, objectives and seeds.

Run: PRISM_DATA=… python benchmarks/kept_states.py --prm FOLDER [--frozen 18] [--trajectories 8] [--updates 4]
     (FOLDER: a PRM; by default a small random one with 12 layers, all but one of them frozen)
"""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path

from accelerate import Accelerator

from _real_trees import real_trees, small_prm
from _side_by_side import conclude, options, print_ratios, side_by_side
from pair_training import make_round, real_examples
from prism_prm import PRM
from prism_prm.console import Console, shown_on
from prism_prm.data.pair_examples import Examples
from prism_prm.models.lower_cache import CacheSettings, LowerCache
from prism_prm.train.batches import KeptReads, batch_maker
from prism_prm.train.margins import fill_cache
from prism_prm.train.model import prepare
from prism_prm.train.recipe import HardwareSettings

OURS, PEER = "cached on disk", "frozen layers, computed each time"


def train(prm: PRM, examples: Examples, frozen: int, updates: int, cache: Path | None) -> list[float]:
    """Train a copy of the PRM; returns the losses of the first updates."""
    fresh = copy.deepcopy(prm)
    if cache is not None:
        fresh.cache = LowerCache(fresh.module, CacheSettings(cache, frozen))
    work = make_round(fresh, examples, "tree", 16, updates)
    work.model = prepare(fresh.module, HardwareSettings(frozen_layers=frozen), seed=0)
    work.make_batch = batch_maker(fresh.module, work.settings.microbatch_tokens, fresh.cache)
    if fresh.cache is not None:
        work.kept_reads = KeptReads.of(fresh.cache, work.examples, fresh.family, work.limits)
    losses: list[float] = []
    work.on_update = lambda line: losses.append(line["loss"])
    work.run(Accelerator(cpu=True))
    return losses


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--prm")
    parser.add_argument("--frozen", type=int)
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--updates", type=int, default=4)
    arguments = parser.parse_args()
    trees = real_trees(arguments.trajectories)
    prm = (
        PRM.from_pretrained(arguments.prm)
        if arguments.prm
        else small_prm([step.text for tree in trees for step in tree.nodes], hidden=256, layers=12)
    )
    layers = prm.module.config.num_hidden_layers
    frozen = arguments.frozen or layers - 1
    examples = real_examples(trees, lookaheads=1)
    print(f"{len(examples)} pairs of {len(trees)} trees, {frozen} of {layers} layers frozen")
    with tempfile.TemporaryDirectory() as folder:
        filling = copy.deepcopy(prm)
        filling.cache = LowerCache(filling.module, CacheSettings(folder, frozen))
        started = time.perf_counter()
        with shown_on(Console(print)):
            fill_cache(filling, examples)
        size = sum(path.stat().st_size for path in filling.cache.folder.iterdir())
        print(f"filling the cache: {time.perf_counter() - started:.1f} s, {size / 1e6:.0f} MB")
        plain = train(prm, examples, frozen, arguments.updates, None)
        kept = train(prm, examples, frozen, arguments.updates, Path(folder))
        difference = max(abs(one - other) for one, other in zip(plain, kept, strict=True))
        print(f"largest difference of a loss: {difference:.2e}")
        assert difference < 1e-4
        seconds = side_by_side(
            {
                PEER: lambda: train(prm, examples, frozen, arguments.updates, None),
                OURS: lambda: train(prm, examples, frozen, arguments.updates, Path(folder)),
            },
            repeats=arguments.repeats,
            beside=arguments.busy,
        )
    print_ratios(seconds, peer=PEER)
    conclude(seconds[OURS], seconds[PEER], peer=PEER)


if __name__ == "__main__":
    main()

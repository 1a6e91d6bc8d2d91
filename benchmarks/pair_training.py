"""Train on real PRM800K pairs: packed trees against TRL's RewardTrainer, and against our own separate sequences.

All train the same Qwen2 architecture with AdamW on the same pairs (annotated, and four lookaheads per position) with
the same number of pairs per update. The peer, TRL's RewardTrainer, runs both sides of every pair as a whole sequence.
Its row filter (max_length) and gradient checkpointing are off, so that it does no unnecessary work. Its batch is the
largest of 16, 8, 4, 2 and 1 pairs per pass that fits in 10 GiB (--trl-batch sets another).

Run: PRISM_DATA=… python benchmarks/pair_training.py [--trajectories 40] [--updates 3] [--per-tree 32]
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import Qwen2ForSequenceClassification
from trl import RewardConfig, RewardTrainer

from _real_trees import real_trees, small_prm
from _side_by_side import conclude, median, options, peak_memory, print_ratios, side_by_side
from prism_prm import PRM
from prism_prm.arrays import Ints
from prism_prm.data.pair_examples import Examples
from prism_prm.data.pair_rules import PairSettings, annotated_pairs, lookahead_pairs
from prism_prm.losses import Objective
from prism_prm.models.prm import pair_cost
from prism_prm.train.batches import RowLimits, batch_maker
from prism_prm.train.loop import TrainingRound
from prism_prm.train.recipe import Packing, TrainSettings
from prism_prm.tree import StepTree

PAIRS_PER_UPDATE = 64
PEER = "TRL RewardTrainer"
FITS = 10.0
"""The memory limit of a pass of the peer in GiB."""


def real_examples(trees: list[StepTree], lookaheads: int) -> Examples:
    """Annotated pairs and `lookaheads` per position of every tree."""
    settings = PairSettings(lookahead=lookaheads, audit="off")
    pairs = [pair for tree in trees for pair in (*annotated_pairs(tree, settings), *lookahead_pairs(tree, settings))]
    columns = [[getattr(pair, name) for pair in pairs] for name in ("tree_id", "chosen", "rejected", "rejected_tree")]
    return Examples({tree.tree_id: tree for tree in trees}, np.arange(len(pairs)), *map(np.array, columns))


def make_round(prm: PRM, examples: Examples, pack: Packing, per_tree: int, updates: int) -> TrainingRound:
    """The first updates of a round."""
    settings = TrainSettings(
        lr=1e-5, pairs_per_update=PAIRS_PER_UPDATE, max_pairs_per_tree_per_update=per_tree, pack=pack, max_grad_norm=1.0
    )
    work = TrainingRound(
        "benchmark", prm.module, prm.family, batch_maker(prm.module, settings.microbatch_tokens),
        RowLimits(settings.row_tokens, pair_cost(prm.module)), examples, Objective(), settings, (0,),
        Path("no-checkpoints"),
    )  # fmt: skip
    work.updates = work.updates[:updates]
    return work


def train_ours(prm: PRM, examples: Examples, pack: Packing, per_tree: int, updates: int) -> int:
    """Train copies of the weights; returns the number of tokens."""
    tokens = 0

    def count(line: dict[str, Any]) -> None:
        nonlocal tokens
        tokens += line["tokens"]

    fresh = copy.deepcopy(prm)
    work = make_round(fresh, examples, pack, per_tree, updates)
    work.on_update = count
    work.run(Accelerator(cpu=True))
    return tokens


def as_sequences(prm: PRM, examples: Examples, indices: Ints) -> Dataset:
    """The pairs in TRL's format: the ids of both whole sequences."""

    def ids(tree: StepTree, parent: int, text: str) -> list[int]:
        steps = [*tree.texts(tree.path(parent)), text]
        return [
            *prm.family.prompt_ids(tree.problem),
            *(i for n, s in enumerate(steps) for i in prm.family.step_ids(s, n)[0]),
        ]

    rows = []
    for i in indices:
        tree = examples.trees[int(examples.tree[i])]
        chosen, rejected = int(examples.chosen[i]), int(examples.rejected[i])
        other = examples.trees[int(examples.rejected_tree[i])]
        parent = tree.parents[chosen]
        rows.append({"chosen_ids": ids(tree, parent, tree.nodes[chosen].text),
                     "rejected_ids": ids(tree, parent, other.nodes[rejected].text)})  # fmt: skip
    return Dataset.from_list(rows)


def trl_trainer(prm: PRM, data: Dataset, folder: str, batch: int) -> RewardTrainer:
    """TRL's trainer on a model of the same architecture, for one pass over the data."""
    config = copy.deepcopy(prm.module.config)
    config.num_labels, config.pad_token_id = 1, 0
    torch.manual_seed(0)
    tokenizer = copy.deepcopy(prm.tokenizer)
    tokenizer.pad_token = tokenizer.eos_token = "<|im_end|>"
    arguments = RewardConfig(
        output_dir=folder, per_device_train_batch_size=batch, gradient_accumulation_steps=PAIRS_PER_UPDATE // batch,
        num_train_epochs=1, max_length=None, gradient_checkpointing=False, use_cpu=True, save_strategy="no",
        report_to=[], logging_strategy="no", learning_rate=1e-5, disable_tqdm=True, bf16=False,
    )  # fmt: skip
    return RewardTrainer(
        model=Qwen2ForSequenceClassification(config), args=arguments, train_dataset=data, processing_class=tokenizer
    )


def fitting_batch(prm: PRM, data: Dataset) -> int:
    """The peer's pairs per pass, estimated from the memory of its longest pair."""
    sizes = [len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in data]
    with peak_memory() as idle:
        pass
    with tempfile.TemporaryDirectory() as folder, peak_memory() as peak:
        trl_trainer(prm, data.select([int(np.argmax(sizes))]), folder, 1).train()
    one = peak.gib - idle.gib
    batch = next((size for size in (16, 8, 4, 2) if size * one <= FITS), 1)
    print(f"the peer's longest pair has {max(sizes):,} tokens and takes {one:.2f} GiB: {batch} pairs per pass")
    return batch


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--trajectories", type=int, default=40)
    parser.add_argument("--lookaheads", type=int, default=4)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--per-tree", type=int, default=32)
    parser.add_argument("--trl-batch", type=int, help="pairs per pass of the peer (default: what fits)")
    arguments = parser.parse_args()

    trees = real_trees(arguments.trajectories)
    prm = small_prm(
        [node.text for tree in trees for node in tree.nodes], hidden=arguments.hidden, layers=arguments.layers
    )
    examples = real_examples(trees, arguments.lookaheads)
    num_pairs = arguments.updates * PAIRS_PER_UPDATE
    print(
        f"{sum(p.numel() for p in prm.module.parameters()) / 1e6:.1f}M parameters, {torch.get_num_threads()} threads, ",
        end="",
    )
    print(f"{len(examples)} pairs of {len(trees)} trajectories; {num_pairs} trained in {arguments.updates} updates")
    chosen = np.concatenate(make_round(prm, examples, "tree", arguments.per_tree, arguments.updates).updates)
    data = as_sequences(prm, examples, chosen)
    whole = sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in data)
    batch = arguments.trl_batch or fitting_batch(prm, data)
    tokens: dict[str, int] = {}

    def ours(name: str, pack: Packing, per_tree: int) -> Callable[[], None]:
        def run() -> None:
            tokens[name] = train_ours(prm, examples, pack, per_tree, arguments.updates)

        return run

    def trl() -> None:
        with tempfile.TemporaryDirectory() as folder:
            trl_trainer(prm, data, folder, batch).train()

    packings: dict[str, Packing] = {"packed trees": "tree", "pack = pair": "pair", "pack = none": "none"}
    alternatives = {name: ours(name, pack, arguments.per_tree) for name, pack in packings.items()}
    seconds = side_by_side({**alternatives, PEER: trl}, repeats=arguments.repeats, beside=arguments.busy)
    print(f"up to {arguments.per_tree} pairs of a tree in an update, the same pairs for all:")
    print_ratios(seconds, peer=PEER)
    for name in seconds:
        fewer = f", {whole / tokens[name]:.1f}x fewer tokens than the pairs have" if name in tokens else ""
        print(f"{name}: {num_pairs / median(seconds, name):.1f} pairs/s{fewer}")
    print("other limits on the pairs of a tree in an update (other pairs, hence only the rate):")
    limits = {f"up to {n}": ours(f"up to {n}", "tree", n) for n in (1, 8, 16, 64)}
    limited = side_by_side(limits, repeats=arguments.repeats, beside=arguments.busy)
    for name in limited:
        print(f"{name}: {num_pairs / median(limited, name):.1f} pairs/s")
    conclude(seconds["packed trees"], seconds[PEER], peer=PEER)


if __name__ == "__main__":
    main()

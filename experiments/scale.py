"""The tables of docs/guides/scale.md: the cost of training PRMs on PRM800K and Math-Shepherd, from measured tokens.

Tokens are counted on a sample of real trajectories with a real tokenizer, packed by the code of `prism train`, and
scaled to the size of the whole sets. Operations, memory and hours are computed from the models' sizes
(`prism_prm.plan.costs`).

Run: PRISM_DATA=… python experiments/scale.py --tokenizer FOLDER [--trees 24] [--write]
     (--write puts the tables between the markers of docs/guides/scale.md; otherwise they are printed)
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from prism_prm import Step, StepTree, annotated_pairs, lookahead_pairs, read_trees
from prism_prm.data.pair_examples import Examples, labeled_steps
from prism_prm.data.pair_rules import PairSettings
from prism_prm.losses import Objective
from prism_prm.models.prm import pair_cost
from prism_prm.plan.costs import (
    GIB,
    Batch,
    Cluster,
    ModelSizes,
    Setup,
    forward_flops,
    held_parameters,
    training_flops,
    training_memory,
)
from prism_prm.plan.plan_run import StandIn
from prism_prm.plan.skeleton import RoundCount, Skeleton, count_round, load_skeleton
from prism_prm.train.batches import RowLimits
from prism_prm.train.loop import TrainingRound
from prism_prm.train.recipe import TARGETS, TrainSettings

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "scale.md"
PHASE_1, MATH_SHEPHERD = 942, 440_000
"""Solutions: those of phase 1 at hand, and the published size of Math-Shepherd."""
LABELS = 800_000
"""Labeled steps of both phases of PRM800K, by its authors' count."""
LOOKAHEADS = "PRM800K phase 1, all lookahead pairs"
CHAINS, REPEATS = 12, 10
"""Solutions without other candidates are quick to measure, so more of them are used; the 100 solutions of Math-Shepherd
are repeated to fill large updates."""
PER_GPU = 8
"""Examples per GPU in large updates."""
GPU, COUNTS = "h100", (4, 64, 512)
MODELS = ("qwen2.5-7b", "qwen2.5-72b")
MIXED = Setup(weights=4, compute=2, checkpointing=True)
"""32-bit weights, 16-bit arithmetic, gradient checkpointing: the shipped 7B recipe."""


Counts = dict[tuple[str, int], RoundCount]
"""(training set, GPUs) → the counts on the sample."""
Models = dict[str, ModelSizes]


@dataclass(frozen=True)
class Workload:
    """A sample of a training set, and how many times larger the whole set is."""

    name: str
    examples: Examples
    times: float


def pairs_of(trees: Sequence[StepTree], lookahead: int | str) -> Examples:
    """Annotated and lookahead pairs."""
    settings = PairSettings(lookahead=lookahead, audit="off")  # type: ignore[arg-type]
    pairs = [pair for tree in trees for pair in (*annotated_pairs(tree, settings), *lookahead_pairs(tree, settings))]
    columns = [[getattr(pair, name) for pair in pairs] for name in ("tree_id", "chosen", "rejected", "rejected_tree")]
    return Examples({tree.tree_id: tree for tree in trees}, np.arange(len(pairs)), *map(np.array, columns))


def chain(tree_id: int, problem: str, texts: Sequence[str]) -> StepTree:
    """A solution without other candidates, with every step labeled right, like most of a linear set."""
    steps = tuple(Step(text, label=1.0) for text in texts)
    return StepTree(tree_id, problem, steps, tuple(range(-1, len(steps) - 1)), tuple(range(len(steps))))


def math_shepherd(data: Path) -> Iterator[StepTree]:
    lines = (data / "math_shepherd" / "chatglm_mathv2_first100_split.jsonl").read_text(encoding="utf-8").splitlines()
    for i, record in enumerate(map(json.loads, lines)):
        yield chain(i, record["questions"], [step["content"] for step in record["solution"].values()])


def workloads(data: Path, count: int) -> list[Workload]:
    every = list(read_trees(data / "prm800k" / "phase1_train.jsonl"))
    trees = every[:: len(every) // count][:count]
    chosen = every[:: max(1, len(every) // (CHAINS * count))][: CHAINS * count]
    trunks = {tree.tree_id: chain(tree.tree_id, tree.problem, tree.texts(tree.trunk)) for tree in chosen if tree.trunk}
    solutions = list(math_shepherd(data))
    repeated = {
        k * len(solutions) + i: replace(tree, tree_id=k * len(solutions) + i)
        for k in range(REPEATS)
        for i, tree in enumerate(solutions)
    }
    phase1, shepherd = PHASE_1 / len(trees), MATH_SHEPHERD / len(repeated)
    both = LABELS / sum(len(tree.nodes) for tree in trunks.values())
    return [
        Workload(LOOKAHEADS, pairs_of(trees, "all"), phase1),
        Workload("PRM800K phase 1, annotated pairs", pairs_of(trees, "none"), phase1),
        Workload("PRM800K both phases, labels", labeled_steps(trunks), both),
        Workload("PRM800K both phases, a lookahead pair per step", pairs_of(list(trunks.values()), 1), both),
        Workload("Math-Shepherd, labels", labeled_steps(repeated), shepherd),
        Workload("Math-Shepherd, a lookahead pair per step", pairs_of(list(repeated.values()), 1), shepherd),
    ]


def counted(prm: Skeleton, work: Workload, count: int, per_update: int) -> RoundCount:
    """Count the sample, packed and spread over `count` GPUs."""
    examples = work.examples
    settings = TrainSettings(pairs_per_update=min(per_update, len(examples)), max_pairs_per_tree_per_update=8)
    limits = RowLimits(settings.row_tokens, pair_cost(prm.module))
    made = TrainingRound(
        "r", prm.module, prm.family, prm.module.collate, limits, examples, Objective(), settings, (0,), PAGE
    )
    return count_round(made, prm.module, count)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def token_table(works: Sequence[Workload], counts: Counts, model: ModelSizes) -> str:
    rows = []
    for work in works:
        found = counts[work.name, 1]
        flops = found.flops(model, MIXED) * work.times
        tokens, separate = found.tally.total.tokens * work.times, found.tally.separate * work.times
        rows.append([
            work.name, f"{len(work.examples):,}", f"{len(work.examples) * work.times / 1e3:,.0f}",
            f"{tokens / 1e6:,.0f}", f"{separate / 1e6:,.0f}", f"{separate / tokens:.1f}×", f"{flops:.1e}",
        ])  # fmt: skip
    return table(["training set", "examples measured", "examples (thousands)", "tokens, packed (M)",
                  "tokens, a sequence per step (M)", "packing", "operations at 7B"], rows)  # fmt: skip


def hour_table(works: Sequence[Workload], counts: Counts, models: Models) -> str:
    rows = []
    for work in works:
        for name, model in models.items():
            cells = []
            for count in COUNTS:
                found = counts[work.name, count]
                flops, busiest = found.flops(model, MIXED), found.busiest(model, MIXED)
                hours = busiest * work.times / Cluster(GPU, count).speed(2) / 3600
                useful = flops * (1 - found.idle / found.tally.total.tokens)
                cells.append(f"{hours:,.2f} ({useful / busiest / count:.0%})")
            rows.append([work.name, name.removeprefix("qwen2.5-").upper(), *cells])
    return table(["training set", "model", *(f"{count} GPUs" for count in COUNTS)], rows)


def memory_table(models: Models) -> str:
    batch = Batch(8192, 8192 * 4096, 128)
    rows = []
    for name, model in models.items():
        for how, sharded in (("DDP", False), ("FSDP2", True)):
            cells = []
            for count in COUNTS:
                memory = training_memory(model, batch, replace(MIXED, gpus=count, sharded=sharded))
                fits = memory.peak <= Cluster(GPU).room
                cells.append(f"{memory.peak / GIB:,.0f}{'' if fits else ' (too much)'}")
            rows.append([name.removeprefix("qwen2.5-").upper(), how, *cells])
    return table(["model", "", *(f"GiB on each of {count}" for count in COUNTS)], rows)


def paper_table(model: ModelSizes) -> str:
    """The paper's four 48 GB GPUs: which choices fit, by tokens per pass."""
    room = Cluster("a6000", 4).room
    lora = {"rank": 16, "targets": TARGETS}
    choices: dict[str, tuple[Setup, bool]] = {
        "full, DDP, 32-bit weights": (Setup(4, 2), False),
        "full, DDP, 16-bit weights and optimizer": (Setup(2, 2), False),
        "full, DDP, 16-bit weights, 8-bit optimizer": (Setup(2, 2, optimizer=2), False),
        "full, FSDP2, 32-bit weights": (Setup(4, 2), True),
        "full, FSDP2, 16-bit weights and optimizer": (Setup(2, 2), True),
        "LoRA, DDP, 32-bit weights": (Setup(4, 2, **lora), False),  # type: ignore[arg-type]
        "LoRA, DDP, 16-bit weights": (Setup(2, 2, **lora), False),  # type: ignore[arg-type]
        "LoRA, FSDP2, 32-bit weights": (Setup(4, 2, **lora), True),  # type: ignore[arg-type]
    }
    rows = []
    for name, (setup, sharded) in choices.items():
        cells = []
        for checkpointing in (False, True):
            for tokens in (1024, 4096, 8192):
                batch = Batch(tokens, tokens * min(tokens, 4096), 16)
                chosen = replace(setup, checkpointing=checkpointing, gpus=4, sharded=sharded)
                memory = training_memory(model, batch, chosen)
                cells.append(f"**{memory.peak / GIB:.0f}**" if memory.peak <= room else f"{memory.peak / GIB:.0f}")
        rows.append([name, *cells])
    headers = [f"{tokens:,}{', checkpointing' if saving else ''}" for saving in (0, 1) for tokens in (1024, 4096, 8192)]
    return table(["choice", *headers], rows)


def frozen_table(works: Sequence[Workload], counts: Counts, models: Models) -> str:
    """The savings of frozen lower layers, and the disk space of their cached activations."""
    work = works[0]
    found = counts[work.name, 1]
    rows = []
    for name, model in models.items():
        frozen = model.layers * 3 // 4
        total = found.tally.total
        plain, half, kept = (
            training_flops(model, total, replace(MIXED, checkpointing=False, frozen=layers, kept=is_kept))
            for layers, is_kept in ((0, False), (frozen, False), (frozen, True))
        )
        disk = found.tally.packed * work.times * model.hidden * 2
        reading = model.hidden * 2 * total.tokens * Cluster(GPU).speed(2) / kept
        rows.append([name.removeprefix("qwen2.5-").upper(), f"{frozen} of {model.layers}", f"{plain / half:.1f}×",
                     f"{half / kept:.1f}×", f"{disk / 1e12:,.2f} TB", f"{reading / 1e9:.2f} GB/s"])  # fmt: skip
    return table(["model", "frozen layers", "frozen, over all trained", "cached on disk, over frozen",
                  "activations on disk, at most", "read per GPU"], rows)  # fmt: skip


def scoring_table(works: Sequence[Workload], counts: Counts, models: Models) -> str:
    """Scoring all pairs once (margins), on one GPU and many."""
    rows = []
    for work in works:
        for name, model in models.items():
            seconds = forward_flops(model, counts[work.name, 1].tally.total) * work.times / Cluster(GPU).speed(2)
            rows.append([work.name, name.removeprefix("qwen2.5-").upper(), f"{seconds / 3600:,.2f}",
                         *(f"{seconds / count / 60:,.2f}" for count in COUNTS)])  # fmt: skip
    return table(["set", "model", "hours on 1", *(f"minutes on {count}" for count in COUNTS)], rows)


def disk_table(models: Models) -> str:
    rows = [
        [name.removeprefix("qwen2.5-").upper(), f"{model.parameters / 1e9:.2f}", f"{model.parameters * 2 / 1e9:,.0f}",
         f"{held_parameters(model, MIXED) * 12 / 1e9:,.0f}"]
        for name, model in models.items()
    ]  # fmt: skip
    return table(["model", "parameters (billions)", "PRM folder in 16 bits (GB)", "checkpoint (GB)"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--trees", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    skeletons = {name: load_skeleton(name, stand_in=StandIn(name, arguments.tokenizer), fresh=True) for name in MODELS}
    models = {name: one.sizes for name, one in skeletons.items()}
    prm = skeletons[MODELS[0]]
    works = workloads(Path(os.environ["PRISM_DATA"]), arguments.trees)
    counts = {(work.name, count): counted(prm, work, count, 64) for work in works for count in (1, *COUNTS)}
    linear = works[2:]  # phase 1 has too few trees for large updates
    large = {
        (work.name, count): counted(prm, work, count, max(64, PER_GPU * count)) for work in linear for count in COUNTS
    }
    tables = {
        "tokens": token_table(works, counts, models[MODELS[0]]),
        "hours-64": hour_table(works, counts, models),
        "hours-large": hour_table(linear, large, models),
        "memory": memory_table(models),
        "paper": paper_table(models[MODELS[0]]),
        "frozen": frozen_table(works, counts, models),
        "scoring": scoring_table(works, counts, models),
        "disk": disk_table(models),
    }
    if not arguments.write:
        print("\n".join(f"{name}\n{text}" for name, text in tables.items()))
        return
    page = PAGE.read_text(encoding="utf-8")
    for name, text in tables.items():
        page, replaced = re.subn(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", rf"\g<1>{text}\2", page, flags=re.S)
        if not replaced:  # the page states some tables in words
            print(f"{name}, which is not in {PAGE}\n{text}")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Plan a training recipe: exact tokens and updates of every round, whether it fits the GPUs, and what makes it fit."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from prism_prm.arrays import Floats
from prism_prm.console import progress
from prism_prm.data.pair_examples import Examples, Split
from prism_prm.errors import DataError
from prism_prm.file_types import reading_parquet
from prism_prm.job import Job
from prism_prm.models.module import PrmModule
from prism_prm.models.prm import pair_cost
from prism_prm.plan.costs import (
    BYTES,
    GIB,
    Batch,
    Cluster,
    Fit,
    ModelSizes,
    Setup,
    held_parameters,
    scoring_memory,
    trained_parameters,
    training_memory,
)
from prism_prm.plan.plan_run import SCORE_BYTES, Plan, PlanStage, StandIn
from prism_prm.plan.skeleton import CountingScorer, count_round, kernel_of, load_skeleton
from prism_prm.store import ScoreStore, Share
from prism_prm.train.batches import RowLimits
from prism_prm.train.loop import TrainingRound
from prism_prm.train.margins import score_examples
from prism_prm.train.recipe import HardwareSettings, Lora, Recipe
from prism_prm.train.train_prm import TRAIN, data_folder, examples_that_fit, make_data, needs_margins, rounds_of
from prism_prm.train.validation import Validation

MARGIN_BYTES = 40
MOST_GPUS = 4096
SHOWN_REMEDIES = 5
KERNELS = {
    "dense": "a fused kernel with a dense mask, which computes the whole square of a row",
    "flex": "flex attention, which computes only the blocks that the mask allows",
    "blocks": "computed in blocks",
}


def plan_training(recipe: Recipe, cluster: Cluster, stand_in: StandIn, margins: Path | None = None) -> Plan:
    """Plan a run of `prism train`."""
    base, hardware = recipe.base, recipe.hardware
    family, settings = (base.family, None) if base.prm else recipe.new_layout
    prm = load_skeleton(
        str(base.prm or base.backbone), stand_in=stand_in, fresh=not base.prm, family=family, settings=settings,
        layers=base.layers, attn=hardware.attn, on_cpu=cluster.on_cpu, token_budget=hardware.score_tokens,
    )  # fmt: skip
    sizes = prm.sizes
    notes = [f"not the model's own: {note}" for note in prm.notes]
    names = recipe.curriculum.round_names()
    num_rounds, num_scores = len(names), 0
    scorings: list[tuple[str, CountingScorer, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        make_data(recipe, Job(folder))
        data = data_folder(recipe, Path(folder))
        data_bytes = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
        train, kinds, fitting = examples_that_fit(Split.read(data, TRAIN), recipe, prm)  # type: ignore[arg-type]
        if fitting["too_long"]:
            notes.append(f"{fitting['too_long']:,} examples are longer than the context and are skipped")
        # Margins, the reference and validation share a score store, so no step is scored twice.
        store = Path(folder) / "scores"
        if needs_margins(train, recipe):
            counter = CountingScorer(prm)
            with progress("margins", len(np.unique(train.tree)), unit="trees") as advance:
                score_examples(ScoreStore(store, counter), train, advance=advance)
            scorings.append(("margins", counter, num_rounds if recipe.curriculum.rescore else 1))
            num_scores += 2 * len(train)
        if recipe.objective.name == "implicit":
            counter = CountingScorer(prm)
            with progress("reference", len(train)) as advance:
                score_examples(ScoreStore(store, counter), train, advance=advance)
            scorings.append(("reference", counter, 1))
            num_scores += counter.tally.total.reads
        if recipe.validation.split:
            counter = CountingScorer(prm)
            held_out = Validation.of(Split.read(data, recipe.validation.split), prm, recipe.validation)  # type: ignore[arg-type]
            with progress("validation", held_out.num_trees, unit="trees") as advance:
                held_out.measure(ScoreStore(store, counter), recipe.validation, Share(), advance)
            scorings.append(("validation", counter, 1 + num_rounds))
            num_scores += (1 + num_rounds) * (len(held_out.steps) + 2 * len(held_out.pairs))

    known = None
    if needs_margins(train, recipe):
        if margins is not None:
            known = read_margins(margins, train)
        else:
            names = ["at most: all pairs"]
            notes.append(
                "margins are not known, so the plan has one round of all pairs, which is an upper bound; for exact "
                "rounds, --set plan.margins=FILE (written by `prism score --pairs`)"
            )
    binned = rounds_of(train, kinds, recipe, known)
    if known is not None:
        binned.refuse_empty(enumerate(names))
        notes.append(f"{sum(binned.dropped.values()):,} of {len(train):,} pairs are in no round")
    module, counts = prm.module, []
    num_updates = recipe.train.updates_of_rounds([len(indices) for indices in binned.rounds])
    for number, name in enumerate(names):
        work = TrainingRound(
            name, module, prm.family, module.collate, RowLimits(recipe.train.row_tokens, pair_cost(module)),
            train.take(binned.rounds[number]), recipe.objective, recipe.train, (recipe.seed, number), Path("none"),
            num_updates[number],
        )  # fmt: skip
        with progress(f"round {name}", len(work.updates), unit="updates") as advance:
            counts.append(count_round(work, module, cluster.count, advance))

    largest = max((count.tally.largest for count in counts), key=Batch.order)
    accumulates = max(count.passes for count in counts) > 1
    sharded = hardware.sharding == "fsdp" and cluster.count > 1
    setup = replace(
        setup_of(hardware, module), accumulates=accumulates, on_cpu=cluster.on_cpu, gpus=cluster.count, sharded=sharded
    )
    # Scores use the weights' own dtype; only cached states may have 16 bits.
    stages = [counter.stage(name, cluster, setup.weights, times) for name, counter, times in scorings]
    for count in counts:
        flops, busiest = count.flops(sizes, setup), count.busiest(sizes, setup)
        stages.append(
            PlanStage(
                f"round {count.name}", count.tally.total.tokens, count.tally.separate, flops,
                busiest / cluster.speed(setup.compute) / 3600, count.updates, count.examples,
                efficiency=flops * (1 - count.idle / count.tally.total.tokens) / (busiest * cluster.count),
            )
        )  # fmt: skip

    fits, advice = _ways(sizes, setup, largest, cluster), []
    if not fits[0].fits:
        longest, shortest = max(count.longest_row for count in counts), max(count.longest_part for count in counts)
        advice = remedies(sizes, setup, largest, cluster, shortest, longest)
    if scorings:  # by a whole copy in the dtype of the weights, even if training is sharded
        scored = max((counter.tally.largest for _, counter, _ in scorings), key=Batch.order)
        fits.append(cluster.fit("scoring", scoring_memory(sizes, scored, replace(setup, compute=setup.weights))))
        if not fits[-1].fits:
            notes.append(
                "margins and validation score with a whole copy of the model on each GPU, which does not fit: lower "
                'hardware.score_tokens, or set hardware.dtype = "bfloat16"'
            )
    notes.append(f"attention is {KERNELS[setup.kernel]}; its backward pass counts as 2.5 forward passes")
    notes.append("only forward and backward passes of linear layers and attention count")
    idle, total = sum(count.idle for count in counts), sum(count.tally.total.tokens for count in counts)
    if idle > 0.01 * total:
        notes.append(f"{idle / total:.0%} of the tokens only keep idle GPUs in step: updates are too small")
    if not accumulates:
        notes.append("an update is one pass per GPU, so activations are freed while gradients are computed")

    trained = trained_parameters(sizes, setup)
    state = held_parameters(sizes, setup) * setup.weights + 2 * trained * setup.trained_bytes
    saved = sizes.parameters * BYTES[hardware.save_dtype or hardware.dtype]
    disk: dict[str, float] = {
        # One more than is kept, while the next one is written.
        "checkpoints": float((recipe.train.keep_checkpoints + 1) * state),
        "rounds": float(max(len(counts), num_rounds) * saved),
        "data": float(data_bytes),
        "scores and margins": float(num_scores * SCORE_BYTES + len(train) * MARGIN_BYTES),
    }
    if not base.prm:
        disk["base PRM"] = float(sizes.parameters * BYTES[hardware.dtype])
    if hardware.cache:
        disk["cache, at most"] = hardware.cache_gb * 1e9
    model = {
        "name": str(base.prm or base.backbone), "family": prm.family.name, "parameters": sizes.parameters,
        "trained": trained, "context": prm.context,
        "largest_pass": {"tokens": largest.tokens, "reads": largest.reads},
    }  # fmt: skip
    return Plan("training", model, cluster, stages, fits, advice, disk, notes)


def setup_of(hardware: HardwareSettings, module: PrmModule) -> Setup:
    """The setup of a recipe on one GPU."""
    weights, lora = BYTES[hardware.dtype], hardware.lora
    return Setup(
        weights=weights, compute=min(2, weights) if hardware.mixed_precision == "bf16" else weights,
        kernel=kernel_of(module), checkpointing=hardware.gradient_checkpointing, frozen=hardware.frozen_layers,
        kept=hardware.cache is not None, rank=lora.r if lora else 0, targets=lora.targets if lora else (),
    )  # fmt: skip


def read_margins(path: Path, train: Examples) -> Floats:
    """Read the margins of the pairs from a table written by `prism score --pairs` or `prism train`."""
    if not path.exists():
        raise DataError(
            f"{path}: no such table of margins; write one with `prism score --pairs`", reason="no-such-file"
        )
    with reading_parquet(path, "`prism score --pairs` writes such a table"):
        table = pq.read_table(path, columns=["pair_id", "margin"])
    known = dict(zip(table["pair_id"].to_pylist(), table["margin"].to_pylist(), strict=True))
    missing = [int(pair) for pair in train.ids if int(pair) not in known]
    if missing:
        raise DataError(
            f"{path}: {len(missing):,} of {len(train):,} pairs have no margin there, first pair {missing[0]}. It was "
            "made from other data; write a table for these pairs with `prism score --pairs`."
        )
    return np.array([known[int(pair)] for pair in train.ids], dtype=np.float64)


def _with_lora(setup: Setup) -> Setup:
    lora = Lora()
    return replace(setup, rank=lora.r, targets=lora.targets)


def _ways(model: ModelSizes, setup: Setup, batch: Batch, cluster: Cluster) -> list[Fit]:
    """The recipe itself first, then its variants: with LoRA, each with a copy per GPU and sharded."""
    setups = {"LoRA": setup} if setup.rank else {"full": setup, "LoRA": _with_lora(setup)}
    if not setup.rank:
        setups["LoRA in bf16"] = replace(_with_lora(setup), weights=2, compute=2)
    spread = {"DDP": False, "FSDP2": True} if setup.gpus > 1 else {"one GPU": False}
    fits = []
    for (name, base), (layout, sharded) in itertools.product(setups.items(), spread.items()):
        variant = replace(base, sharded=sharded)
        fits.append((variant != setup, cluster.fit(f"{name}, {layout}", training_memory(model, batch, variant))))
    return [fit for _, fit in sorted(fits, key=lambda item: item[0])]


Change = Callable[[Setup, Batch], tuple[Setup, Batch]]


def remedies(
    model: ModelSizes, setup: Setup, batch: Batch, cluster: Cluster, shortest: int, longest_row: int
) -> list[str]:
    """The smallest sets of settings that make a recipe fit, each with the memory that it then needs.

    Of sets that differ only in a number, the first one, which changes the least, is kept.
    """
    changes = dict(_changes(setup, batch, shortest, longest_row))
    for size in (1, 2, 3):
        found: dict[tuple[str, ...], str] = {}
        for names in itertools.combinations(changes, size):
            changed = setup, batch
            for name in names:
                changed = changes[name](*changed)
            peak = training_memory(model, changed[1], changed[0]).peak
            if peak <= cluster.room:
                kind = tuple(re.sub(r"\d+", "", name) for name in names)
                found.setdefault(kind, f"{' and '.join(names)}: {peak / GIB:.1f} GiB")
        if found:
            return list(found.values())[:SHOWN_REMEDIES]
    return []


def _changes(setup: Setup, batch: Batch, shortest: int, longest_row: int) -> Iterator[tuple[str, Change]]:
    """Settings that save memory, with their effect; the smallest change first."""
    if not setup.checkpointing:
        yield "hardware.gradient_checkpointing = true", lambda old, run: (replace(old, checkpointing=True), run)

    def smaller(tokens: int) -> tuple[str, Change]:
        row = min(tokens, longest_row)
        pairs = batch.pairs * tokens // batch.tokens if setup.kernel == "blocks" else tokens * row
        reads, keys = (-(-number * tokens // batch.tokens) for number in (batch.reads, batch.keys))
        fewer = Batch(tokens, min(batch.pairs, pairs), reads, keys)
        return f"train.microbatch_tokens = train.row_tokens = {tokens}", lambda old, _: (old, fewer)

    tokens = batch.tokens // 2
    while tokens > shortest:
        yield smaller(tokens)
        tokens //= 2
    if shortest < batch.tokens:
        yield smaller(shortest)
    if not setup.sharded and setup.gpus > 1:
        yield 'hardware.sharding = "fsdp"', lambda old, run: (replace(old, sharded=True), run)
    if not setup.rank:
        yield "LoRA ([hardware.lora])", lambda old, run: (_with_lora(old), run)
    elif setup.weights > 2:
        yield 'hardware.dtype = "bfloat16"', lambda old, run: (replace(old, weights=2, compute=2), run)

    def spread(gpus: int) -> Change:
        return lambda old, run: (replace(old, gpus=gpus, sharded=True), run)

    gpus = 2 * setup.gpus
    while gpus <= MOST_GPUS:
        yield f'hardware.sharding = "fsdp" over {gpus} GPUs', spread(gpus)
        gpus *= 2

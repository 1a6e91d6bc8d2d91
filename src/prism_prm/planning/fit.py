"""Whether training fits the GPUs, and which settings make it fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from prism_prm.costs import Batch, Memory, ModelSizes, Setup, Way, training_memory
from prism_prm.planning.counting import kernel_of
from prism_prm.planning.gpus import Cluster
from prism_prm.planning.plan import Fit
from prism_prm.prms.module import PrmModule
from prism_prm.training.recipe import HardwareSettings, Lora

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_MOST_GPUS = 4096
_SHOWN = 5
"""How many remedies are worth reading."""


def setup_of(hardware: HardwareSettings, module: PrmModule, *, accumulates: bool = True) -> Setup:
    """How a recipe holds and trains the model."""
    weights = BYTES[hardware.dtype]
    lora = hardware.lora
    return Setup(
        weights=weights, compute=min(2, weights) if hardware.mixed_precision == "bf16" else weights,
        kernel=kernel_of(module), checkpointing=hardware.gradient_checkpointing, frozen=hardware.frozen_layers,
        kept=hardware.cache is not None, rank=lora.r if lora else 0, targets=lora.targets if lora else (),
        accumulates=accumulates,
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One way to run: how the model is held, the largest pass, and over how many GPUs it is spread."""

    setup: Setup
    batch: Batch
    way: Way
    count: int

    def memory(self, model: ModelSizes) -> Memory:
        return training_memory(model, self.batch, self.setup, way=self.way, count=self.count)


def ways(model: ModelSizes, case: Case, room: float) -> list[Fit]:
    """The recipe as it is, which comes first, and with LoRA, each with a copy per GPU and sharded."""
    lora = Lora()
    adapted = replace(case.setup, rank=lora.r, targets=lora.targets)
    own = "LoRA" if case.setup.rank else "full"
    named: dict[str, Setup] = {own: case.setup}
    if not case.setup.rank:
        named["LoRA"] = adapted
        named["LoRA in bf16"] = replace(adapted, weights=2, compute=2)
    spread: dict[str, Way] = {"DDP": "ddp", "FSDP2": "fsdp"} if case.count > 1 else {"one GPU": "ddp"}
    found = []
    for (name, setup), (how, way) in itertools.product(named.items(), spread.items()):
        memory = replace(case, setup=setup, way=way).memory(model)
        found.append((name != own or way != case.way, Fit(f"{name}, {how}", memory, memory.peak <= room)))
    return [fit for _, fit in sorted(found, key=lambda one: one[0])]


Change = Callable[[Case], Case]


def remedies(model: ModelSizes, case: Case, cluster: Cluster, shortest: int, longest_row: int) -> list[str]:
    """The fewest settings that make a case fit, each set with the memory it then takes."""
    changes = dict(_changes(case, shortest, longest_row))
    for size in (1, 2, 3):
        found = []
        for names in itertools.combinations(changes, size):
            changed = case
            for name in names:
                changed = changes[name](changed)
            peak = changed.memory(model).peak
            if peak <= cluster.room:
                found.append((names, peak))
        if found:
            chosen = _first_of_each_kind(found)[:_SHOWN]
            return [f"{' and '.join(names)}: {peak / 2**30:.1f} GiB" for names, peak in chosen]
    return []


def _first_of_each_kind(found: list[tuple[tuple[str, ...], float]]) -> list[tuple[tuple[str, ...], float]]:
    """Of settings that differ in a number only, the first, which changes least."""
    kept: dict[tuple[str, ...], tuple[tuple[str, ...], float]] = {}
    for names, peak in found:
        kept.setdefault(tuple(re.sub(r"\d+", "", name) for name in names), (names, peak))
    return list(kept.values())


def _changes(case: Case, shortest: int, longest_row: int) -> Iterator[tuple[str, Change]]:
    """Setting → what it changes, the least first."""
    if not case.setup.checkpointing:
        yield (
            "hardware.gradient_checkpointing = true",
            lambda one: replace(one, setup=replace(one.setup, checkpointing=True)),
        )
    tokens = case.batch.tokens // 2
    while tokens > shortest:
        yield f"train.microbatch_tokens = train.row_tokens = {tokens}", _smaller(tokens, longest_row)
        tokens //= 2
    if shortest < case.batch.tokens:
        yield f"train.microbatch_tokens = train.row_tokens = {shortest}", _smaller(shortest, longest_row)
    if case.way == "ddp" and case.count > 1:
        yield 'hardware.sharding = "fsdp"', lambda one: replace(one, way="fsdp")
    if not case.setup.rank:
        lora = Lora()
        yield (
            "LoRA ([hardware.lora])",
            lambda one: replace(one, setup=replace(one.setup, rank=lora.r, targets=lora.targets)),
        )
    elif case.setup.weights > 2:
        yield 'hardware.dtype = "bfloat16"', lambda one: replace(one, setup=replace(one.setup, weights=2, compute=2))
    count = 2 * case.count
    while count <= _MOST_GPUS:
        yield f'hardware.sharding = "fsdp" over {count} GPUs', _more(count)
        count *= 2


def _smaller(tokens: int, longest_row: int) -> Change:
    def change(case: Case) -> Case:
        batch = case.batch
        row = min(tokens, longest_row)
        pairs = batch.pairs * tokens // batch.tokens if case.setup.kernel == "blocks" else tokens * row
        reads, keys = (-(-number * tokens // batch.tokens) for number in (batch.reads, batch.keys))
        return replace(case, batch=Batch(tokens, min(batch.pairs, pairs), reads, keys))

    return change


def _more(count: int) -> Change:
    return lambda case: replace(case, way="fsdp", count=count)

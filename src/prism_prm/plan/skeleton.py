"""A PRM without weights, built from config and tokenizer, and the size of its passes.

Passes are counted by the code that packs them for training and scoring, so the counts are exact.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModel

from prism_prm.backends.open_rival import rival_place
from prism_prm.backends.open_scorer import ensemble_place
from prism_prm.console import Advance, ignore
from prism_prm.data.pair_examples import as_one_tree
from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.attention import BLOCK, FLEX_BLOCK, check_attention
from prism_prm.models.card import Card, find_card, prm_folder
from prism_prm.models.families import find_family
from prism_prm.models.families.base import Family
from prism_prm.models.model_files import CONFIG_FILE, config_folder, load_tokenizer, plain_folder, readable
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import Row, encode_tree
from prism_prm.models.prm import batches_of, fit_all, rows_of
from prism_prm.plan.costs import Batch, Cluster, Kernel, Matrix, ModelSizes, Setup, forward_flops, training_flops
from prism_prm.plan.plan_run import SIZES, PlanStage, StandIn
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.train.batches import arrange_rows, parts_of_update, passes
from prism_prm.train.loop import TrainingRound
from prism_prm.tree import StepTree


@dataclass
class Skeleton:
    """A PRM without weights, with the attributes that packing reads."""

    module: PrmModule
    """On torch's meta device: shapes without values."""
    family: Family
    token_budget: int
    context: int
    card: Card
    notes: tuple[str, ...]
    """Which parts are not the PRM's own."""
    on_too_long: str = "error"

    @property
    def sizes(self) -> ModelSizes:
        return sizes_of(self.module.backbone, self.module.head)


def load_skeleton(
    name: str,
    *,
    stand_in: StandIn = StandIn(),  # noqa: B008 (it is frozen)
    fresh: bool = False,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    compat: bool | None = None,
    layers: int | None = None,
    attn: str = "sdpa",
    on_cpu: bool = False,
    token_budget: int | None = None,
    context: int | None = None,
) -> Skeleton:
    """Build a PRM, or with `fresh` the PRM that `init_prm` would make from a language model, without weights."""
    if ensemble_place(name) is not None or rival_place(name) is not None:
        raise ConfigError(f"--plan: {name} is no single PRM, whose cost would be known; plan without it")
    if not fresh:
        name = str(prm_folder(name))
    folder, config, notes = _load_config(name, stand_in, attn)
    if layers is not None:
        if layers > config.num_hidden_layers:
            raise ConfigError(f"layers = {layers}: the backbone has only {config.num_hidden_layers}.")
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = list(config.layer_types)[:layers]
    if fresh:
        kind = find_family(family or "qwen")
        card = Card(kind.name, settings or {})
    else:
        card, kind = find_card(name, folder or Path(name), config, family, settings, compat)
    tokenizer, more = _load_tokenizer(name, folder, stand_in)
    missing = [token for token in kind.new_tokens if token not in tokenizer.get_vocab()]
    if missing and (fresh or more):
        tokenizer.add_tokens(missing, special_tokens=True)
        if fresh:
            config.vocab_size = max(config.vocab_size, len(tokenizer))
    layout = kind(tokenizer, compat=card.compat, settings=card.settings)
    with torch.device("meta"):
        backbone = AutoModel.from_config(config)
        head = layout.make_head(config.hidden_size, config)
    if layout.uses_lm_head and config.tie_word_embeddings:
        head.weight = backbone.get_input_embeddings().weight
    module = PrmModule(backbone, head, layout)
    module.planned_for = "cpu" if on_cpu else "cuda"
    budget = token_budget or (8192 if on_cpu else 16384)
    return Skeleton(module, layout, budget, context or config.max_position_embeddings, card, (*notes, *more))


def backbone_sizes(name: str, stand_in: StandIn) -> tuple[ModelSizes, tuple[str, ...]]:
    """The sizes of a language model with its output layer, and which parts are not its own."""
    _, config, notes = _load_config(name, stand_in, "sdpa")
    with torch.device("meta"):
        backbone = AutoModel.from_config(config)
        output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    if config.tie_word_embeddings:
        output.weight = backbone.get_input_embeddings().weight
    return sizes_of(backbone, output), notes


def _load_config(name: str, stand_in: StandIn, attn: str) -> tuple[Path | None, Any, tuple[str, ...]]:
    """(folder, config, notes); the folder is None if the config comes from SIZES."""
    kernel = check_attention(attn)
    if stand_in.config in SIZES:
        known = dict(SIZES[stand_in.config])
        config = AutoConfig.for_model(known.pop("model_type"), **known, attn_implementation=kernel)
        config.architectures = []
        return None, config, (f"sizes of {stand_in.config}",)
    try:
        folder = config_folder(stand_in.config or name)
    except ModelError as error:
        raise ModelError(
            f"{error} To plan without it, --set plan.config=FOLDER (with its config.json) or plan.config=NAME, and "
            f"plan.tokenizer=FOLDER to count tokens; names: {', '.join(SIZES)}."
        ) from None
    with readable(folder, CONFIG_FILE):
        config = AutoConfig.from_pretrained(plain_folder(folder), attn_implementation=kernel)
    return folder, config, (f"config of {stand_in.config}",) if stand_in.config else ()


def _load_tokenizer(name: str, folder: Path | None, stand_in: StandIn) -> tuple[Any, tuple[str, ...]]:
    """(tokenizer, notes)."""
    notes: tuple[str, ...] = ()
    if stand_in.tokenizer is not None:
        folder, notes = config_folder(stand_in.tokenizer, needs_config=False), (f"tokens of {stand_in.tokenizer}",)
    elif folder is None:
        try:
            folder = config_folder(name)
        except ModelError:
            raise ConfigError(
                f"{name}: no tokenizer to count tokens with; name one with --set plan.tokenizer=FOLDER"
            ) from None
    return load_tokenizer(plain_folder(folder)), notes


def sizes_of(backbone: Any, head: nn.Module) -> ModelSizes:
    """The sizes of a backbone and a head, on any device."""
    config = backbone.config
    layers: set[tuple[tuple[Matrix, ...], int]] = set()  # (matrices, other parameters) of each layer
    for layer in backbone.layers:
        linear = [(name, part) for name, part in layer.named_modules() if isinstance(part, nn.Linear)]
        matrices = tuple(Matrix(name.rsplit(".", 1)[-1], part.in_features, part.out_features) for name, part in linear)
        wide = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
        if wide != sum(matrix.size for matrix in matrices) or not matrices:
            raise ModelError(
                f"{config.model_type}: its layers have weights that are not plain matrices (such as a mixture of "
                "experts), which cannot be planned"
            )
        layers.add((matrices, sum(parameter.numel() for parameter in layer.parameters()) - wide))
    if len(layers) != 1:
        raise ModelError(f"{config.model_type}: its layers differ in size, which cannot be planned")
    ((matrices, small),) = layers
    shared = backbone.get_input_embeddings().weight
    in_layers = len(backbone.layers) * (sum(matrix.size for matrix in matrices) + small)
    with torch.device("meta"):
        meta_head = copy.deepcopy(head).to("meta")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            meta_head(torch.empty(1, config.hidden_size))
    return ModelSizes(
        layers=len(backbone.layers),
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        matrices=matrices,
        small=small,
        embedding=shared.numel(),
        rest=sum(parameter.numel() for parameter in backbone.parameters()) - in_layers - shared.numel(),
        head=sum(parameter.numel() for parameter in head.parameters() if parameter is not shared),
        head_flops=int(counter.get_total_flops()),
    )


def kernel_of(module: PrmModule) -> Kernel:
    if module.in_blocks:
        return "blocks"
    return "flex" if module.attention == "flex" else "dense"


def batch_of(module: PrmModule, rows: Sequence[Row]) -> Batch:
    """The size of one pass over these rows. Sliding windows count as full attention."""
    kernel, longest = kernel_of(module), max(map(len, rows))
    reads = sum(len(row.reads) for row in rows)
    if kernel == "dense":
        return Batch(len(rows) * longest, len(rows) * longest**2, reads, keys=len(rows) * longest)
    if kernel == "flex":
        longest = -(-longest // FLEX_BLOCK) * FLEX_BLOCK
    pairs = keys = 0
    for row in rows:
        ends_L = np.concatenate([row.ends_L, np.arange(len(row), longest) + 1])  # padding tokens see only themselves
        if kernel == "flex":  # a block is computed if any of its queries sees any of its keys
            last_K = ends_L.reshape(-1, FLEX_BLOCK).max(axis=1)
            at = np.arange(len(last_K))
            seen_QK = (at[None, :] <= at[:, None]) & (last_K[None, :] > at[:, None] * FLEX_BLOCK)
            pairs += int(seen_QK.sum()) * FLEX_BLOCK**2
            continue
        for start in range(0, longest, BLOCK):
            stop = min(start + BLOCK, longest)
            seen = int((ends_L[:stop] > start).sum())
            pairs, keys = pairs + (stop - start) * seen, keys + seen
    return Batch(len(rows) * longest, pairs, reads, keys)


@dataclass
class PassTally:
    """All passes together, and the largest one."""

    total: Batch = field(default_factory=lambda: Batch(0, 0, 0))
    largest: Batch = field(default_factory=lambda: Batch(0, 0, 0))
    packed: int = 0
    """Tokens without padding."""
    separate: int = 0
    """Tokens if every step were a sequence of its own."""

    def add(self, batch: Batch, packed: int) -> None:
        self.total, self.packed = self.total + batch, self.packed + packed
        self.largest = max(self.largest, batch, key=Batch.order)


class CountingScorer(Scorer):
    """A scorer for the score store that counts the passes, and returns zeros."""

    def __init__(self, prm: Skeleton) -> None:
        self.prm = prm
        self.tally = PassTally()
        self.chunks = 0

    def identity(self) -> str:
        return "a plan"

    def stage(self, name: str, cluster: Cluster, size: int, times: int = 1) -> PlanStage:
        """The stage of a plan; processes share it in whole chunks. `size` is bytes per activation."""
        flops = forward_flops(self.prm.sizes, self.tally.total)
        busiest = -(-self.chunks // cluster.count) / max(1, self.chunks)
        return PlanStage(
            name, self.tally.total.tokens, self.tally.separate, flops, flops * busiest / cluster.speed(size) / 3600,
            times=times, efficiency=1 / (busiest * cluster.count),
        )  # fmt: skip

    def count_tokens(self, tree: StepTree) -> int:
        encoded = encode_tree(tree, self.prm.family)
        return len(encoded.prompt) + sum(map(len, encoded.ids))

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,  # noqa: ARG002
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """Count the passes over these nodes."""
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        items, too_long = fit_all(self.prm, trees, wanted)  # type: ignore[arg-type]
        rows = rows_of(self.prm, items)  # type: ignore[arg-type]
        for batch in batches_of(self.prm.module, rows, self.prm.token_budget):
            self.tally.add(batch_of(self.prm.module, batch), sum(map(len, batch)))
        self.tally.separate += sum(item.tree.path_tokens(node) for item in items for (node,) in item.groups)
        self.chunks += 1
        advance(len(trees))
        return [
            TreeScores(self.outputs, np.zeros((len(tree.nodes), 1)), long)
            for tree, long in zip(trees, too_long, strict=True)
        ]


@dataclass
class RoundCount:
    """The passes of one round."""

    name: str
    examples: int
    updates: int = 0
    tally: PassTally = field(default_factory=PassTally)
    passes: int = 0
    """The maximum number of micro-batches per update on one process."""
    longest_row: int = 0
    longest_part: int = 0
    """Tokens of the longest single example, which cannot be split."""
    by_update: list[list[Batch]] = field(default_factory=list)
    """For each update, the total of each process."""
    idle: int = 0
    """Tokens that processes without work run to stay in step."""

    def flops(self, model: ModelSizes, setup: Setup) -> int:
        """FLOPs of all processes."""
        return sum(training_flops(model, batch, setup) for update in self.by_update for batch in update)

    def busiest(self, model: ModelSizes, setup: Setup) -> int:
        """FLOPs of the busiest process of each update, for which the others wait."""
        return sum(max(training_flops(model, batch, setup) for batch in update) for update in self.by_update)


def count_round(work: TrainingRound, module: PrmModule, count: int, advance: Advance = ignore) -> RoundCount:
    """Count the passes of a round on `count` processes, packed as `TrainingRound.run` packs them."""
    settings = work.settings
    counts = RoundCount(work.name, len(work.examples), len(work.updates))
    for update in work.updates:
        parts = parts_of_update(work.examples, update, work.family, settings.pack, work.limits)
        counts.longest_row = max(counts.longest_row, *(part.length for part in parts))
        costs = []
        for plan in passes(parts, settings.microbatch_tokens, count):
            total = Batch(0, 0, 0)
            for some, weight in plan:
                rows = arrange_rows(module, [row for part in some for row in part.rows], settings.microbatch_tokens)
                batch = batch_of(module, rows)
                counts.tally.add(batch, sum(map(len, rows)) if weight else 0)
                counts.idle += 0 if weight else batch.tokens
                total += batch
            counts.passes = max(counts.passes, len(plan))
            costs.append(total)
        counts.by_update.append(costs)
        advance(1)
    for indices in work.examples.by_tree():
        tree, groups = as_one_tree(work.examples, indices)
        encoded = encode_tree(tree, work.family)
        for group in groups:
            counts.tally.separate += settings.epochs * sum(map(encoded.path_tokens, group))
            shared = max(encoded.starts[node] for node in group)
            alone = shared + sum(encoded.reads[node] + 1 for node in group)
            counts.longest_part = max(counts.longest_part, alone)
    return counts

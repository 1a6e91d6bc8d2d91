"""The recipe of `prism train`: all settings of a run in one TOML file. This module does not import torch.

[data.read] is defined in data/formats.py, [data.pairs] in data/pair_rules.py, [objective] in losses.py, [curriculum] in
curriculum.py, and all other sections here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from prism_prm.aggregate import check_aggregator
from prism_prm.config import MAY_BE_EMPTY, Count, Natural, NotNegative, Positive, Range, Share, check, read_settings
from prism_prm.curriculum import Curriculum
from prism_prm.data.formats import ReadOptions, find_format
from prism_prm.data.inputs import find_sources
from prism_prm.data.pair_rules import PairSettings
from prism_prm.data.same_problem import Splits
from prism_prm.data.tables import check_pairs_folder
from prism_prm.errors import ConfigError
from prism_prm.losses import Objective
from prism_prm.models.card import check_prm
from prism_prm.models.families import find_family
from prism_prm.models.model_files import check_model

Packing = Literal["tree", "pair", "none"]
Decay = Annotated[float, Range(0, below=1)]


@dataclass(frozen=True)
class TrainSettings:
    """Section [train]: how the objective is minimized. Every round starts with a new optimizer and schedule."""

    lr: Positive = 1e-6
    """The peak learning rate."""
    epochs: Annotated[int, Range(1, 10_000)] = 1
    """Passes over the pairs of a round."""
    updates: Count | None = None
    """The updates of all rounds together, instead of epochs: each round gets a part in proportion to its pairs, and
    starts over when they are used up. Runs with different numbers of pairs then train equally long."""
    pairs_per_update: Count = 64
    """Pairs (labeled steps, or prefixes with `listwise`) per update, regardless of packing, micro-batches and number of
    processes."""
    max_pairs_per_tree_per_update: Count = 8
    """The maximum number of pairs from one tree in an update. Pairs of a tree share their prefix, so more are cheaper;
    1 makes the pairs of an update independent. Trees with too many pairs are spread evenly over the round."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """The learning rate after the warmup: constant, or decaying to 0 (linear, cosine)."""
    warmup: Annotated[float, Range(0, below=1)] = 0.03
    """The fraction of a round's updates during which the learning rate rises from 0."""
    weight_decay: NotNegative = 0.0
    """The weight decay of AdamW."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """The decay rates of AdamW's two averages."""
    eps: Positive = 1e-8
    """The epsilon in AdamW's denominator."""
    max_grad_norm: NotNegative = 1.0
    """Gradients are clipped to this norm. 0 turns clipping off."""
    pack: Packing = "tree"
    """What shares a prefix: all pairs of a `tree`, the two steps of a `pair`, or nothing (`none`). The result is the
    same."""
    row_tokens: Count = 4096
    """The maximum length of a packed tree. A longer one is split between pairs, and the shared prefix is repeated."""
    microbatch_tokens: Count = 8192
    """Tokens per forward and backward pass, including padding."""
    on_too_long: Literal["error", "window", "skip"] = "error"
    """What to do with pairs longer than the model's context: stop (`error`), read them after the last steps that fit
    (`window`), or skip them (`skip`); both are counted."""
    checkpoint_every: Count = 100
    """Updates between checkpoints."""
    keep_checkpoints: Count = 1
    """The number of checkpoints to keep."""

    def __post_init__(self) -> None:
        check(self)

    def updates_of_rounds(self, sizes: Sequence[int]) -> list[int | None]:
        """How many updates rounds of these sizes get, at least one each; None if epochs decide."""
        if self.updates is None:
            return [None] * len(sizes)
        return [max(1, round(self.updates * size / max(1, sum(sizes)))) for size in sizes]

    def lr_at(self, update: int, updates: int) -> float:
        """The learning rate of an update (from 0) of a round of `updates`. A formula, so checkpoints need no state."""
        warmup = math.ceil(self.warmup * updates)
        if update < warmup:
            return self.lr * (update + 1) / warmup
        done = (update - warmup) / max(1, updates - warmup)
        return (
            self.lr * {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]
        )


TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class DataSettings:
    """Section [data]: the solutions to read, and which of their steps are compared."""

    inputs: tuple[str, ...] = ()
    """Files, folders or hub datasets of labeled solutions, as in `prism pairs`."""
    folder: str | None = None
    """A folder written by `prism pairs`, instead of inputs. The rest of this section then does not apply."""
    format: str = "auto"
    """The format of the records. By default it is recognized by their fields."""
    exclude: tuple[str, ...] = ()
    """Files with problems to leave out of all splits, such as test sets."""
    split: dict[str, Share] = field(default_factory=lambda: {"train": 0.95, "validation": 0.05})
    """The fraction of problems in each split. The split `train` is trained on."""
    read: ReadOptions = field(default_factory=ReadOptions)
    """Section [data.read]: neutral ratings, finish reasons and other reading options."""
    pairs: PairSettings = field(default_factory=PairSettings)
    """Section [data.pairs]: lookahead, audit, ablations, seed."""

    def __post_init__(self) -> None:
        check(self)
        if bool(self.inputs) == bool(self.folder):
            raise ConfigError('[data] needs either inputs = ["file.jsonl", …] or folder = "FOLDER" (by `prism pairs`).')
        Splits(self.split)


@dataclass(frozen=True)
class BaseSettings:
    """Section [base]: the PRM to start from, which also scores the margins."""

    prm: str | None = None
    """The folder or hub id of a PRM."""
    backbone: str | None = None
    """A causal language model that gets a new head, instead of a PRM: a hub id, a folder, or a folder with a GGUF
    file."""
    family: str | None = None
    """The PRM's family; needed if its folder does not name it. With a backbone, the family to create, by default qwen.
    `my_file.py:Mine` is a class in your own file, which is executed."""
    settings: dict[str, Annotated[str, MAY_BE_EMPTY]] = field(default_factory=dict)
    """With a backbone: settings of the family's layout, such as the labels of `verdict`."""
    layers: Count | None = None
    """With a backbone: the number of its lowest layers to use. By default all."""

    def __post_init__(self) -> None:
        check(self)
        if bool(self.prm) == bool(self.backbone):
            raise ConfigError('[base] needs either prm = "…" or backbone = "…".')
        for name in ("layers", "settings"):
            if getattr(self, name) and self.prm:
                raise ConfigError(f"[base] {name} applies only to a backbone, not to a PRM.")


@dataclass(frozen=True)
class Lora:
    """Train low-rank adapters (peft) instead of the weights, and merge them when they are trained."""

    r: Count = 16
    """The rank of the adapters."""
    alpha: Positive = 32
    """The adapters' output is scaled by alpha / r."""
    dropout: Annotated[float, Range(0, below=1)] = 0.0
    """The dropout rate of the adapters' input."""
    targets: tuple[str, ...] = TARGETS
    """The names of the layers that get adapters."""

    def __post_init__(self) -> None:
        check(self)

    def config(self, **more: Any) -> Any:
        from peft import LoraConfig

        return LoraConfig(
            r=self.r, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=list(self.targets), **more
        )


@dataclass(frozen=True)
class HardwareSettings:
    """Section [hardware]: how the model is stored and run. Apart from rounding, frozen layers and LoRA, nothing here
    changes what is learned."""

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """The dtype of the weights in training."""
    save_dtype: Literal["float32", "bfloat16", "float64"] | None = None
    """The dtype of the saved PRM folders, from which the next round starts. By default that of training."""
    mixed_precision: Literal["no", "bf16"] = "no"
    """With bf16, the arithmetic is 16-bit and the weights stay in `dtype`."""
    sharding: Literal["none", "fsdp"] = "none"
    """With several processes: each holds a copy of the model (`none`), or a shard of the weights, gradients and
    optimizer state (`fsdp`)."""
    attn: Literal["sdpa", "flex"] = "sdpa"
    """The attention kernel. flex packs several trees into a row and needs a GPU."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    frozen_layers: Natural = 0
    """Freeze the embedding and this many of the lowest layers; with all of them, only the head is trained. With 0,
    nothing is frozen."""
    cache: str | None = None
    """A folder that caches the activations of frozen layers, so that only the other layers run. Several runs and
    `prism eval` can share it. With mixed_precision = "bf16", a run computes and stores activations in 16 bits, also for
    margins and validation; other commands always score in full precision, from activations of their own."""
    cache_gb: NotNegative = 50.0
    """The size limit of the cache folder in GB. When it is full, other activations are computed each time."""
    lora: Lora | None = None
    score_tokens: Count | None = None
    """Tokens per forward pass, including padding, for margins and validation. By default as in `prism score`."""

    def __post_init__(self) -> None:
        check(self)
        if self.cache and not self.frozen_layers:
            raise ConfigError("hardware.cache caches the activations of frozen layers: set hardware.frozen_layers too.")
        if self.cache and self.sharding != "none":
            raise ConfigError("hardware.cache does not work with sharded weights: remove it or hardware.sharding.")

    @property
    def rounds_states(self) -> bool:
        """Whether margins and validation use activations that are stored in 16 bits."""
        return bool(self.cache) and self.mixed_precision == "bf16"


CRITERIA = {
    "fpr_at_tpr_80": False,
    "fpr_at_tpr_90": False,
    "fpr_at_tpr_95": False,
    "auroc": True,
    "pairwise_accuracy": True,
}
"""The metrics that can choose the best round, and whether higher is better."""


@dataclass(frozen=True)
class ValidationSettings:
    """Section [validation]: how each round is measured on held-out problems."""

    split: Annotated[str, MAY_BE_EMPTY] | None = "validation"
    """The split to measure on. With "" there is no validation, and the last round is the best."""
    max_trees: Count | None = None
    """The number of trees to measure, spread evenly over the split. By default all."""
    criterion: Literal["fpr_at_tpr_80", "fpr_at_tpr_90", "fpr_at_tpr_95", "auroc", "pairwise_accuracy"] = (
        "fpr_at_tpr_90"
    )
    """The metric that decides which round is best."""
    threshold: Annotated[float, Range(0, below=1)] | None = None
    """The threshold saved with every PRM, above which a step counts as right. By default the one that reaches `tpr` on
    the validation split without steps labeled by rollouts; if no steps remain, the base PRM's."""
    tpr: Annotated[float, Range(above=0, most=1)] = 0.9
    """The fraction of right steps that the saved threshold keeps."""
    aggregator: str = "min"
    """The aggregator saved with every PRM, which turns step scores into a solution's score: last, min, product, mean,
    soft-min or adjusted-min. It replaces that of the base PRM, which is product for `qwen`."""

    def __post_init__(self) -> None:
        check(self)
        check_aggregator(self.aggregator)


@dataclass(frozen=True)
class Recipe:
    """All settings of `prism train`."""

    data: DataSettings
    base: BaseSettings
    seed: Natural = 0
    """The seed for the order of pairs and for new weights."""
    lookahead_ratio: NotNegative | None = None
    """The maximum number of lookahead pairs per annotated pair in a round, chosen at random. By default all."""
    report_to: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)
    """Where training curves are logged."""
    objective: Objective = field(default_factory=Objective)
    curriculum: Curriculum = field(default_factory=Curriculum)
    train: TrainSettings = field(default_factory=TrainSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)

    def __post_init__(self) -> None:
        check(self)
        if self.objective.on == "labels" and self.curriculum.mode != "none":
            raise ConfigError("objective.on = 'labels' has no margins: set curriculum.mode = 'none'.")
        if self.objective.name == "implicit":
            if self.curriculum.mode != "none":
                raise ConfigError("objective.name = 'implicit' has no margins: set curriculum.mode = 'none'.")
            if not self.base.backbone or self.base.family not in (None, "implicit"):
                raise ConfigError(
                    "objective.name = 'implicit' trains a language model, its own reference at the start: set "
                    "base.backbone to it, and no base.prm or base.family."
                )

    @property
    def new_layout(self) -> tuple[str, Mapping[str, str]]:
        """The family of a PRM made from a backbone, and the settings of its layout."""
        if self.objective.name == "implicit":
            return "implicit", {**self.base.settings, "beta": repr(self.objective.beta)}
        return self.base.family or "qwen", self.base.settings


def check_places(recipe: Recipe) -> None:
    """Raise if data or models are missing, before torch is imported or anything is written."""
    check_data(recipe)
    base = recipe.base
    if base.prm:
        check_prm(base.prm, family=base.family)
    elif base.backbone:
        check_model(base.backbone)
        find_family(base.family or "qwen")


def check_data(recipe: Recipe) -> None:
    data = recipe.data
    if data.format != "auto":
        find_format(data.format)
    find_sources([*data.inputs, *data.exclude])
    if data.folder:
        check_pairs_folder(data.folder)


def load_recipe(path: str | Path, assignments: Sequence[str] = ()) -> Recipe:
    """Read a recipe for `train_prm`. Paths in it are relative to the working directory.

    Args:
        path: a TOML file.
        assignments: settings to override, as `--set` takes them.

    Example:
        >>> recipe = load_recipe("recipe.toml", ["train.lr=2e-6"])
        >>> recipe.train.lr
        2e-06
    """
    return read_settings(Recipe, path, assignments)

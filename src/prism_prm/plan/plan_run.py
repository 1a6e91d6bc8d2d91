"""`plan_run`: tokens, memory, disk and hours of a run, as `--plan` shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prism_prm.config import read_settings, read_toml
from prism_prm.data.inputs import find_sources
from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.gguf_files import find_gguf
from prism_prm.models.load_settings import LoadSettings
from prism_prm.models.model_files import CONFIG_FILE, check_model
from prism_prm.paths import named_places, nearest, split_name
from prism_prm.plan.costs import Cluster, Fit
from prism_prm.search.recipes import SearchRecipe
from prism_prm.train.recipe import Recipe, check_data, load_recipe

SCORE_BYTES = 60
"""Bytes of a score in the store, with its key."""

_QWEN = {"model_type": "qwen2", "max_position_embeddings": 4096, "tie_word_embeddings": False}
_LLAMA = {"model_type": "llama", "max_position_embeddings": 131072, "tie_word_embeddings": False, "vocab_size": 128256}


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, **others: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, **others,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _QWEN | _sizes(896, 4864, 24, 14, 2, vocab_size=151936, tie_word_embeddings=True),
    "qwen2.5-1.5b": _QWEN | _sizes(1536, 8960, 28, 12, 2, vocab_size=151936, tie_word_embeddings=True),
    "qwen2.5-7b": _QWEN | _sizes(3584, 18944, 28, 28, 4, vocab_size=152064),
    "qwen2.5-14b": _QWEN | _sizes(5120, 13824, 48, 40, 8, vocab_size=152064),
    "qwen2.5-32b": _QWEN | _sizes(5120, 27648, 64, 40, 8, vocab_size=152064),
    "qwen2.5-72b": _QWEN | _sizes(8192, 29568, 80, 64, 8, vocab_size=152064),
    "llama-3.1-8b": _LLAMA | _sizes(4096, 14336, 32, 32, 8),
    "llama-3.1-70b": _LLAMA | _sizes(8192, 28672, 80, 64, 8),
    "mistral-7b": _LLAMA | _sizes(4096, 14336, 32, 32, 8, model_type="mistral", vocab_size=32000),
    "smollm2-135m": _LLAMA | _sizes(576, 1536, 30, 9, 3, vocab_size=49152, tie_word_embeddings=True),
}  # fmt: skip
"""Configs of known models, for plans on a machine that does not have them. Qwen's context is that of its PRMs."""


@dataclass(frozen=True)
class StandIn:
    """The config and tokenizer to plan with if the model itself is not available."""

    config: str | None = None
    """A folder with config.json (no weights are needed), or a name in SIZES."""
    tokenizer: str | None = None
    """A folder with a tokenizer."""

    def check(self, name: str) -> None:
        """Raise if the config or tokenizer of the model `name` does not exist. Does not contact the hub."""
        if self.config is not None and self.config not in SIZES:
            folder = Path(self.config)
            if not folder.is_dir() or not ((folder / CONFIG_FILE).exists() or find_gguf(folder) is not None):
                raise ModelError(
                    f"plan.config = {self.config}: neither a folder with {CONFIG_FILE} nor one of {', '.join(SIZES)}"
                )
        if self.tokenizer is not None and not Path(self.tokenizer).is_dir():
            raise ModelError(f"plan.tokenizer = {self.tokenizer}: no such folder.{nearest(self.tokenizer)}")
        if self.config is None and not Path(name).is_dir():
            check_model(name)


@dataclass(frozen=True)
class PlanStage:
    """One stage of a run."""

    name: str
    tokens: int
    """Tokens through the model, padding and idle passes included."""
    separate: int
    """Tokens through the model if every step were a sequence of its own."""
    flops: int
    hours: float
    updates: int = 0
    examples: int = 0
    times: int = 1
    """How often the stage runs; the other numbers are for one run."""
    efficiency: float = 1.0
    """The fraction of the GPUs' time that is not spent waiting for the busiest one."""

    @property
    def ratio(self) -> float | None:
        """How many times more tokens separate sequences would run."""
        return self.separate / self.tokens if self.tokens and self.separate else None


@dataclass(frozen=True)
class Plan:
    """What a run will take."""

    kind: str
    model: dict[str, Any]
    cluster: Cluster
    stages: list[PlanStage]
    fits: list[Fit]
    remedies: list[str]
    disk: dict[str, float]
    """Bytes by purpose."""
    notes: list[str] = field(default_factory=list)
    """The assumptions behind the numbers."""

    @property
    def hours(self) -> float:
        return sum(stage.hours * stage.times for stage in self.stages)

    @property
    def flops(self) -> int:
        return sum(stage.flops * stage.times for stage in self.stages)

    def facts(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {
            "kind": self.kind, "model": self.model, "cluster": asdict(self.cluster),
            "room_bytes": self.cluster.room,
            "stages": [{**asdict(stage), "ratio": stage.ratio} for stage in self.stages],
            "hours": self.hours, "gpu_hours": self.hours * self.cluster.count, "flops": self.flops,
            "memory": [
                {"way": fit.name, "fits": fit.fits, "peak": fit.memory.peak, **fit.memory.parts} for fit in self.fits
            ],
            "remedies": self.remedies, "disk": self.disk, "notes": self.notes,
        }  # fmt: skip


@dataclass(frozen=True)
class ScoringJob:
    """A run of `prism score`, to plan."""

    prm: str
    inputs: tuple[str, ...]
    loading: LoadSettings = field(default_factory=LoadSettings)


def plan_run(
    what: Recipe | SearchRecipe | ScoringJob | str | Path,
    cluster: Cluster | None = None,
    *,
    config: Sequence[str] = (),
    tokenizer: str | None = None,
    margins: str | Path | None = None,
    solution_tokens: int = 512,
    assignments: Sequence[str] = (),
) -> Plan:
    """What training, search or scoring will take: tokens, operations, memory, disk and hours. No weights are loaded.

    Args:
        what: a `Recipe`, a `SearchRecipe`, a `ScoringJob`, or the TOML file of one of the recipes.
        cluster: the GPUs to plan for; default: one A6000.
        config: replaces the config of models that are not on this machine: a folder with config.json, or a known size
            such as "qwen2.5-7b". In a search, MODEL=PLACE replaces that of one model.
        tokenizer: a folder with the tokenizer to count with, if the model's own is not on this machine.
        margins: a table of `measure_margins`. With it, the rounds of a curriculum are exact.
        solution_tokens: the assumed length of a solution of a search.
        assignments: settings to override, as `--set` takes them.

    Returns:
        A `Plan`: `stages`, `fits` (memory by part), `remedies`, `disk`, `hours`, and `facts()` as plain values.

    Raises:
        PrismError: a setting, an input or a config cannot be used; the message says what to change.

    Example:
        >>> plan = plan_run("recipe.toml", Cluster("h100", count=2))
        >>> [(stage.name, stage.updates) for stage in plan.stages if stage.updates]
        [('round at most: all pairs', 4)]
        >>> plan.fits[0].fits
        True
    """
    cluster = cluster or Cluster()
    if isinstance(what, str | Path):
        what = read_any(what, assignments)
    elif assignments:
        raise ConfigError("assignments apply to a recipe file; change an object with dataclasses.replace")
    named = {name: StandIn(place, tokenizer) for name, place in map(split_name, config)}
    default = named.get("", StandIn(tokenizer=tokenizer))
    stand_ins = defaultdict(lambda: default, named)
    # Missing data and models raise before torch is imported.
    if isinstance(what, Recipe):
        check_data(what)
        models = [str(what.base.prm or what.base.backbone)]
    elif isinstance(what, ScoringJob):
        find_sources(what.inputs)
        models = [what.prm]
    else:
        kind, _, policy = what.policy.name.partition(":")
        models = [*([policy] if kind == "hf" else []), *named_places(what.prm).values()]
    for model in models:
        stand_ins[model].check(model)
    if isinstance(what, Recipe):
        from prism_prm.plan.plan_training import plan_training

        return plan_training(what, cluster, default, None if margins is None else Path(margins))
    from prism_prm.plan.plan_inference import plan_scoring, plan_search

    if isinstance(what, SearchRecipe):
        return plan_search(what, cluster, stand_ins, solution_tokens)
    return plan_scoring(what, cluster, default)


def read_any(path: str | Path, assignments: Sequence[str] = ()) -> Recipe | SearchRecipe:
    """Read a recipe of `prism train` or `prism search`, recognized by its keys."""
    settings = read_toml(path)
    if "problems" in settings:
        raise ConfigError(f"{path}: this is a recipe of `prism grpo`, which cannot be planned")
    if "task" in settings or "search" in settings:
        return read_settings(SearchRecipe, path, assignments)
    return load_recipe(path, assignments)

"""`plan_run`: what a run will take, as `prism plan` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.config import override, read_toml
from prism_prm.data.inputs import find_sources
from prism_prm.errors import ConfigError
from prism_prm.names import named_places, split_name
from prism_prm.planning.gpus import Cluster
from prism_prm.planning.plan import Plan
from prism_prm.prms.skeleton import Stand
from prism_prm.scorer.settings import LoadSettings
from prism_prm.search.recipe import SearchRecipe, read_recipe
from prism_prm.training.recipe import Recipe, check_data, load_recipe
from prism_prm.types import Bars, no_bars

SOLUTION_TOKENS = 512


@dataclass(frozen=True)
class ScoringJob:
    """What `prism score` would be told."""

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
    solution_tokens: int = SOLUTION_TOKENS,
    assignments: Sequence[str] = (),
    bars: Bars = no_bars,
) -> Plan:
    """What training, search or scoring will take: tokens, operations, memory, disk and hours. No weights are loaded.

    Args:
        what: a `Recipe`, a `SearchRecipe`, a `ScoringJob`, or the TOML file of one of the recipes.
        cluster: the GPUs to plan for; default: one A6000.
        config: stands in for models that are not at hand: a folder with config.json, or a known size such as
            "qwen2.5-7b"; MODEL=PLACE stands in for that model of a search.
        tokenizer: a folder with the tokenizer to count with, if the model's own is not at hand.
        margins: a table of `measure_margins`, with which the rounds of a curriculum are exact.
        solution_tokens: how many tokens a solution of a search is taken to have.
        assignments: settings to override, as `--set` takes them.
        bars: makes progress bars; by default none are shown.

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
    stands = stands_of(config, tokenizer)
    check_at_hand(what, stands)
    stand = stands[""]
    if isinstance(what, Recipe):
        from prism_prm.planning.training import plan_training

        return plan_training(what, cluster, stand, None if margins is None else Path(margins), bars)
    if isinstance(what, SearchRecipe):
        from prism_prm.planning.searching import plan_search

        return plan_search(what, cluster, stands, solution_tokens)
    from prism_prm.planning.scoring import plan_scoring

    return plan_scoring(what.prm, what.inputs, cluster, stand, what.loading, bars)


def read_any(path: str | Path, assignments: Sequence[str] = ()) -> Recipe | SearchRecipe:
    """A recipe of training or search, told apart by what only one of them has."""
    found = override(read_toml(path), assignments)
    if "problems" in found:
        raise ConfigError(f"{path}: this is a recipe of `prism grpo`, which `prism plan` does not cover")
    if "task" in found or "search" in found:
        return read_recipe(path, {}, assignments)
    return load_recipe(path, assignments)


def stands_of(config: Sequence[str], tokenizer: str | None) -> dict[str, Stand]:
    """Model → what stands in for it; "" is for all others."""
    found = {name: Stand(place, tokenizer) for name, place in map(split_name, config)}
    return {"": Stand(tokenizer=tokenizer), **found}


def check_at_hand(what: Recipe | SearchRecipe | ScoringJob, stands: Mapping[str, Stand]) -> None:
    """Refuse data and models that are not there, before anything heavy is imported."""
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
        stands.get(model, stands[""]).check(model)

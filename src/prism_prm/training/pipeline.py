"""`train_prm`: from a recipe to a trained PRM, as `prism train` does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.errors import ConfigError
from prism_prm.training.recipe import Recipe, load_recipe
from prism_prm.training.run import Run

if TYPE_CHECKING:
    from accelerate import Accelerator


def train_prm(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    assignments: Sequence[str] = (),
    accelerator: Accelerator | None = None,
) -> dict[str, Any]:
    """Train a PRM: pairs, margins of the base PRM, curriculum rounds, validation, the best round.

    Repeat a stopped call to resume it.

    Args:
        recipe: a recipe, or the TOML file that holds one.
        out: the run's folder; every round writes a PRM folder in it.
        assignments: settings to override, as `--set` takes them: "train.lr=2e-6".
        accelerator: an `accelerate.Accelerator`; default: a new one, with the recipe's precision.

    Returns:
        The content of run.json: `rounds` with their validation, `best`, the path of the best trained round, and
        `beats_base`, whether that round is better than the base PRM (None without validation). `load_prm(out)` loads
        the best round.

    Raises:
        PrismError: a setting, an input or a model cannot be used; the message says what to change.

    Example:
        >>> run = train_prm("recipe.toml", "run", assignments=["train.epochs=1"])
        >>> list(run["rounds"])
        ['0_base', '1_all']
        >>> prm = load_prm("run")
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, assignments)
    elif assignments:
        raise ConfigError("assignments apply to a recipe file; change a Recipe object with dataclasses.replace")
    if accelerator is None:
        from accelerate import Accelerator

        accelerator = Accelerator(mixed_precision=recipe.hardware.mixed_precision)
    return Run(recipe, out, accelerator).go()

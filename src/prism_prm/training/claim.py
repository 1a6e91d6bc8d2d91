"""A run's folder belongs to one recipe, and to one command at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.config import to_toml
from prism_prm.errors import ConfigError
from prism_prm.files import LOCK, locked, write_text

if TYPE_CHECKING:
    from accelerate import Accelerator

    from prism_prm.training.recipe import Recipe


@contextlib.contextmanager
def claimed(folder: Path, recipe: Recipe, accelerator: Accelerator) -> Iterator[dict[str, Any] | None]:
    """Hold the folder; yields the content of run.json if the run is finished. All processes of a run call it."""
    with locked(folder) if accelerator.is_main_process else contextlib.nullcontext():
        if accelerator.is_main_process:
            _check_recipe(folder, recipe)
        accelerator.wait_for_everyone()
        run_file = folder / "run.json"
        yield json.loads(run_file.read_text(encoding="utf-8")) if run_file.exists() else None


def _check_recipe(folder: Path, recipe: Recipe) -> None:
    """Save the recipe, or compare it with the one that the folder was started with, once anything was made."""
    path, text = folder / "recipe.toml", to_toml(recipe)
    if not path.exists() or not _is_begun(folder):
        write_text(path, text)
        return
    old, new = (_deciding(one) for one in (path.read_text(encoding="utf-8"), text))
    if old != new:
        changed = [line for line in new if line not in old] or [line for line in old if line not in new]
        raise ConfigError(
            f"{folder} was started with other settings ({path}); now: {'; '.join(changed[:5])}. "
            "Name another --out, or remove the folder to start anew."
        )


def _is_begun(folder: Path) -> bool:
    """Whether any stage has left something; data without a summary are made anew anyway."""
    made = {path.name for path in folder.iterdir()} - {"recipe.toml", LOCK, "data"}
    return bool(made) or (folder / "data" / "summary.json").exists()


def _deciding(recipe: str) -> list[str]:
    """The lines of a recipe without those that change nothing that is learned."""
    return [line for line in recipe.splitlines() if not line.startswith(("cache = ", "cache_gb = "))]

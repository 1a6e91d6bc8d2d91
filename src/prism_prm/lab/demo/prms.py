"""Train the PRMs of a demo; each has a folder, named by a hash of its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate import Accelerator

from prism_prm.backends.load_prm import init_prm
from prism_prm.config import from_mapping
from prism_prm.console import prefixed
from prism_prm.job import content_key, stoppable
from prism_prm.lab.demo.findings import BASE
from prism_prm.lab.demo.settings import DemoSettings, base_recipe
from prism_prm.lab.world.build import FORMAT, World
from prism_prm.lab.world.policy import PRM_SETTINGS
from prism_prm.train.recipe import Recipe
from prism_prm.train.train_prm import train_prm


def train_base(
    folder: Path, world: World, settings: DemoSettings, seed: int, *, name: str = BASE, family: str = "qwen"
) -> Path:
    """Train a base PRM, which starts as the backbone with a fresh head."""
    fresh = folder / f"fresh-{seed}-{world.backbone.parent.name}{'' if family == 'qwen' else f'-{name}'}"
    if not fresh.exists():
        init_prm(world.backbone, family=family, settings=PRM_SETTINGS, seed=seed, device="cpu").save(fresh)
    return train_by_recipe(folder, name, base_recipe(world.trees(BASE), fresh, settings.base, seed, family))[0]


def train_by_recipe(folder: Path, name: str, recipe: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Train a PRM in a subfolder; returns the folder of the best round, and the validation of all rounds."""
    out = folder / f"{name}-{content_key(FORMAT, recipe)}"
    with prefixed(name), stoppable(lambda: f"of {name}"):
        finished = train_prm(from_mapping(Recipe, recipe), out, accelerator=Accelerator(cpu=True))
    return Path(finished["best"]), finished["rounds"]

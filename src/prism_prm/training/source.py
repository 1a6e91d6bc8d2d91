"""The data of a run: made from the recipe's inputs, unless it is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prism_prm.training.recipe import Recipe

TRAIN = "train"


def make_data(recipe: Recipe, run: Path) -> Path:
    """The folder with the run's trees and pairs, made from the recipe's inputs unless it is there."""
    settings = recipe.data
    if settings.folder:
        return Path(settings.folder)
    folder = run / "data"
    if not (folder / "summary.json").exists():
        from prism_prm.data import Reader
        from prism_prm.pairs.build import Recipe as PairRecipe
        from prism_prm.pairs.build import build_pairs
        from prism_prm.pairs.problems import Exclusions, Splits

        reader = Reader(settings.inputs, format=settings.format, options=settings.read)
        exclusions = Exclusions.read(settings.exclude) if settings.exclude else None
        splits = Splits(settings.split, settings.pairs.seed)
        build_pairs(reader, folder, PairRecipe(settings.pairs, splits, exclusions))
    return folder

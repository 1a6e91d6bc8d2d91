"""The data of a run: made from the recipe's inputs unless it exists, and the examples in it that fit the PRM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prism_prm.curriculum import Binned, assign
from prism_prm.errors import DataError, PrismError
from prism_prm.train.batches import too_long

if TYPE_CHECKING:
    from prism_prm.arrays import Floats
    from prism_prm.data.pair_examples import Examples, Split
    from prism_prm.job import Job
    from prism_prm.models.prm import PRM
    from prism_prm.train.recipe import DataSettings, Recipe

TRAIN = "train"
DATA = "data"


def data_folder(recipe: Recipe, run: Path) -> Path:
    """Where the run's trees and pairs are."""
    return Path(recipe.data.folder) if recipe.data.folder else run / DATA


def make_data(recipe: Recipe, job: Job) -> None:
    """Make the run's trees and pairs from the recipe's inputs, unless they were made from just these before."""
    from prism_prm.data.build_pairs import PairRecipe, build_pairs
    from prism_prm.data.reader import Reader
    from prism_prm.data.same_problem import Exclusions, Splits

    settings = recipe.data
    if settings.folder:
        return

    def make(folder: Path) -> None:
        reader = Reader(settings.inputs, format=settings.format, options=settings.read)
        exclusions = Exclusions.read(settings.exclude) if settings.exclude else None
        splits = Splits(settings.split, settings.pairs.seed)
        build_pairs(reader, folder, PairRecipe(settings.pairs, splits, exclusions))

    job.folder(DATA, make, settings=settings, files=_hashes(settings))


def check_inputs(recipe: Recipe, job: Job) -> None:
    """Refuse inputs that are not those which the run's data were made from; inputs that are gone are not others."""
    made_from = job.made_from(DATA)
    if recipe.data.folder or made_from is None:
        return
    before = made_from["files"]
    try:
        now = _hashes(recipe.data)
    except DataError:
        return
    if changed := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
        raise PrismError(
            f"{job.out}: {', '.join(changed)} changed since this run read it. Name another --out to train on it, or "
            "remove the folder to start again."
        )


def _hashes(settings: DataSettings) -> dict[str, str | None]:
    """The files and datasets that data are made from, and the hash of each; None for a dataset of the hub."""
    from prism_prm.data.inputs import find_sources

    return {source.name: source.sha256() for source in find_sources([*settings.inputs, *settings.exclude])}


def examples_that_fit(split: Split, recipe: Recipe, prm: PRM) -> tuple[Examples, np.ndarray, dict[str, int]]:
    """The examples to train on that fit the PRM's context, their kinds, and how many fit or do not."""
    examples = split.examples(recipe.objective.on)
    long = too_long(examples, prm.family, prm.context)
    if len(long) and recipe.train.on_too_long == "error":
        raise DataError(
            f"{len(long)} of {len(examples)} examples are longer than the model's context of {prm.context} tokens, "
            f'the first in tree {examples.tree[long[0]]}; set train.on_too_long = "skip" to leave them out.'
        )
    kept = np.setdiff1d(np.arange(len(examples)), long)
    kinds = split.kinds if examples.labels is None else np.full(len(examples), "labelled", dtype=object)
    return examples.take(kept), kinds[kept], {"fitting": len(kept), "too_long": len(long)}


def needs_margins(train: Examples, recipe: Recipe) -> bool:
    """Whether margins decide which pairs are trained when."""
    return train.labels is None and not recipe.curriculum.takes_all


def rounds_of(train: Examples, kinds: np.ndarray, recipe: Recipe, margins: Floats | None) -> Binned:
    """The rounds that margins give; without margins one round of everything."""
    everything = Binned((np.arange(len(train)),), {"all": len(train)}, {})
    binned = everything if margins is None else assign(margins, recipe.curriculum)
    return binned.mixed(kinds, recipe.lookahead_ratio, recipe.seed)

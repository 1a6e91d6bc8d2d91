"""The data of a run: the pairs or labelled steps to train on, and those to validate with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prism_prm.errors import DataError
from prism_prm.records import StepTree
from prism_prm.tables import check_pairs, check_split, iter_trees, read_pairs
from prism_prm.training.examples import Examples, labelled_steps

if TYPE_CHECKING:
    from prism_prm.training.recipe import Recipe

TRAIN = "train"


@dataclass(frozen=True)
class Split:
    """The trees and pairs of one split."""

    trees: Mapping[int, StepTree]
    pairs: Examples
    kinds: np.ndarray
    """The kind of each pair."""

    @classmethod
    def read(cls, folder: Path, split: str | None) -> Split:
        """From the tables that `prism pairs` wrote; None reads all splits."""
        check_split(folder, split)
        trees = {tree.tree_id: tree for tree in iter_trees(folder, split=split)}
        table = read_pairs(folder, split=split)
        columns = ("pair_id", "tree_id", "chosen", "rejected", "rejected_tree")
        arrays = {name: table[name].to_numpy().astype(np.int64) for name in columns}
        check_pairs(folder, arrays, {tree_id: len(tree.nodes) for tree_id, tree in trees.items()})
        return cls(trees, Examples(trees, *arrays.values()), np.array(table["kind"].to_pylist(), dtype=object))

    def examples(self, on: str) -> Examples:
        """What an objective trains on: `pairs`, or the labelled steps (`labels`)."""
        examples = self.pairs if on == "pairs" else labelled_steps(self.trees)
        if not len(examples):
            what = "pairs" if on == "pairs" else "labelled steps"
            raise DataError(f"The training data has no {what} left; see `summary.json` for what was dropped and why.")
        return examples


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

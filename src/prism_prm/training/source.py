"""The data of a run: the pairs or labelled steps to train on, and those to validate with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prism_prm.config import to_toml
from prism_prm.errors import DataError
from prism_prm.files import write_text
from prism_prm.records import StepTree
from prism_prm.tables import check_split, iter_trees, read_pairs
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
        arrays = [table[name].to_numpy().astype(np.int64) for name in columns]
        return cls(trees, Examples(trees, *arrays), np.array(table["kind"].to_pylist(), dtype=object))

    def examples(self, on: str) -> Examples:
        """What an objective trains on: `pairs`, or the labelled steps (`labels`)."""
        examples = self.pairs if on == "pairs" else labelled_steps(self.trees)
        if not len(examples):
            what = "pairs" if on == "pairs" else "labelled steps"
            raise DataError(f"The training data has no {what} left; see `summary.json` for what was dropped and why.")
        return examples


def data_folder(recipe: Recipe, run: Path) -> Path:
    """Where the run's trees and pairs are."""
    return Path(recipe.data.folder) if recipe.data.folder else run / "data"


def make_data(recipe: Recipe, run: Path) -> None:
    """Make the run's trees and pairs from the recipe's inputs, unless they were made from just these before."""
    from prism_prm.data import Reader
    from prism_prm.data.inputs import find_sources
    from prism_prm.pairs.build import Recipe as PairRecipe
    from prism_prm.pairs.build import build_pairs
    from prism_prm.pairs.problems import Exclusions, Splits

    settings, folder = recipe.data, data_folder(recipe, run)
    if settings.folder:
        return
    sources = find_sources([*settings.inputs, *settings.exclude])
    made_from = to_toml(settings) + "".join(f"# {source.name} {source.sha256()}\n" for source in sources)
    note = folder / "made_from.toml"
    if note.exists() and note.read_text(encoding="utf-8") == made_from:
        return
    note.unlink(missing_ok=True)
    reader = Reader(settings.inputs, format=settings.format, options=settings.read)
    exclusions = Exclusions.read(settings.exclude) if settings.exclude else None
    splits = Splits(settings.split, settings.pairs.seed)
    build_pairs(reader, folder, PairRecipe(settings.pairs, splits, exclusions))
    write_text(note, made_from)

"""P(right) of the steps of a pool's solutions: from the pool itself, a scores table, or a PRM."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.arrays import Floats
from prism_prm.console import Advance, ignore
from prism_prm.data.pools import Pool
from prism_prm.errors import DataError

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer, TreeScores
    from prism_prm.store import ScoreStore
    from prism_prm.tree import StepTree

StepScores = Sequence[Floats | None]
"""Step scores of each solution of a pool, in order; None means no score: ranked last, no weight."""


def log_scores_of(steps: StepScores, aggregator: str) -> Floats:
    """The log of the score of each solution; −inf where it has none."""
    return np.array([-np.inf if step is None else log_score(step, aggregator) for step in steps])


def scores_in_pool(pool: Pool) -> StepScores | None:
    """The scores that the pool itself holds; None where it holds none."""
    found = [None if s.scores is None or not s.steps else np.array(s.scores) for s in pool.solutions]
    return found if any(scores is not None for scores in found) else None


def scores_in_table(path: str | Path, pool: Pool) -> StepScores:
    """The scores of the pool's solutions in a scores table, found by content.

    A solution with a step that is not in the table has no score; a table of other data only is an error.
    """
    from prism_prm.evaluate.score_files import read_scores, scores_of_trees

    table, trees = read_scores(path), pool.trees()
    scores = scores_of_trees(table, trees)
    if table.num_rows and not any(one.scored for one in scores):
        raise DataError(
            f"{path}: it holds the scores of none of the pool's {len(pool.solutions):,} solutions, so it was made from "
            "other data. Score this pool with --prm.",
            reason="missing-scores",
        )
    return _by_solution(pool, trees, scores)


def scores_by_prm(store: ScoreStore, pool: Pool, advance: Advance = ignore) -> StepScores:
    """The scores of the store's PRM; missing ones are computed. A solution with a step that it cannot read has none.
    `advance` is called with finished solutions.
    """
    from prism_prm.store import Request

    trees = scorable(store.scorer, pool)
    scores = store.score([Request.all_of(tree) for tree in trees], advance=advance)
    return _by_solution(pool, trees, scores)


def scorable(scorer: Scorer, pool: Pool) -> list[StepTree]:
    """The solutions all of whose steps a scorer can read."""
    trees = pool.trees()
    return list(itertools.compress(trees, scorer.can_score_all(trees)))


def _by_solution(pool: Pool, trees: Sequence[StepTree], scores: Sequence[TreeScores]) -> list[Floats | None]:
    """For every solution all its scores, or None."""
    found: list[Floats | None] = [None] * len(pool.solutions)
    for tree, one in zip(trees, scores, strict=True):
        if len(one.scored) == len(tree.nodes):
            found[tree.tree_id] = one.probability
    return found

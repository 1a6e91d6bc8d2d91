"""Step scores of a pool's solutions, from a scores table or from the pool itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prism_prm.aggregate import Floats
from prism_prm.errors import DataError
from prism_prm.pools import Pool

_COLUMNS = ["content_hash", "node_id", "parent", "probability"]


def scores_in_pool(pool: Pool) -> list[Floats | None] | None:
    """The scores that the pool itself holds; None where it holds none."""
    found = [None if s.scores is None or not s.steps else np.array(s.scores) for s in pool.solutions]
    return found if any(scores is not None for scores in found) else None


def read_scores(path: str | Path, pool: Pool) -> list[Floats | None]:
    """The scores of the pool's solutions in a scores table, matched by content.

    A solution with a step that is not in the table has no score; a table of other data only is an error.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=_COLUMNS)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{path}: cannot be read as a scores table with the columns {', '.join(_COLUMNS)} ({error})",
            reason="unreadable-parquet",
        ) from error
    by_tree: dict[str, dict[int, float]] = {}
    for content, node, parent, probability in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True):
        if parent == node - 1:  # a solution is a chain; other rows are of other trees' candidates
            by_tree.setdefault(content, {})[node] = probability
    scores: list[Floats | None] = [None] * len(pool.solutions)
    is_of_pool = not by_tree
    for tree in pool.trees():
        own = by_tree.get(tree.content_hash(), {})
        is_of_pool |= bool(own)
        if len(own) == len(tree.nodes):
            scores[tree.tree_id] = np.array([own[node] for node in range(len(own))])
    if not is_of_pool:
        raise DataError(
            f"{path}: it holds the scores of none of the pool's {len(scores):,} solutions, so it was made from other "
            "data. Score this pool with --prm.",
            reason="missing-scores",
        )
    return scores

"""Step scores of a pool's solutions, from a scores table or from the pool itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from prism_prm.aggregate import Floats
from prism_prm.errors import DataError
from prism_prm.pools import Pool


def scores_in_pool(pool: Pool) -> list[Floats | None] | None:
    """The scores that the pool itself holds; None where it holds none."""
    found = [None if s.scores is None or not s.steps else np.array(s.scores) for s in pool.solutions]
    return found if any(scores is not None for scores in found) else None


def read_scores(path: str | Path, pool: Pool) -> list[Floats | None]:
    """The scores of the pool's solutions in a scores table; a solution with an unscored step has none.

    The table must be of this very pool: solutions are matched by number and by content.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = ["tree_id", "node_id", "probability", "content_hash"]
    try:
        table = pq.read_table(path, columns=columns)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file", reason="no-such-file") from None
    except (pa.ArrowInvalid, KeyError) as error:
        raise DataError(
            f"{path}: not a scores table with the columns {', '.join(columns)} ({error})", reason="unreadable-parquet"
        ) from error
    trees = {tree.tree_id: tree for tree in pool.trees()}
    scores: list[Floats | None] = [None] * len(pool.solutions)
    filled = {number: np.full(len(tree.nodes), np.nan) for number, tree in trees.items()}
    hashes = {number: tree.content_hash() for number, tree in trees.items()}
    tree_ids, node_ids, probabilities, content = (table.column(name).to_pylist() for name in columns)
    for number, node, probability, found in zip(tree_ids, node_ids, probabilities, content, strict=True):
        if hashes.get(number) != found or node >= len(filled[number]):
            raise DataError(
                f"{path}: solution {number} is not the one in the pool; these scores are of other data. "
                "Score this pool with --prm instead.",
                reason="other-data",
            )
        filled[number][node] = probability
    for number, values in filled.items():
        scores[number] = None if np.isnan(values).any() else values
    if all(values is None for values in scores):
        raise DataError(f"{path}: no solution of the pool is fully scored", reason="no-scores")
    return scores

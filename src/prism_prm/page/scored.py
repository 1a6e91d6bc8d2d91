"""Scored solutions as a document: tables of one or more PRMs, joined with the texts that they scored."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from prism_prm.aggregate import solution_score
from prism_prm.arrays import Floats
from prism_prm.chosen import choose_aggregator, choose_threshold
from prism_prm.errors import DataError
from prism_prm.page.document import Document, Place, Results
from prism_prm.records import StepTree


def scored_documents(place: Place, results: Results) -> list[Document] | None:
    """One document for all tables of scores; the first of them has it."""
    if not _is_table(place):
        return None
    tables = [one for one in results.places if _is_table(one)]
    if place is not tables[0]:
        return []
    title = " and ".join(table.name for table in tables)
    files = tuple(table.path for table in tables)
    return [Document("scores", title, partial(_body, tables, results), files, key="scores")]


def _is_table(place: Place) -> bool:
    if not place.path.is_file() or place.path.suffix != ".parquet":
        return False
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return {"log_odds", "content_hash", "model_hash"} <= set(pq.read_schema(place.path).names)
    except (OSError, pa.ArrowException):
        return False


def _body(tables: list[Place], results: Results) -> dict[str, Any]:
    from prism_prm.scorer.table import TreesToScore, card_of_scores, inputs_of_scores, read_scores, scores_of_trees

    data = results.data or tuple(dict.fromkeys(name for table in tables for name in inputs_of_scores(table.path)))
    if not data:
        raise DataError(f"{tables[0].path}: does not say what was scored; name the solutions with --data")
    trees = [tree for tree in TreesToScore(data) if tree.nodes]
    prms, columns = [], []
    for table in tables:
        card = card_of_scores(table.path)
        aggregator, threshold = choose_aggregator(None, card).value, choose_threshold(None, card).value
        found = scores_of_trees(read_scores(table.path), trees)
        prms.append({"name": table.name, "aggregator": aggregator, "threshold": threshold})
        columns.append([_scores(tree, one.probability, aggregator) for tree, one in zip(trees, found, strict=True)])
    if all(one["probabilities"] is None for column in columns for one in column):
        raise DataError(
            f"{', '.join(data)}: none of these solutions is in {tables[0].path}; name those that were scored",
            reason="other-data",
        )
    solutions = [
        {"name": tree.name, "problem": tree.problem, "texts": [node.text for node in tree.nodes],
         "parents": list(tree.parents), "labels": [node.label for node in tree.nodes],
         "prms": [column[i] for column in columns]}
        for i, tree in enumerate(trees)
    ]  # fmt: skip
    return {"prms": prms, "solutions": solutions}


def _scores(tree: StepTree, probability: Floats, aggregator: str) -> dict[str, Any]:
    """The scores of a solution; a tree of candidates has none as a whole."""
    missing = np.isnan(probability)
    is_chain = len(tree.trunk) == len(tree.nodes)
    whole = solution_score(probability, aggregator) if is_chain and not missing.any() else None
    return {"probabilities": None if missing.all() else probability.tolist(), "score": whole}

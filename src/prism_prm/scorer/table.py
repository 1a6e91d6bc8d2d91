"""The scores table, one row per scored step: written from the score store, and read back for other trees and pools."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.errors import DataError
from prism_prm.files import whole_file
from prism_prm.records import StepTree
from prism_prm.resume import KEY, is_made_for
from prism_prm.scorer.protocol import Scorer
from prism_prm.scorer.results import TreeScores, sigmoid
from prism_prm.scorer.store import PORTION, Request, ScoreStore, Share, store_for
from prism_prm.tables import scores_schema

_TOO_LONG = b"prism_prm.too_long"


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """What a finished scores table holds."""

    trees: int
    steps: int
    too_long: int
    """Steps whose path exceeds the context: left out, or scored without their earliest steps."""
    resumed: int
    """Portions that an earlier run had scored."""


def scores_table(
    log_odds_NO: np.ndarray, outputs: Sequence[str], model_hash: str, **columns: Sequence[Any] | np.ndarray
) -> pa.Table:
    """Rows of the scores table; `columns` are tree_id, name, parent, node_tree, node_id and content_hash."""
    schema = scores_schema(outputs)
    fields = list(schema.field("log_odds").type)
    assert np.isfinite(log_odds_NO).all(), "only real scores are written"
    given = {name: pa.array(values, schema.field(name).type) for name, values in columns.items()}
    values = [pa.array(np.ascontiguousarray(log_odds_NO[:, i])) for i in range(len(outputs))]
    given["log_odds"] = pa.StructArray.from_arrays(values, fields=fields)
    given["probability"] = pa.array(sigmoid(log_odds_NO[:, 0]))
    given["model_hash"] = pa.array([model_hash] * len(log_odds_NO), pa.string()).dictionary_encode()
    return pa.Table.from_arrays([given[name] for name in schema.names], schema=schema)


def table_of_trees(
    trees: Sequence[StepTree], scores: Sequence[TreeScores], outputs: Sequence[str], model_hash: str
) -> pa.Table:
    """Rows for the scored nodes of trees, each under its own parent."""
    owner = [(tree, node) for tree, found in zip(trees, scores, strict=True) for node in found.scored]
    found = [found.log_odds_NO[found.scored] for found in scores]
    hashes = {tree.tree_id: tree.content_hash() for tree in trees}
    return scores_table(
        np.concatenate([*found, np.empty((0, len(outputs)))]),
        outputs,
        model_hash,
        tree_id=[tree.tree_id for tree, _ in owner],
        name=[tree.name for tree, _ in owner],
        parent=[tree.parents[node] for tree, node in owner],
        node_tree=[tree.tree_id for tree, _ in owner],
        node_id=[node for _, node in owner],
        content_hash=[hashes[tree.tree_id] for tree, _ in owner],
    )


def read_scores(path: str | Path) -> pa.Table:
    """A scores table, whatever its family's outputs."""
    try:
        table = pq.read_table(path)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: cannot be read as a scores table ({error}); `prism score` writes one") from error
    missing = sorted(set(scores_schema(()).names) - set(table.column_names))
    if missing:
        raise DataError(f"{path}: not a scores table; it lacks the columns {missing}", reason="wrong-format")
    return table


def write_scores(
    scorer: Scorer,
    trees: Sequence[StepTree],
    out: str | Path,
    *,
    store: str | Path | None = None,
    portion: int = PORTION,
    share: Share | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> ScoreReport:
    """Score trees into one table; work that was stopped is resumed.

    Scores are filed in the score store `store`, which other work may share; by default one beside `out`, which is
    removed when the table is written. Every process of a `Share` calls this with the same arguments.
    """
    share = share or Share()
    out = Path(out)
    requests = [Request.all_of(tree) for tree in trees]
    with store_for(out, scorer, store, share=share, portion=portion) as filed:
        job = _job(filed.identity, trees)
        is_done = is_made_for(out, job)
        share.wait()  # every process looks before any of them writes
        if is_done:
            advance(len(trees))
            found = -(-len(trees) // portion)
        else:
            found = filed.fill(requests, share=share, advance=advance).found
            if share.rank == 0:
                _write(out, filed, requests, job)
    about = pq.read_metadata(out)
    return ScoreReport(len(trees), about.num_rows, int(about.metadata[_TOO_LONG]), found)


def _job(identity: str, trees: Sequence[StepTree]) -> str:
    """A hash of what decides the table's content."""
    digest = hashlib.blake2b(identity.encode(), digest_size=16)
    for tree in trees:
        digest.update(repr((tree.tree_id, tree.name, tree.content_hash())).encode())
    return digest.hexdigest()


def _write(out: Path, store: ScoreStore, requests: Sequence[Request], job: str) -> None:
    outputs = store.scorer.outputs
    too_long = 0
    with whole_file(out) as aside, pq.ParquetWriter(aside, scores_schema(outputs)) as writer:
        for start in range(0, len(requests), store.portion):
            some = requests[start : start + store.portion]
            scores = list(store.read(some))
            writer.write_table(table_of_trees([request.tree for request in some], scores, outputs, store.identity))
            too_long += sum(len(found.too_long) for found in scores)
        writer.add_key_value_metadata({KEY: job, _TOO_LONG: str(too_long)})


def scores_of_trees(table: pa.Table, trees: Sequence[StepTree]) -> list[TreeScores]:
    """The scores of trees in a table, found by content: NaN where the table has none."""
    outputs = tuple(field.name for field in table.schema.field("log_odds").type)
    log_odds = table["log_odds"].combine_chunks()
    log_odds_NO = np.stack([log_odds.field(name).to_numpy(zero_copy_only=False) for name in outputs], axis=1)
    rows: dict[str, list[int]] = {}
    for row, content in enumerate(table["content_hash"].to_pylist()):
        rows.setdefault(content, []).append(row)
    node_N, parent_N = (table[name].to_numpy() for name in ("node_id", "parent"))
    own_N = table["node_tree"].to_numpy() == table["tree_id"].to_numpy()
    found = []
    for tree in trees:
        values_NO = np.full((len(tree.nodes), len(outputs)), np.nan)
        for row in rows.get(tree.content_hash(), ()):
            if own_N[row] and tree.parents[node_N[row]] == parent_N[row]:  # not a candidate offered elsewhere
                values_NO[node_N[row]] = log_odds_NO[row]
        found.append(TreeScores(outputs, values_NO))
    return found

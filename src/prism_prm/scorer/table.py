"""The scores table: made from scored trees, written in resumable parts, shared out over processes, and read back."""

from __future__ import annotations

import hashlib
import shutil
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
from prism_prm.scorer.protocol import Scorer
from prism_prm.scorer.results import TreeScores, sigmoid
from prism_prm.tables import scores_schema

_JOB = b"prism_prm.job"
_TOO_LONG = b"prism_prm.too_long"


@dataclass(frozen=True, slots=True)
class Share:
    """Which of several processes this is, and how to wait for the others."""

    rank: int = 0
    world: int = 1
    wait: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """What a finished scores table holds."""

    trees: int
    steps: int
    too_long: int
    """Steps whose path exceeds the context: left out, or scored without their earliest steps."""
    resumed: int
    """Parts that an earlier run had finished."""


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
    prm: Scorer,
    trees: Sequence[StepTree],
    out: str | Path,
    *,
    chunk_trees: int = 64,
    share: Share | None = None,
    advance: Callable[[int], None] | None = None,
) -> ScoreReport:
    """Score trees into one table; work that was stopped goes on where it was.

    Trees are scored in chunks, each of which becomes a file beside `out` when it is done. Their folder's name holds a
    hash of all that decides scores, so that other input, another model or other settings never mix with it.
    Every process of a `Share` calls this with the same arguments; the first one joins the parts.
    """
    share = share or Share()
    out = Path(out)
    identity = prm.identity()
    job = _job(identity, trees, chunk_trees)
    parts = out.with_name(f".{out.name}.{job[:16]}.parts")
    chunks = [trees[start : start + chunk_trees] for start in range(0, len(trees), chunk_trees)]
    paths = [parts / f"{i:06d}.parquet" for i in range(len(chunks))]
    if not _is_done(out, job):
        resumed = [path.exists() for path in paths]
        share.wait()  # or a fast process's new parts would look like an earlier run's to a slow one
        for i in range(share.rank, len(chunks), share.world):
            if not resumed[i]:
                _write_chunk(prm, chunks[i], paths[i], identity)
            if advance is not None:
                advance(len(chunks[i]))
        share.wait()
        if share.rank == 0:
            _join(out, paths, scores_schema(prm.outputs), job)
            shutil.rmtree(parts, ignore_errors=True)
    else:
        resumed = [True] * len(chunks)
    share.wait()
    file = pq.ParquetFile(out)
    too_long = int(file.schema_arrow.metadata[_TOO_LONG])
    return ScoreReport(len(trees), file.metadata.num_rows, too_long, sum(resumed))


def _job(identity: str, trees: Sequence[StepTree], chunk_trees: int) -> str:
    """A hash of what decides the table's content."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((identity, chunk_trees)).encode())
    for tree in trees:
        digest.update(repr((tree.tree_id, tree.name, tree.content_hash())).encode())
    return digest.hexdigest()


def _is_done(out: Path, job: str) -> bool:
    if not out.exists():
        return False
    try:
        metadata = pq.read_schema(out).metadata or {}
    except pa.ArrowInvalid:
        return False
    return bool(metadata.get(_JOB) == job.encode())


def _write_chunk(prm: Scorer, trees: Sequence[StepTree], path: Path, identity: str) -> None:
    scores = prm.score_trees(trees)
    table = table_of_trees(trees, scores, prm.outputs, identity)
    too_long = sum(len(found.too_long) for found in scores)
    with whole_file(path) as aside:
        pq.write_table(table.replace_schema_metadata({_TOO_LONG: str(too_long).encode()}), aside)


def _join(out: Path, paths: Sequence[Path], schema: pa.Schema, job: str) -> None:
    too_long = sum(int(pq.read_schema(path).metadata[_TOO_LONG]) for path in paths)
    schema = schema.with_metadata({_JOB: job.encode(), _TOO_LONG: str(too_long).encode()})
    with whole_file(out) as aside, pq.ParquetWriter(aside, schema) as writer:
        for path in paths:
            writer.write_table(pq.read_table(path).cast(schema))

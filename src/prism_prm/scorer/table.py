"""The scores table, one row per scored step: written from the score store, and read back for other trees and pools."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.chosen import CardValues, card_values
from prism_prm.data import Reader, ReadOptions
from prism_prm.data.inputs import TREE_TABLE, as_places
from prism_prm.errors import ConfigError, DataError
from prism_prm.files import whole_file
from prism_prm.foreign import fitted, reading_parquet
from prism_prm.pools import holds_pool, read_pool
from prism_prm.protocol import Scorer, TreeScores, notes_of, sigmoid
from prism_prm.records import StepTree
from prism_prm.resume import KEY, is_made_for
from prism_prm.scorer.load import open_prm
from prism_prm.scorer.prm import PRM
from prism_prm.scorer.store import PORTION, Request, ScoreStore, Share, store_for
from prism_prm.scorer.whole_trees import memory_estimate
from prism_prm.tables import iter_trees, scores_schema
from prism_prm.types import Bars, Say, no_bars, silent

_TOO_LONG = b"prism_prm.too_long"
_UNJUDGED = b"prism_prm.unjudged"
_STOPS = b"prism_prm.stops_at_error"
_CARD = b"prism_prm.card"


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """What a finished scores table holds."""

    trees: int
    steps: int
    too_long: int
    """Steps whose path exceeds the context: left out, or scored without their earliest steps."""
    resumed: int
    """Portions that an earlier run had scored."""
    unjudged: int = 0
    """Steps on which a critic gave no verdict; left out."""


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
    if not Path(path).exists():
        raise DataError(f"{path}: no such scores table; `prism score` writes one", reason="no-such-file")
    with reading_parquet(path, "`prism score` writes such a table"):
        table = pq.read_table(path)
        missing = sorted(set(scores_schema(()).names) - set(table.column_names))
        if missing:
            raise DataError(f"{path}: not a scores table; it lacks the columns {missing}", reason="wrong-format")
        kind = table.schema.field(table.schema.names.index("log_odds")).type
        if not pa.types.is_struct(kind) or not kind.num_fields:
            raise DataError(f"{path}: the column 'log_odds' holds {kind}, expected named log-odds", reason="wrong-type")
        return fitted(path, table, scores_schema([field.name for field in kind]))


def card_of_scores(path: str | Path) -> CardValues | None:
    """What the card of the PRM that made a scores table said then; None where the table does not know."""
    said = (pq.read_metadata(path).metadata or {}).get(_CARD)
    try:
        return None if said is None else msgspec.json.decode(said, type=CardValues)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: its copy of the PRM's card cannot be read ({error}); score again") from error


def unjudged_in_scores(path: str | Path) -> tuple[int, bool]:
    """How many steps of a scores table a critic gave no verdict on, and whether it stops at the first wrong step."""
    about = pq.read_metadata(path).metadata or {}
    return int(about.get(_UNJUDGED, 0)), _STOPS in about


def write_scores(
    scorer: Scorer,
    trees: Sequence[StepTree],
    out: str | Path,
    *,
    store: str | Path | None = None,
    portion: int = PORTION,
    share: Share | None = None,
    advance: Callable[[int], None] = lambda _: None,
    say: Say = silent,
) -> ScoreReport:
    """Score trees into one table; work that was stopped is resumed.

    Scores are filed in the score store `store`, which other work may share; by default one beside `out`, which is
    removed when the table is written. Every process of a `Share` calls this with the same arguments.
    """
    share = share or Share()
    out = Path(out)
    requests = [Request.all_of(tree) for tree in trees]
    with store_for(out, scorer, store, share=share, portion=portion, say=say) as filed:
        job = _job(filed.identity, trees)
        is_done = is_made_for(out, job)
        share.wait()  # every process looks before any of them writes
        if is_done:
            say(f"Reusing all scores: {out} is complete")
            advance(len(trees))
            found = -(-len(trees) // portion)
        else:
            found = filed.fill(requests, share=share, advance=advance).found
            if share.rank == 0:
                _write(out, filed, requests, job)
    about = pq.read_metadata(out)
    for note in notes_of(scorer):
        say(note)
    too_long, unjudged = (int(about.metadata.get(name, 0)) for name in (_TOO_LONG, _UNJUDGED))
    return ScoreReport(len(trees), about.num_rows, too_long, found, unjudged)


def score_files(
    prm: Scorer | str | Path,
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    format: str = "auto",
    options: ReadOptions | None = None,
    store: str | Path | None = None,
    portion: int = PORTION,
    share: Share | None = None,
    loading: Mapping[str, Any] | None = None,
    bars: Bars = no_bars,
    say: Say = silent,
) -> ScoreReport:
    """Score every step of solutions or trees in files, and write one table. Repeat a stopped call to resume it.

    Args:
        prm: a PRM, or its folder or hub id.
        inputs: files, folders or hub datasets: a problem and its steps, or trees.
        out: the table to write (Parquet).
        format: the format of the input; by default its records decide.
        options: how records are read, and what is done with bad ones.
        store: a folder of scores to reuse and extend; default: a temporary one beside `out`.
        portion: how many trees are scored and saved together; a stopped call loses at most this many.
        share: this process's share of the work; all processes call this with the same arguments.
        loading: options of `load_prm`, for a PRM given as a folder or hub id.
        bars: makes progress bars; by default none are shown.
        say: called with each status message, e.g. `print`.

    Example:
        >>> report = score_files("my-prm", "solutions.jsonl", "scores.parquet")
        >>> report.trees, report.steps
        (2, 4)
    """
    share = share or Share()
    if share.rank:
        bars, say = no_bars, silent
    trees = trees_to_score(as_places(inputs), format, options, say)
    scorer = open_prm(prm, loading)
    if isinstance(scorer, PRM) and (size := memory_estimate(scorer)) > 10**9:
        say(f"needs about {size / 1e9:.1f} GB of memory per process (an estimate)")
    with bars("scoring", len(trees), unit="trees") as advance:
        report = write_scores(scorer, trees, out, store=store, portion=portion, share=share, advance=advance, say=say)
    if report.unjudged:
        say(f"{report.unjudged:,} steps were not judged by the critic and were left out")
    if report.too_long:
        all_scored = report.steps == sum(len(tree.nodes) for tree in trees)
        done = "scored without their earliest steps" if all_scored else "left out"
        say(f"{report.too_long} steps exceeded the context of {scorer.context} tokens and were {done}")
    return report


def trees_to_score(
    inputs: Sequence[str | Path], format: str = "auto", options: ReadOptions | None = None, say: Say = silent
) -> list[StepTree]:
    """All trees; a table of ours keeps the ids it was written with."""
    if len(inputs) == 1 and ((path := Path(inputs[0])).name == TREE_TABLE or (path / TREE_TABLE).is_file()):
        trees = list(iter_trees(path))
    elif format == "pool" or (format == "auto" and holds_pool(inputs)):
        trees = read_pool(inputs).trees()
    else:
        reader = Reader(inputs, format=format, options=options or ReadOptions(), unlabelled=True)
        trees = [draft.tree(i) for i, (_, draft) in enumerate(reader.drafts())]
        if left_out := reader.report.dropped + reader.report.bad:
            say(f"left out: {', '.join(f'{n} {reason}' for reason, n in left_out.items())}")
    if not trees:
        raise ConfigError(f"{', '.join(map(str, inputs))}: there is nothing to score")
    return trees


def _job(identity: str, trees: Sequence[StepTree]) -> str:
    """A hash of what decides the table's content."""
    digest = hashlib.blake2b(identity.encode(), digest_size=16)
    for tree in trees:
        digest.update(repr((tree.tree_id, tree.name, tree.content_hash())).encode())
    return digest.hexdigest()


def _write(out: Path, store: ScoreStore, requests: Sequence[Request], job: str) -> None:
    outputs = store.scorer.outputs
    too_long = unjudged = 0
    with whole_file(out) as aside, pq.ParquetWriter(aside, scores_schema(outputs)) as writer:
        for start in range(0, len(requests), store.portion):
            some = requests[start : start + store.portion]
            scores = list(store.read(some))
            writer.write_table(table_of_trees([request.tree for request in some], scores, outputs, store.identity))
            too_long += sum(len(found.too_long) for found in scores)
            unjudged += sum(len(found.unjudged) for found in scores)
        card = card_values(store.scorer)
        about: dict[str | bytes, str | bytes] = {KEY: job, _TOO_LONG: str(too_long)}
        if unjudged:
            about[_UNJUDGED] = str(unjudged)
        if not getattr(store.scorer, "judges_every_step", True):
            about[_STOPS] = "1"
        if card is not None:
            about[_CARD] = msgspec.json.encode(card)
        writer.add_key_value_metadata(about)


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
            node = node_N[row]
            is_there = own_N[row] and 0 <= node < len(tree.nodes)
            if is_there and tree.parents[node] == parent_N[row]:  # not a candidate offered elsewhere
                values_NO[node] = log_odds_NO[row]
        found.append(TreeScores(outputs, values_NO))
    return found

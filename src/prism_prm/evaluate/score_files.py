"""The scores table, one row per scored step: written from the score store, and read back for other trees and pools."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.aggregate import CardValues, card_values
from prism_prm.backends.open_scorer import PrmOptions, opened_prm
from prism_prm.console import Advance, ignore, progress, say
from prism_prm.data.draft import ReadOptions
from prism_prm.data.inputs import TREE_TABLE, as_places, find_sources, keep_inputs, total_size
from prism_prm.data.pools import holds_pool, iter_pool, trees_of
from prism_prm.data.reader import Reader, ReadReport
from prism_prm.data.tables import iter_trees, scores_schema
from prism_prm.errors import ConfigError, DataError
from prism_prm.file_types import fitted, reading_parquet
from prism_prm.files import whole_file
from prism_prm.job import KEY, is_made_for, locked_file
from prism_prm.scorer import Scorer, TreeScores, sigmoid
from prism_prm.store import CHUNK, Request, store_for
from prism_prm.tree import StepTree

_TOO_LONG = b"prism_prm.too_long"
_UNJUDGED = b"prism_prm.unjudged"
_STOPS = b"prism_prm.stops_at_error"
_CARD = b"prism_prm.card"
_ROWS = 2**16
"""Rows that are written together: each such group costs some memory until the table is whole."""
_INPUTS = b"prism_prm.inputs"


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
    given: int = 0
    """Steps in the input."""


def table_of_trees(
    trees: Sequence[StepTree], scores: Sequence[TreeScores], outputs: Sequence[str], model_hash: str
) -> pa.Table:
    """Rows for the scored nodes of trees, each under its own parent."""
    schema = scores_schema(outputs)
    rows = [(tree, node) for tree, found in zip(trees, scores, strict=True) for node in found.scored]
    log_odds_NO = np.concatenate([*(found.log_odds_NO[found.scored] for found in scores), np.empty((0, len(outputs)))])
    assert np.isfinite(log_odds_NO).all(), "only real scores are written"
    values = [pa.array(np.ascontiguousarray(log_odds_NO[:, i])) for i in range(len(outputs))]
    hashes = {tree.tree_id: tree.content_hash() for tree in trees}
    ids = pa.array([tree.tree_id for tree, _ in rows], pa.int32())
    columns = {
        "tree_id": ids,
        "name": pa.array([tree.name for tree, _ in rows], pa.string()),
        "parent": pa.array([tree.parents[node] for tree, node in rows], pa.int32()),
        "node_tree": ids,
        "node_id": pa.array([node for _, node in rows], pa.int32()),
        "log_odds": pa.StructArray.from_arrays(values, fields=list(schema.field("log_odds").type)),
        "probability": pa.array(sigmoid(log_odds_NO[:, 0])),
        "content_hash": pa.array([hashes[tree.tree_id] for tree, _ in rows], pa.string()),
        "model_hash": pa.array([model_hash] * len(rows), pa.string()).dictionary_encode(),
    }
    return pa.table(columns, schema)


def read_scores(path: str | Path) -> pa.Table:
    """A scores table of one model, whatever its family's outputs."""
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
        table = fitted(path, table, scores_schema([field.name for field in kind]))
        models = set(table["model_hash"].to_pylist())
        if len(models) > 1:
            raise DataError(f"{path}: scores of {len(models)} models in one table; give a table of one")
        return table


def card_of_scores(path: str | Path) -> CardValues | None:
    """What the card of the PRM that made a scores table said then; None where the table does not know."""
    said = (pq.read_metadata(path).metadata or {}).get(_CARD)
    try:
        return None if said is None else msgspec.json.decode(said, type=CardValues)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: its copy of the PRM's card cannot be read ({error}); score again") from error


def inputs_of_scores(path: str | Path) -> list[str]:
    """Where the trees of a scores table were read, as the user named it; empty where the table does not know."""
    found = (pq.read_metadata(path).metadata or {}).get(_INPUTS)
    return [] if found is None else [str(one) for one in json.loads(found)]


def unjudged_in_scores(path: str | Path) -> tuple[int, bool]:
    """How many steps of a scores table a critic gave no verdict on, and whether it stops at the first wrong step."""
    about = pq.read_metadata(path).metadata or {}
    return int(about.get(_UNJUDGED, 0)), _STOPS in about


def write_scores(
    scorer: Scorer,
    trees: Iterable[StepTree],
    out: str | Path,
    *,
    store: str | Path | None = None,
    chunk: int = CHUNK,
    inputs: Sequence[str | Path] = (),
    advance: Advance = ignore,
) -> ScoreReport:
    """Score trees into one table, a chunk at a time; work that was stopped is resumed.

    Scores are filed in the score store `store`, which other work may share; by default one beside `out`, which is
    removed when the table is written. `trees` are not held; they are read once, or twice where `out` exists. `inputs`
    says where they were read, for those who look for their texts.
    """
    assert iter(trees) is not trees, "trees may be read twice, so they are not a generator"
    out = Path(out)
    num_trees = num_steps = 0
    digest = hashlib.blake2b()

    def requests() -> Iterator[Request]:
        """All steps of the trees; what decides the table's content is taken in as it streams by."""
        nonlocal num_trees, num_steps, digest
        num_trees = num_steps = 0
        digest = hashlib.blake2b(filed.identity.encode(), digest_size=16)
        for tree in trees:
            digest.update(repr((tree.tree_id, tree.name, tree.content_hash())).encode())
            num_trees += 1
            num_steps += len(tree.nodes)
            yield Request.all_of(tree)

    with store_for(out, scorer, store, chunk=chunk) as filed:
        if out.exists():
            deque(requests(), maxlen=0)
        if is_made_for(out, digest.hexdigest()):
            say(f"Reusing all scores: {out} is complete")
            _update_card(out, card_values(scorer))
            advance(num_trees)
            found = -(-num_trees // chunk)
        else:
            rows: list[pa.Table] = []
            counts = {_TOO_LONG: 0, _UNJUDGED: 0}
            with whole_file(out) as aside, pq.ParquetWriter(aside, scores_schema(scorer.outputs)) as writer:

                def write() -> None:
                    if rows:
                        writer.write_table(pa.concat_tables(rows))
                        rows.clear()

                def add(some: Sequence[Request], scores: Sequence[TreeScores]) -> None:
                    trees = [request.tree for request in some]
                    rows.append(table_of_trees(trees, scores, scorer.outputs, filed.identity))
                    counts[_TOO_LONG] += sum(len(one.too_long) for one in scores)
                    counts[_UNJUDGED] += sum(len(one.unjudged) for one in scores)
                    if sum(table.num_rows for table in rows) >= _ROWS:
                        write()

                found = filed.fill(requests(), advance=advance, each=add).found
                write()
                about: dict[str | bytes, str | bytes] = {KEY: digest.hexdigest(), _TOO_LONG: str(counts[_TOO_LONG])}
                if counts[_UNJUDGED]:
                    about[_UNJUDGED] = str(counts[_UNJUDGED])
                if not scorer.judges_every_step:
                    about[_STOPS] = "1"
                if inputs:
                    about[_INPUTS] = json.dumps(list(map(str, inputs)))  # which may be no UTF-8
                if (card := card_values(scorer)) is not None:
                    about[_CARD] = msgspec.json.encode(card)
                writer.add_key_value_metadata(about)
    about_table = pq.read_metadata(out)
    for note in scorer.notes():
        say(note)
    too_long, unjudged = (int(about_table.metadata.get(name, 0)) for name in (_TOO_LONG, _UNJUDGED))
    return ScoreReport(num_trees, about_table.num_rows, too_long, found, unjudged, num_steps)


class TreesToScore:
    """The trees of some inputs, read anew whenever they are iterated. A table of ours keeps its ids."""

    def __init__(self, inputs: Sequence[str | Path], format: str = "auto", options: ReadOptions | None = None) -> None:
        self.inputs, self.format, self.options = inputs, format, options or ReadOptions()
        self.bytes_read = 0
        self._report: ReadReport | None = None

    @property
    def left_out(self) -> Counter[str]:
        """Records that were not read so far, by reason."""
        return self._report.dropped + self._report.bad if self._report else Counter()

    def __iter__(self) -> Iterator[StepTree]:
        self.bytes_read = 0
        found = False
        for tree in self._read():
            found = True
            yield tree
        if not found:
            raise ConfigError(f"{', '.join(map(str, self.inputs))}: there is nothing to score")

    def _read(self) -> Iterator[StepTree]:
        path = Path(self.inputs[0])
        if len(self.inputs) == 1 and (path.name == TREE_TABLE or (path / TREE_TABLE).is_file()):
            yield from iter_trees(path, advance=self._advance)
        elif self.format == "pool" or (self.format == "auto" and holds_pool(self.inputs)):
            yield from trees_of(iter_pool(self.inputs, self._advance))
        else:
            reader = Reader(self.inputs, format=self.format, options=self.options, unlabelled=True)
            self._report = reader.report
            for number, (_, draft) in enumerate(reader.drafts()):
                self.bytes_read = reader.report.bytes
                yield draft.tree(number)
            self.bytes_read = reader.report.bytes

    def _advance(self, size: int, _more: str = "", /) -> None:
        self.bytes_read += size


def score_files(
    prm: Scorer | str | Path,
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    format: str = "auto",
    options: ReadOptions | None = None,
    store: str | Path | None = None,
    chunk: int = CHUNK,
    prm_options: PrmOptions | None = None,
) -> ScoreReport:
    """Score every step of solutions or trees in files, and write one table. Repeat a stopped call to resume it.

    Args:
        prm: a PRM, or its folder or hub id.
        inputs: files, folders or hub datasets: a problem and its steps, or trees.
        out: the table to write (Parquet).
        format: the format of the input; by default its records decide.
        options: how records are read, and what is done with bad ones.
        store: a folder of scores to reuse and extend; default: a temporary one beside `out`.
        chunk: how many trees are scored and saved together; a stopped call loses at most this many.
        prm_options: how PRMs given as folders or hub ids are loaded, how critics are asked, and a Ray cluster.

    Example:
        >>> report = score_files("my-prm", "solutions.jsonl", "scores.parquet")
        >>> report.trees, report.steps
        (2, 4)
    """
    keep_inputs(as_places(inputs), [out])
    trees = TreesToScore(as_places(inputs), format, options)
    next(iter(trees))  # refuses inputs without a tree, or whose first cannot be read, before a model is loaded
    bytes_shown = trees_done = 0
    with locked_file(out), opened_prm(prm, prm_options) as scorer:
        if scorer.workers is None:  # the driver of a cluster does without the heavy imports
            from prism_prm.models.prm import PRM
            from prism_prm.models.whole_trees import memory_estimate

            if isinstance(scorer, PRM) and (size := memory_estimate(scorer)) > 10**9:
                say(f"needs about {size / 1e9:.1f} GB of memory (an estimate)")
        with progress("scoring", total_size(find_sources(trees.inputs)), unit="bytes") as bar:

            def advance(done: int, rates: str = "", /) -> None:
                nonlocal bytes_shown, trees_done
                trees_done += done
                new, bytes_shown = trees.bytes_read - bytes_shown, trees.bytes_read
                bar(new, f"{trees_done:,} trees" + (f", {rates}" if rates else ""))

            report = write_scores(scorer, trees, out, store=store, chunk=chunk, inputs=trees.inputs, advance=advance)
    if trees.left_out:
        say(f"left out: {', '.join(f'{n} {reason}' for reason, n in trees.left_out.items())}")
    if report.unjudged:
        say(f"{report.unjudged:,} steps were not judged by the critic and were left out")
    if report.too_long:
        done = "scored without their earliest steps" if report.steps == report.given else "left out"
        say(f"{report.too_long} steps exceeded the context of {scorer.context} tokens and were {done}")
    return report


def _update_card(path: Path, card: CardValues | None) -> None:
    """Give a table the card that the PRM has now; its scores do not depend on it."""
    if card_of_scores(path) == card:
        return
    with pq.ParquetFile(path) as old, whole_file(path) as aside:
        about = {key: value for key, value in old.metadata.metadata.items() if key not in (_CARD, b"ARROW:schema")}
        if card is not None:
            about[_CARD] = msgspec.json.encode(card)
        with pq.ParquetWriter(aside, old.schema_arrow.remove_metadata()) as new:
            for group in range(old.num_row_groups):
                new.write_table(old.read_row_group(group))
            new.add_key_value_metadata(about)


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

"""The scores table, with one row per scored step: write it through the score store, and match it to trees and items."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.aggregate import CardValues, calibration_of, card_values
from prism_prm.arrays import Floats
from prism_prm.backends.open_scorer import PrmOptions, named_segmenter, opened_prm
from prism_prm.calibration import right_probability
from prism_prm.console import Advance, ignore, progress, say
from prism_prm.data.formats import ReadOptions
from prism_prm.data.inputs import (
    TREE_TABLE,
    as_places,
    find_sources,
    keep_inputs,
    read_records,
    total_size,
)
from prism_prm.data.pools import holds_pool, iter_pool, trees_of
from prism_prm.data.reader import Reader, ReadReport
from prism_prm.data.tables import iter_trees, scores_schema
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.benchmarks import Item, ItemSet, find_benchmark
from prism_prm.evaluate.measure import NOT_JUDGED, Steps
from prism_prm.file_types import fitted, reading_parquet
from prism_prm.files import atomic_file
from prism_prm.job import KEY, is_made_for, locked_file
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.segments import SCORED
from prism_prm.stats import number_clusters
from prism_prm.store import CHUNK, Request, store_for
from prism_prm.tree import StepTree

_TOO_LONG, _UNJUDGED, _STOPS = b"prism_prm.too_long", b"prism_prm.unjudged", b"prism_prm.stops_at_error"
_CARD, _INPUTS = b"prism_prm.card", b"prism_prm.inputs"
_ROWS = 2**16
"""Rows per row group. Each row group costs some memory until the table is complete."""
SHOWN = 3
"""How many names a message lists."""


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """Counts of a finished scores table."""

    trees: int
    steps: int
    too_long: int
    """Steps whose path exceeds the context: skipped, or scored without their earliest steps."""
    resumed: int
    """Chunks that an earlier run scored."""
    unjudged: int = 0
    """Steps without a critic's verdict, or thinking that the PRM does not score; they are skipped."""
    given: int = 0
    """Steps in the input."""


def table_of_trees(
    trees: Sequence[StepTree], scores: Sequence[TreeScores], outputs: Sequence[str], model_hash: str
) -> pa.Table:
    """A row for each scored node of the trees."""
    schema = scores_schema(outputs)
    rows = [(tree, node) for tree, own in zip(trees, scores, strict=True) for node in own.scored]
    log_odds_NO = np.concatenate([*(own.log_odds_NO[own.scored] for own in scores), np.empty((0, len(outputs)))])
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
        "probability": pa.array(np.concatenate([*(own.probability[own.scored] for own in scores), np.empty(0)])),
        "content_hash": pa.array([hashes[tree.tree_id] for tree, _ in rows], pa.string()),
        "model_hash": pa.array([model_hash] * len(rows), pa.string()).dictionary_encode(),
    }
    return pa.table(columns, schema)


def read_scores(path: str | Path) -> pa.Table:
    """Read a scores table of one model, with any outputs."""
    if not Path(path).exists():
        raise DataError(f"{path}: no such scores table; `prism score` writes one", reason="no-such-file")
    with reading_parquet(path, "`prism score` writes such a table"):
        table = pq.read_table(path)
        missing = sorted(set(scores_schema(()).names) - set(table.column_names))
        if missing:
            raise DataError(f"{path}: not a scores table; the columns {missing} are missing", reason="wrong-format")
        kind = table.schema.field(table.schema.names.index("log_odds")).type
        if not pa.types.is_struct(kind) or not kind.num_fields:
            raise DataError(f"{path}: the column 'log_odds' holds {kind}, expected named log-odds", reason="wrong-type")
        table = fitted(path, table, scores_schema([field.name for field in kind]))
        models = set(table["model_hash"].to_pylist())
        if len(models) > 1:
            raise DataError(f"{path}: has scores of {len(models)} models; name a table of one model")
        return table


class ScoredProblem(msgspec.Struct):
    """One line of a scores file: a problem of a pool."""

    name: str | int
    """The name of the problem in the pool."""
    scores: list[list[float] | None]
    """P(right) of every step of every solution; null for a solution without a score."""


def read_scored_problems(path: str | Path) -> dict[str, tuple[str, list[list[float] | None]]]:
    """Read a scores file in JSON lines: by the name of a problem, its place in the file and its step scores."""
    found: dict[str, tuple[str, list[list[float] | None]]] = {}

    def read(problem: ScoredProblem) -> ScoredProblem:
        if not str(problem.name).strip():
            raise DataError("the `name` is empty; give the name of a problem of the pool")
        if str(problem.name) in found:
            first = found[str(problem.name)][0]
            raise DataError(f"the name {problem.name!r} is already at {first}; give each problem once")
        return problem

    for row, problem in read_records(path, read, ScoredProblem):
        found[str(problem.name)] = row.where, problem.scores
    return found


def card_of_scores(path: str | Path) -> CardValues | None:
    """The values of the PRM's card when the table was written; None if the table has none."""
    card = (pq.read_metadata(path).metadata or {}).get(_CARD)
    try:
        return None if card is None else msgspec.json.decode(card, type=CardValues)
    except (msgspec.DecodeError, UnicodeDecodeError, ConfigError) as error:
        raise DataError(f"{path}: its copy of the PRM's card cannot be read ({error}); score again") from error


def inputs_of_scores(path: str | Path) -> list[str]:
    """The inputs of a scores table, as the user named them; empty if the table does not record them."""
    inputs = (pq.read_metadata(path).metadata or {}).get(_INPUTS)
    return [] if inputs is None else [str(place) for place in json.loads(inputs)]


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
    """Score trees chunk by chunk, and write one table. A stopped call resumes.

    Scores go through the score store `store`, which other runs may share; by default one beside `out`, which is removed
    when the table is written. `trees` are streamed: they are read once, or twice if `out` exists. `inputs` are recorded
    in the table, so that the texts can be found later.
    """
    assert iter(trees) is not trees, "trees may be read twice, so they cannot be a generator"
    out = Path(out)
    num_trees = num_steps = 0
    digest = hashlib.blake2b()
    about: dict[str | bytes, str | bytes] = {}  # the log-odds do not depend on it
    if inputs:
        about[_INPUTS] = json.dumps(list(map(str, inputs))).encode()  # escaped, since a path may not be UTF-8
    if (card := card_values(scorer)) is not None:
        about[_CARD] = msgspec.json.encode(card)

    def requests() -> Iterator[Request]:
        """Request all steps of the trees, and hash and count them on the way."""
        nonlocal num_trees, num_steps, digest
        num_trees = num_steps = 0
        digest = hashlib.blake2b(score_store.identity.encode(), digest_size=16)
        for tree in trees:
            digest.update(repr((tree.tree_id, tree.name, tree.content_hash())).encode())
            num_trees += 1
            num_steps += len(tree.nodes)
            yield Request.all_of(tree)

    with store_for(out, scorer, store, chunk=chunk) as score_store:
        if out.exists():
            deque(requests(), maxlen=0)
        if is_made_for(out, digest.hexdigest()):
            say(f"Reusing all scores: {out} is complete")
            known = pq.read_metadata(out).metadata
            if not inputs and _INPUTS in known:
                about[_INPUTS] = known[_INPUTS]
            if {name: known[name] for name in (_CARD, _INPUTS) if name in known} != about:
                with pq.ParquetFile(out) as old, atomic_file(out) as partial:
                    kept = {k: v for k, v in known.items() if k not in (_CARD, _INPUTS, b"ARROW:schema")}
                    calibration, column = calibration_of(scorer), scores_schema(()).names.index("probability")
                    with pq.ParquetWriter(partial, old.schema_arrow.remove_metadata()) as new:
                        for group in range(old.num_row_groups):
                            rows_now = old.read_row_group(group)
                            log_odds_N = rows_now["log_odds"].combine_chunks().field(0).to_numpy()
                            probability = pa.array(right_probability(log_odds_N, calibration))
                            new.write_table(rows_now.set_column(column, rows_now.schema.field(column), probability))
                        new.add_key_value_metadata(kept | about)
            advance(num_trees)
            resumed = -(-num_trees // chunk)
        else:
            rows: list[pa.Table] = []
            counts = {_TOO_LONG: 0, _UNJUDGED: 0}
            with atomic_file(out) as partial, pq.ParquetWriter(partial, scores_schema(scorer.outputs)) as writer:

                def write() -> None:
                    if rows:
                        writer.write_table(pa.concat_tables(rows))
                        rows.clear()

                def add(chunk: Sequence[Request], scores: Sequence[TreeScores]) -> None:
                    trees = [request.tree for request in chunk]
                    rows.append(table_of_trees(trees, scores, scorer.outputs, score_store.identity))
                    counts[_TOO_LONG] += sum(len(own.too_long) for own in scores)
                    counts[_UNJUDGED] += sum(len(own.unjudged) for own in scores)
                    if sum(table.num_rows for table in rows) >= _ROWS:
                        write()

                resumed = score_store.fill(requests(), advance=advance, each=add).found
                write()
                metadata: dict[str | bytes, str | bytes] = {KEY: digest.hexdigest(), _TOO_LONG: str(counts[_TOO_LONG])}
                if counts[_UNJUDGED]:
                    metadata[_UNJUDGED] = str(counts[_UNJUDGED])
                if not scorer.judges_every_step:
                    metadata[_STOPS] = "1"
                writer.add_key_value_metadata(metadata | about)
    written = pq.read_metadata(out)
    for note in scorer.notes():
        say(note)
    too_long, unjudged = (int(written.metadata.get(name, 0)) for name in (_TOO_LONG, _UNJUDGED))
    return ScoreReport(num_trees, written.num_rows, too_long, resumed, unjudged, num_steps)


def scores_of_trees(table: pa.Table, trees: Sequence[StepTree], card: CardValues | None = None) -> list[TreeScores]:
    """Look up the scores of trees in a table by content, calibrated by the card; NaN if the table has none."""
    outputs = tuple(field.name for field in table.schema.field("log_odds").type)
    log_odds = table["log_odds"].combine_chunks()
    log_odds_NO = np.stack([log_odds.field(name).to_numpy(zero_copy_only=False) for name in outputs], axis=1)
    rows: dict[str, list[int]] = {}
    for row, content in enumerate(table["content_hash"].to_pylist()):
        rows.setdefault(content, []).append(row)
    node_N, parent_N = (table[name].to_numpy() for name in ("node_id", "parent"))
    own_N = table["node_tree"].to_numpy() == table["tree_id"].to_numpy()
    scores = []
    for tree in trees:
        values_NO = np.full((len(tree.nodes), len(outputs)), np.nan)
        for row in rows.get(tree.content_hash(), ()):
            node = node_N[row]
            is_there = own_N[row] and 0 <= node < len(tree.nodes)
            if is_there and tree.parents[node] == parent_N[row]:  # not a candidate offered elsewhere
                values_NO[node] = log_odds_NO[row]
        scores.append(TreeScores(outputs, values_NO, calibration=None if card is None else card.calibration))
    return scores


class TreesToScore:
    """The trees of some inputs, which are read again on each iteration. Trees from our own tables keep their ids."""

    def __init__(self, inputs: Sequence[str | Path], format: str = "auto", options: ReadOptions | None = None) -> None:
        self.inputs, self.format, self.options = inputs, format, options or ReadOptions()
        self.bytes_read = 0
        self._report: ReadReport | None = None

    @property
    def left_out(self) -> Counter[str]:
        """The number of records skipped so far, by reason."""
        return self._report.dropped + self._report.bad if self._report else Counter()

    def __iter__(self) -> Iterator[StepTree]:
        self.bytes_read = 0
        is_empty = True
        for tree in self._read():
            is_empty = False
            yield tree
        if is_empty:
            raise ConfigError(f"{', '.join(map(str, self.inputs))}: there is nothing to score")

    def _read(self) -> Iterator[StepTree]:
        path = Path(self.inputs[0])
        if len(self.inputs) == 1 and (path.name == TREE_TABLE or (path / TREE_TABLE).is_file()):
            yield from iter_trees(path, split=self.options.split, advance=self._advance)
        elif self.format == "pool" or (self.format == "auto" and holds_pool(self.inputs)):
            yield from trees_of(iter_pool(self.inputs, self._advance, segmenter=self.options.segmenter))
        else:
            reader = Reader(self.inputs, format=self.format, options=self.options, unlabeled=True)
            self._report = reader.report
            for number, (_, draft) in enumerate(reader.drafts()):
                self.bytes_read = reader.report.bytes
                yield draft.tree(number)
            self.bytes_read = reader.report.bytes

    def _advance(self, size: int, _more: str = "", /) -> None:
        self.bytes_read += size


def with_segmenter(
    options: ReadOptions | None, prms: Iterable[Scorer | str | Path], prm_options: PrmOptions | None
) -> ReadOptions:
    """The options with the segmenter of the PRMs, unless they have one."""
    options = options or ReadOptions()
    return replace(options, segmenter=options.segmenter or named_segmenter(prms, prm_options or PrmOptions()))


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
        format: the format of the input; by default it is recognized by the fields of the records.
        options: how to read records, and what to do with bad ones.
        store: a folder of scores to reuse and extend; default: a temporary one beside `out`.
        chunk: how many trees are scored and saved together; a stopped call loses at most this many.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.

    Example:
        >>> report = score_files("my-prm", "solutions.jsonl", "scores.parquet")
        >>> report.trees, report.steps
        (2, 4)
    """
    keep_inputs(as_places(inputs), [out])
    trees = TreesToScore(as_places(inputs), format, with_segmenter(options, [prm], prm_options))
    next(iter(trees))  # raises on empty or unreadable inputs before a model is loaded
    bytes_shown = trees_done = 0
    with locked_file(out), opened_prm(prm, prm_options) as scorer:
        if scorer.workers is None:  # the driver of a cluster needs no torch
            from prism_prm.models.prm import PRM, memory_estimate

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
        card = card_values(scorer)
        is_context = card is not None and card.thinking != SCORED
        why = "are thinking, which this PRM does not score," if is_context else "were not judged by the critic"
        say(f"{report.unjudged:,} steps {why} and were skipped")
    if report.too_long:
        done = "scored without their earliest steps" if report.steps == report.given else "skipped"
        say(f"{report.too_long} steps exceeded the context of {scorer.context} tokens and were {done}")
    return report


# --- the scores of a benchmark's items: from a PRM, a scores table, or predictions


def judgment(label: float | None) -> int:
    """A label as 1 (right), 0 (wrong) or −1 (not judged)."""
    if label is None or label == 0.5:
        return NOT_JUDGED
    return int(label > 0.5)


def collect_steps(
    items: Sequence[Item],
    probability: Sequence[Floats],
    redundancy: Sequence[Floats] | None,
    *,
    hard: bool = False,
    with_gaps: bool = False,
) -> Steps:
    """Combine items and their scores, one array per item. Raises if a score is missing or not a probability.

    With `with_gaps`, scores may be NaN: steps that a critic did not judge.
    """
    for item, scores in [*zip(items, probability, strict=True), *zip(items, redundancy or (), strict=False)]:
        expected = len(item.tree.nodes)
        if len(scores) != expected:
            raise DataError(f"item {item.tree.name}: {len(scores)} scores for {expected} steps; give one per step")
        valid = (scores >= 0) & (scores <= 1) | (np.isnan(scores) & with_gaps)
        if not valid.all():
            step = int(np.argmin(valid))
            raise DataError(
                f"item {item.tree.name}, step {step + 1}: the score is {scores[step]}, not a probability in [0, 1]"
            )
    clusters, num_clusters = number_clusters(item.problem_key for item in items)
    groups, _ = number_clusters(item.group for item in items)
    lengths = [len(item.tree.nodes) for item in items]
    return Steps(
        items=tuple(item.tree.name for item in items),
        group_names=tuple(dict.fromkeys(item.group for item in items)),
        item_group=groups,
        item_cluster=clusters,
        num_clusters=num_clusters,
        item_contaminated=np.array([-1 if i.contaminated is None else i.contaminated for i in items], np.int8),
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
        parent=np.array([parent for item in items for parent in item.tree.parents], np.int64),
        label=np.array([judgment(node.label) for item in items for node in item.tree.nodes], np.int8),
        probability=np.concatenate(probability),
        redundancy=None if redundancy is None else np.concatenate(redundancy),
        hard=hard,
        item_content=tuple(item.tree.content_hash() for item in items),
    )


class Prediction(msgspec.Struct):
    """One line of a predictions file."""

    id: str
    scores: list[float] | None = None
    """P(right) of every step."""
    labels: list[bool] | None = None
    """Verdicts instead of scores."""
    redundancy: list[float] | None = None
    """P(redundant) of every step, for PRMBench's two redundancy classes."""


def steps_from_predictions(items: ItemSet, path: str | Path) -> tuple[Steps, dict[str, int]]:
    """Read predictions, and match them to items. Returns the judged steps, and counts of what did not match.

    Args:
        items: the benchmark, from `read_benchmark`.
        path: JSON lines {"id": "…", "scores": [0.9, …]} or {"id": "…", "labels": [true, …]}.

    Example:
        >>> items = read_benchmark("labeled", "labeled.jsonl")
        >>> steps, notes = steps_from_predictions(items, "predictions.jsonl")
        >>> len(steps.label), notes
        (12, {})
    """
    predictions: dict[str, Prediction] = {}

    def read(prediction: Prediction) -> Prediction:
        if (prediction.scores is None) == (prediction.labels is None):
            raise DataError(f"item {prediction.id}: give either scores or labels")
        if prediction.id in predictions:
            raise DataError(f"item {prediction.id} occurs twice; give each item once")
        return prediction

    for _, prediction in read_records(path, read, Prediction):
        predictions[prediction.id] = prediction
    # All items need a prediction; a group that is set aside may have none at all.
    matched, notes = list(items.items), {}
    for group, noun in items.aside.items():
        own = [item for item in matched if item.group == group]
        if own and all(item.tree.name not in predictions for item in own):
            notes[f"{noun} without predictions"] = len(own)
            matched = [item for item in matched if item.group != group]
    if without := [item.tree.name for item in matched if item.tree.name not in predictions]:
        raise DataError(
            f"{path}: no scores for {len(without):,} of {len(matched):,} items ({', '.join(without[:SHOWN])}, …). "
            "Score them too, or measure only a part of the benchmark by naming its files with --data",
            reason="missing-scores",
        )
    if extra := len(predictions.keys() - {item.tree.name for item in items.items}):
        notes["predictions for items that are not in the data"] = extra
    kinds = {predictions[item.tree.name].scores is None for item in matched}
    if len(kinds) == 2:
        raise DataError(f"{path}: some items have scores and some labels; give all items scores, or all labels")
    chosen = [predictions[item.tree.name] for item in matched]
    probability = [np.array(p.labels if p.scores is None else p.scores, np.float64) for p in chosen]
    redundancy = [np.array(p.redundancy, np.float64) for p in chosen if p.redundancy is not None]
    if redundancy and len(redundancy) != len(chosen):
        raise DataError(f"{path}: redundancy is given for {len(redundancy)} of {len(chosen)} items; give all or none")
    try:
        return collect_steps(matched, probability, redundancy or None, hard=kinds == {True}), notes
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def steps_from_table(items: ItemSet, path: str | Path) -> tuple[Steps, str, dict[str, int]]:
    """Match a scores table of the same data to items by content. Scores are the model's own, not calibrated.

    Returns the judged steps, the model's hash, and counts of what a critic left unjudged.
    """
    table = read_scores(path)
    metadata = pq.read_metadata(path).metadata or {}
    unjudged, stops_at_error = int(metadata.get(_UNJUDGED, 0)), _STOPS in metadata
    if not table.num_rows and not unjudged:
        raise DataError(f"{path}: has no scores; score this data with `prism score`", reason="missing-scores")
    all_scores = scores_of_trees(table, [item.tree for item in items.items])
    notes: dict[str, int] = {}
    chosen = list(zip(items.items, all_scores, strict=True))
    lacking = sum(len(scores.log_odds_NO) - len(scores.scored) for scores in all_scores)
    if lacking > unjudged or (table.num_rows and not any(scores.scored for scores in all_scores)):
        for item, scores in chosen:
            if not scores.scored:
                raise DataError(
                    f"{path}: no scores for item {item.tree.name}; they are of other data. Score this data with "
                    "`prism score`, or name the data that was scored",
                    reason="missing-scores",
                )
            if missing := sorted(set(range(len(item.tree.nodes))) - set(scores.scored)):
                raise DataError(
                    f"{path}: item {item.tree.name} has no score for step {missing[0] + 1} ({len(missing)} of "
                    f"{len(item.tree.nodes)} steps have none); score it again, with a longer context if steps were "
                    "skipped",
                    reason="missing-scores",
                )
    if unjudged:

        def is_judged(scores: TreeScores) -> bool:
            last = len(scores.scored) - 1
            if last + 1 == len(scores.log_odds_NO):
                return True
            # Such a critic stops at the first wrong step; no step before it may be missing.
            return stops_at_error and scores.scored == list(range(last + 1)) and bool(scores.log_odds_NO[last, 0] < 0)

        judged = [(item, scores) for item, scores in chosen if is_judged(scores)]
        counts_unanswered = find_benchmark(items.name).counts_unanswered
        if not judged and not counts_unanswered:
            raise DataError(
                f"{path}: the critic gave no verdict on any item; check its replies, or choose another format "
                "(-C format=…)",
                reason="missing-scores",
            )
        if without := len(chosen) - len(judged):
            matches_nothing = "items without a verdict of the critic, which match nothing"
            left_out = "items left out because the critic gave no verdict"
            notes[matches_nothing if counts_unanswered else left_out] = without
        if after := sum(len(scores.log_odds_NO) - len(scores.scored) for _, scores in judged):
            notes["steps after a wrong one, which the critic does not judge"] = after
        chosen = chosen if counts_unanswered else judged
    has_redundancy = "redundancy" in all_scores[0].outputs
    redundancy = [scores.named("redundancy") for _, scores in chosen] if has_redundancy else None
    kept, probability = [item for item, _ in chosen], [scores.probability for _, scores in chosen]
    steps = collect_steps(kept, probability, redundancy, with_gaps=bool(unjudged))
    model_hash = table["model_hash"][0].as_py() if table.num_rows else ""
    return steps, model_hash, notes


def score_benchmark(
    prm: Scorer,
    items: ItemSet,
    folder: str | Path,
    *,
    store: str | Path | None = None,
    advance: Advance = ignore,
) -> Path:
    """Write the scores table of a benchmark, unless it is complete. A stopped call resumes."""
    path = Path(folder) / f"{items.name}.scores.parquet"
    trees = [item.tree for item in items.items]
    if not prm.judges_every_step and find_benchmark(items.name).needs_every_step:
        raise ConfigError(
            f"{items.name} needs a verdict on every step, but this critic stops at the first wrong one; choose another "
            "format (-C format=…)"
        )
    report = write_scores(prm, trees, path, store=store, advance=advance)
    if unscored := sum(len(tree.nodes) for tree in trees) - report.steps - report.unjudged:
        raise DataError(
            f"{items.name}: {unscored:,} steps exceed the context of {prm.context:,} tokens and have no score; raise "
            "--set context=…, or score them in windows: --set on_too_long=window"
        )
    return path

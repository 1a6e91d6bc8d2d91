"""Tables of scored examples: the margins of pairs, and the scores of held-out steps.

Every candidate of a tree is scored in one packed pass; portions of trees are written as they are done, so a run that
was stopped scores only what is missing, and several processes share the portions. A table or portion is taken over only
if its key, a hash of all that decides its content, is that of the work at hand.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from prism_prm.errors import DataError
from prism_prm.files import whole_file
from prism_prm.scorer.results import sigmoid
from prism_prm.scorer.table import Share
from prism_prm.training.examples import Examples, offered

if TYPE_CHECKING:
    from prism_prm.scorer import Prm

Floats = NDArray[np.float64]

MARGINS = pa.schema(
    [
        pa.field("pair_id", pa.int64(), nullable=False),
        pa.field("chosen_log_odds", pa.float64(), nullable=False),
        pa.field("rejected_log_odds", pa.float64(), nullable=False),
        pa.field("margin", pa.float64(), nullable=False),
        pa.field("model_hash", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)
"""One row per pair; the margin is the difference of the two probabilities."""

STEPS = pa.schema(
    [
        pa.field("tree_id", pa.int64(), nullable=False),
        pa.field("node_id", pa.int64(), nullable=False),
        pa.field("label", pa.float64(), nullable=False),
        pa.field("log_odds", pa.float64(), nullable=False),
        pa.field("model_hash", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)
"""One row per labelled step."""

_KEY = b"prism_prm.key"
TREES_PER_PART = 64
TREES_PER_FILL = 16


def fill_cache(
    prm: Prm, examples: Examples, *, share: Share | None = None, advance: Callable[[int], None] = lambda _: None
) -> None:
    """Keep what the frozen layers make of the examples; `advance` hears of examples that are done."""
    share = share or Share()
    by_tree = examples.by_tree()
    for number, start in enumerate(range(0, len(by_tree), TREES_PER_FILL)):
        some = by_tree[start : start + TREES_PER_FILL]
        if number % share.world == share.rank:
            offers = [offered(examples, indices) for indices in some]
            prm.fill_cache([tree for tree, _ in offers], [_nodes(groups) for _, groups in offers])
        advance(sum(map(len, some)))
    share.wait()


def _nodes(groups: Sequence[tuple[int, ...]]) -> list[int]:
    return sorted({node for group in groups for node in group})


def score_examples(prm: Prm, examples: Examples) -> Floats:
    """log-odds_NK of the nodes of each example: chosen and rejected, or the labelled step alone."""
    by_tree = examples.by_tree()
    offers = [offered(examples, indices) for indices in by_tree]
    wanted = [_nodes(groups) for _, groups in offers]
    scores = prm.score_trees([tree for tree, _ in offers], wanted)
    log_odds_NK = np.empty((len(examples), 2 if examples.labels is None else 1))
    for indices, (_, groups), tree_scores in zip(by_tree, offers, scores, strict=True):
        log_odds_NK[indices] = tree_scores.log_odds_NO[np.array(groups), 0]
    return log_odds_NK


def write_scored(
    path: Path,
    prm: Prm,
    examples: Examples,
    *,
    share: Share | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> None:
    """Score all examples into `path`, row by row in their order; returns when the table is whole.

    `advance` hears of examples that are done.
    """
    share = share or Share()
    model_hash = prm.model_hash()

    def key_of(some: Examples) -> str:
        return f"{some.content_key()} {model_hash} {prm.context} {prm.on_too_long}"

    key = key_of(examples)
    if _has_key(path, key):
        advance(len(examples))
        return
    by_tree = examples.by_tree()
    portions = [
        np.sort(np.concatenate(by_tree[start : start + TREES_PER_PART]))
        for start in range(0, len(by_tree), TREES_PER_PART)
    ]
    folder = path.with_name(f"{path.stem}.parts")
    parts = [folder / f"{number:06d}.parquet" for number in range(len(portions))]
    for number, (part, indices) in enumerate(zip(parts, portions, strict=True)):
        if number % share.world == share.rank:
            some = examples.take(indices)
            if not _has_key(part, key_of(some)):
                _write(part, _table(some, score_examples(prm, some), model_hash), key_of(some))
        advance(len(indices))
    share.wait()
    if share.rank == 0:
        table = pa.concat_tables([pq.read_table(part) for part in parts]).unify_dictionaries()
        _write(path, table.take(np.argsort(np.concatenate(portions))), key)
        shutil.rmtree(folder)
    share.wait()


def _write(path: Path, table: pa.Table, key: str) -> None:
    with whole_file(path) as aside:
        pq.write_table(table.replace_schema_metadata({_KEY: key}), aside)


def _has_key(path: Path, key: str) -> bool:
    """Whether a table is there that was made of just this."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (FileNotFoundError, pa.ArrowInvalid):
        return False
    return bool(metadata.get(_KEY) == key.encode())


def _table(examples: Examples, log_odds_NK: Floats, model_hash: str) -> Any:
    hashes = pa.array([model_hash] * len(examples)).dictionary_encode()
    if examples.labels is not None:
        columns = [examples.tree, examples.chosen, examples.labels, log_odds_NK[:, 0]]
        return pa.Table.from_arrays([*map(pa.array, columns), hashes], schema=STEPS)
    chosen_N, rejected_N = log_odds_NK.T
    columns = [examples.ids, chosen_N, rejected_N, sigmoid(chosen_N) - sigmoid(rejected_N)]
    return pa.Table.from_arrays([*map(pa.array, columns), hashes], schema=MARGINS)


def read_column(path: Path, name: str, num_rows: int) -> Floats:
    """A column of a scored table, which must have a row per example."""
    values: Floats = pq.read_table(path, columns=[name])[name].to_numpy()
    if len(values) != num_rows:
        raise DataError(f"{path}: {len(values)} rows for {num_rows} examples; remove it to score them again.")
    return values


def histogram(margins: Floats, kinds: np.ndarray, width: float = 0.05) -> dict[str, Any]:
    """Pairs per kind in equal bins of the margin from −1 to 1."""
    edges = np.round(np.linspace(-1, 1, round(2 / width) + 1), 6)
    counts = {kind: np.histogram(margins[kinds == kind], edges)[0].tolist() for kind in sorted(set(kinds.tolist()))}
    return {"edges": edges.tolist(), "counts": counts}

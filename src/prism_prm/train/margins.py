"""Scores of pairs and labeled steps, through the score store, and the margins of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.arrays import Floats
from prism_prm.backends.open_scorer import PrmOptions, opened_prm
from prism_prm.calibration import sigmoid
from prism_prm.console import Advance, ignore, progress
from prism_prm.data.inputs import keep_inputs
from prism_prm.data.pair_examples import Examples, Split, as_one_tree
from prism_prm.files import atomic_file
from prism_prm.job import locked_file
from prism_prm.models.prm import PRM
from prism_prm.store import Request, ScoreStore, Share, store_for

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

TREES_PER_FILL = 16


def fill_cache(prm: PRM, examples: Examples, *, share: Share | None = None, advance: Advance = ignore) -> None:
    """Cache the frozen layers' activations of the examples; `advance` counts finished examples."""
    share = share or Share()
    by_tree = examples.by_tree()
    for number, start in enumerate(range(0, len(by_tree), TREES_PER_FILL)):
        chunk = by_tree[start : start + TREES_PER_FILL]
        if number % share.world == share.rank:
            trees = [as_one_tree(examples, indices) for indices in chunk]
            prm.fill_cache([tree for tree, _ in trees], [_nodes(groups) for _, groups in trees])
        advance(sum(map(len, chunk)))
    share.wait()


def _nodes(groups: Sequence[tuple[int, ...]]) -> list[int]:
    return sorted({node for group in groups for node in group})


def score_examples(
    store: ScoreStore,
    examples: Examples,
    *,
    share: Share | None = None,
    advance: Advance = ignore,
) -> Floats:
    """log-odds_NK of the nodes of each example: chosen and rejected, the labeled step, or the sum over a solution.

    All candidates of a tree are scored in one packed pass; `advance` counts finished trees.
    """
    by_tree = examples.by_tree()
    trees, groups = zip(*(as_one_tree(examples, indices) for indices in by_tree), strict=True) if by_tree else ((), ())
    requests = [Request(tree, _nodes(tree_groups)) for tree, tree_groups in zip(trees, groups, strict=True)]
    log_odds_NK = np.empty((len(examples), 2 if examples.labels is None else 1))
    scored = store.score(requests, share=share, advance=advance)
    for indices, nodes, scores in zip(by_tree, groups, scored, strict=True):
        if examples.in_lists:
            log_odds_NK[indices, 0] = [scores.log_odds_NO[list(solution), 0].sum() for solution in nodes]
        else:
            log_odds_NK[indices] = scores.log_odds_NO[np.array(nodes), 0]
    return log_odds_NK


def margins_of(log_odds_N2: Floats) -> Floats:
    """r⁺ − r⁻ of each pair, as a difference of probabilities."""
    chosen_N, rejected_N = log_odds_N2.T
    return np.asarray(sigmoid(chosen_N) - sigmoid(rejected_N))


@dataclass(frozen=True, slots=True)
class Margins:
    """The margins of pairs, in the order of their ids."""

    margin_N: Floats
    """r⁺ − r⁻: how far the PRM scores the right step above the wrong one."""
    kind_N: np.ndarray
    """The kind of each pair: annotated, lookahead, …"""


def measure_margins(
    prm: PRM | str | Path,
    pairs: str | Path,
    out: str | Path,
    *,
    split: str | None = None,
    store: str | Path | None = None,
    prm_options: PrmOptions | None = None,
) -> Margins:
    """Score all pairs with a PRM, and write the margin of each. Repeat a stopped call to resume it.

    Args:
        prm: a PRM, or its folder or hub id.
        pairs: a folder written by `build_pairs`.
        out: the table to write (Parquet), keyed by pair id and model hash.
        split: use only pairs of this split; default: all.
        store: a folder of scores to reuse and extend.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.

    Example:
        >>> summary = build_pairs("labeled.jsonl", "pairs")
        >>> found = measure_margins("my-prm", "pairs", "margins.parquet")
        >>> len(found.margin_N) == summary["pairs"]["total"]
        True
    """
    keep_inputs([pairs], [out])
    data = Split.read(Path(pairs), split)
    examples = data.examples("pairs")
    with (
        locked_file(out),
        opened_prm(prm, prm_options) as model,
        store_for(out, model, store) as scores,
        progress("margins", len(examples.by_tree()), unit="trees") as advance,
    ):
        log_odds_N2 = score_examples(scores, examples, advance=advance)
        write_margins(out, examples, log_odds_N2, model.model_hash())
    return Margins(margins_of(log_odds_N2), data.kinds)


def write_margins(path: str | Path, pairs: Examples, log_odds_N2: Floats, model_hash: str) -> None:
    """Write the margins of pairs as a Parquet table."""
    columns = [pairs.ids, *log_odds_N2.T, margins_of(log_odds_N2)]
    arrays = [pa.array(np.ascontiguousarray(column)) for column in columns]
    hashes = pa.array([model_hash] * len(pairs), pa.string()).dictionary_encode()
    with atomic_file(path) as partial:
        pq.write_table(pa.Table.from_arrays([*arrays, hashes], schema=MARGINS), partial)


def histogram(margins: Floats, kinds: np.ndarray, width: float = 0.05) -> dict[str, Any]:
    """The number of pairs of each kind in equal bins of the margin from −1 to 1."""
    edges = np.round(np.linspace(-1, 1, round(2 / width) + 1), 6)
    counts = {kind: np.histogram(margins[kinds == kind], edges)[0].tolist() for kind in sorted(set(kinds.tolist()))}
    return {"edges": edges.tolist(), "counts": counts}

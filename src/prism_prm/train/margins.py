"""Scores of pairs and labeled steps, through the score store, and the margins of pairs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.arrays import Floats
from prism_prm.backends.open_scorer import PrmOptions, opened_prm
from prism_prm.calibration import sigmoid
from prism_prm.console import Advance, ignore, progress, say
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

PASSES_PER_SHARD = 2
"""Full forward passes whose activations are written together; a killed run repeats at most these."""


def fill_cache(prm: PRM, *examples: Examples, share: Share | None = None) -> None:
    """Run the frozen layers on all examples and cache their activations; what is cached already is not run again."""
    assert prm.cache is not None, "a PRM is loaded with a cache or without"
    share = share or Share()
    work = [as_one_tree(some, indices) for some in examples for indices in some.by_tree()]
    if not work:
        return
    sizes_T = np.array([prm.count_tokens(tree) for tree, _ in work])
    chunk_T = np.cumsum(sizes_T) // (PASSES_PER_SHARD * prm.token_budget)
    left, tokens, seconds = int(sizes_T.sum()), 0, 0.0
    with progress("frozen layers", left, unit="tokens") as advance:
        for number, trees_C in enumerate(np.split(np.arange(len(work)), np.flatnonzero(np.diff(chunk_T)) + 1)):
            if number % share.world == share.rank:
                started = time.perf_counter()
                trees, groups = zip(*(work[i] for i in trees_C), strict=True)
                run = prm.fill_cache(trees, [_nodes(of_tree) for of_tree in groups])
                tokens, seconds = tokens + run, seconds + (time.perf_counter() - started) * (run > 0)
            done = int(sizes_T[trees_C].sum())
            left -= done
            rate = share.world * tokens / seconds if tokens else 0.0
            more = f"{rate:,.0f} tokens/s, {timedelta(seconds=round(left / rate))} left" if rate else "cached"
            advance(done, more)
    if tokens:
        say(f"frozen layers: ran {tokens:,} tokens, {tokens / seconds:,.0f} tokens/s")
    share.wait()
    prm.cache.find_new_shards()


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

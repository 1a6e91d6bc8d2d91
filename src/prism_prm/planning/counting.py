"""Counts what the passes of training and scoring run, with the code that packs them and without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prism_prm.console import Advance, ignore
from prism_prm.costs import Batch, Kernel, forward_flops
from prism_prm.lm.attention import FLEX_BLOCK
from prism_prm.lm.tree_attention import BLOCK
from prism_prm.packing import Row, encode_tree
from prism_prm.planning.gpus import Cluster
from prism_prm.planning.plan import Stage
from prism_prm.prms.module import PrmModule
from prism_prm.prms.skeleton import Skeleton
from prism_prm.protocol import Scorer, TreeScores
from prism_prm.records import StepTree
from prism_prm.scorer.store import ScoreStore
from prism_prm.scorer.whole_trees import batches_of, fit_all, rows_of


def kernel_of(module: PrmModule) -> Kernel:
    """How the module's attention runs."""
    if module.in_blocks:
        return "blocks"
    return "flex" if module.attention == "flex" else "dense"


def batch_of(module: PrmModule, rows: Sequence[Row]) -> Batch:
    """What one pass over these rows runs. Sliding windows are counted as if they saw everything."""
    kernel, longest = kernel_of(module), max(map(len, rows))
    reads = sum(len(row.reads) for row in rows)
    if kernel == "flex":
        length = -(-longest // FLEX_BLOCK) * FLEX_BLOCK
        pairs = sum(_flex_pairs(_padded_ends(row, length)) for row in rows)
        return Batch(len(rows) * length, pairs, reads)
    if kernel == "dense" or longest <= BLOCK:
        return Batch(len(rows) * longest, len(rows) * longest * longest, reads, keys=len(rows) * longest)
    seen = [_seen_by_blocks(_padded_ends(row, longest)) for row in rows]
    pairs, keys = (sum(column) for column in zip(*seen, strict=True))
    return Batch(len(rows) * longest, pairs, reads, keys)


def _padded_ends(row: Row, length: int) -> np.ndarray:
    """As `collate` pads them: a padding token sees itself alone."""
    return np.concatenate([row.ends_L, np.arange(len(row), length) + 1])


def _seen_by_blocks(ends_L: np.ndarray) -> tuple[int, int]:
    """(query, key) products and gathered keys of attention in blocks of queries."""
    pairs = keys = 0
    for start in range(0, len(ends_L), BLOCK):
        stop = min(start + BLOCK, len(ends_L))
        seen = int((ends_L[:stop] > start).sum())
        pairs, keys = pairs + (stop - start) * seen, keys + seen
    return pairs, keys


def _flex_pairs(ends_L: np.ndarray) -> int:
    """Products in the blocks that flex attention does not skip: some query of them sees some key."""
    last_K = ends_L.reshape(-1, FLEX_BLOCK).max(axis=1)
    at = np.arange(len(last_K))
    seen_QK = (at[None, :] <= at[:, None]) & (last_K[None, :] > at[:, None] * FLEX_BLOCK)
    return int(seen_QK.sum()) * FLEX_BLOCK**2


@dataclass
class Tally:
    """What was run, and the largest pass of it."""

    total: Batch = field(default_factory=lambda: Batch(0, 0, 0))
    largest: Batch = field(default_factory=lambda: Batch(0, 0, 0))
    packed: int = 0
    """Tokens without padding."""
    separate: int = 0
    """Tokens of one sequence per step that is read."""

    def add(self, batch: Batch, packed: int) -> None:
        self.total, self.packed = self.total + batch, self.packed + packed
        self.largest = max(self.largest, batch, key=lambda one: (one.tokens, one.pairs))


class CountingScorer(Scorer):
    """Stands in for a PRM where scores are filed: counts what it is asked for, and gives no real scores."""

    def __init__(self, prm: Skeleton) -> None:
        self.prm = prm
        self.tally = Tally()
        self.portions = 0

    def identity(self) -> str:
        return "a plan"

    def filed(self, folder: Path) -> ScoreStore:
        """A store that asks it only for what no one has asked before."""
        return ScoreStore(folder, self)

    def stage(self, name: str, cluster: Cluster, size: int, times: int = 1) -> Stage:
        """What was counted as a stage of a plan; whole portions go to processes. `size`: bytes of an activation."""
        flops = forward_flops(self.prm.sizes, self.tally.total)
        busiest = -(-self.portions // cluster.count) / max(1, self.portions)
        return Stage(
            name, self.tally.total.tokens, self.tally.separate, flops, flops * busiest / cluster.speed(size) / 3600,
            times=times, efficiency=1 / (busiest * cluster.count),
        )  # fmt: skip

    def count_tokens(self, tree: StepTree) -> int:
        encoded = encode_tree(tree, self.prm.family)
        return len(encoded.prompt) + sum(map(len, encoded.ids))

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,  # noqa: ARG002
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """Count the passes over these nodes."""
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        items, too_long = fit_all(self.prm, trees, wanted)  # type: ignore[arg-type]
        rows = rows_of(self.prm, items)  # type: ignore[arg-type]
        for batch in batches_of(self.prm.module, rows, self.prm.token_budget):
            self.tally.add(batch_of(self.prm.module, batch), sum(map(len, batch)))
        self.tally.separate += sum(item.tree.path_tokens(node) for item in items for (node,) in item.groups)
        self.portions += 1
        advance(len(trees))
        return [
            TreeScores(self.outputs, np.zeros((len(tree.nodes), 1)), long)
            for tree, long in zip(trees, too_long, strict=True)
        ]

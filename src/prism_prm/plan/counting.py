"""Counts what the passes of training and scoring run, with the code that packs them and without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prism_prm.console import Advance, ignore
from prism_prm.data.pair_examples import as_one_tree
from prism_prm.models.attention import BLOCK, FLEX_BLOCK
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import Row, encode_tree
from prism_prm.models.whole_trees import batches_of, fit_all, rows_of
from prism_prm.plan.costs import Batch, Cluster, Kernel, ModelSizes, Setup, forward_flops, training_flops
from prism_prm.plan.plan_run import Stage
from prism_prm.plan.skeleton import Skeleton
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.store import ScoreStore
from prism_prm.train.batches import arranged, parts_of_update, passes
from prism_prm.train.loop import Round
from prism_prm.tree import StepTree


def kernel_of(module: PrmModule) -> Kernel:
    if module.in_blocks:
        return "blocks"
    return "flex" if module.attention == "flex" else "dense"


def batch_of(module: PrmModule, rows: Sequence[Row]) -> Batch:
    """What one pass over these rows runs. Sliding windows are counted as if they saw everything."""
    kernel, longest = kernel_of(module), max(map(len, rows))
    reads = sum(len(row.reads) for row in rows)
    if kernel == "dense":
        return Batch(len(rows) * longest, len(rows) * longest**2, reads, keys=len(rows) * longest)
    if kernel == "flex":
        longest = -(-longest // FLEX_BLOCK) * FLEX_BLOCK
    pairs = keys = 0
    for row in rows:
        ends_L = np.concatenate([row.ends_L, np.arange(len(row), longest) + 1])  # as padded: a token sees itself alone
        if kernel == "flex":  # the blocks that are not skipped: some query of them sees some key
            last_K = ends_L.reshape(-1, FLEX_BLOCK).max(axis=1)
            at = np.arange(len(last_K))
            seen_QK = (at[None, :] <= at[:, None]) & (last_K[None, :] > at[:, None] * FLEX_BLOCK)
            pairs += int(seen_QK.sum()) * FLEX_BLOCK**2
            continue
        for start in range(0, longest, BLOCK):
            stop = min(start + BLOCK, longest)
            seen = int((ends_L[:stop] > start).sum())
            pairs, keys = pairs + (stop - start) * seen, keys + seen
    return Batch(len(rows) * longest, pairs, reads, keys)


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
        self.largest = max(self.largest, batch, key=Batch.order)


class CountingScorer(Scorer):
    """Stands in for a PRM where scores are filed: counts what it is asked for, and gives no real scores."""

    def __init__(self, prm: Skeleton) -> None:
        self.prm = prm
        self.tally = Tally()
        self.chunks = 0

    def identity(self) -> str:
        return "a plan"

    def filed(self, folder: Path) -> ScoreStore:
        """A store that asks it only for what no one has asked before."""
        return ScoreStore(folder, self)

    def stage(self, name: str, cluster: Cluster, size: int, times: int = 1) -> Stage:
        """What was counted as a stage of a plan; whole portions go to processes. `size`: bytes of an activation."""
        flops = forward_flops(self.prm.sizes, self.tally.total)
        busiest = -(-self.chunks // cluster.count) / max(1, self.chunks)
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
        self.chunks += 1
        advance(len(trees))
        return [
            TreeScores(self.outputs, np.zeros((len(tree.nodes), 1)), long)
            for tree, long in zip(trees, too_long, strict=True)
        ]


@dataclass
class RoundCount:
    """What a round runs."""

    name: str
    examples: int
    updates: int = 0
    tally: Tally = field(default_factory=Tally)
    passes: int = 0
    """The most micro-batches of an update on one process."""
    longest_row: int = 0
    longest_part: int = 0
    """Tokens of the longest example alone, which cannot be split."""
    by_update: list[list[Batch]] = field(default_factory=list)
    """For each update what each process runs, in all."""
    idle: int = 0
    """Tokens run by processes that have nothing to do, to keep step."""

    def flops(self, model: ModelSizes, setup: Setup) -> int:
        """Operations of all processes."""
        return sum(training_flops(model, batch, setup) for update in self.by_update for batch in update)

    def busiest(self, model: ModelSizes, setup: Setup) -> int:
        """Operations of the processes for which the others wait."""
        return sum(max(training_flops(model, batch, setup) for batch in update) for update in self.by_update)


def count_round(work: Round, module: PrmModule, count: int, advance: Advance = ignore) -> RoundCount:
    """Pack every update of a round as `Round.run` does, over so many processes, and count."""
    settings = work.settings
    found = RoundCount(work.name, len(work.examples), len(work.updates))
    for update in work.updates:
        parts = parts_of_update(work.examples, update, work.family, settings.pack, work.limits)
        found.longest_row = max(found.longest_row, *(part.length for part in parts))
        costs = []
        for plan in passes(parts, settings.microbatch_tokens, count):
            total = Batch(0, 0, 0)
            for some, weight in plan:
                rows = arranged(module, [row for part in some for row in part.rows], settings.microbatch_tokens)
                batch = batch_of(module, rows)
                found.tally.add(batch, sum(map(len, rows)) if weight else 0)
                found.idle += 0 if weight else batch.tokens
                total += batch
            found.passes = max(found.passes, len(plan))
            costs.append(total)
        found.by_update.append(costs)
        advance(1)
    for indices in work.examples.by_tree():
        tree, groups = as_one_tree(work.examples, indices)
        encoded = encode_tree(tree, work.family)
        for group in groups:
            found.tally.separate += settings.epochs * sum(map(encoded.path_tokens, group))
            shared = max(encoded.starts[node] for node in group)
            alone = shared + sum(encoded.reads[node] + 1 for node in group)
            found.longest_part = max(found.longest_part, alone)
    return found

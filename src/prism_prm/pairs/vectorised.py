"""The rules of `rules.py` for many trees at once, in NumPy; a test checks that the two agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.data.forest import Forest, string_codes
from prism_prm.pairs.audit import TrunkAudit, normalise_step
from prism_prm.pairs.settings import PairSettings, priority

Small = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Pairs as columns; `tree` is the index in the forest, nodes are numbered within their tree."""

    tree: Small
    position: Small
    chosen: Small
    rejected: Small
    gap: Floats
    """NaN where labels are no estimates."""
    rollouts: Small
    """-1 where there is no number."""

    @classmethod
    def of(cls, *columns: Ints, gap: Floats | None = None, rollouts: Ints | None = None) -> PairColumns:
        """Columns as they are written, of half the size."""
        size = len(columns[0])
        gap = np.full(size, np.nan) if gap is None else gap
        rollouts = np.full(size, -1) if rollouts is None else rollouts
        tree, position, chosen, rejected = (column.astype(np.int32) for column in columns)
        return cls(tree, position, chosen, rejected, gap, rollouts.astype(np.int32))

    def where(self, keep: Bools) -> PairColumns:
        """Some of the pairs."""
        return PairColumns(*(getattr(self, column.name)[keep] for column in fields(self)))

    def __len__(self) -> int:
        return len(self.tree)


NO_PAIRS = PairColumns.of(*[np.zeros(0, dtype=np.int64)] * 4)


def annotated_columns(forest: Forest, first_id: int, settings: PairSettings, drops: Counter[str]) -> PairColumns:
    """`annotated_pairs` of every tree, by tree, prefix and nodes; `first_id` is the first tree's number."""
    labels = forest.labels.to_numpy(zero_copy_only=False)
    texts = forest.text_codes
    tree = forest.tree_of_node()
    # One number per prefix, growing with the tree and with the parent in it (the problem itself is parent -1).
    prefix = forest.node_starts[tree] + tree + forest.parents + 1
    chosen = _first_of_each_text(np.flatnonzero(labels > settings.positive_above), prefix, texts, drops)
    rejected = _first_of_each_text(np.flatnonzero(labels < settings.negative_below), prefix, texts, drops)
    low = np.searchsorted(prefix[rejected], prefix[chosen], "left")
    counts = np.searchsorted(prefix[rejected], prefix[chosen], "right") - low
    chosen, rejected = np.repeat(chosen, counts), rejected[_ranges(low, counts)]
    differ = texts[chosen] != texts[rejected]
    drops["same_text"] += int(np.count_nonzero(~differ))
    chosen, rejected = chosen[differ], rejected[differ]
    gap, rollouts = _certainty(forest, chosen, rejected)
    small, few = gap < settings.min_value_gap, (rollouts >= 0) & (rollouts < settings.min_rollouts)
    drops["small_gap"] += int(np.count_nonzero(small))
    drops["few_rollouts"] += int(np.count_nonzero(few & ~small))
    sure = ~small & ~few
    chosen, rejected, gap, rollouts = chosen[sure], rejected[sure], gap[sure], rollouts[sure]
    start = forest.node_starts[tree[chosen]]
    columns = tree[chosen], _depths(forest, tree)[chosen], chosen - start, rejected - start
    pairs = PairColumns.of(*columns, gap=gap, rollouts=rollouts)
    return _choose(pairs, prefix[chosen], settings.max_per_position, first_id, settings.seed, drops)


def _certainty(forest: Forest, chosen: Ints, rejected: Ints) -> tuple[Floats, Ints]:
    """The gap of the values of each pair (NaN without), and the rollouts behind its less certain step (-1 without)."""
    missing = forest.estimates.is_null().to_numpy(zero_copy_only=False)
    value, rollouts = (forest.estimates.field(name).to_numpy() for name in ("value", "rollouts"))
    none = missing[chosen] | missing[rejected]
    gap = np.where(none, np.nan, value[chosen] - value[rejected])
    most = np.iinfo(np.int32).max
    counted = np.where(rollouts > 0, rollouts.astype(np.int64), most)  # a verdict on an answer is certain
    fewest = np.minimum(counted[chosen], counted[rejected])
    return gap, np.where(none | (fewest == most), -1, fewest)


def lookahead_columns(forest: Forest, first_id: int, settings: PairSettings, drops: Counter[str]) -> PairColumns:
    """`lookahead_pairs` of every tree, by tree and positions."""
    if settings.lookahead == "none":
        return NO_PAIRS
    lengths = np.diff(forest.trunk_starts)
    tree = np.repeat(np.arange(len(lengths)), lengths)
    steps = _TrunkSteps(tree, np.arange(len(tree)) - forest.trunk_starts[tree], forest.trunk + forest.node_starts[tree])
    positive = forest.labels.to_numpy(zero_copy_only=False)[steps.node] > settings.positive_above
    after = lengths[tree] - steps.position - settings.min_gap
    if settings.max_gap is not None:
        after = np.minimum(after, settings.max_gap - settings.min_gap + 1)
    counts = np.where(positive, np.maximum(after, 0), 0)
    here = np.repeat(np.arange(len(tree)), counts)
    later = _ranges(np.arange(len(tree)) + settings.min_gap, counts)
    keep = _is_negative(forest, steps, here, later, settings, drops)
    here, later = here[keep], later[keep]
    start = forest.node_starts[tree[here]]
    pairs = PairColumns.of(tree[here], steps.position[here], steps.node[here] - start, steps.node[later] - start)
    limit = settings.lookahead if isinstance(settings.lookahead, int) else None
    return _choose(pairs, here, limit, first_id, settings.seed, drops)


@dataclass(frozen=True, slots=True)
class _TrunkSteps:
    """All trunk steps of a chunk, numbered through: the tree, the position in it, and the node in the chunk."""

    tree: Ints
    position: Ints
    node: Ints


def _is_negative(
    forest: Forest, steps: _TrunkSteps, here: Ints, later: Ints, settings: PairSettings, drops: Counter[str]
) -> Bools:
    """Which of the candidates, each a current and a later trunk step, become negatives."""
    texts = forest.text_codes[steps.node]
    keep: Bools = texts[here] != texts[later]
    drops["same_text"] += int(np.count_nonzero(~keep))
    if settings.audit == "off":
        return keep
    step_texts = [draft.texts[node] for draft in forest.drafts for node in draft.trunk]
    normalised = string_codes(pa.array(map(normalise_step, step_texts), pa.string()))
    same = keep & (normalised[here] == normalised[later])
    drops["same_normalised_text"] += int(np.count_nonzero(same))
    keep &= ~same
    similar, known = _audit(forest, steps, here, later)
    marks = {"near_duplicate": keep & similar, "no_new_quantity": keep & ~similar & known}
    for name, marked in marks.items():
        count = int(np.count_nonzero(marked))
        drops[f"marked:{name}"] += count
        if settings.audit == "drop":
            drops[name] += count
            keep &= ~marked
    return keep


def _audit(forest: Forest, steps: _TrunkSteps, here: Ints, later: Ints) -> tuple[Bools, Bools]:
    """For every candidate whether it is a near-duplicate, and whether it uses nothing introduced in between."""
    audits = [TrunkAudit.of(draft.problem, [draft.texts[node] for node in draft.trunk]) for draft in forest.drafts]
    needs = np.array(list(chain.from_iterable(audit.needs for audit in audits)), dtype=np.int64)
    starts = forest.trunk_starts.tolist()
    near = [
        (start + a, start + b) for start, audit in zip(starts, audits, strict=False) for a, b in audit.near_duplicates
    ]
    # A candidate is one number, so that those that are near-duplicates can be looked up all at once.
    size = len(steps.tree)
    similar: Bools = np.isin(here * size + later, np.array([a * size + b for a, b in near], dtype=np.int64))
    return similar, needs[later] < steps.position[here]


def _first_of_each_text(nodes: Ints, prefix: Ints, texts: Ints, drops: Counter[str]) -> Ints:
    """The nodes but for those whose text came before under the same prefix; sorted by prefix, then by node."""
    if not len(nodes):
        return nodes
    _, first = np.unique(prefix[nodes] * (int(texts.max()) + 1) + texts[nodes], return_index=True)
    drops["repeated_text"] += len(nodes) - len(first)
    kept = nodes[np.sort(first)]
    by_prefix: Ints = kept[np.argsort(prefix[kept], kind="stable")]
    return by_prefix


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start+1, … for each start, as many as its count, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Ints = np.repeat(starts - (ends - counts), counts) + np.arange(total)
    return ranges


def _depths(forest: Forest, tree: Ints) -> Ints:
    """The position of every node, by jumping twice as far up in each round."""
    problem = len(tree)
    parent = np.where(forest.parents < 0, problem, forest.parents + forest.node_starts[tree])
    above = np.append(parent, problem)
    steps = np.append(np.ones(len(tree), dtype=np.int64), 0)
    while (above != problem).any():
        steps = steps + steps[above]
        above = above[above]
    return steps[:-1] - 1


def _choose(
    pairs: PairColumns, group: Ints, limit: int | None, first_id: int, seed: int, drops: Counter[str]
) -> PairColumns:
    """At most `limit` pairs of each group, by the seed, in their order."""
    if limit is None or not len(pairs):
        return pairs
    rank = priority(
        seed, *(part.astype(np.uint64) for part in (pairs.tree + first_id, pairs.chosen, pairs.rejected))
    )  # fmt: skip
    order = np.lexsort((rank, group))
    sorted_group = group[order]
    within = np.arange(len(order)) - np.searchsorted(sorted_group, sorted_group)
    keep = np.zeros(len(order), dtype=bool)
    keep[order] = within < limit
    drops["over_limit"] += int(np.count_nonzero(~keep))
    return pairs.where(keep)

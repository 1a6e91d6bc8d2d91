"""Make the pairs of many trees at once, as columns: the rules of `pair_rules.py` in NumPy (a test compares the two).

Also makes the negatives that the paper argues against, for ablations: perturbed steps, and steps of other problems.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.data.formats import Draft
from prism_prm.data.pair_rules import QUANTITY, PairSettings, are_similar, normalize_step, priority, tokens
from prism_prm.data.same_problem import normalize_problem
from prism_prm.data.tables import Forest, string_codes

Small = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PairColumns:
    """Pairs as columns; `tree` is the index in the forest, nodes are numbered within their tree."""

    tree: Small
    position: Small
    chosen: Small
    rejected: Small
    gap: Floats
    """NaN if the labels are not estimates."""
    rollouts: Small
    """-1 if unknown."""

    @classmethod
    def of(cls, *columns: Ints, gap: Floats | None = None, rollouts: Ints | None = None) -> PairColumns:
        """Convert 64-bit columns to the 32 bits of `pairs.parquet`."""
        size = len(columns[0])
        gap = np.full(size, np.nan) if gap is None else gap
        rollouts = np.full(size, -1) if rollouts is None else rollouts
        tree, position, chosen, rejected = (column.astype(np.int32) for column in columns)
        return cls(tree, position, chosen, rejected, gap, rollouts.astype(np.int32))

    def where(self, keep: Bools) -> PairColumns:
        """Select pairs."""
        return PairColumns(*(getattr(self, column.name)[keep] for column in fields(self)))

    def __len__(self) -> int:
        return len(self.tree)


NO_PAIRS = PairColumns.of(*[np.zeros(0, dtype=np.int64)] * 4)


def annotated_columns(forest: Forest, first_id: int, settings: PairSettings, drops: Counter[str]) -> PairColumns:
    """Compute `annotated_pairs` of every tree, by tree, prefix and nodes; `first_id` is the first tree's id."""
    labels = forest.labels.to_numpy(zero_copy_only=False)
    texts = forest.text_codes
    tree = forest.tree_of_node()
    # One number per prefix, ordered by tree and by parent (the problem itself is parent -1).
    prefix = forest.node_starts[tree] + tree + forest.parents + 1
    right, wrong, usable = labels > settings.positive_above, labels < settings.negative_below, _usable(forest, settings)
    drops["human_written"] += int(np.count_nonzero((right | wrong) & ~usable))
    chosen = _first_of_each_text(np.flatnonzero(right & usable), prefix, texts, drops)
    rejected = _first_of_each_text(np.flatnonzero(wrong & usable), prefix, texts, drops)
    low = np.searchsorted(prefix[rejected], prefix[chosen], "left")
    counts = np.searchsorted(prefix[rejected], prefix[chosen], "right") - low
    chosen, rejected = np.repeat(chosen, counts), rejected[_ranges(low, counts)]
    differ = texts[chosen] != texts[rejected]
    drops["same_text"] += int(np.count_nonzero(~differ))
    chosen, rejected = chosen[differ], rejected[differ]
    # The gap between the values of each pair (else NaN), and the rollouts of its less certain step (else -1).
    missing = forest.estimates.is_null().to_numpy(zero_copy_only=False)
    value, num_rollouts = (forest.estimates.field(name).to_numpy() for name in ("value", "rollouts"))
    none = missing[chosen] | missing[rejected]
    gap = np.where(none, np.nan, value[chosen] - value[rejected])
    most = np.iinfo(np.int32).max
    counted = np.where(num_rollouts > 0, num_rollouts.astype(np.int64), most)  # a verdict on an answer is certain
    fewest = np.minimum(counted[chosen], counted[rejected])
    rollouts = np.where(none | (fewest == most), -1, fewest)
    small, few = gap < settings.min_value_gap, (rollouts >= 0) & (rollouts < settings.min_rollouts)
    drops["small_gap"] += int(np.count_nonzero(small))
    drops["few_rollouts"] += int(np.count_nonzero(few & ~small))
    sure = ~small & ~few
    chosen, rejected, gap, rollouts = chosen[sure], rejected[sure], gap[sure], rollouts[sure]
    start = forest.node_starts[tree[chosen]]
    # The depth of every node, by pointer doubling.
    problem = len(tree)
    above = np.append(np.where(forest.parents < 0, problem, forest.parents + forest.node_starts[tree]), problem)
    depths = np.append(np.ones(len(tree), dtype=np.int64), 0)
    while (above != problem).any():
        depths = depths + depths[above]
        above = above[above]
    columns = tree[chosen], depths[chosen] - 1, chosen - start, rejected - start
    pairs = PairColumns.of(*columns, gap=gap, rollouts=rollouts)
    return _choose(pairs, prefix[chosen], settings.max_per_position, first_id, settings.seed, drops)


def _usable(forest: Forest, settings: PairSettings) -> Bools:
    """Which steps may be in a pair, by their writer."""
    if settings.origin == "any":
        return np.ones(len(forest.parents), bool)
    usable: Bools = ~pc.equal(forest.origins, "human").to_numpy(zero_copy_only=False)
    return usable


def lookahead_columns(forest: Forest, first_id: int, settings: PairSettings, drops: Counter[str]) -> PairColumns:
    """Compute `lookahead_pairs` of every tree, by tree and positions."""
    if settings.lookahead == "none":
        return NO_PAIRS
    # All trunk steps of the chunk, numbered consecutively: the tree, the position in it, and the node in the chunk.
    lengths = np.diff(forest.trunk_starts)
    tree = np.repeat(np.arange(len(lengths)), lengths)
    position, node = np.arange(len(tree)) - forest.trunk_starts[tree], forest.trunk + forest.node_starts[tree]
    positive = forest.labels.to_numpy(zero_copy_only=False)[node] > settings.positive_above
    after = lengths[tree] - position - settings.min_gap
    if settings.max_gap is not None:
        after = np.minimum(after, settings.max_gap - settings.min_gap + 1)
    counts = np.where(positive, np.maximum(after, 0), 0)
    here = np.repeat(np.arange(len(tree)), counts)
    later = _ranges(np.arange(len(tree)) + settings.min_gap, counts)
    texts, usable = forest.text_codes[node], _usable(forest, settings)[node]
    by_models = usable[here] & usable[later]
    drops["human_written"] += int(np.count_nonzero(~by_models))
    here, later = here[by_models], later[by_models]
    keep: Bools = texts[here] != texts[later]
    drops["same_text"] += int(np.count_nonzero(~keep))
    if settings.audit != "off":
        trunks = [[draft.texts[node] for node in draft.trunk] for draft in forest.drafts]
        normalized = string_codes(pa.array(map(normalize_step, chain.from_iterable(trunks)), pa.string()))
        same = keep & (normalized[here] == normalized[later])
        drops["same_normalized_text"] += int(np.count_nonzero(same))
        keep &= ~same
        audits = [audit_trunk(draft.problem, trunk) for draft, trunk in zip(forest.drafts, trunks, strict=True)]
        needs = np.array(list(chain.from_iterable(needs for _, needs in audits)), dtype=np.int64)
        # A candidate is one number, so that all near-duplicates can be looked up at once.
        size, starts = len(tree), forest.trunk_starts.tolist()
        near = [
            (start + a) * size + start + b for start, (pairs, _) in zip(starts, audits, strict=False) for a, b in pairs
        ]
        similar = np.isin(here * size + later, np.array(near, dtype=np.int64))
        known = needs[later] < position[here]
        marks = {"near_duplicate": keep & similar, "no_new_quantity": keep & ~similar & known}
        for name, marked in marks.items():
            count = int(np.count_nonzero(marked))
            drops[f"marked:{name}"] += count
            if settings.audit == "drop":
                drops[name] += count
                keep &= ~marked
    here, later = here[keep], later[keep]
    start = forest.node_starts[tree[here]]
    columns = PairColumns.of(tree[here], position[here], node[here] - start, node[later] - start)
    limit = settings.lookahead if isinstance(settings.lookahead, int) else None
    return _choose(columns, here, limit, first_id, settings.seed, drops)


def audit_trunk(problem: str, steps: Sequence[str]) -> tuple[list[tuple[int, int]], list[int]]:
    """Compute `mark` for all steps of a solution at once: (near_duplicates, needs).

    `near_duplicates` has all pairs (step, later step) that are near-duplicates. `needs` has for every step the latest
    earlier step that introduced a quantity it uses, or -1. So a candidate uses something introduced in between iff its
    latest need is at or after the current step.
    """
    introduced = dict.fromkeys(QUANTITY.findall(problem.lower()), -1)
    needs: list[int] = []
    alike: dict[frozenset[str], list[int]] = {}
    for at, step in enumerate(steps):
        used, latest = QUANTITY.findall(step.lower()), -1
        for quantity in used:
            first = introduced.setdefault(quantity, at)
            if latest < first < at:
                latest = first
        needs.append(latest)
        alike.setdefault(frozenset(used), []).append(at)
    near: list[tuple[int, int]] = []
    for positions in alike.values():  # only the few steps with the same quantities are compared word by word
        if len(positions) > 1:
            words = [(at, tokens(steps[at])) for at in positions]
            near += [(a, b) for (a, here), (b, there) in combinations(words, 2) if are_similar(here, there)]
    return near, needs


def _first_of_each_text(nodes: Ints, prefix: Ints, texts: Ints, drops: Counter[str]) -> Ints:
    """Remove nodes whose text came earlier under the same prefix; sorts by prefix, then by node."""
    if not len(nodes):
        return nodes
    _, first = np.unique(prefix[nodes] * (int(texts.max()) + 1) + texts[nodes], return_index=True)
    drops["repeated_text"] += len(nodes) - len(first)
    kept = nodes[np.sort(first)]
    by_prefix: Ints = kept[np.argsort(prefix[kept], kind="stable")]
    return by_prefix


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """Concatenate start, start + 1, … for each start, as many as its count."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ranges: Ints = np.repeat(starts - (ends - counts), counts) + np.arange(total)
    return ranges


def _choose(
    pairs: PairColumns, group: Ints, limit: int | None, first_id: int, seed: int, drops: Counter[str]
) -> PairColumns:
    """Choose at most `limit` pairs of each group by the seed, and keep their order."""
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


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIGN = re.compile(r"(?<=\s)[+\-−<>](?=\s)|(?<=[\d)}])[+\-−](?=[\w(\\])")
_OTHER_SIGN = {"+": "-", "-": "+", "−": "+", "<": ">", ">": "<"}
_ATTEMPTS = 64
"""How often to draw from other problems before giving up."""


def perturb(text: str, rng: random.Random) -> str | None:
    """Change one number or sign of a text; None if it has neither."""
    spans = [match.span() for pattern in (_NUMBER, _SIGN) for match in pattern.finditer(text)]
    if not spans:
        return None
    start, end = rng.choice(spans)
    old = text[start:end]
    other = _OTHER_SIGN.get(old)
    if other is None:  # a nearby number with the same number of decimals
        digits, units = len(old.partition(".")[2]), int(old.replace(".", ""))
        changed = units + rng.choice([-10, -2, -1, 1, 2, 10])
        other = str(units + 1 if changed < 0 else changed).rjust(digits + 1, "0")
        other = f"{other[:-digits]}.{other[-digits:]}" if digits else other
    return text[:start] + other + text[end:]


def add_perturbed(drafts: Sequence[Draft], first_id: int, settings: PairSettings, drops: Counter[str]) -> PairColumns:
    """Add perturbed copies of right trunk steps to the trees as new nodes, and pair them with their originals."""
    if not settings.perturbed:
        return NO_PAIRS
    pairs: list[tuple[int, int, int, int]] = []
    for index, draft in enumerate(drafts):
        rng = random.Random(f"{settings.seed}:{first_id + index}")
        siblings: dict[int, set[str]] = {}
        for parent, text in zip(draft.parents, draft.texts, strict=True):
            siblings.setdefault(parent, set()).add(text)
        for position, node in enumerate(draft.trunk):
            if not settings.is_positive(draft.labels[node]) or not settings.is_usable(draft.origins[node]):
                continue
            existing = siblings[draft.parents[node]]
            perturbed = [perturb(draft.texts[node], rng) for _ in range(4 * settings.perturbed)]
            new = [text for text in dict.fromkeys(perturbed) if text is not None and text not in existing]
            new = new[: settings.perturbed]
            drops["nothing_to_change"] += settings.perturbed - len(new)
            for text in new:
                pairs.append((index, position, node, len(draft.texts)))
                draft.texts.append(text)
                draft.parents.append(draft.parents[node])
                draft.labels.append(None)
                draft.ratings.append(None)
                draft.origins.append("perturbed")
                if draft.estimates is not None:
                    draft.estimates.append(None)
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 4)
    return PairColumns.of(*columns.T)


_NUMBERS = ("tree", "position", "node", "text", "problem", "split")
_TRUNK_STEP = np.dtype([*((name, np.int64) for name in _NUMBERS), ("positive", np.bool_)])
"""A trunk step; texts and problems are hashes, because they are only compared."""

TrunkSteps = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class OtherProblems:
    """All trunk steps so far, in compact form, to draw negatives from once everything is read."""

    settings: PairSettings
    drops: Counter[str]
    kept: list[TrunkSteps] = field(default_factory=list)

    def add(self, tree_id: int, draft: Draft, split: int) -> None:
        """Add the trunk of a tree; `split` is the number of its split."""
        steps = np.zeros(len(draft.trunk), dtype=_TRUNK_STEP)
        steps["tree"] = tree_id
        steps["position"] = np.arange(len(steps))
        steps["node"] = draft.trunk
        steps["text"] = [hash(draft.texts[node]) for node in draft.trunk]
        steps["problem"] = hash(normalize_problem(draft.problem))
        steps["split"] = split
        steps["positive"] = [self.settings.is_positive(draft.labels[node]) for node in draft.trunk]
        usable = np.array([self.settings.is_usable(draft.origins[node]) for node in draft.trunk], bool)
        self.kept.append(steps[usable])

    def draw(self) -> tuple[TrunkSteps, TrunkSteps]:
        """Return right steps, and for each a step of another problem in the same split; by tree, position and draw."""
        steps = np.concatenate([np.zeros(0, dtype=_TRUNK_STEP), *self.kept])
        anchors, offers = [steps[:0]], [steps[:0]]
        for split in np.unique(steps["split"]):
            pool = steps[steps["split"] == split]
            right = pool[pool["positive"]]
            earlier: list[Ints] = []
            for number in range(self.settings.random):
                drawn = self._draw_once(right, pool, number, earlier)
                self.drops["no_other_problem"] += int(np.count_nonzero(drawn < 0))
                anchors.append(right[drawn >= 0])
                offers.append(pool[drawn[drawn >= 0]])
                earlier.append(drawn)
        anchor, offer = np.concatenate(anchors), np.concatenate(offers)
        order = np.lexsort((anchor["position"], anchor["tree"]))
        return anchor[order], offer[order]

    def _draw_once(self, right: TrunkSteps, pool: TrunkSteps, number: int, earlier: list[Ints]) -> Ints:
        """For each right step, draw the index in the pool of another problem's step, or -1 if none was found."""
        drawn = np.full(len(right), -1)
        for attempt in range(_ATTEMPTS):
            open_ = np.flatnonzero(drawn < 0)
            if not len(open_):
                break
            anchor = right[open_]
            keys = (anchor["tree"].astype(np.uint64), anchor["position"].astype(np.uint64))
            rank = priority(self.settings.seed, *keys, number * _ATTEMPTS + attempt)
            offer = (rank % np.uint64(len(pool))).astype(np.int64)
            good = (pool["problem"][offer] != anchor["problem"]) & (pool["text"][offer] != anchor["text"])
            for before in earlier:
                good &= offer != before[open_]
            drawn[open_[good]] = offer[good]
        return drawn

"""The rules of pairing for one tree, written for clarity; `pair_arrays.py` computes the same for many trees at once.

The lookahead audit marks later steps that may already be right at the earlier position. There are two marks. A
near-duplicate of the current step (the same quantities, nearly the same words and signs) says the same thing, so it is
right there too. A step that uses no quantity introduced in between (by the current step or any up to the candidate) may
already follow from what is known. Quantities are numbers and one-letter names. Texts that differ only in white space
and case never become negatives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from prism_prm.config import Count, Natural, Share, check
from prism_prm.errors import SettingError
from prism_prm.tree import ROOT, PairKind, StepPair, StepTree

Audit = Literal["drop", "keep", "off"]
Mark = Literal["near_duplicate", "no_new_quantity"]


@dataclass(frozen=True, slots=True)
class PairSettings:
    """The rules of pairing; the defaults are those of `prism pairs`."""

    lookahead: Count | Literal["all", "none"] = "all"
    """How many later steps become negatives at each position: all, none, or a number."""
    min_gap: Count = 1
    """A lookahead negative comes at least this many steps later."""
    max_gap: Count | None = None
    """A lookahead negative comes at most this many steps later. By default there is no limit."""
    audit: Audit = "drop"
    """What to do with later steps that may already be right: drop them, keep and count them, or do not check (off)."""
    origin: Literal["any", "model"] = "any"
    """The writers whose steps are paired: any, or model. People write right steps only, which gives them away."""
    max_per_position: Count | None = None
    """The maximum number of annotated pairs per position. By default there is no limit."""
    random: Natural = 0
    """Negatives per position drawn from other problems (an ablation)."""
    perturbed: Natural = 0
    """Negatives per position made by changing a number or a sign (an ablation)."""
    min_value_gap: Share = 0.0
    """For steps labeled by rollouts: the chosen step's value exceeds the rejected one's by at least this."""
    min_rollouts: Natural = 0
    """For steps labeled by rollouts: each step of a pair has at least this many. Verdicts on final answers count as
    enough."""
    positive_above: Share = 0.5
    """A step is right if its label is above this."""
    negative_below: Share = 0.5
    """A step is wrong if its label is below this."""
    seed: Natural = 0
    """The seed for splits and for every random choice of pairs."""

    def __post_init__(self) -> None:
        check(self)
        if self.max_gap is not None and self.max_gap < self.min_gap:
            raise SettingError("max_gap", self.max_gap, f"must be at least min_gap, which is {self.min_gap}")
        if self.negative_below > self.positive_above:
            limit = f"must be at most positive_above, which is {self.positive_above}"
            raise SettingError("negative_below", self.negative_below, limit)

    def is_positive(self, label: float | None) -> bool:
        """Whether a step with this label is right."""
        return label is not None and label > self.positive_above

    def is_negative(self, label: float | None) -> bool:
        """Whether a step with this label is wrong."""
        return label is not None and label < self.negative_below

    def is_usable(self, origin: str) -> bool:
        """Whether a step by this writer may be in a pair."""
        return self.origin == "any" or origin != "human"

    def why_unsure(self, gap: float | None, rollouts: int | None) -> str | None:
        """Return why a pair of steps labeled by rollouts is left out, or None."""
        if gap is not None and gap < self.min_value_gap:
            return "small_gap"
        return "few_rollouts" if rollouts is not None and rollouts < self.min_rollouts else None


_MASK = (1 << 64) - 1


def priority(seed: int, *parts: Any) -> Any:
    """Hash integers, or NumPy uint64 arrays, to pseudo-random numbers in [0, 2^64).

    Choosing the smallest is a seeded choice that does not depend on what else is read, nor in which chunks. The mixing
    function is splitmix64.
    """
    state: Any = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    for part in parts:
        state = (state ^ part) * 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state = state ^ (state >> 31)
    return state


NEAR_DUPLICATE = 0.8
"""Two steps with the same quantities are near-duplicates if they share at least this part of their tokens (Jaccard)."""

TOKEN = re.compile(r"[a-z]+|\d+(?:\.\d+)?|[-+*/=<>^!%|−×÷·≤≥≠≈±√∞]|[^\W\d_a-z]+")
"""Words, numbers, and the signs that change the meaning of a formula."""
QUANTITY = re.compile(r"\d+(?:\.\d+)?|(?<![a-z])[b-hj-z](?![a-z])|[α-ω]")
"""Numbers and single letters, except a and i, which are mostly words."""


def tokens(text: str) -> frozenset[str]:
    """Return the distinct words, numbers and signs of a text, in lower case."""
    return frozenset(TOKEN.findall(text.lower()))


def quantities(text: str) -> frozenset[str]:
    """Return the distinct quantities in a text."""
    return frozenset(QUANTITY.findall(text.lower()))


def normalize_step(text: str) -> str:
    """Remove differences in white space and case."""
    return " ".join(text.lower().split())


def mark(problem: str, steps: Sequence[str], current: int, candidate: int) -> Mark | None:
    """Return why the later step `candidate` may be right in place of `current`; None if nothing suggests it."""
    here, there = quantities(steps[current]), quantities(steps[candidate])
    if here == there and are_similar(tokens(steps[current]), tokens(steps[candidate])):
        return "near_duplicate"
    known = frozenset[str]().union(*map(quantities, [problem, *steps[:current]]))
    between = frozenset[str]().union(*map(quantities, steps[current:candidate]))
    return None if there & (between - known) else "no_new_quantity"


def are_similar(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two steps have nearly the same tokens."""
    return len(one & other) >= NEAR_DUPLICATE * len(one | other)


def annotated_pairs(
    tree: StepTree, settings: PairSettings | None = None, *, drops: Counter[str] | None = None
) -> list[StepPair]:
    """Pair every right step with every wrong step after the same prefix, if their texts differ.

    A repeated text counts once on each side.

    Args:
        tree: a problem with its labeled steps.
        settings: the rules of pairing.
        drops: a counter for candidates that made no pair.

    Example:
        >>> steps = (Step("1 + 2 = 3", 1.0), Step("1 + 2 = 4", 0.0), Step("So it is 3.", 1.0))
        >>> tree = StepTree(0, "1 + 2?", steps, parents=(-1, -1, 0), trunk=(0, 2))
        >>> [(pair.chosen, pair.rejected) for pair in annotated_pairs(tree)]
        [(0, 1)]
    """
    settings = settings or PairSettings()
    drops = Counter() if drops is None else drops
    depths = tree.depths()
    rows: list[tuple[int, int, int]] = []
    for parent, nodes in sorted(tree.positions()):
        positives = [node for node in nodes if settings.is_positive(tree.nodes[node].label)]
        negatives = [node for node in nodes if settings.is_negative(tree.nodes[node].label)]
        labeled = len(positives) + len(negatives)
        positives, negatives = (
            [node for node in some if settings.is_usable(tree.nodes[node].origin)] for some in (positives, negatives)
        )
        drops["human_written"] += labeled - len(positives) - len(negatives)
        chosen, rejected = _first_of_each_text(tree, positives), _first_of_each_text(tree, negatives)
        drops["repeated_text"] += len(positives) - len(chosen) + len(negatives) - len(rejected)
        pairs = [(c, r) for c in chosen for r in rejected if tree.nodes[c].text != tree.nodes[r].text]
        drops["same_text"] += len(chosen) * len(rejected) - len(pairs)
        unsure = {pair: reason for pair in pairs if (reason := settings.why_unsure(*certainty(tree, *pair)))}
        drops.update(unsure.values())
        pairs = [pair for pair in pairs if pair not in unsure]
        kept = _choose(tree, pairs, settings.max_per_position, settings.seed)
        drops["over_limit"] += len(pairs) - len(kept)
        rows += [(0 if parent == ROOT else depths[parent] + 1, c, r) for c, r in kept]
    return [
        replace(pair, gap=gap, rollouts=rollouts)
        for pair in _as_pairs(tree, rows, "annotated")
        for gap, rollouts in [certainty(tree, pair.chosen, pair.rejected)]
    ]


def certainty(tree: StepTree, chosen: int, rejected: int) -> tuple[float | None, int | None]:
    """Return the value gap of a pair and the rollouts of its less certain step; None if labels are not estimates."""
    better, worse = tree.nodes[chosen].estimate, tree.nodes[rejected].estimate
    if better is None or worse is None:
        return None, None
    return better.value - worse.value, min((each.rollouts for each in (better, worse) if each.rollouts), default=None)


def lookahead_pairs(
    tree: StepTree, settings: PairSettings | None = None, *, drops: Counter[str] | None = None
) -> list[StepPair]:
    """Pair every right trunk step with later trunk steps as negatives.

    Args:
        tree: a problem with its labeled steps.
        settings: the rules of pairing.
        drops: a counter for candidates that made no pair, and under `marked:` for all that the audit marked.

    Example:
        >>> steps = (Step("1 + 2 = 3", 1.0), Step("1 + 2 = 4", 0.0), Step("So it is 3.", 1.0))
        >>> tree = StepTree(0, "1 + 2?", steps, parents=(-1, -1, 0), trunk=(0, 2))
        >>> [(pair.chosen, pair.rejected) for pair in lookahead_pairs(tree)]
        [(0, 2)]
    """
    settings = settings or PairSettings()
    drops = Counter() if drops is None else drops
    if settings.lookahead == "none":
        return []
    texts = tree.texts(tree.trunk)
    rows: list[tuple[int, int, int]] = []
    for at, current in enumerate(tree.trunk):
        if not settings.is_positive(tree.nodes[current].label):
            continue
        last = len(texts) if settings.max_gap is None else min(len(texts), at + settings.max_gap + 1)
        pairs: list[tuple[int, int]] = []
        for later in range(at + settings.min_gap, last):
            reason: str | None = None
            if not all(settings.is_usable(tree.nodes[node].origin) for node in (current, tree.trunk[later])):
                reason = "human_written"
            elif texts[at] == texts[later]:
                reason = "same_text"
            elif settings.audit != "off" and normalize_step(texts[at]) == normalize_step(texts[later]):
                reason = "same_normalized_text"
            elif settings.audit != "off" and (marked := mark(tree.problem, texts, at, later)):
                drops[f"marked:{marked}"] += 1
                reason = marked if settings.audit == "drop" else None
            if reason:
                drops[reason] += 1
            else:
                pairs.append((current, tree.trunk[later]))
        limit = settings.lookahead if isinstance(settings.lookahead, int) else None
        kept = _choose(tree, pairs, limit, settings.seed)
        drops["over_limit"] += len(pairs) - len(kept)
        rows += [(at, c, r) for c, r in kept]
    return _as_pairs(tree, rows, "lookahead")


def _first_of_each_text(tree: StepTree, nodes: list[int]) -> list[int]:
    first: dict[str, int] = {}
    for node in nodes:
        first.setdefault(tree.nodes[node].text, node)
    return list(first.values())


def _choose(tree: StepTree, pairs: list[tuple[int, int]], limit: int | None, seed: int) -> list[tuple[int, int]]:
    """Choose at most `limit` pairs by the seed, and keep their order."""
    if limit is None:
        return pairs
    chosen = sorted(pairs, key=lambda pair: priority(seed, tree.tree_id, *pair))[:limit]
    return sorted(chosen)


def _as_pairs(tree: StepTree, rows: list[tuple[int, int, int]], kind: PairKind) -> list[StepPair]:
    return [
        StepPair(i, tree.tree_id, position, chosen, rejected, tree.tree_id, kind)
        for i, (position, chosen, rejected) in enumerate(rows)
    ]

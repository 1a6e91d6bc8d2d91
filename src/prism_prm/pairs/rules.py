"""The rules of pairing, tree by tree, as plainly as possible; `vectorised.py` does the same for many at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from prism_prm.pairs.audit import mark, normalise_step
from prism_prm.pairs.settings import PairSettings, priority
from prism_prm.records import ROOT, PairKind, StepPair, StepTree


def annotated_pairs(
    tree: StepTree, settings: PairSettings | None = None, *, drops: Counter[str] | None = None
) -> list[StepPair]:
    """Every combination of a right and a wrong step after the same prefix, with different texts.

    A repeated text counts once on each side.

    Args:
        tree: a problem with its labelled steps.
        settings: the rules of pairing.
        drops: counts candidates that made no pair.

    Example:
        >>> steps = (Step("1 + 2 = 3", 1.0), Step("1 + 2 = 4", 0.0), Step("So it is 3.", 1.0))
        >>> tree = StepTree(0, "1 + 2?", steps, parents=(-1, -1, 0), trunk=(0, 2))
        >>> [(pair.chosen, pair.rejected) for pair in annotated_pairs(tree)]
        [(0, 1)]
    """
    settings = settings or PairSettings()
    drops = Counter() if drops is None else drops
    depths = tree.depths()
    found: list[tuple[int, int, int]] = []
    for parent, nodes in sorted(tree.positions()):
        positives = [node for node in nodes if settings.is_positive(tree.nodes[node].label)]
        negatives = [node for node in nodes if settings.is_negative(tree.nodes[node].label)]
        chosen, rejected = _first_of_each_text(tree, positives), _first_of_each_text(tree, negatives)
        drops["repeated_text"] += len(positives) - len(chosen) + len(negatives) - len(rejected)
        pairs = [(c, r) for c in chosen for r in rejected if tree.nodes[c].text != tree.nodes[r].text]
        drops["same_text"] += len(chosen) * len(rejected) - len(pairs)
        unsure = {pair: reason for pair in pairs if (reason := settings.why_unsure(*certainty(tree, *pair)))}
        drops.update(unsure.values())
        pairs = [pair for pair in pairs if pair not in unsure]
        kept = _choose(tree, pairs, settings.max_per_position, settings.seed)
        drops["over_limit"] += len(pairs) - len(kept)
        found += [(0 if parent == ROOT else depths[parent] + 1, c, r) for c, r in kept]
    return [
        replace(pair, gap=gap, rollouts=rollouts)
        for pair in _as_pairs(tree, found, "annotated")
        for gap, rollouts in [certainty(tree, pair.chosen, pair.rejected)]
    ]


def certainty(tree: StepTree, chosen: int, rejected: int) -> tuple[float | None, int | None]:
    """(gap of the values, rollouts behind the less certain step) of a pair whose labels are estimates."""
    better, worse = tree.nodes[chosen].estimate, tree.nodes[rejected].estimate
    if better is None or worse is None:
        return None, None
    return better.value - worse.value, min((one.rollouts for one in (better, worse) if one.rollouts), default=None)


def lookahead_pairs(
    tree: StepTree, settings: PairSettings | None = None, *, drops: Counter[str] | None = None
) -> list[StepPair]:
    """For every position whose trunk step is right, pairs with later trunk steps as negatives.

    Args:
        tree: a problem with its labelled steps.
        settings: the rules of pairing.
        drops: counts candidates that made no pair, and under `marked:` what the audit found, dropped or not.

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
    found: list[tuple[int, int, int]] = []
    for at, current in enumerate(tree.trunk):
        if not settings.is_positive(tree.nodes[current].label):
            continue
        last = len(texts) if settings.max_gap is None else min(len(texts), at + settings.max_gap + 1)
        pairs: list[tuple[int, int]] = []
        for later in range(at + settings.min_gap, last):
            reason = _lookahead_drop(tree.problem, texts, at, later, settings, drops)
            if reason:
                drops[reason] += 1
            else:
                pairs.append((current, tree.trunk[later]))
        limit = settings.lookahead if isinstance(settings.lookahead, int) else None
        kept = _choose(tree, pairs, limit, settings.seed)
        drops["over_limit"] += len(pairs) - len(kept)
        found += [(at, c, r) for c, r in kept]
    return _as_pairs(tree, found, "lookahead")


def _lookahead_drop(
    problem: str, texts: list[str], at: int, later: int, settings: PairSettings, drops: Counter[str]
) -> str | None:
    """Why a later step is not a negative here, or None."""
    if texts[at] == texts[later]:
        return "same_text"
    if settings.audit == "off":
        return None
    if normalise_step(texts[at]) == normalise_step(texts[later]):
        return "same_normalised_text"
    reason = mark(problem, texts, at, later)
    if reason:
        drops[f"marked:{reason}"] += 1
    return reason if settings.audit == "drop" else None


def _first_of_each_text(tree: StepTree, nodes: list[int]) -> list[int]:
    first: dict[str, int] = {}
    for node in nodes:
        first.setdefault(tree.nodes[node].text, node)
    return list(first.values())


def _choose(tree: StepTree, pairs: list[tuple[int, int]], limit: int | None, seed: int) -> list[tuple[int, int]]:
    """At most `limit` of the pairs, by the seed, in their order."""
    if limit is None:
        return pairs
    chosen = sorted(pairs, key=lambda pair: priority(seed, tree.tree_id, *pair))[:limit]
    return sorted(chosen)


def _as_pairs(tree: StepTree, found: list[tuple[int, int, int]], kind: PairKind) -> list[StepPair]:
    return [
        StepPair(i, tree.tree_id, position, chosen, rejected, tree.tree_id, kind)
        for i, (position, chosen, rejected) in enumerate(found)
    ]

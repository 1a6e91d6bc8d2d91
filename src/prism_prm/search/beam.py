"""PRM-guided beam search.

Each round every kept beam is expanded, equal candidates are merged, and the best `width` candidates are kept. A kept
candidate whose solution is finished stays in the result and holds its place, so fewer beams go on; the search is over
when no beam does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prism_prm.search.expand import Expand, Search
from prism_prm.search.lookahead import look_ahead
from prism_prm.search.settings import SearchSettings
from prism_prm.search.tree import Node, merge


def beam(start: Node, settings: SearchSettings) -> Search:
    """The finished beams, best first."""
    finished: list[tuple[float, Node]] = []
    beams: tuple[Node, ...] = (start,)
    fan = settings.n
    for depth in range(settings.max_steps):
        grown = yield Expand(beams, (fan,) * len(beams), scored=settings.prm_weight > 0)
        candidates = merge([node for children in grown for node in children])
        last = depth + 1 == settings.max_steps
        ends = (yield from look_ahead(candidates, settings)) if settings.lookahead and not last else {}
        kept = best(candidates, ends, settings.width - len(finished), settings)
        finished += [(value, node) for value, node in kept if node.is_finished or last]
        beams = tuple(node for _, node in kept if not node.is_finished)
        if not beams:
            break
        fan = settings.fan
    return [node for _, node in sorted(finished, key=lambda entry: -entry[0])]


def best(
    candidates: Sequence[Node], ends: Mapping[Node, Node], count: int, settings: SearchSettings
) -> list[tuple[float, Node]]:
    """The `count` candidates of the highest value, each with it; the earlier of equals first."""
    values = [value(node, ends.get(node, node), settings) for node in candidates]
    order = sorted(range(len(candidates)), key=lambda i: (-values[i], i))
    return [(values[i], candidates[i]) for i in order[:count]]


def value(node: Node, end: Node, settings: SearchSettings) -> float:
    """What a candidate is ranked by; `end` is where looking ahead from it led."""
    weight = settings.prm_weight
    total = 0.0
    # A weight of 0 leaves its part out altogether: 0 · −inf is not a number.
    if weight > 0:
        total += weight * end.log_score(settings.aggregator)
    if weight < 1:
        assert node.log_likelihood is not None, "the policy says how likely its steps are"
        total += (1 - weight) * node.log_likelihood
    return total

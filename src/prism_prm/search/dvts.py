"""Diverse verifier tree search: separate trees, so that one convincing early error cannot win them all."""

from __future__ import annotations

from prism_prm.search.beam import best
from prism_prm.search.expand import Expand, Search
from prism_prm.search.lookahead import look_ahead
from prism_prm.search.settings import SearchSettings
from prism_prm.search.tree import Node


def dvts(start: Node, settings: SearchSettings) -> Search:
    """The end of each tree, in their order; a tree keeps the best of `expand` children each round."""
    fan, width = settings.fan, settings.width
    scored = settings.prm_weight > 0
    (first,) = yield Expand((start,), (fan * width,), scored=scored)
    groups = [first[i * fan : (i + 1) * fan] for i in range(width)]
    heads: list[Node] = []
    for depth in range(1, settings.max_steps + 1):
        last = depth == settings.max_steps
        candidates = [node for group in groups for node in group]
        ends = (yield from look_ahead(candidates, settings)) if settings.lookahead and not last else {}
        chosen = iter([best(group, ends, 1, settings)[0][1] for group in groups])
        # A tree that is finished had no group this round.
        heads = [head if head.is_finished else next(chosen) for head in heads] if heads else list(chosen)
        going = tuple(head for head in heads if not head.is_finished)
        if last or not going:
            break
        groups = yield Expand(going, (fan,) * len(going), scored=scored)
    return heads

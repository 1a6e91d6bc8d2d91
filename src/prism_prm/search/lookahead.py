"""Look ahead: write on greedily from each candidate, so that it can be ranked by where it leads."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from prism_prm.search.expand import Children, Expand
from prism_prm.search.settings import SearchSettings
from prism_prm.search.tree import Node


def look_ahead(candidates: Sequence[Node], settings: SearchSettings) -> Generator[Expand, Children, dict[Node, Node]]:
    """Candidate → the node reached by at most `lookahead` greedy steps; what is written on the way is thrown away.

    Unless the budget ends on the way: then the ends are as far as each candidate came.
    """
    ends = {node: node for node in candidates}
    for _ in range(settings.lookahead):
        going = tuple(node for node in candidates if not ends[node].is_finished)
        if not going:
            break
        there = tuple(ends[node] for node in candidates if ends[node].is_finished)
        grown = yield Expand(
            tuple(ends[node] for node in going), (1,) * len(going), greedy=True, keep=tuple(candidates), shown=there
        )
        for node, (only,) in zip(going, grown, strict=True):
            ends[node] = only
    return ends

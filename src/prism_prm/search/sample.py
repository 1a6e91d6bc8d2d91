"""Independent solutions: no step depends on the PRM."""

from __future__ import annotations

from prism_prm.search.expand import Expand, Search
from prism_prm.search.settings import SearchSettings
from prism_prm.search.tree import Node


def sample(start: Node, settings: SearchSettings) -> Search:
    """n solutions, in the order of their first steps."""
    return (yield from _write_out(start, settings.n, settings, greedy=False))


def greedy(start: Node, settings: SearchSettings) -> Search:
    """The one solution of the likeliest tokens."""
    return (yield from _write_out(start, 1, settings, greedy=True))


def _write_out(start: Node, n: int, settings: SearchSettings, *, greedy: bool) -> Search:
    # Scores decide nothing on the way, so whole solutions are scored at the end, packed as one tree.
    (leaves,) = yield Expand((start,), (n,), greedy=greedy, scored=False)
    for _ in range(settings.max_steps - 1):
        open_leaves = tuple(leaf for leaf in leaves if not leaf.is_finished)
        if not open_leaves:
            break
        grown = yield Expand(open_leaves, (1,) * len(open_leaves), greedy=greedy, scored=False)
        after = {leaf: only for leaf, (only,) in zip(open_leaves, grown, strict=True)}
        leaves = [after.get(leaf, leaf) for leaf in leaves]
    return leaves

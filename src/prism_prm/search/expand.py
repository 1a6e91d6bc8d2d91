"""What a method asks of the engine.

A method is written for ONE problem, as a generator: it yields what it wants next and is sent the new nodes. The engine
runs the generators of many problems side by side and answers all their wishes of a round in one batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from prism_prm.search.tree import Node


@dataclass(frozen=True, slots=True)
class Expand:
    """A wish: `counts[i]` more samples of the next step after `nodes[i]`."""

    nodes: tuple[Node, ...]
    counts: tuple[int, ...]
    greedy: bool = False
    scored: bool = True
    """Whether the PRM is to score the new steps."""
    keep: tuple[Node, ...] = ()
    """Other nodes that will be expanded later; all else is let go."""
    shown: tuple[Node, ...] = ()
    """What else there is to show, beside solutions found before and the new nodes, if the budget ends here."""


Children = list[list[Node]]
"""For each node of a wish its new children."""
Search = Generator[Expand, Children, Sequence[Node]]
"""Yields wishes, is sent children, returns the solutions in order."""

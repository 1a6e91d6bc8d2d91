"""What a benchmark asks: items to score, each a tree with labels, in groups and with the problem it stems from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import xxhash

from prism_prm.errors import DataError
from prism_prm.pairs.problems import Exclusions, normalise_problem
from prism_prm.records import StepTree

TWINS = "correct"
"""The group of PRMBench's items without errors, which are in no total."""


@dataclass(frozen=True, slots=True)
class Item:
    """One solution (or tree of candidate steps) with labels."""

    tree: StepTree
    group: str
    """The class or split it is reported under."""
    problem: str
    """The problem it stems from, as its source words it."""
    contaminated: bool | None = None
    """Whether the problem is among those the PRM was trained on; None where nobody checked."""
    also: tuple[str, ...] = ()
    """Other wordings of the problem, for that check."""

    @property
    def problem_key(self) -> str:
        """Equal for items of one problem, which the bootstrap draws together."""
        return normalise_problem(self.problem)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Items with where they came from; parts of a benchmark are fine, and say so."""

    name: str
    items: tuple[Item, ...]
    files: tuple[str, ...]
    notes: dict[str, int] = field(default_factory=dict)
    """What was left out or out of order, by reason."""
    complete: bool | None = None
    """Whether this is all of the benchmark; None where it has no fixed size."""

    def counts(self) -> dict[str, int]:
        """Items by group, in order of first sight."""
        return dict(Counter(item.group for item in self.items))

    def described(self) -> str:
        """What was measured, in a few words: `part of prmbench: 2,290 items`."""
        part = {True: "all of ", False: "part of ", None: ""}[self.complete]
        twins = sum(item.group == TWINS for item in self.items)
        with_twins = f" and {twins:,} correct twins" if twins else ""
        return f"{part}{self.name}: {len(self.items) - twins:,} items{with_twins}"

    def some(self, limit: int, seed: int) -> Benchmark:
        """At most `limit` items of each group, chosen by the seed and their problem; then it is a part.

        The first ones would not do: published files are often sorted, ProcessBench's with all errors first.
        """
        drawn = sorted(
            self.items, key=lambda item: (xxhash.xxh3_64_intdigest(item.problem_key.encode(), seed), item.tree.tree_id)
        )
        seen: Counter[str] = Counter()
        chosen: set[int] = set()
        for item in drawn:
            seen[item.group] += 1
            if seen[item.group] <= limit:
                chosen.add(item.tree.tree_id)
        kept = [item for item in self.items if item.tree.tree_id in chosen]
        if len(kept) == len(self.items):
            return self
        notes = {**self.notes, f"items left out by the limit of {limit} per group": len(self.items) - len(kept)}
        return replace(self, items=tuple(kept), notes=notes, complete=None if self.complete is None else False)

    def checked_against(self, training: Iterable[str | Path]) -> Benchmark:
        """The same items, marked by whether their problem is one of those in the training files."""
        seen = Exclusions.read(training)
        marked = [
            replace(item, contaminated=any(seen.match(text) for text in {item.problem, *item.also}))
            for item in self.items
        ]
        return replace(self, items=tuple(marked))


def require_items(items: list[Item], where: str) -> tuple[Item, ...]:
    """No items is an error, not a zero."""
    if not items:
        raise DataError(f"{where}: no items to measure; give other files or remove the filter", reason="empty-split")
    return tuple(items)

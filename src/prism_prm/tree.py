"""The records everything exchanges: a problem with its tree of steps, and pairs of steps to compare.

A labelled solution is a trunk of steps; each position may have other candidates that share its prefix. Nodes are
numbered in file order, a node's parent comes before it, and -1 is the problem itself. An alternative is valid only
under the prefix it was labelled with, as its parent pointer says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import xxhash

from prism_prm.errors import DataError

Origin = Literal["model", "human", "perturbed"]
"""Who wrote a step. `perturbed` steps are made by us for ablations and carry no label."""

PairKind = Literal["annotated", "lookahead", "random", "perturbed"]
PAIR_KINDS: tuple[PairKind, ...] = ("annotated", "lookahead", "random", "perturbed")

ROOT = -1
"""The parent of a first step: the problem itself."""

_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Estimate:
    """How often solutions that continue a step reach the right answer, estimated by rollouts of a policy."""

    value: float
    """The share of rollouts that reached it."""
    rollouts: int
    """0 for a step that ends its solution: `value` is then the verdict on the answer, and exact."""
    low: float
    high: float
    """The interval of the value."""


@dataclass(frozen=True, slots=True)
class Step:
    """One candidate step of a solution."""

    text: str
    label: float | None = None
    """Probability that the step is right, in [0, 1]; None where nobody said. Neutral ratings are None here."""
    rating: float | None = None
    """What the source said, untouched (PRM800K: -1, 0, 1)."""
    origin: Origin = "model"
    estimate: Estimate | None = None
    """What a label was made from, where rollouts made it (`prism label`)."""


@dataclass(frozen=True, slots=True)
class StepTree:
    """A problem and a tree of steps; equal records are told apart by `tree_id`."""

    tree_id: int
    """Ordinal in what was read."""
    problem: str
    nodes: tuple[Step, ...]
    parents: tuple[int, ...]
    """For each node the index of the step before it, or ROOT; always smaller than the node's own index."""
    trunk: tuple[int, ...]
    """The nodes of the solution itself, from the first step on; may end before the deepest position."""
    name: str = ""
    """The source's own id ("gsm8k-17", "circular_test_p2_3"), or "" where it has none."""
    answer: str | None = None
    """The reference answer, where the source gives it."""
    ended: bool | None = None
    """Whether the trunk reached the end of its solution; None where the source does not say."""
    where: str = field(default="", compare=False, repr=False)
    """Where it was read, for messages: `file:line`. No part of what the tree says."""

    def __post_init__(self) -> None:
        assert len(self.nodes) == len(self.parents), "one parent per node"
        assert all(ROOT <= parent < i for i, parent in enumerate(self.parents)), "parents come first"
        before = ROOT
        for node in self.trunk:
            assert self.parents[node] == before, "the trunk is a path from the problem"
            before = node

    @classmethod
    def chain(
        cls,
        problem: str,
        steps: Sequence[Step | str],
        *,
        tree_id: int = 0,
        name: str = "",
        answer: str | None = None,
        ended: bool | None = None,
    ) -> StepTree:
        """A tree that is one plain solution."""
        if isinstance(steps, str):
            raise DataError(
                f"the steps are one text, {steps[:40]!r}…; give a list of texts: split_steps(text) cuts a solution",
                reason="wrong-type",
            )
        nodes = tuple(step if isinstance(step, Step) else Step(step) for step in steps)
        return cls(
            tree_id, problem, nodes, tuple(range(-1, len(nodes) - 1)), tuple(range(len(nodes))), name, answer, ended
        )

    def depths(self) -> tuple[int, ...]:
        """The position of every node."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first step to `node`, itself included."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def texts(self, path: Sequence[int]) -> list[str]:
        """The texts of some nodes."""
        return [self.nodes[node].text for node in path]

    def positions(self) -> Iterator[tuple[int, list[int]]]:
        """(parent, its candidate nodes) for every prefix that has candidates, in file order."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        yield from children.items()

    def with_leaves(self, leaves: Sequence[tuple[int, Step]]) -> StepTree:
        """The tree with (parent, step) leaves behind its nodes: lookahead and random negatives are such leaves."""
        return replace(
            self,
            nodes=(*self.nodes, *(step for _, step in leaves)),
            parents=(*self.parents, *(parent for parent, _ in leaves)),
        )

    def content_hash(self) -> str:
        """A hash of what the tree says, without its ordinal and name: 16 hexadecimal digits."""
        return content_hash(
            self.problem,
            self.answer,
            self.ended,
            self.trunk,
            self.parents,
            [node.text for node in self.nodes],
            [node.label for node in self.nodes],
            [node.rating for node in self.nodes],
            [node.origin for node in self.nodes],
            [node.estimate for node in self.nodes],
        )


def content_hash(
    problem: str,
    answer: str | None,
    ended: bool | None,
    trunk: Sequence[int],
    parents: Sequence[int],
    texts: Sequence[str],
    labels: Sequence[float | None],
    ratings: Sequence[float | None],
    origins: Sequence[Origin],
    estimates: Sequence[Estimate | None] | None = None,
) -> str:
    """The hash of a tree given as columns; msgpack, because it writes every value unambiguously and fast.

    Estimates count where there are any, so that other trees keep the hash they always had.
    """
    said: tuple[object, ...] = (problem, answer, ended, trunk, parents, texts, labels, ratings, origins)
    if estimates and any(estimates):
        said = (*said, estimates)
    return xxhash.xxh3_64_hexdigest(_ENCODER.encode(said))


def unique_names(names: Iterable[str]) -> list[str]:
    """Every name as it is, or with "#1", "#2", … behind it where it was taken before.

    Names depend only on those before them, so that more names at the end change none.
    """
    return list(iter_unique_names(names))


def iter_unique_names(names: Iterable[str]) -> Iterator[str]:
    """The same as a stream."""
    taken: set[str] = set()
    numbers: Counter[str] = Counter()
    for given in names:
        name = given
        while name in taken:
            numbers[given] += 1
            name = f"{given}#{numbers[given]}"
        taken.add(name)
        yield name


@dataclass(frozen=True, slots=True)
class StepPair:
    """Two steps to compare after the same prefix; `chosen` should score higher than `rejected`.

    The prefix is that of `chosen`, `parents[chosen]`. The rejected text is read after the same prefix, even if it
    comes from later in the tree (lookahead) or from another tree (random).
    """

    pair_id: int
    tree_id: int
    position: int
    """How many steps the prefix has."""
    chosen: int
    rejected: int
    rejected_tree: int
    """The tree of the rejected text: `tree_id` itself, except for random negatives."""
    kind: PairKind
    gap: float | None = None
    """How much higher the chosen step's estimated value is; None unless rollouts made both labels."""
    rollouts: int | None = None
    """Rollouts behind the less certain of the two steps; None as above, or where both labels are exact."""

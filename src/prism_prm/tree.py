"""The central records: a problem with its tree of steps, and pairs of steps to compare.

A labeled solution is a trunk of steps; each position may have other candidates with the same prefix. Nodes are
numbered in file order, a node's parent comes before it, and -1 is the problem itself. A candidate is valid only under
the prefix it was labeled with, given by its parent.
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
"""Who wrote a step. `perturbed` steps are generated for ablations and have no label."""

PairKind = Literal["annotated", "lookahead", "random", "perturbed"]
PAIR_KINDS: tuple[PairKind, ...] = ("annotated", "lookahead", "random", "perturbed")

ROOT = -1
"""The parent of a first step: the problem itself."""

_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Estimate:
    """How often solutions that continue a step reach the right answer, estimated by rollouts of a policy."""

    value: float
    """The share of rollouts that reached the right answer."""
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
    """Probability that the step is right, in [0, 1]; None if unknown or rated neutral."""
    rating: float | None = None
    """The source's rating, unchanged (PRM800K: -1, 0, 1)."""
    origin: Origin = "model"
    estimate: Estimate | None = None
    """The estimate behind a label made by rollouts (`prism label`)."""


@dataclass(frozen=True, slots=True)
class StepTree:
    """A problem and a tree of steps; `tree_id` distinguishes equal records."""

    tree_id: int
    """Its index in the input."""
    problem: str
    nodes: tuple[Step, ...]
    parents: tuple[int, ...]
    """The index of the step before each node, or ROOT; always smaller than the node's own index."""
    trunk: tuple[int, ...]
    """The nodes of the solution itself, from the first step on; may end before the deepest position."""
    name: str = ""
    """The source's id ("gsm8k-17", "circular_test_p2_3"), or ""."""
    answer: str | None = None
    """The reference answer, if the source has one."""
    ended: bool | None = None
    """Whether the trunk is a complete solution; None if unknown."""
    where: str = field(default="", compare=False, repr=False)
    """Where it was read, for messages: `file:line`. Not part of the content."""

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
        """The tree of one plain solution."""
        if isinstance(steps, str):
            raise DataError(
                f"the steps are one string, {steps[:40]!r}…; pass a list of strings, e.g. split_steps(text)",
                reason="wrong-type",
            )
        nodes = tuple(step if isinstance(step, Step) else Step(step) for step in steps)
        return cls(
            tree_id, problem, nodes, tuple(range(-1, len(nodes) - 1)), tuple(range(len(nodes))), name, answer, ended
        )

    def depths(self) -> tuple[int, ...]:
        """The position of every node, from 0."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first step to `node`, inclusive."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def texts(self, path: Sequence[int]) -> list[str]:
        """The texts of some nodes."""
        return [self.nodes[node].text for node in path]

    def positions(self) -> Iterator[tuple[int, list[int]]]:
        """(parent, candidate nodes) for every prefix that has candidates, in file order."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(node)
        yield from children.items()

    def only(self, nodes: Sequence[int]) -> StepTree:
        """The tree of some nodes, in ascending order; one whose parent is not among them becomes a first step."""
        number = {node: i for i, node in enumerate(nodes)}
        parents = tuple(number.get(self.parents[node], ROOT) for node in nodes)
        return StepTree(self.tree_id, self.problem, tuple(self.nodes[node] for node in nodes), parents, ())

    def with_leaves(self, leaves: Sequence[tuple[int, Step]]) -> StepTree:
        """The tree with more leaves (parent, step) after its nodes, such as lookahead and random negatives."""
        return replace(
            self,
            nodes=(*self.nodes, *(step for _, step in leaves)),
            parents=(*self.parents, *(parent for parent, _ in leaves)),
        )

    def content_hash(self) -> str:
        """A hash of the content, without `tree_id` and name: 16 hexadecimal digits."""
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
    """The hash of a tree given as columns. It uses msgpack, which is unambiguous and fast.

    Estimates are part of the hash only if there are any, so that trees without them keep their hashes.
    """
    content: tuple[object, ...] = (problem, answer, ended, trunk, parents, texts, labels, ratings, origins)
    if estimates and any(estimates):
        content = (*content, estimates)
    return xxhash.xxh3_64_hexdigest(_ENCODER.encode(content))


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique by appending "#1", "#2", … to repeated ones.

    A name depends only on those before it, so appending names changes none.
    """
    return list(iter_unique_names(names))


def iter_unique_names(names: Iterable[str]) -> Iterator[str]:
    """`unique_names` as a generator."""
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
    """The number of steps in the prefix."""
    chosen: int
    rejected: int
    rejected_tree: int
    """The tree of the rejected text: `tree_id` itself, except for random negatives."""
    kind: PairKind
    gap: float | None = None
    """How much higher the chosen step's estimated value is; None unless both labels are from rollouts."""
    rollouts: int | None = None
    """Rollouts of the less certain of the two steps; None as above, and if both labels are exact."""

"""A tree while it is being read: plain lists, because a million small objects would cost more than the reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism_prm.errors import DataError
from prism_prm.records import ROOT, Estimate, Origin, Step, StepTree, content_hash


@dataclass(slots=True)
class Draft:
    """What a reader makes of one record; the fields are those of `StepTree`, node by node in lists."""

    problem: str
    texts: list[str]
    parents: list[int]
    labels: list[float | None]
    ratings: list[float | None]
    origins: list[Origin]
    trunk: list[int]
    name: str = ""
    answer: str | None = None
    ended: bool | None = None
    where: str = ""
    """Where it was read: `file:line`."""
    estimates: list[Estimate | None] | None = None
    """None where no step has one."""

    @classmethod
    def chain(
        cls,
        problem: str,
        texts: Sequence[str],
        labels: Sequence[float | None],
        *,
        name: str = "",
        answer: str | None = None,
        ended: bool | None = None,
    ) -> Draft:
        """One plain solution, whose ratings are its labels."""
        assert len(texts) == len(labels), "one label per step"
        size = len(texts)
        origins: list[Origin] = ["model"] * size
        return cls(
            problem, list(texts), list(range(ROOT, size - 1)), list(labels), list(labels), origins, list(range(size)),
            name, answer, ended,
        )  # fmt: skip

    @classmethod
    def of(cls, tree: StepTree) -> Draft:
        """The lists of a tree."""
        return cls(
            tree.problem,
            [node.text for node in tree.nodes],
            list(tree.parents),
            [node.label for node in tree.nodes],
            [node.rating for node in tree.nodes],
            [node.origin for node in tree.nodes],
            list(tree.trunk),
            tree.name,
            tree.answer,
            tree.ended,
            tree.where,
            [node.estimate for node in tree.nodes] if any(node.estimate for node in tree.nodes) else None,
        )

    def tree(self, tree_id: int) -> StepTree:
        """The finished record."""
        estimates = self.estimates or [None] * len(self.texts)
        nodes = map(Step, self.texts, self.labels, self.ratings, self.origins, estimates)
        return StepTree(
            tree_id, self.problem, tuple(nodes), tuple(self.parents), tuple(self.trunk), self.name, self.answer,
            self.ended, self.where,
        )  # fmt: skip

    def check_links(self) -> None:
        """Reject parents and a trunk that make no tree: from a file they may be anything."""
        for node, parent in enumerate(self.parents):
            if parent is None or not ROOT <= parent < node:
                raise DataError(
                    f"node {node} has the parent {parent}, which is neither {ROOT} nor a node before it; "
                    "write the table again with `prism pairs`",
                    reason="bad-parent",
                )
        before = ROOT
        for node in self.trunk:
            if node is None or not 0 <= node < len(self.parents) or self.parents[node] != before:
                raise DataError(
                    f"the trunk has the node {node} after {before}, which is not its parent; "
                    "write the table again with `prism pairs`",
                    reason="broken-trunk",
                )
            before = node

    def content_hash(self) -> str:
        """The same hash as that of the finished tree."""
        return content_hash(
            self.problem, self.answer, self.ended, self.trunk, self.parents, self.texts, self.labels, self.ratings,
            self.origins, self.estimates,
        )  # fmt: skip


def is_blank(text: str) -> bool:
    """Whether a text says nothing."""
    return not text or text.isspace()


def require_texts(problem: str, steps: Sequence[str]) -> None:
    """Reject a record that has no problem, no steps, or an empty step."""
    if is_blank(problem):
        raise DataError("the problem is empty; every record needs one", reason="empty-text")
    if not steps:
        raise DataError("the solution has no steps; every record needs at least one", reason="no-steps")
    for i, text in enumerate(steps):
        if is_blank(text):
            raise DataError(f"step {i + 1} has an empty text ({text!r}); every step needs one", reason="empty-text")

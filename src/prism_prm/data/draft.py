"""What the reader of a format works with: the options, and a `Draft` for each tree.

A draft is plain lists, because a million small objects would cost more than the reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prism_prm.config import check
from prism_prm.errors import ConfigError, DataError
from prism_prm.tree import ROOT, Estimate, Origin, Step, StepTree, content_hash

Neutral = Literal["drop", "negative", "positive"]
Keep = Literal["keep", "drop"]
OnBadRecord = Literal["fail", "skip"]

FINISH_REASONS = ("solution", "found_error", "give_up", "bad_problem")
"""How a PRM800K labeller ended a record."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How records are read; the defaults are those of `prism pairs`."""

    neutral: Neutral = "drop"
    """How to label PRM800K steps with the neutral rating (0): not at all, wrong, or right."""
    drop_finish: tuple[str, ...] = ("bad_problem",)
    """PRM800K finish reasons whose records are left out: solution, found_error, give_up, bad_problem. On the command
    line a comma-separated list, or none."""
    quality_control: Keep = "keep"
    """Whether to keep the PRM800K records that were used to check labellers."""
    screening: Keep = "keep"
    """Whether to keep the PRM800K records that were used to screen labellers."""
    split_steps: bool = False
    """Also read records with a problem and a plain solution, and cut the solution into steps."""
    trust_solutions: bool = False
    """Label every step of a plain solution as right, e.g. for reference solutions."""
    split: str | None = None
    """Read only the trees of this split of a `trees.parquet`."""
    on_bad_record: OnBadRecord = "fail"
    """What to do with a record that cannot be read: stop, or leave it out and count it."""

    def __post_init__(self) -> None:
        check(self)
        unknown = [reason for reason in self.drop_finish if reason not in FINISH_REASONS]
        if unknown:
            raise ConfigError(f"Unknown finish reasons {unknown} to drop. Known: {', '.join(FINISH_REASONS)}.")


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
        nodes = tree.nodes
        return cls(
            tree.problem, [node.text for node in nodes], list(tree.parents), [node.label for node in nodes],
            [node.rating for node in nodes], [node.origin for node in nodes], list(tree.trunk), tree.name, tree.answer,
            tree.ended, tree.where, [node.estimate for node in nodes] if any(node.estimate for node in nodes) else None,
        )  # fmt: skip

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


def require_texts(problem: str, steps: Sequence[str]) -> None:
    """Reject a record that has no problem, no steps, or an empty step."""
    if not problem.strip():
        raise DataError("the problem is empty; every record needs one", reason="empty-text")
    if not steps:
        raise DataError("the solution has no steps; every record needs at least one", reason="no-steps")
    for i, text in enumerate(steps):
        if not text.strip():
            raise DataError(f"step {i + 1} has an empty text ({text!r}); every step needs one", reason="empty-text")


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of record is recognized and read."""

    name: str
    record: type[Any]
    """The msgspec type that a record must have."""
    keys: frozenset[str]
    """A record with these keys looks like this format."""
    read: Callable[[Any, ReadOptions], list[Draft]]
    drop_reason: Callable[[Any, ReadOptions], str | None] = lambda _record, _options: None
    """Why the options leave a record out, or None."""
    unique_names: bool = False
    """Whether a name that was seen before is dropped (and counted)."""

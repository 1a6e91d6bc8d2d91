"""How foreign records become trees where the sources leave a choice; every choice is an option of `prism pairs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism_prm.errors import ConfigError
from prism_prm.ranges import check

Neutral = Literal["drop", "negative", "positive"]
Keep = Literal["keep", "drop"]
OnBadRecord = Literal["fail", "skip"]

NEUTRAL_LABELS: dict[Neutral, float | None] = {"drop": None, "negative": 0.0, "positive": 1.0}
"""What a neutral rating says about the step. Dropped means: the step stays in the tree, without a label."""

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

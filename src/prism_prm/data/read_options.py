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
    """The choices; the defaults are those of `prism pairs`."""

    neutral: Neutral = "drop"
    """What PRM800K's neutral rating (0) says about a step: nothing, wrong, or right."""
    drop_finish: tuple[str, ...] = ("bad_problem",)
    """PRM800K finish reasons whose records are left out: solution, found_error, give_up, bad_problem. The option
    takes them with commas between, or none."""
    quality_control: Keep = "keep"
    """Whether to keep the PRM800K records that checked labellers."""
    screening: Keep = "keep"
    """Whether to keep the PRM800K records that selected labellers."""
    split_steps: bool = False
    """Also read records with a problem and a plain solution, and cut the solution into steps."""
    trust_solutions: bool = False
    """Label every step of a plain solution as right, as for reference solutions."""
    split: str | None = None
    """Read only the trees of this split of a `trees.parquet`."""
    on_bad_record: OnBadRecord = "fail"
    """Stop at a record that cannot be read, or leave it out and count it."""

    def __post_init__(self) -> None:
        check(self)
        unknown = [reason for reason in self.drop_finish if reason not in FINISH_REASONS]
        if unknown:
            raise ConfigError(f"Unknown finish reasons {unknown} to drop. Known: {', '.join(FINISH_REASONS)}.")

"""How foreign records become trees where the sources leave a choice; every choice is an option of `prism pairs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism_prm.errors import ConfigError

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
    """PRM800K's rating 0: no label, wrong, or right."""
    drop_finish: tuple[str, ...] = ("bad_problem",)
    """PRM800K finish reasons (FINISH_REASONS) whose records are dropped."""
    quality_control: Keep = "keep"
    """PRM800K records made to check labellers."""
    screening: Keep = "keep"
    """PRM800K records made to select labellers."""
    split_steps: bool = False
    """Read records that hold a problem and a plain solution text, cutting the text into steps."""
    trust_solutions: bool = False
    """Label every step of such a plain solution as right (for reference solutions)."""
    split: str | None = None
    """Of a `trees.parquet`: only the trees of this split."""
    on_bad_record: OnBadRecord = "fail"

    def __post_init__(self) -> None:
        unknown = [reason for reason in self.drop_finish if reason not in FINISH_REASONS]
        if unknown:
            raise ConfigError(f"Unknown finish reasons {unknown} to drop. Known: {', '.join(FINISH_REASONS)}.")

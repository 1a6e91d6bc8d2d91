"""How foreign records become trees where the sources leave a choice; every choice is an option of `prism pairs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Neutral = Literal["drop", "negative", "positive"]
Keep = Literal["keep", "drop"]
OnBadRecord = Literal["fail", "skip"]

NEUTRAL_LABELS: dict[Neutral, float | None] = {"drop": None, "negative": 0.0, "positive": 1.0}
"""What a neutral rating says about the step. Dropped means: the step stays in the tree, without a label."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The choices; the defaults are those of `prism pairs`."""

    neutral: Neutral = "drop"
    """PRM800K's rating 0: no label, wrong, or right."""
    drop_finish: tuple[str, ...] = ("bad_problem",)
    """PRM800K finish reasons whose records are dropped (solution, found_error, give_up, bad_problem)."""
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

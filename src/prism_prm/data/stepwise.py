"""TRL's stepwise supervision: `prompt`, `completions` (the steps) and `labels`, true/false or soft in [0, 1]."""

from __future__ import annotations

import msgspec

from prism_prm.data.draft import Draft, require_texts
from prism_prm.data.options import ReadOptions
from prism_prm.errors import DataError


class Record(msgspec.Struct):
    prompt: str
    completions: list[str]
    labels: list[bool | float]


KEYS = frozenset({"prompt", "completions", "labels"})


def read(record: Record, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The record as one solution; whether it reaches an end is not said."""
    if len(record.completions) != len(record.labels):
        raise DataError(
            f"{len(record.completions)} completions but {len(record.labels)} labels; each step needs one",
            reason="label-mismatch",
        )
    labels = [float(label) for label in record.labels]
    for i, label in enumerate(labels):
        if not 0.0 <= label <= 1.0:
            raise DataError(f"label {label:g} of step {i + 1} is not in [0, 1]", reason="bad-rating")
    require_texts(record.prompt, record.completions)
    return [Draft.chain(record.prompt, record.completions, labels)]

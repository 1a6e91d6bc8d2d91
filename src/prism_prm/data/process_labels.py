"""Process labels as in ProcessBench: `problem`, `steps`, and `label`, the 0-based index of the first wrong step, or -1.

Steps before it are right; what comes after a first error was not judged and stays unlabelled.
"""

from __future__ import annotations

import msgspec

from prism_prm.data.draft import Draft, require_texts
from prism_prm.data.options import ReadOptions
from prism_prm.errors import DataError

NO_ERROR = -1


class Record(msgspec.Struct):
    problem: str
    steps: list[str]
    label: int
    id: str | int = ""


KEYS = frozenset({"problem", "steps", "label"})


def read(record: Record, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The record as one solution."""
    size = len(record.steps)
    if not NO_ERROR <= record.label < size:
        raise DataError(
            f"label {record.label} is not the index of one of {size} steps (0 to {size - 1}), nor -1 for no error",
            reason="bad-rating",
        )
    require_texts(record.problem, record.steps)
    right = size if record.label == NO_ERROR else record.label
    labels: list[float | None] = [1.0] * right
    if record.label != NO_ERROR:
        labels += [0.0, *[None] * (size - right - 1)]
    return [Draft.chain(record.problem, record.steps, labels, name=str(record.id), ended=True)]

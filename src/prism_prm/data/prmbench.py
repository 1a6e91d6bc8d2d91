"""PRMBench: a solution modified to hold errors, with their 1-based places.

A listed step is wrong and every other step is right, also after an error; places past the last step are ignored, as
the benchmark does. A `redundency` row (its own spelling) also gives its original as an item without errors.
The first item of a name counts. Step texts are kept as they are, empty ones too: the places refer to them.
"""

from __future__ import annotations

import msgspec

from prism_prm.data.draft import Draft, is_blank
from prism_prm.data.options import ReadOptions
from prism_prm.errors import DataError

WITH_TWIN = "redundency"


class Record(msgspec.Struct):
    classification: str
    idx: str
    modified_question: str
    modified_process: list[str]
    error_steps: list[int]
    original_question: str = ""
    original_process: list[str] = []
    ground_truth: str | None = None


KEYS = frozenset({"modified_question", "modified_process", "error_steps"})


def read(record: Record, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The item, and its correct twin where there is one."""
    if any(place < 1 for place in record.error_steps):
        raise DataError(f"error_steps {record.error_steps} must count from 1", reason="bad-rating")
    wrong = set(record.error_steps)
    labels = [0.0 if i + 1 in wrong else 1.0 for i in range(len(record.modified_process))]
    name = f"{record.classification}_{record.idx}"
    items = [_item(record.modified_question, record.modified_process, labels, name, record.ground_truth)]
    if record.classification == WITH_TWIN:
        problem, steps = record.original_question, record.original_process
        items.append(_item(problem, steps, [1.0] * len(steps), f"correct_{record.idx}", record.ground_truth))
    return items


def _item(problem: str, steps: list[str], labels: list[float], name: str, answer: str | None) -> Draft:
    if is_blank(problem):
        raise DataError(f"item {name}: the question is empty", reason="empty-text")
    if not steps:
        raise DataError(f"item {name}: the process has no steps", reason="no-steps")
    return Draft.chain(problem, steps, labels, name=name, answer=answer)

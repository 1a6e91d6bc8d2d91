"""Math-Shepherd: steps marked with the tag ки in `input` and with + or - in `label`, or split into a dict of steps.

The "Step i:" markers are removed, because the number would give a lookahead negative away.
"""

from __future__ import annotations

import re

import msgspec

from prism_prm.data.draft import Draft, require_texts
from prism_prm.data.read_options import ReadOptions
from prism_prm.errors import DataError

TAG = "ки"
MARKS = {"+": 1.0, "-": 0.0}

# A run of spaces is read from its first one only; from each of them it would take the square of its length.
FIRST_STEP = re.compile(r"(?<!\s)\s*Step 1\s*:")
_MARKER = re.compile(r"(?<!\s)\s*Step \d+\s*:\s*")


class TaggedRecord(msgspec.Struct):
    input: str
    label: str


class SplitStep(msgspec.Struct):
    content: str
    label: float


class SplitRecord(msgspec.Struct):
    questions: str
    solution: dict[str, SplitStep]


KEYS = frozenset({"input", "label"})
SPLIT_KEYS = frozenset({"questions", "solution"})


def read(record: TaggedRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """An original row as one solution."""
    *steps, rest = record.input.split(TAG)
    if not steps or rest.strip():
        raise DataError(
            f"`input` does not end with the step tag {TAG!r}: found {record.input[-40:]!r}", reason="no-tag"
        )
    labels = _marks(steps, record.label)
    found = FIRST_STEP.search(steps[0])
    if found is None:
        raise DataError(f'`input` has no "Step 1:" after the question: found {steps[0][:60]!r}', reason="no-marker")
    problem = steps[0][: found.start()]
    steps[0] = steps[0][found.start() :]
    texts = [_MARKER.sub("", step, count=1).strip() for step in steps]
    require_texts(problem, texts)
    return [Draft.chain(problem, texts, labels, ended=True)]


def _marks(steps: list[str], label: str) -> list[float]:
    """The mark after each step in `label`, which repeats `input` with marks in the place of tags."""
    marks: list[float] = []
    at = 0
    for i, step in enumerate(steps):
        at += len(step)
        if label[at - len(step) : at] != step:
            raise DataError(f"`label` does not repeat step {i + 1} of `input`", reason="label-mismatch")
        mark = label[at : at + 1]
        if mark not in MARKS:
            raise DataError(f"step {i + 1} is marked {mark!r} in `label`, not + or -", reason="bad-rating")
        marks.append(MARKS[mark])
        at += 1
    return marks


def read_split(record: SplitRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """A row of the split copy: {"Step 1": {content, label}, …}."""
    steps = list(record.solution.values())
    names = [f"Step {i + 1}" for i in range(len(steps))]
    if list(record.solution) != names:
        raise DataError(f"the steps are named {list(record.solution)}, not {names}", reason="bad-index")
    for name, step in record.solution.items():
        if step.label not in (0.0, 1.0):
            raise DataError(f"{name}: label {step.label:g} is not one of 0, 1", reason="bad-rating")
    texts = [step.content for step in steps]
    require_texts(record.questions, texts)
    return [Draft.chain(record.questions, texts, [step.label for step in steps], ended=True)]

"""A problem and a list of its steps: TRL's stepwise supervision, process labels, PRMBench, and steps without labels."""

from __future__ import annotations

from typing import Any

import msgspec

from prism_prm.data.draft import Draft, is_blank, require_texts
from prism_prm.data.plain_solutions import refuse_pool
from prism_prm.data.read_options import ReadOptions
from prism_prm.errors import DataError

NO_ERROR = -1
WITH_TWIN = "redundency"
"""PRMBench's own spelling of the class whose rows also give their original."""

STEPWISE_KEYS = frozenset({"prompt", "completions", "labels"})
PROCESS_LABELS_KEYS = frozenset({"problem", "steps", "label"})
PRMBENCH_KEYS = frozenset({"modified_question", "modified_process", "error_steps"})
STEPS_KEYS = frozenset({"problem", "steps"})
COMPLETIONS_KEYS = frozenset({"prompt", "completions"})


class StepwiseRecord(msgspec.Struct):
    """TRL's stepwise supervision: the steps as `completions`, and `labels`, true/false or soft in [0, 1]."""

    prompt: str
    completions: list[str]
    labels: list[bool | float]


def read_stepwise(record: StepwiseRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
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


class ProcessLabelsRecord(msgspec.Struct):
    """As in ProcessBench: `label` is the 0-based index of the first wrong step, or -1.

    Steps before it are right; what comes after a first error was not judged and stays unlabelled.
    """

    problem: str
    steps: list[str]
    label: int
    id: str | int = ""


def read_process_labels(record: ProcessLabelsRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
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


class PRMBenchRecord(msgspec.Struct):
    """A solution modified to hold errors, with their 1-based places.

    A listed step is wrong and every other step is right, also after an error; places past the last step are ignored,
    as the benchmark does. A `redundency` row also gives its original as an item without errors. The first item of a
    name counts. Step texts are kept as they are, empty ones too: the places refer to them.
    """

    classification: str
    idx: str
    modified_question: str
    modified_process: list[str]
    error_steps: list[int]
    original_question: str = ""
    original_process: list[str] = []
    ground_truth: str | None = None


def read_prmbench(record: PRMBenchRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The item, and its correct twin where there is one."""
    if any(place < 1 for place in record.error_steps):
        raise DataError(f"error_steps {record.error_steps} must count from 1", reason="bad-rating")
    wrong = set(record.error_steps)
    labels = [0.0 if i + 1 in wrong else 1.0 for i in range(len(record.modified_process))]
    name = f"{record.classification}_{record.idx}"
    items = [_prmbench_item(record.modified_question, record.modified_process, labels, name, record.ground_truth)]
    if record.classification == WITH_TWIN:
        problem, steps = record.original_question, record.original_process
        items.append(_prmbench_item(problem, steps, [1.0] * len(steps), f"correct_{record.idx}", record.ground_truth))
    return items


def _prmbench_item(problem: str, steps: list[str], labels: list[float], name: str, answer: str | None) -> Draft:
    if is_blank(problem):
        raise DataError(f"item {name}: the question is empty", reason="empty-text")
    if not steps:
        raise DataError(f"item {name}: the process has no steps", reason="no-steps")
    return Draft.chain(problem, steps, labels, name=name, answer=answer)


class UnlabelledSteps(msgspec.Struct):
    """Steps to be scored."""

    problem: str
    steps: list[str]
    id: str | int = ""


class UnlabelledCompletions(msgspec.Struct):
    """Steps to be scored, named as in TRL."""

    prompt: str
    completions: list[str]
    answer: Any = None


def read_steps(record: UnlabelledSteps, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The record as one solution."""
    return [_unlabelled(record.problem, record.steps, str(record.id))]


def read_completions(record: UnlabelledCompletions, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The record as one solution; a reference answer beside the list shows that it holds solutions, not steps."""
    if record.answer is not None:
        refuse_pool("completions")
    return [_unlabelled(record.prompt, record.completions, "")]


def _unlabelled(problem: str, steps: list[str], name: str) -> Draft:
    require_texts(problem, steps)
    return Draft.chain(problem, steps, [None] * len(steps), name=name)

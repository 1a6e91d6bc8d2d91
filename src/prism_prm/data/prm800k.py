"""PRM800K, both phases, in its original records: several rated completions per position, one of which continues.

The trunk follows the chosen completion, or the human completion where none was chosen. Where neither is there the trunk
ends. Every other completion is a candidate under the prefix it was shown with.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from prism_prm.data.draft import Draft, is_blank
from prism_prm.data.read_options import NEUTRAL_LABELS, ReadOptions
from prism_prm.errors import DataError
from prism_prm.records import ROOT, Origin


class RatedCompletion(msgspec.Struct, gc=False):
    text: str
    rating: float | None = None


class Position(msgspec.Struct, gc=False):
    completions: list[RatedCompletion] | None
    chosen_completion: int | None
    human_completion: RatedCompletion | None = None


class Question(msgspec.Struct, gc=False):
    problem: str
    ground_truth_answer: str | None = None


class Labels(msgspec.Struct, gc=False):
    steps: list[Position]
    finish_reason: str | None = None


class Prm800kRecord(msgspec.Struct, gc=False):
    question: Question
    label: Labels
    is_quality_control_question: bool | None = None
    is_initial_screening_question: bool | None = None


KEYS = frozenset({"question", "label"})


def drop_reason(record: Prm800kRecord, options: ReadOptions) -> str | None:
    """Why the options leave this record out, or None."""
    if record.label.finish_reason in options.drop_finish:
        return f"finish:{record.label.finish_reason}"
    if record.is_quality_control_question and options.quality_control == "drop":
        return "quality-control"
    if record.is_initial_screening_question and options.screening == "drop":
        return "screening"
    # A labeller who gave up at once leaves a record that is sound but says nothing.
    if not any(position.completions or position.human_completion for position in record.label.steps):
        return "no-completions"
    return None


def read(record: Prm800kRecord, options: ReadOptions) -> list[Draft]:
    """The record as one tree."""
    if is_blank(record.question.problem):
        raise DataError("the problem is empty; every record needs one", reason="empty-text")
    label_of: dict[float | None, float | None] = {
        -1.0: 0.0, 0.0: NEUTRAL_LABELS[options.neutral], 1.0: 1.0, None: None,
    }  # fmt: skip
    found: list[RatedCompletion] = []
    parents: list[int] = []
    humans: list[int] = []
    trunk: list[int] = []
    prefix = ROOT
    steps = record.label.steps
    for at, position in enumerate(steps):
        if len(trunk) < at:
            raise _broken_trunk(at, len(steps))
        first = len(found)
        found += position.completions or ()
        if position.chosen_completion is not None:
            trunk.append(_chosen(position, at, first))
        if position.human_completion is not None:
            humans.append(len(found))
            if position.chosen_completion is None:
                trunk.append(len(found))
            found.append(position.human_completion)
        parents += [prefix] * (len(found) - first)
        prefix = trunk[-1] if trunk else ROOT
    texts = [completion.text for completion in found]
    ratings = [completion.rating for completion in found]
    try:
        labels = [label_of[rating] for rating in ratings]
    except KeyError:
        raise _bad_rating(found, label_of) from None
    if "" in texts or any(map(str.isspace, texts)):
        raise DataError("a completion has an empty text; every step needs one", reason="empty-text")
    origins: list[Origin] = ["model"] * len(texts)
    for node in humans:
        origins[node] = "human"
        labels[node] = 1.0
    ended = _ended(record.label.finish_reason, len(trunk) == len(steps))
    answer = record.question.ground_truth_answer
    return [Draft(record.question.problem, texts, parents, labels, ratings, origins, trunk, "", answer, ended)]


def _ended(finish_reason: str | None, complete: bool) -> bool:
    """Whether the trunk reached the end; regrouped copies lose the finish reason, and then completeness decides."""
    return complete if finish_reason is None else finish_reason == "solution"


def _chosen(position: Position, at: int, first: int) -> int:
    """The node of the chosen completion, where the position's nodes begin with `first`."""
    chosen, size = position.chosen_completion, len(position.completions or ())
    assert chosen is not None
    if not 0 <= chosen < size:
        raise DataError(
            f"position {at + 1}: chosen_completion {chosen} is not the index of one of its {size} completions",
            reason="bad-index",
        )
    return first + chosen


def _broken_trunk(at: int, size: int) -> DataError:
    return DataError(
        f"position {at} has neither a chosen nor a human completion, but {size - at} positions follow, whose prefix is "
        f"unknown",
        reason="broken-trunk",
    )


def _bad_rating(found: list[RatedCompletion], known: Mapping[float | None, float | None]) -> DataError:
    text, rating = next((step.text, step.rating) for step in found if step.rating not in known)
    return DataError(f"rating {rating:g} is not one of -1, 0, 1, null (of the step {text[:60]!r})", reason="bad-rating")

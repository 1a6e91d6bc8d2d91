"""Steps without labels, for scoring: `problem` and `steps`, or `prompt` and `completions` (the steps, as in TRL)."""

from __future__ import annotations

from typing import Any

import msgspec

from prism_prm.data.draft import Draft, require_texts
from prism_prm.data.options import ReadOptions
from prism_prm.data.solutions import refuse_pool


class Steps(msgspec.Struct):
    problem: str
    steps: list[str]
    id: str | int = ""


class Completions(msgspec.Struct):
    prompt: str
    completions: list[str]
    answer: Any = None


STEPS_KEYS = frozenset({"problem", "steps"})
COMPLETIONS_KEYS = frozenset({"prompt", "completions"})


def read_steps(record: Steps, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The record as one solution."""
    return [_chain(record.problem, record.steps, str(record.id))]


def read_completions(record: Completions, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    """The record as one solution; a reference answer beside the list shows that it holds solutions, not steps."""
    if record.answer is not None:
        refuse_pool("completions")
    return [_chain(record.prompt, record.completions, "")]


def _chain(problem: str, steps: list[str], name: str) -> Draft:
    require_texts(problem, steps)
    return Draft.chain(problem, steps, [None] * len(steps), name=name)

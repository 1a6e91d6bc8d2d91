"""Judge answers against a reference, and give each the key it votes under.

Plain numbers and words are compared directly; algebra, in worker processes, is used only if that is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prism_prm.answers.latex import normalise
from prism_prm.answers.numerals import plain_key, same_plainly, text_key
from prism_prm.answers.workers import Call, Workers
from prism_prm.console import Advance, ignore

MAX_LENGTH = 2_000
"""Longer answers are compared as text only: no final answer is that long, and parsers are not made for it."""

Status = Literal[
    "ok", "timeout", "error", "too long", "no answer", "memory", "output", "sandbox", "no public tests",
]  # fmt: skip
"""The outcome of a comparison. After "timeout", "error" and "too long" an answer was compared as text only; a program
that ended in one of the first ones, or for want of memory, did not pass. All are counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and whether the comparison finished."""

    correct: bool
    status: Status = "ok"
    tests: tuple[str, ...] = field(default=(), compare=False)
    """Of a program: how each test ended, "passed", "failed", a `Status`, or "not run"; public tests come first."""


@dataclass(frozen=True, slots=True)
class Key:
    """What an answer votes under: answers to one problem with equal keys are one answer. None casts no vote."""

    key: str | None
    status: Status = "ok"
    passed: bool | None = None
    """Of a program: whether it passes the public tests; None where there are none."""
    tests: tuple[str, ...] = field(default=(), compare=False)
    """Of a program: how each public test ended, as in a `Verdict`."""


class Judge:
    """Judges answers and remembers its verdicts; use it as a context manager, or call `close`."""

    def __init__(self, *, workers: int | None = None, seconds: float = 5.0) -> None:
        self._workers = Workers("prism_prm.answers.symbolic", count=workers, cpu_seconds=seconds)
        self._known: dict[Call, tuple[Any, Status]] = {}

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._workers.close()

    def judge(
        self,
        pairs: Sequence[tuple[object, object | None]],
        tolerances: Sequence[float] | None = None,
        advance: Advance = ignore,
    ) -> list[Verdict]:
        """The verdict on every (reference, answer); `tolerances` are relative, for numbers, one per pair.

        Other values (`true` or 12 in a file) count as the text they print as; None means no answer.
        """
        verdicts: list[Verdict | None] = []
        calls: list[Call] = []
        texts = [(str(reference), None if answer is None else str(answer)) for reference, answer in pairs]
        for (reference, answer), tolerance in zip(texts, tolerances or [0.0] * len(pairs), strict=True):
            verdict = _plain_verdict(reference, answer, tolerance)
            spellings = ("", "") if verdict else (normalise(reference), normalise(answer or ""))
            verdicts.append(verdict)
            calls.append(("equivalent", (*spellings, tolerance)))
        found = self._run(calls, verdicts, advance)
        return [
            verdict or Verdict(bool(value), status) for verdict, (value, status) in zip(verdicts, found, strict=True)
        ]

    def keys(self, answers: Sequence[object | None], advance: Advance = ignore) -> list[Key]:
        """The key of every answer."""
        texts = [None if answer is None else str(answer) for answer in answers]
        keys = [_plain_key(text) for text in texts]
        spellings = [normalise(text or "") for text in texts]
        found = self._run([("key", (spelling,)) for spelling in spellings], keys, advance)
        return [
            key or Key(value if status == "ok" else text_key(spelling), status)
            for key, spelling, (value, status) in zip(keys, spellings, found, strict=True)
        ]

    def _run(
        self, calls: Sequence[Call], decided: Sequence[object | None], advance: Advance
    ) -> list[tuple[Any, Status]]:
        """What the workers say to the calls that are not yet decided; equal calls run once."""
        open_calls = [call for call, known in zip(calls, decided, strict=True) if known is None]
        new = [call for call in dict.fromkeys(open_calls) if call not in self._known]
        advance(len(calls) - len(new))
        for call, outcome in zip(new, self._workers.run(new, advance) if new else [], strict=True):
            self._known[call] = (outcome.value, outcome.status)
        return [self._known.get(call, (None, "ok")) for call in calls]


def _plain_verdict(reference: str, answer: str | None, tolerance: float) -> Verdict | None:
    """The verdict where it needs no algebra, else None."""
    if answer is None:
        return Verdict(False, "no answer")
    if max(len(reference), len(answer)) > MAX_LENGTH:
        return Verdict(text_key(reference) == text_key(answer), "too long")
    same = same_plainly(normalise(reference), normalise(answer), tolerance)
    return Verdict(same) if same is not None else None


def _plain_key(answer: str | None) -> Key | None:
    """The key where it needs no algebra, else None."""
    if answer is None:
        return Key(None, "no answer")
    if len(answer) > MAX_LENGTH:
        return Key(text_key(answer), "too long")
    key = plain_key(normalise(answer))
    return Key(key) if key is not None else None

"""Judge answers against a reference, and give each the key it votes under.

Plain numbers and words are compared directly; algebra, in worker processes, is used only if that is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from prism_prm.console import Advance, ignore
from prism_prm.grading.plain_answers import normalize, plain_key, same_plainly, text_key
from prism_prm.grading.process_pool import Call, Outcome, ProcessPool

_MAX_LENGTH = 2_000
"""Longer answers are compared as text only: no final answer is that long, and parsers are not made for it."""
Status = Literal[
    "ok", "timeout", "error", "too long", "no answer", "memory", "output", "sandbox", "no public tests",
]  # fmt: skip
"""The outcome of a comparison. After "timeout", "error" and "too long" an answer was compared as text only; a program
that ended in one of the first two, or for want of memory, did not pass. All are counted."""


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
        self._pool = ProcessPool("prism_prm.grading.symbolic", count=workers, cpu_seconds=seconds)
        self._known: dict[Call, Outcome] = {}

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._pool.close()

    def judge(
        self,
        pairs: Sequence[tuple[object, object | None]],
        tolerances: Sequence[float] | None = None,
        advance: Advance = ignore,
    ) -> list[Verdict]:
        """The verdict on every (reference, answer); `tolerances` are relative, for numbers, one per pair.

        Other values (`true` or 12 in a file) count as the text they print as; None means no answer.
        """
        found: list[Verdict | Call] = []
        for (reference, answer), tolerance in zip(pairs, tolerances or [0.0] * len(pairs), strict=True):
            a, b = str(reference), str(answer)
            if answer is None:
                found.append(Verdict(False, "no answer"))
            elif max(len(a), len(b)) > _MAX_LENGTH:
                found.append(Verdict(text_key(a) == text_key(b), "too long"))
            else:
                a, b = normalize(a), normalize(b)
                same = same_plainly(a, b, tolerance)
                found.append(("equivalent", (a, b, tolerance)) if same is None else Verdict(same))
        self._run([one for one in found if isinstance(one, tuple)], len(pairs), advance)
        return [
            one if isinstance(one, Verdict) else Verdict(bool(self._known[one].value), self._known[one].status)
            for one in found
        ]

    def keys(self, answers: Sequence[object | None], advance: Advance = ignore) -> list[Key]:
        """The key of every answer."""
        found: list[Key | Call] = []
        for answer in answers:
            text = str(answer)
            if answer is None:
                found.append(Key(None, "no answer"))
            elif len(text) > _MAX_LENGTH:
                found.append(Key(text_key(text), "too long"))
            else:
                text = normalize(text)
                key = plain_key(text)
                found.append(("key", (text,)) if key is None else Key(key))
        self._run([one for one in found if isinstance(one, tuple)], len(answers), advance)
        keys: list[Key] = []
        for one in found:
            if isinstance(one, tuple):
                outcome = self._known[one]
                one = Key(outcome.value if outcome.status == "ok" else text_key(one[1][0]), outcome.status)
            keys.append(one)
        return keys

    def _run(self, calls: Sequence[Call], num_items: int, advance: Advance) -> None:
        """Have all outcomes known; equal calls run once."""
        new = [call for call in dict.fromkeys(calls) if call not in self._known]
        advance(num_items - len(new))
        if new:
            self._known.update(zip(new, self._pool.run(new, advance), strict=True))

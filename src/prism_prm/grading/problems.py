"""Problems with what judges their solutions: a reference answer, or tests.

Anybody may run public tests; only the judge sees hidden ones.
"""

from __future__ import annotations

import base64
import json
import pickletools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from prism_prm.errors import DataError
from prism_prm.grading.value_codec import decode, encode

SECONDS = 6.0
"""LiveCodeBench's limit for one test."""
_MAX_UNPACKED = 2**30
"""Bytes of an unpacked payload of tests; no real one is as large."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: what the program gets, and what it must give."""

    given: Any
    """Standard input as a string, or a tuple of a function's arguments."""
    expected: Any
    """What must be printed, as a string, or the value that must be returned."""
    tolerance: float | None = None
    """How far off a returned number may be, absolutely; None: equal."""
    view: str = ""
    """What is done to a returned value before it is compared: a key of `compare_outputs.VIEWS`."""
    relative: float = 0.0
    """With a tolerance: how far off it may be instead, as a share of the larger of both numbers."""

    def to_json(self) -> list[Any]:
        """The case as JSON, for files and other processes."""
        return [encode(self.given), encode(self.expected), self.tolerance, self.view, self.relative]

    @classmethod
    def from_json(cls, parts: list[Any]) -> Case:
        """The inverse of `to_json`."""
        given, expected, *rest = parts
        return cls(decode(given), decode(expected), *rest)


@dataclass(frozen=True, slots=True)
class Packed:
    """Hidden tests as LiveCodeBench packs them, unpacked one problem at a time: together they would fill the memory."""

    payload: str
    function: str | None

    def cases(self) -> tuple[Case, ...]:
        """The tests themselves."""
        return read_cases(unpack(self.payload), self.function)


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """How programs for a problem are judged."""

    public: tuple[Case, ...] = ()
    """Those that the statement shows; votes and the selector `public-tests` use these alone."""
    hidden: tuple[Case, ...] | Packed = ()
    function: str | None = None
    """The function to call; None: the program reads standard input and prints."""
    prelude: str = ""
    """Code that runs before the program: imports, and functions that the statement gives."""
    seconds: float = SECONDS
    """The limit for one test."""
    judged_on_public: bool = True
    """Whether a right program must pass the public tests, too; a few examples of HumanEval are wrong."""
    tuples_are_lists: bool = True
    """Whether a returned tuple counts as a list, as in LiveCodeBench; inner ones never do."""
    num_unread: int = 0
    """ProgramTests of the source that are not of the form (arguments, expected) and are left out."""

    def __post_init__(self) -> None:
        if self.function is not None and not self.function.isidentifier():
            raise DataError(f"`function` is {self.function!r:.60}, expected the name of one", reason="wrong-type")

    @property
    def is_judged(self) -> bool:
        """Whether there are hidden tests: without them nothing is measured."""
        return isinstance(self.hidden, Packed) or bool(self.hidden)

    def shown(self) -> ProgramTests:
        """The same without hidden tests: all that votes and selectors may know."""
        return replace(self, hidden=())

    def judged(self) -> tuple[Case, ...]:
        """All that a right program must pass, public ones first. Only the judge calls this."""
        hidden = self.hidden.cases() if isinstance(self.hidden, Packed) else self.hidden
        return (self.public if self.judged_on_public else ()) + hidden

    def reference(self) -> str:
        """The tests as one JSON string, the form of a reference answer; `read_reference` reads it."""
        hidden = replace(self, judged_on_public=False).judged()
        return json.dumps(
            {
                "tests": [case.to_json() for case in hidden],
                "public_tests": [case.to_json() for case in self.public],
                "function": self.function,
                "prelude": self.prelude,
                "seconds": self.seconds,
                "judged_on_public": self.judged_on_public,
                "tuples_are_lists": self.tuples_are_lists,
            }
        )


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """A problem and what is known about its answer."""

    text: str
    answer: str | None = None
    name: str = ""
    level: str = ""
    """How hard it is, in the source's own words."""
    tolerance: float = 0.0
    """How far off a number may be and still be right, relative to the reference."""
    tests: ProgramTests | None = None
    """The tests of a program; None where an answer is asked for."""
    date: str = ""
    """The day on which it was published, YYYY-MM-DD, if the source says it."""
    in_errata: bool = False
    """Whether its benchmark lists it as flawed."""

    @property
    def is_judged(self) -> bool:
        """Whether solutions can be judged: there is a reference answer, or there are hidden tests."""
        return self.answer is not None if self.tests is None else self.tests.is_judged

    @property
    def reference(self) -> str | None:
        """What judges solutions, as one string: the answer, or the tests as JSON."""
        return self.answer if self.tests is None else self.tests.reference()

    @classmethod
    def with_reference(cls, text: str, reference: str, tolerance: float = 0.0) -> TaskProblem:
        """A problem with a string of `reference`."""
        tests = read_reference(reference)
        return cls(text, None if tests else reference, tolerance=tolerance, tests=tests)


@lru_cache(maxsize=256)
def read_reference(reference: str) -> ProgramTests | None:
    """The tests in a string of `ProgramTests.reference`; None if it is an answer."""
    if not reference.startswith('{"tests"'):
        return None
    found = json.loads(reference)
    hidden, public = (tuple(map(Case.from_json, found.pop(field))) for field in ("tests", "public_tests"))
    return ProgramTests(public, hidden, **found)


def read_cases(listed: object, function: str | None) -> tuple[Case, ...]:
    """Tests as LiveCodeBench and users write them: a list of objects with `input` and `output`.

    For a function, `input` is a list of arguments, or a string with one JSON value per line, and `output` any value, or
    a JSON string of it.
    """
    if not isinstance(listed, list):
        raise DataError(f"tests are a list of objects, found {type(listed).__name__}", reason="wrong-type")
    cases: list[Case] = []
    for number, one in enumerate(listed):
        if not isinstance(one, Mapping) or not {"input", "output"} <= set(one):
            found = sorted(one) if isinstance(one, Mapping) else type(one).__name__
            raise DataError(f"test {number}: needs `input` and `output`, found {found}", reason="missing-field")
        given, expected = one["input"], one["output"]
        if function is None:
            if not isinstance(given, str) or not isinstance(expected, str):
                fault = "`input` and `output` must be strings, since no function is named"
                raise DataError(f"test {number}: {fault}", reason="wrong-type")
            cases.append(Case(given, expected))
            continue
        try:
            if isinstance(given, str):
                given = [json.loads(line) for line in given.split("\n")]
                expected = json.loads(expected) if isinstance(expected, str) else expected
        except ValueError as error:
            raise DataError(f"test {number}: not one JSON value per line ({error})", reason="wrong-type") from None
        if not isinstance(given, list):
            raise DataError(f"test {number}: `input` must list the arguments of {function}", reason="wrong-type")
        cases.append(Case(tuple(given), expected))
    return tuple(cases)


def unpack(payload: str) -> Any:
    """Tests in a string: JSON, or JSON in a pickled string, compressed, in base64. Nothing in a payload is ever run."""
    text = payload.strip()
    try:
        if not text.startswith("["):
            unzipper = zlib.decompressobj()
            data = unzipper.decompress(base64.b64decode(text, validate=True), _MAX_UNPACKED)
            if not unzipper.eof:
                raise ValueError("it is cut off, or larger than 1 GB")
            text = _pickled_string(data)
        return json.loads(text)
    except (zlib.error, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"the payload of the tests cannot be read: {error}", reason="wrong-type") from None


_STRINGS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_AROUND = frozenset({"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"})


def _pickled_string(data: bytes) -> str:
    """The one string that a pickle holds. It is read as a list of instructions, none of which is carried out."""
    found: list[str] = []
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name in _STRINGS:
            found.append(str(argument))
        elif instruction.name not in _AROUND:
            raise DataError(
                f"the payload of the tests is more than a string ({instruction.name}), so reading it might run code; "
                "it is refused",
                reason="unsafe",
            )
    if len(found) != 1:
        raise ValueError(f"{len(found)} strings instead of one")
    return found[0]

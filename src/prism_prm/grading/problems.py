"""Problems, each with a reference answer or tests that judge its solutions.

Public tests may be run by anyone; only the judge sees hidden ones.
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

from prism_prm.errors import DataError, shown
from prism_prm.grading.value_codec import decode, encode

SECONDS = 6.0
"""LiveCodeBench's time limit for one test."""
_MAX_UNPACKED = 2**30
"""The maximum size of an unpacked payload of tests, in bytes; real ones are smaller."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: the input of a program, and the expected output."""

    given: Any
    """Standard input as a string, or a tuple of a function's arguments."""
    expected: Any
    """The text to print, or the value to return."""
    tolerance: float | None = None
    """The absolute tolerance for a returned number; None: equal."""
    view: str = ""
    """How to convert a returned value before comparing: a key of `compare_outputs.VIEWS`."""
    relative: float = 0.0
    """With a tolerance: also a relative one, as a share of the larger of both numbers."""

    def to_json(self) -> list[Any]:
        """Convert the case to JSON, for files and other processes."""
        return [encode(self.given), encode(self.expected), self.tolerance, self.view, self.relative]

    @classmethod
    def from_json(cls, parts: list[Any]) -> Case:
        """Invert `to_json`."""
        given, expected, *rest = parts
        return cls(decode(given), decode(expected), *rest)


@dataclass(frozen=True, slots=True)
class Packed:
    """Hidden tests as LiveCodeBench packs them; unpacked one problem at a time, to save memory."""

    payload: str
    function: str | None

    def cases(self) -> tuple[Case, ...]:
        """Unpack the tests."""
        return read_cases(unpack(self.payload), self.function)


@dataclass(frozen=True, slots=True)
class ProgramTests:
    """The tests of a problem, and how to run programs on them."""

    public: tuple[Case, ...] = ()
    """Tests that the problem statement shows; votes and the selector `public-tests` use only these."""
    hidden: tuple[Case, ...] | Packed = ()
    function: str | None = None
    """The function to call; None: the program reads standard input and prints."""
    prelude: str = ""
    """Code that runs before the program: imports, and functions from the statement."""
    seconds: float = SECONDS
    """The time limit for one test."""
    judged_on_public: bool = True
    """Whether a right program must also pass the public tests; a few examples of HumanEval are wrong."""
    tuples_are_lists: bool = True
    """Whether a returned tuple counts as a list, as in LiveCodeBench; nested tuples never do."""
    num_unread: int = 0
    """The number of tests of the source that are not of the form (arguments, expected) and are left out."""

    def __post_init__(self) -> None:
        if self.function is not None and not (isinstance(self.function, str) and self.function.isidentifier()):
            raise DataError(f"`function` is {self.function!r:.60}, expected a function name", reason="wrong-type")

    @property
    def is_judged(self) -> bool:
        """Whether there are hidden tests; without them programs cannot be judged."""
        return isinstance(self.hidden, Packed) or bool(self.hidden)

    def public_only(self) -> ProgramTests:
        """Return the tests without hidden ones: all that votes and selectors may use."""
        return replace(self, hidden=())

    def judged(self) -> tuple[Case, ...]:
        """Return all tests that a right program must pass, public ones first. Only the judge calls this."""
        hidden = self.hidden.cases() if isinstance(self.hidden, Packed) else self.hidden
        return (self.public if self.judged_on_public else ()) + hidden

    def reference(self) -> str:
        """Return the tests as a JSON string that serves as reference answer; `read_reference` reads it."""
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
    """A problem with its answer or tests."""

    text: str
    answer: str | None = None
    name: str = ""
    level: str = ""
    """The difficulty, as the source names it."""
    tolerance: float = 0.0
    """The tolerance for numbers, relative to the reference."""
    tests: ProgramTests | None = None
    """The tests of a program; None if the problem asks for an answer."""
    date: str = ""
    """The day of publication, YYYY-MM-DD, if known."""
    in_errata: bool = False
    """Whether its benchmark lists it as flawed."""

    @property
    def is_judged(self) -> bool:
        """Whether solutions can be judged, by a reference answer or hidden tests."""
        return self.answer is not None if self.tests is None else self.tests.is_judged

    @property
    def reference(self) -> str | None:
        """The answer, or the tests as JSON."""
        return self.answer if self.tests is None else self.tests.reference()

    @classmethod
    def with_reference(cls, text: str, reference: str, tolerance: float = 0.0) -> TaskProblem:
        """Make a problem from a string of `reference`."""
        tests = read_reference(reference)
        return cls(text, None if tests else reference, tolerance=tolerance, tests=tests)


@lru_cache(maxsize=256)
def read_reference(reference: str) -> ProgramTests | None:
    """Read a string of `ProgramTests.reference`; None if it is an answer."""
    if not reference.startswith('{"tests"'):
        return None
    try:
        fields = json.loads(reference)
        hidden, public = (tuple(map(Case.from_json, fields.pop(field))) for field in ("tests", "public_tests"))
        return ProgramTests(public, hidden, **fields)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"the tests of a reference, {shown(reference)}, cannot be read ({type(error).__name__}: {error})"
        raise DataError(message, reason="wrong-type") from None


def read_cases(items: object, function: str | None) -> tuple[Case, ...]:
    """Read tests as LiveCodeBench and users write them: a list of objects with `input` and `output`.

    For a function, `input` is a list of arguments, or a string with one JSON value per line, and `output` any value, or
    a JSON string of it.
    """
    if not isinstance(items, list):
        raise DataError(f"tests must be a list of objects, found {type(items).__name__}", reason="wrong-type")
    cases: list[Case] = []
    for number, item in enumerate(items):
        if not isinstance(item, Mapping) or not {"input", "output"} <= set(item):
            found = sorted(item) if isinstance(item, Mapping) else type(item).__name__
            raise DataError(f"test {number}: needs `input` and `output`, found {found}", reason="missing-field")
        given, expected = item["input"], item["output"]
        if function is None:
            if not isinstance(given, str) or not isinstance(expected, str):
                message = f"test {number}: `input` and `output` must be strings, because no function is named"
                raise DataError(message, reason="wrong-type")
            cases.append(Case(given, expected))
            continue
        try:
            if isinstance(given, str):
                given = [json.loads(line) for line in given.split("\n")]
                expected = json.loads(expected) if isinstance(expected, str) else expected
        except (ValueError, RecursionError) as error:
            raise DataError(f"test {number}: not one JSON value per line ({error})", reason="wrong-type") from None
        if not isinstance(given, list):
            raise DataError(f"test {number}: `input` must list the arguments of {function}", reason="wrong-type")
        cases.append(Case(tuple(given), expected))
    return tuple(cases)


def unpack(payload: str) -> Any:
    """Read tests from JSON, or from base64 of a compressed pickle of a JSON string. Runs no code of the payload."""
    text = payload.strip()
    try:
        if not text.startswith("["):
            unzipper = zlib.decompressobj()
            data = unzipper.decompress(base64.b64decode(text, validate=True), _MAX_UNPACKED)
            if not unzipper.eof:
                raise ValueError("it is truncated, or larger than 1 GB")
            text = _pickled_string(data)
        return json.loads(text)
    except (zlib.error, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"the payload of the tests cannot be read: {error}", reason="wrong-type") from None


_STRINGS = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_AROUND = frozenset({"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"})


def _pickled_string(data: bytes) -> str:
    """Return the single string in a pickle. Its opcodes are only listed, not executed."""
    strings: list[str] = []
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name in _STRINGS:
            strings.append(str(argument))
        elif instruction.name not in _AROUND:
            raise DataError(
                f"the payload of the tests is more than a string ({instruction.name}), so reading it could run code; "
                "it was not read",
                reason="unsafe",
            )
    if len(strings) != 1:
        raise ValueError(f"{len(strings)} strings instead of one")
    return strings[0]

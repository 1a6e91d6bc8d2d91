"""A problem that asks for a program, as its source states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prism_prm.errors import DataError
from prism_prm.programs.cases import Tests

ANSWER = "Put the program into one block that begins with ```python and ends with ```."


@dataclass(frozen=True, slots=True)
class Statement:
    """What policies and PRMs read, and the tests of a program."""

    text: str
    tests: Tests
    name: str = ""
    level: str = ""
    date: str = ""
    """The day on which it was published, YYYY-MM-DD."""
    in_errata: bool = False
    """Whether the benchmark itself lists it as flawed."""


def asked_for(task: str, how: str) -> str:
    """The prompt: the task, how the program is run, and where to write it."""
    return f"{task}\n\n{how}\n\n{ANSWER}"


def text_of(record: Mapping[str, Any], field: str) -> str:
    """A field that must be a text."""
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"`{field}` is {value!r:.60}, expected a text", reason="wrong-type")
    return value

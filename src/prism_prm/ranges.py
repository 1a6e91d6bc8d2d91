"""The values that a setting accepts: declared once, as the type of its field, and checked wherever a value comes from.

    lr: Positive = 1e-6

`check(self)` in `__post_init__` refuses other values in Python; recipes and options ask `fault` first, because they
know the place to name. Numbers must be finite, true is not a number, and a given text must not be empty unless the
default is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from prism_prm.errors import SettingError

LARGEST = 2**63
"""No whole number of ours is as large: arrays could not hold it."""
MAY_BE_EMPTY = "may be empty"
"""Beside a text's type, where no text is a choice of its own."""


@dataclass(frozen=True, slots=True)
class Range:
    """Some numbers; stands beside a type: `Annotated[int, Range(1)]`."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: Any) -> bool:
        return bool(self.least <= value <= self.most and self.above < value < self.below)

    def __str__(self) -> str:
        limits = {
            "{:g} or more": self.least, "above {:g}": self.above, "at most {:g}": self.most, "below {:g}": self.below,
        }  # fmt: skip
        return " and ".join(words.format(limit) for words, limit in limits.items() if math.isfinite(limit))


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]


def _accepted(cls: Any) -> dict[str, Any]:
    """Field of a dataclass → its type with ranges; a text that is empty by default may be so."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: Annotated[hints[field.name], MAY_BE_EMPTY] if field.default == "" else hints[field.name]
        for field in dataclasses.fields(cls)
    }


accepted: Callable[[type], dict[str, Any]] = functools.cache(_accepted)


def check(settings: Any) -> None:
    """Refuse a dataclass with a value that its field does not accept."""
    for name, hint in accepted(type(settings)).items():
        if reason := fault(getattr(settings, name), hint):
            raise SettingError(name, getattr(settings, name), reason)


def fault(value: Any, hint: Any) -> str:
    """What the value must be instead ("must be 1 or more"); "" if the type accepts it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated_fault(value, *parts)
    if origin in (typing.Union, types.UnionType):
        return _union_fault(value, parts)
    if origin is Literal:
        fits = any(type(value) is type(part) and value == part for part in parts)
        return "" if fits else f"must be one of {', '.join(map(str, parts))}"
    if origin in (tuple, list):
        return _list_fault(value, parts)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return "must be a table of names and values"
        return next((found for one in value.values() if (found := fault(one, parts[1]))), "")
    return _plain_fault(value, hint)


def _annotated_fault(value: Any, hint: Any, *marks: Any) -> str:
    if value == "" and MAY_BE_EMPTY in marks:
        return ""
    found = fault(value, hint)
    if found:
        return found
    return next((f"must be {mark}" for mark in marks if isinstance(mark, Range) and value not in mark), "")


def _union_fault(value: Any, choices: tuple[Any, ...]) -> str:
    if value is None and types.NoneType in choices:
        return ""
    found = [fault(value, choice) for choice in choices if choice is not types.NoneType]
    return "" if "" in found else " or ".join([found[0], *(one.removeprefix("must be ") for one in found[1:])])


def _list_fault(value: Any, parts: tuple[Any, ...]) -> str:
    if not isinstance(value, tuple | list):
        return "must be a list"
    hints = [parts[0]] * len(value) if parts[1:] in ((), (...,)) else list(parts)
    if len(value) != len(hints):
        return f"must be a list of {len(hints)}"
    bad = next((found for one, hint in zip(value, hints, strict=True) if (found := fault(one, hint))), "")
    return f"each of the list {bad}" if bad else ""


def _plain_fault(value: Any, hint: Any) -> str:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is bool:
        return "" if isinstance(value, bool) else "must be true or false"
    if hint is int:
        if not is_number or not isinstance(value, numbers.Integral):
            return "must be a whole number"
        return "" if abs(int(value)) < LARGEST else "is too large: whole numbers have 64 bits"
    if hint is float:
        return "" if is_number and abs(value) < math.inf else "must be a finite number"
    if hint is str and not isinstance(value, str):
        return "must be a text"
    if hint is Path and not isinstance(value, str | Path):
        return "must be the name of a file or folder"
    return "must not be empty" if value == "" else ""

"""Whether a program gave what it should, by the benchmarks' rules."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from prism_prm.programs.cases import Case

Number = tuple[int, tuple[int, ...], int | str]
Line = str | tuple[Number, ...]


def printed_lines(text: str) -> list[Line]:
    """What was printed, so that equal lists are equal outputs.

    LiveCodeBench: white space around the whole text and around each line does not count; two lines are equal as text,
    or number by number as decimals, without a tolerance.
    """
    return [_line(line.strip()) for line in text.strip().split("\n")]


def _line(line: str) -> Line:
    try:
        return tuple(_number(Decimal(token)) for token in line.split()) or line
    except (InvalidOperation, ValueError):
        return line


def _number(value: Decimal) -> Number:
    """Equal for equal decimals, of any length: 1, 1.0 and 1e0."""
    if value.is_nan():  # it equals nothing as a number, and itself as text
        raise ValueError("not a number")
    sign, digits, exponent = value.as_tuple()
    if not value:
        return 0, (0,), 0
    if isinstance(exponent, int):
        kept = len(digits)
        while digits[kept - 1] == 0:
            kept -= 1
        return sign, digits[:kept], exponent + len(digits) - kept
    return sign, (), exponent


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "": lambda _, got: got,
    "tuple": lambda _, got: tuple(got),
    "list": lambda _, got: list(got),
    "set": lambda _, got: set(got),
    "sorted": lambda _, got: sorted(got),
    "polynomial": lambda given, got: sum(factor * got**power for power, factor in enumerate(given[0])),
}
"""What a test looks at, of (arguments, returned value): the value itself, its items, or a polynomial there."""


def is_right(case: Case, got: Any, *, tuples_are_lists: bool) -> bool:
    """Whether a printed text or a returned value is what the case expects."""
    if isinstance(case.given, str):
        return printed_lines(got) == printed_lines(case.expected)
    if tuples_are_lists and isinstance(got, tuple):
        got = list(got)
    try:
        got = VIEWS[case.view](case.given, got)
        if case.tolerance is None:
            return bool(got == case.expected)
        return bool(abs(got - case.expected) < case.tolerance)
    except (TypeError, ValueError, ArithmeticError):
        return False

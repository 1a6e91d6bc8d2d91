"""Whether a program gave what it should, by the benchmarks' rules.

LiveCodeBench's for printed text: white space around the whole text and around each line does not count, and there must
be as many lines as expected; two lines are equal as text, or number by number as decimals, without a tolerance.
"""

from __future__ import annotations

import cmath
import hashlib
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from itertools import zip_longest
from typing import Any

from prism_prm.grading.problems import Case
from prism_prm.grading.value_codec import Unknown, decode

_WORD = re.compile(r"\S+")


def same_printed(expected: str, printed: str) -> bool:
    """Whether a printed text is the expected one; no more of it is read than was expected."""
    lines, others = (text.strip().split("\n") for text in (expected, printed))
    return len(lines) == len(others) and all(
        _same_line(line.strip(), other.strip()) for line, other in zip(lines, others, strict=True)
    )


def _same_line(line: str, other: str) -> bool:
    words = zip_longest(_WORD.finditer(line), _WORD.finditer(other))
    try:
        return line == other or all(a and b and Decimal(a[0]) == Decimal(b[0]) for a, b in words)
    except InvalidOperation:
        return False


def printed_key(text: str) -> str:
    """Equal for texts that are the same by `same_printed`, and only for them."""
    whole = hashlib.blake2b(digest_size=16)
    for line in text.strip().split("\n"):
        numbers = hashlib.blake2b(b"numbers", digest_size=16)
        try:
            for word in _WORD.finditer(line):
                numbers.update(_decimal_key(Decimal(word[0])).encode())
        except (InvalidOperation, ValueError):
            numbers = hashlib.blake2b(line.strip().encode("utf-8", "surrogatepass"), digest_size=16)
        whole.update(numbers.digest())
    return whole.hexdigest()


def _decimal_key(number: Decimal) -> str:
    """One spelling for equal decimals, of any length: 1, 1.0 and 1e0."""
    if number.is_nan():  # it equals nothing as a number, and itself as text
        raise ValueError("not a number")
    sign, digits, exponent = number.as_tuple()
    kept = "".join(map(str, digits)).rstrip("0")
    if not kept or not isinstance(exponent, int):  # zero, which has no sign, and infinity
        return f" {'' if number == 0 else number}"
    return f" {sign} {kept} {exponent + len(digits) - len(kept)}"


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "": lambda _, got: got,
    "tuple": lambda _, got: tuple(got),
    "list": lambda _, got: list(got),
    "set": lambda _, got: set(got),
    "sorted": lambda _, got: sorted(got),
    "truth": lambda _, got: bool(got),
    "polynomial": lambda given, got: sum(factor * got**power for power, factor in enumerate(given[0])),
}
"""What a test looks at, of (arguments, returned value): the value, its items, its truth, or a polynomial there."""


def is_right(case: Case, got: Any, *, tuples_are_lists: bool) -> bool:
    """Whether a printed text or a returned value is what the case expects."""
    if isinstance(case.given, str):
        return same_printed(case.expected, got)
    if tuples_are_lists and isinstance(got, tuple):
        got = list(got)
    try:
        got = VIEWS[case.view](case.given, got)
        if case.tolerance is None:
            return bool(got == case.expected)
        return cmath.isclose(got, case.expected, rel_tol=case.relative, abs_tol=case.tolerance)
    except (TypeError, ValueError, ArithmeticError):
        return False


def returned_right(case: Case | list[Any], value: Any, tuples_are_lists: bool) -> bool:
    """Whether a returned value, which comes as JSON, is what the case expects; workers get the case as JSON too."""
    case = Case.from_json(case) if isinstance(case, list) else case
    return is_right(case, _returned(value), tuples_are_lists=tuples_are_lists)


def returned_key(value: Any, tuples_are_lists: bool) -> str | None:
    """Equal for equal returned values; None for one that cannot be told from others."""
    got = _returned(value)
    try:
        spelled = _canonical(list(got) if tuples_are_lists and isinstance(got, tuple) else got)
    except (TypeError, ValueError, RecursionError):  # ValueError: an integer with too many digits to be written
        return None
    return hashlib.blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _returned(value: Any) -> Any:
    try:
        return decode(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return Unknown("unreadable")  # a program can write whatever it likes in place of a value


def _canonical(value: Any) -> str:
    """One spelling for equal Python values: 1, 1.0 and True are equal, and sets have no order."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_canonical, value))})"
    if isinstance(value, set | frozenset):
        return f"set({', '.join(sorted(map(_canonical, value)))})"
    if isinstance(value, dict):
        return f"dict({', '.join(sorted(f'{_canonical(key)}: {_canonical(one)}' for key, one in value.items()))})"
    if isinstance(value, Unknown):
        raise TypeError("unknown")
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return repr(int(value))
    return repr(value)

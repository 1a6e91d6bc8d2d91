"""Compare a program's output with the expected one, by the benchmarks' rules.

For printed text, LiveCodeBench's rule: surrounding white space of the text and of each line is ignored, and the number
of lines must match; two lines are equal as text, or number by number as decimals, without a tolerance.
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
    """Whether a printed text equals the expected one; reads no more of it than expected."""
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
    """Return a key that is equal exactly for texts that are the same by `same_printed`."""
    digest = hashlib.blake2b(digest_size=16)
    for line in text.strip().split("\n"):
        numbers = hashlib.blake2b(b"numbers", digest_size=16)
        try:
            for word in _WORD.finditer(line):
                numbers.update(_decimal_key(Decimal(word[0])).encode())
        except (InvalidOperation, ValueError):
            numbers = hashlib.blake2b(line.strip().encode("utf-8", "surrogatepass"), digest_size=16)
        digest.update(numbers.digest())
    return digest.hexdigest()


def _decimal_key(number: Decimal) -> str:
    """Return a key that equal decimals share, of any length: 1, 1.0 and 1e0."""
    if number.is_nan():  # as a number it equals nothing, as text it equals itself
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
"""How a test converts (arguments, returned value) before comparing: the value, its items, its truth, a polynomial."""


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
    """Whether a returned value, encoded as JSON, is what the case expects; workers get the case as JSON, too."""
    case = Case.from_json(case) if isinstance(case, list) else case
    return is_right(case, _returned(value), tuples_are_lists=tuples_are_lists)


def returned_key(value: Any, tuples_are_lists: bool) -> str | None:
    """Return a key that equal returned values share; None for a value that cannot be compared."""
    got = _returned(value)
    try:
        spelled = _canonical(list(got) if tuples_are_lists and isinstance(got, tuple) else got)
    except (TypeError, ValueError, RecursionError):  # ValueError: an integer with too many digits to convert
        return None
    return hashlib.blake2b(spelled.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _returned(value: Any) -> Any:
    try:
        return decode(value)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return Unknown("unreadable")  # a program can write anything instead of a value


def _canonical(value: Any) -> str:
    """Return a string that equal Python values share: 1, 1.0 and True are equal, and sets have no order."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_canonical, value))})"
    if isinstance(value, set | frozenset):
        return f"set({', '.join(sorted(map(_canonical, value)))})"
    if isinstance(value, dict):
        return f"dict({', '.join(sorted(f'{_canonical(key)}: {_canonical(item)}' for key, item in value.items()))})"
    if isinstance(value, Unknown):
        raise TypeError("unknown")
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return repr(int(value))
    return repr(value)

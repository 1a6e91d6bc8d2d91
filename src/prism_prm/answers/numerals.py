r"""Compare answers that are plainly numbers, times or words, without algebra: `1/2`, `50\%`, `5 million`, `Tuesday`.

Most answers are of this kind. They are compared here, exactly and in microseconds; anything else goes to a worker.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

from prism_prm.answers.latex import normalise
from prism_prm.answers.units import SCALES, split_unit

MAX_NUMERAL = 200
"""Longer texts are not read as numbers here."""
MAX_EXPONENT = 300
KEY_DIGITS = 12
"""Numbers that agree to this many significant digits are one answer in a vote."""
ROUNDING = 6
"""A decimal may be rounded to this many places (significant ones below 0.1), not to fewer."""


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number as it was written."""

    value: Fraction
    """With a percent sign already divided out: 50% is 1/2."""
    places: int | None = None
    """How many decimal places it was written with, and so perhaps rounded to; None if it is exact."""
    is_percent: bool = False

    def shifted(self, by: int) -> Numeral:
        """Times a power of ten."""
        return Numeral(self.value * Fraction(10) ** by, None if self.places is None else self.places - by)


_PLAIN = re.compile(
    r"(?P<whole>\d{1,3}(?:(?:,|\{,\}| |')\d{3})+|\d+)?(?P<part>\.\d*)?"
    r"(?:(?:[eE]|\s*(?:\\times|\\cdot|\*|×)\s*10\s*\^)\s*\{?\s*(?P<power>[+-]?\s*\d{1,4})\s*\}?)?"
)
_FRACTION = re.compile(
    r"(?:(?P<whole>\d+)(?:\s*(?=\\frac)|\s+(?=\d+\s*/)))?(?:"
    r"\\frac\s*(?:\{\s*(?P<a>-?\s*\d+)\s*\}|(?P<a1>\d))\s*(?:\{\s*(?P<b>-?\s*\d+)\s*\}|(?P<b1>\d+))"
    r"|(?P<a2>\d+)\.?\s*[/:]\s*(?P<b2>-?\d+))"
)
_REPEATING = re.compile(r"(?P<plain>\d*\.\d*)\\overline\s*\{\s*(?P<again>\d+)\s*\}")
_SCALED = re.compile(rf"(.*\d.*?)\s*(?:\\text\{{)?({'|'.join(SCALES)})\}}?")


def numeral(answer: str) -> Numeral | None:
    """The number that a normalised answer plainly is, perhaps with a unit (`5 dollars`); else None."""
    if len(answer) > MAX_NUMERAL:
        return None
    answer, _ = split_unit(answer)
    if scaled := _SCALED.fullmatch(answer):
        number = numeral(scaled[1])
        return number and Numeral(number.value * SCALES[scaled[2]])
    unsigned = answer[1:].lstrip() if answer[:1] in ("+", "-") else answer
    bare = unsigned.removesuffix("%").strip()
    read = _plain(bare) or _fraction(bare) or _repeating(bare)
    if read is None:
        return None
    if unsigned.endswith("%"):
        read = Numeral(read.value / 100, None if read.places is None else read.places + 2, is_percent=True)
    return Numeral(-read.value, read.places, read.is_percent) if answer.startswith("-") else read


def _plain(text: str) -> Numeral | None:
    match = _PLAIN.fullmatch(text)
    if match is None or not text[:2].strip("."):
        return None
    whole, part = re.sub(r"\D", "", match["whole"] or "0"), match["part"] or ""
    power = int((match["power"] or "0").replace(" ", ""))
    if abs(power) > MAX_EXPONENT or not (match["whole"] or part):
        return None
    is_decimal = len(part) > 1 or match["power"] is not None
    return Numeral(Fraction(whole + part) * Fraction(10) ** power, len(part[1:]) - power if is_decimal else None)


def _fraction(text: str) -> Numeral | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    above = int((match["a"] or match["a1"] or match["a2"]).replace(" ", ""))
    below = int((match["b"] or match["b1"] or match["b2"]).replace(" ", ""))
    if below == 0 or (match["whole"] and (":" in text or above < 0 or below < 0)):
        return None
    return Numeral(int(match["whole"] or 0) + Fraction(above, below))


def _repeating(text: str) -> Numeral | None:
    r"""0.1\overline{6} is 1/6."""
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    places, period = len(match["plain"].partition(".")[2]), len(match["again"])
    rest = Fraction(int(match["again"]), 10**period - 1) / 10**places
    return Numeral(Fraction(f"0{match['plain']}") + rest)


def same_number(reference: Numeral, answer: Numeral, tolerance: float = 0.0) -> bool:
    """Whether `answer` is right where `reference` is asked for.

    Exactly, or within the relative `tolerance`, or if one is a decimal to which the other was rounded or cut off. If
    only one has a percent sign, it may also be just a unit: 50% is right for both 1/2 and 50.
    """
    answers = [answer]
    if reference.is_percent != answer.is_percent:
        answers.append(answer.shifted(2 if answer.is_percent else -2))
    return any(_close(reference, candidate, tolerance) for candidate in answers)


def _close(a: Numeral, b: Numeral, tolerance: float) -> bool:
    if a.value == b.value:
        return True
    if 0 < tolerance < math.inf and abs(a.value - b.value) <= Fraction(tolerance) * abs(a.value):
        return True
    if a.places is None and b.places is None:
        return False
    enough = ROUNDING
    if abs(a.value) < Fraction(1, 10):  # six decimal places would call 0.0000672 and 0.000067 equal
        small = max(abs(a.value), abs(b.value))
        while small < Fraction(1, 10):
            small, enough = small * 10, enough + 1
    short, long = sorted((a, b), key=lambda number: float("inf") if number.places is None else number.places)
    assert short.places is not None, "a decimal has fewer places than a number that is exact"
    places = max(short.places, enough)
    if round(short.value, places) == round(long.value, places):
        return True
    return short.places == places and short.value == int(long.value * 10**places) / Fraction(10) ** places


_COMMA = re.compile(r"\s*,\s*")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?")


def _clock(text: str, half: str) -> tuple[int, bool] | None:
    """Minutes since midnight, and whether it is sure which half of the day is meant; None if it is no time."""
    match = _CLOCK.fullmatch(text)
    if match is None or int(match[1]) > 24 or not (match[2] or half in ("am", "pm")):
        return None
    hour = int(match[1])
    if half in ("am", "pm") and hour <= 12:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return hour * 60 + int(match[2] or 0), half in ("am", "pm") or not 1 <= hour <= 12


_WORDS = re.compile(r"\(?\s*((?=.*[A-Za-z]{3})[A-Za-z]+(?:[ -][A-Za-z]+)*|[A-Za-z])\s*\)?")
"""One letter, or words of which one has three: two letters may be a product (xy and yx)."""
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def word(answer: str) -> str | None:
    """The plain words that a normalised answer is, in lower case: a name, a letter of a choice; or None."""
    match = _WORDS.fullmatch(_TEXT.sub(r" \1 ", answer).strip())
    return " ".join(match[1].lower().split()) if match else None


def _is_no_product(text: str) -> bool:
    """Whether words can be nothing else: `abc` may be a product, `east` and `ABC` are not."""
    return len(text) > 3 or (len(text) == 3 and text.isupper())


def same_plainly(reference: str, answer: str, tolerance: float = 0.0) -> bool | None:
    """Whether two normalised answers are the same, where that needs no algebra; else None."""
    if _COMMA.sub(",", reference) == _COMMA.sub(",", answer):  # 100,200 may be a list, and so be the same as 100, 200
        return True
    (a, unit_a), (b, unit_b) = split_unit(reference), split_unit(answer)
    if unit_a and unit_b and unit_a != unit_b and not (unit_a in ("am", "pm") and unit_b in ("am", "pm")):
        return False
    time_a, time_b = _clock(a, unit_a), _clock(b, unit_b)
    if time_a and time_b:
        modulus = 24 * 60 if time_a[1] and time_b[1] else 12 * 60
        return (time_a[0] - time_b[0]) % modulus == 0
    expected, found = numeral(a), numeral(b)
    if expected and found:
        return same_number(expected, found, tolerance)
    if (one := word(reference)) and (other := word(answer)):
        return True if one == other else False if _is_no_product(reference) or _is_no_product(answer) else None
    return None


def number_key(value: Fraction, digits: int = KEY_DIGITS) -> str:
    """The spelling under which a number votes."""
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=digits)
    return str(context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context))


def plain_key(answer: str, digits: int = KEY_DIGITS) -> str | None:
    """The key under which a normalised answer votes, if that needs no algebra; units are ignored."""
    quantity, unit = split_unit(answer)
    if time := _clock(quantity, unit):
        return f"{time[0] // 60}:{time[0] % 60:02}"
    number = numeral(quantity)
    return number_key(number.value, digits) if number else word(answer)


def text_key(answer: str) -> str:
    """The key of an answer that can only be compared as text; of a long text, a hash."""
    text = "".join(_TEXT.sub(r"\1", normalise(answer)).split())
    if len(text) > MAX_NUMERAL:
        text = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"text:{text}"

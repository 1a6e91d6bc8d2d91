r"""Read answers that are plainly a number or a word, without algebra: `1/2`, `\frac{1}{2}`, `0.5`, `50\%`, `Tuesday`.

Most answers are of this kind. They are compared here, exactly and in microseconds; anything else goes to a worker.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

MAX_NUMERAL = 200
"""Longer texts are not read as numbers here."""
MAX_EXPONENT = 300
KEY_DIGITS = 12
"""Numbers that agree to this many significant digits are one answer in a vote."""
ROUNDING = 6
"""A decimal is right if it agrees with the reference to this many places (significant ones below 0.1)."""


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number as it was written."""

    value: Fraction
    """With a percent sign already divided out: 50% is 1/2."""
    is_decimal: bool = False
    """Written with a decimal point or a power of ten, and so perhaps rounded."""
    is_percent: bool = False


_SPACES = re.compile(r"\\[,;:> ]|\\q?quad\b|~|\s+")
_DRESS = re.compile(
    r"\\!|\\(?:left|right|displaystyle|limits|[bB]igg?[lr]?)(?![A-Za-z])|\\\$|\^\s*\{?\s*\\circ\s*\}?|°"
)
_WRAPPED = re.compile(
    r"\$\$(.*)\$\$|\$(.*)\$|\\\((.*)\\\)|\\\[(.*)\\\]|\\(?:text|mathrm|mathbf|textbf|boldsymbol)\{([^{}]*)\}", re.DOTALL
)
_SPELLINGS = {"\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\%": "%", "−": "-"}


def normalise(answer: str) -> str:
    """The answer without its dress: math delimiters, sizes, spacing, currency and degree signs, a final stop."""
    answer = _SPACES.sub(" ", _DRESS.sub("", answer))
    for old, new in _SPELLINGS.items():
        answer = answer.replace(old, new)
    while True:
        bare = answer.strip().rstrip(" .")
        if wrapped := _WRAPPED.fullmatch(bare):
            inside = next(group for group in wrapped.groups() if group is not None)
            bare = bare if "$" in inside else inside
        if bare == answer:
            return bare
        answer = bare


_PLAIN = re.compile(
    r"(?P<whole>\d{1,3}(?:(?:,|\{,\}| )\d{3})+|\d+)?(?P<part>\.\d*)?"
    r"(?:(?:[eE]|\s*(?:\\times|\\cdot|\*|×)\s*10\s*\^)\s*\{?\s*(?P<power>[+-]?\d{1,4})\s*\}?)?"
)
_FRACTION = re.compile(
    r"(?:(?P<whole>\d+)\s*(?=\\frac))?(?:"
    r"\\frac\s*(?:\{\s*(?P<a>-?\d+)\s*\}|(?P<a1>\d))\s*(?:\{\s*(?P<b>-?\d+)\s*\}|(?P<b1>\d+))"
    r"|(?P<a2>\d+)\.?\s*/\s*(?P<b2>-?\d+))"
)


_WITH_UNIT = re.compile(r"(.*\d[^A-Za-z]*?)\s+([A-Za-z]{3,}(?:[ /-][A-Za-z]+)*)")
_NOT_A_UNIT = re.compile(r"hundred|thousand|million|billion|trillion|dozen|and|sin|cos|tan|log|mod", re.I)


def numeral(answer: str) -> Numeral | None:
    """The number that a normalised answer plainly is, perhaps with a unit in words (`5 dollars`); else None."""
    if not answer or len(answer) > MAX_NUMERAL:
        return None
    if (with_unit := _WITH_UNIT.fullmatch(answer)) and not _NOT_A_UNIT.search(with_unit[2]):
        answer = with_unit[1] + ("%" if with_unit[2].lower() == "percent" else "")
    unsigned = answer[1:] if answer[0] in "+-" else answer
    bare = unsigned.removesuffix("%").strip()
    read = _plain(bare) or _fraction(bare)
    if read is None:
        return None
    is_percent = unsigned.endswith("%")
    value = read.value / (100 if is_percent else 1)
    return Numeral(-value if answer.startswith("-") else value, read.is_decimal, is_percent)


def _plain(text: str) -> Numeral | None:
    match = _PLAIN.fullmatch(text)
    if match is None or not text[:2].strip("."):
        return None
    whole, part, power = re.sub(r"\D", "", match["whole"] or "0"), match["part"] or "", int(match["power"] or 0)
    if abs(power) > MAX_EXPONENT or not (match["whole"] or part):
        return None
    is_decimal = len(part) > 1 or match["power"] is not None
    return Numeral(Fraction(whole + part) * Fraction(10) ** power, is_decimal)


def _fraction(text: str) -> Numeral | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    above = int(match["a"] or match["a1"] or match["a2"])
    below = int(match["b"] or match["b1"] or match["b2"])
    if below == 0:
        return None
    return Numeral(int(match["whole"] or 0) + Fraction(above, below))


def same_number(reference: Numeral, answer: Numeral, tolerance: float = 0.0) -> bool:
    """Whether `answer` is right where `reference` is asked for.

    Exactly, or within the relative `tolerance`, or after rounding where either is a decimal. If only one carries a
    percent sign it may also be a mere unit: 50% is right for both 1/2 and 50.
    """
    values = [answer.value]
    if reference.is_percent != answer.is_percent:
        values.append(answer.value * 100 if answer.is_percent else answer.value / 100)
    may_round = reference.is_decimal or answer.is_decimal
    return any(_close(reference.value, value, may_round, tolerance) for value in values)


def _close(a: Fraction, b: Fraction, may_round: bool, tolerance: float) -> bool:
    if a == b:
        return True
    if abs(a - b) <= Fraction(tolerance) * abs(a):
        return True
    if not may_round:
        return False
    places = ROUNDING
    if abs(a) < Fraction(1, 10):  # six decimal places would call 0.0000672 and 0.000067 equal
        small = max(abs(a), abs(b))
        while small < Fraction(1, 10):
            small, places = small * 10, places + 1
    return round(a, places) == round(b, places)


def number_key(value: Fraction) -> str:
    """The spelling under which a number votes."""
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=KEY_DIGITS)
    return str(context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context))


_WORDS = re.compile(r"\(?\s*((?=.*[A-Za-z]{3})[A-Za-z]+(?:[ -][A-Za-z]+)*|[A-Za-z])\s*\)?")
"""One letter, or words of which one has three: two letters may be a product (xy and yx)."""
_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}")


def word(answer: str) -> str | None:
    """The plain words that a normalised answer is, in lower case: a name, a letter of a choice; or None."""
    match = _WORDS.fullmatch(_TEXT.sub(r"\1", answer).strip())
    return " ".join(match[1].lower().split()) if match else None


def plain_key(answer: str) -> str | None:
    """The key under which a normalised answer votes, if it can be told without algebra."""
    number = numeral(answer)
    return number_key(number.value) if number else word(answer)


def text_key(answer: str) -> str:
    """The key of an answer that can only be compared as text; of a long text, a hash."""
    text = "".join(normalise(answer).split())
    if len(text) > MAX_NUMERAL:
        text = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"text:{text}"

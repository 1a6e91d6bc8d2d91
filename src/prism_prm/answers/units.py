r"""Tell a quantity from its unit: `15\text{ cm}^2`, `5 miles per hour`, `\$5`, `3 p.m.`, `52_8`, `12 apples`.

A lone letter is a unit only where it is set as text: `3m` is three times m. Units are not converted.
"""

from __future__ import annotations

import re
from collections import Counter

from prism_prm.answers.latex import TOKEN

_SPELLINGS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "lb": "pound", "oz": "ounce", "mL": "ml milliliter millilitre", "L": "l liter litre", "gal": "gallon",
    "qt": "quart",
    "s": "sec second", "ms": "millisecond", "min": "minute", "h": "hr hour", "day": "", "week": "", "month": "",
    "yr": "year", "$": "dollar USD", "cent": "penny", "deg": "degree", "rad": "radian", "N": "newton", "J": "joule",
    "W": "watt", "V": "volt", "K": "kelvin", "Hz": "hertz", "Pa": "pascal", "C": "", "F": "", "eV": "", "keV": "",
    "MeV": "", "erg": "", "pc": "parsec", "acre": "", "ha": "hectare",
}  # fmt: skip
_KNOWN = {name: unit for unit, names in _SPELLINGS.items() for name in [unit, *names.split()]}
_SPEEDS = {"mph": "mi/h", "kmph": "km/h", "kph": "km/h"}
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_NO_UNIT = re.compile(
    r"\b(?:and|or|if|when|where|for|mod|not|than|but|except|plus|minus|times|over|only|is|are|of|with|to|by)\b",
    re.I,
)
"""Words that turn what precedes them into a sentence."""
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_BASES = {word: str(base) for base, word in enumerate(_DIGITS)}

_MAX_LENGTH = 200
"""Longer texts are not searched for a unit."""
_HALF_DAY = re.compile(r"(?<=\d)\s*(?:\\text\{)?([ap])\.?\s?m\.?\s*\}?$", re.I)
_SCALE_AS_TEXT = re.compile(rf"\s*\\text\{{({'|'.join(SCALES)})\b\s*([^{{}}]*)\}}")
_MONEY = re.compile(r"(-?)\s*\\\$\s*")
_BASE = re.compile(r"(-?\d+)_(?:(\d+)|\{\s*(\d+)\s*\}|\{?\s*\\text\{(\w+)\}\s*\}?)")
_SPEED = r"(?<![A-Za-z\\])(?:km|cm|mm|ft|mi|m)/(?:h|s|min)(?![A-Za-z])"
_PIECE = re.compile(rf"\\text\{{[^{{}}]*\}}|\^\s*(?:\{{\s*-?\d\s*\}}|-?\d)|{_SPEED}|{TOKEN.pattern}", re.DOTALL)
_PART = re.compile(r"\^\s*\{?\s*(-?\d)|(?<=[A-Za-z])(\d)|/|[A-Za-z$]+")
_END_OF_QUANTITY = re.compile(r"(?:[\d})\]'!|%.]|\\pi|\\infty|(?<![A-Za-z\\])[A-Za-z])$")
_HAS_NUMBER = re.compile(r"\d|\\pi")
_SCALE = re.compile(rf"\s*(?:{'|'.join(SCALES)})\s*$")
_BARE_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")


def split_unit(text: str) -> tuple[str, str]:
    """A normalised answer without its unit, and the unit; "" where there is none, or a word that we do not know."""
    if len(text) > _MAX_LENGTH:
        return text, ""
    if half := _HALF_DAY.search(text):
        return text[: half.start()], half[1].lower() + "m"
    if based := _BASE.fullmatch(text):
        base = based[2] or based[3] or based[4]
        return based[1], f"base {_BASES.get(base, base)}"
    text = _SCALE_AS_TEXT.sub(lambda match: f" {match[1]}" + (f" \\text{{{match[2]}}}" if match[2] else ""), text)
    money = _MONEY.match(text)
    if money:
        text = money[1] + text[money.end() :]
    start = _start_of_unit(text)
    quantity = text[:start].rstrip()
    return quantity, _spell(("$ " if money else "") + text[start:])


def _start_of_unit(text: str) -> int:
    """Where the unit at the end of a text starts; the text's length if it has none."""
    start = len(text)
    for piece in reversed(list(_PIECE.finditer(text))):
        token = piece[0]
        if token.startswith("\\text{"):
            if _NO_UNIT.search(token):
                return len(text)
            if len(token) == len("\\text{m}") and token[6] not in _KNOWN:
                break
            start = piece.start()
        elif token.isalpha():
            if _NO_UNIT.fullmatch(token):
                return len(text)
            is_known = token == "per" or token in _POWERS or _known(token) is not None
            is_word = len(token) >= 3 and text[piece.start() - 1 : piece.start()] in {" ", "-", "/"}
            if token.lower() in SCALES or len(token) == 1 or not (is_known or is_word):
                break
            start = piece.start()
        elif re.fullmatch(_SPEED, token):
            start = piece.start()
        elif token not in {"/", r"\cdot", "-"} and not token.isspace() and token[0] != "^":
            break
    quantity = _SCALE.sub("", text[:start]).rstrip()
    is_quantity = _END_OF_QUANTITY.search(quantity) and not _BARE_WORD.search(quantity)
    return start if is_quantity and (_HAS_NUMBER.search(quantity) or _spell(text[start:])) else len(text)


def _known(word: str) -> str | None:
    """The short name of a unit, if it is one we know."""
    for form in (word, word.removesuffix("s"), word.lower(), word.lower().removesuffix("s")):
        if form in _KNOWN:
            return _KNOWN[form]
    return _SPEEDS.get(word.lower())


def _spell(unit: str) -> str:
    """One spelling for each unit, whatever its powers and order: `cm^2` for `square centimeters`."""
    powers: Counter[str] = Counter()
    sign, power, last = 1, 1, ""
    for part in _PART.finditer(unit.replace("\\text", "").replace("\\cdot", " ")):
        word = part[0]
        if word in ("/", "per"):
            sign = -1
        elif exponent := part[1] or part[2] or (str(_POWERS[word]) if word.endswith("ed") and word in _POWERS else ""):
            powers[last] *= int(exponent)
        elif word in _POWERS:
            power = _POWERS[word]
        elif (name := _known(word)) is None:
            return ""
        else:
            above, _, below = name.partition("/")
            powers[above] += sign * power
            if below:
                powers[below] -= sign
            power, last = 1, below or above
    return " ".join(name if n == 1 else f"{name}^{n}" for name, n in sorted(powers.items()) if n)

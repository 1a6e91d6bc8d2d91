r"""Compare answers without algebra: strip the markup, split off the unit, and compare plain numbers, times and words.

Most answers are plain (`1/2`, `50\%`, `5 million`, `3 p.m.`, `Tuesday`) and are compared here, exactly and in
microseconds; all others go to `symbolic` in a worker process.

LaTeX is read as tokens, not characters. As characters, the row separator in `1 \\ -2` would be a backslash and a
spacing command, and without the "spacing" the column vector would become the number -1.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

MAX_PLAIN = 200
"""Longer texts are not searched for units and not read as numbers."""

# LaTeX: tokens, one spelling per command, and parts between separators

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|[A-Za-z]+|\s+|.", re.DOTALL)
"""A command, a number, a run of letters, white space, or any other single character."""
_OPENING = frozenset(["{", "(", "[", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin"])
_CLOSING = frozenset(["}", ")", "]", r"\}", r"\rangle", r"\rfloor", r"\rceil", r"\end"])
_MAX_WRAPPINGS = 8
"""The maximum number of wrappings to remove; each one costs a scan of the whole text."""

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
     "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "√": r"\sqrt ",
     "∅": r"\emptyset ", "°": "", "′": "'", "’": "'", "…": r"\ldots ", "²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}",
     "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "“": "", "”": "", '"': "", "±": r"\pm ",
     "∓": r"\mp ", "～": " ", "，": ","}
)  # fmt: skip
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"))
"""Zero-width spaces, joiners, direction marks and soft hyphens, which web pages contain anywhere."""
_COMMANDS = {
    "": r"! ( ) [ ] left right middle displaystyle textstyle limits nolimits boxed fbox framebox degree rm hline"
        r" big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr",
    " ": ", ; : > quad qquad enspace thinspace",
    r"\frac": "dfrac tfrac cfrac", r"\binom": "dbinom tbinom", r"\{": "lbrace", r"\}": "rbrace", "[": "lbrack",
    "]": "rbrack", "|": "lvert rvert vert", r"\le": "leq leqslant", r"\ge": "geq geqslant", r"\ne": "neq", "<": "lt",
    ">": "gt", r"\emptyset": "varnothing", r"\ldots": "dots cdots dotsc", ":": "colon", r"\cdot": "ast", "%": "%",
    r"\text": "textbf textit textrm textsf textnormal mbox hbox mathrm mathbf mathit mathsf boldsymbol bm operatorname",
}  # fmt: skip
_ONE_NAME = {"\\" + name: new for new, names in _COMMANDS.items() for name in names.split()}
_ONE_NAME |= {"\\ ": " ", "\\\n": " ", "$": "", "~": " "}

_THOUSANDS = re.compile(
    r"(?<=\d)\s*(?:\{\s*,\s*\}(?:\s*\\!)?|,\s*\\!|\\!\s*,|\\text\s*\{\s*,\s*\}|\\[,;:> ]|~)\s*(?=\d{3}(?!\d))"
)
r"""Thousands separators that cannot be the comma of a list, as in 1,\!000 or 1{,}000 or 1\,000."""
_COMMAND = re.compile(
    r"(\\\\)(?:\s*\[\s*[\d.]+\s*[a-z]{2}\s*\])?|\\(?:left|right)\s*\.(?!\d)|\\[A-Za-z]+|\\.|[$~]", re.DOTALL
)
_TEXT_COMMAND = re.compile(r"\\text\s*\{([^{}]*)\}")
_PRIMES = re.compile(r"\^\s*(?:\\prime(?![A-Za-z])|\{\s*(?:\\prime\s*)+\})")
_FUNCTION = r"(?:arc)?(?:sin|cos|tan)|cot|csc|log|ln|exp|sqrt|pi"
_REPLACED = [
    (re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})"), ""),
    (re.compile(r"(?<=\d)(?:st|nd|rd|th)(?![A-Za-z])"), ""),
    (re.compile(r"\.{3,}"), r"\\ldots "),
    (re.compile(r"(?<![A-Za-z\\])(?:infinity|infty|inf)(?![A-Za-z])"), r"\\infty "),
    (re.compile(rf"(?<![A-Za-z\\])(?:np\.|math\.)?({_FUNCTION})(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"(?<![A-Za-z])(?:percent(?:age)?|pct)(?![A-Za-z])"), "%"),
    (re.compile(r"<="), r"\\le "), (re.compile(r">="), r"\\ge "), (re.compile(r"!="), r"\\ne "),
    (re.compile(r"(?<=\d)\.(?=\s*(?:[<>]|\\[lgn]e(?![A-Za-z])))"), ""),  # 0. < x
    (re.compile(r"\s+"), " "),
]  # fmt: skip
_WRAPPED = re.compile(r"\\text\{([^{}]*)\}|\*\*(.*)\*\*", re.DOTALL)


def normalize(answer: str) -> str:
    """Remove markup (delimiters, sizes, spacing, degrees, a final period) and unify the names of commands."""
    text = _COMMAND.sub(_one_name, _THOUSANDS.sub("", answer.translate(_INVISIBLE)).translate(_SIGNS))
    text = _PRIMES.sub(lambda match: "'" * match[0].count("p"), text)
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    text = _TEXT_COMMAND.sub(_tidy_text, text)
    for _ in range(_MAX_WRAPPINGS):
        bare = text.strip().rstrip(".,; ")
        if wrapped := _WRAPPED.fullmatch(bare):
            bare = wrapped[wrapped.lastindex or 0]
        elif bare.startswith("{") and closing(bare) == len(bare) - 1:
            bare = bare[1:-1]
        if bare == text:
            break
        text = bare
    return text


def _one_name(match: re.Match[str]) -> str:
    if match[1]:  # the end of a row, without the extra space of `\\[4pt]`
        return match[1]
    return _ONE_NAME.get(match[0], "" if match[0].endswith(".") else match[0])


def _tidy_text(match: re.Match[str]) -> str:
    """Keep the text command around words, and remove it around a sign or a number."""
    inside = match[1].strip()
    return f"\\text{{{inside}}}" if any(character.isalpha() for character in inside) else f" {inside} "


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each token with its start and the number of open brackets around it (for a bracket: around the pair)."""
    depth = 0
    for match in TOKEN.finditer(text):
        token = match[0]
        if token in _CLOSING:
            depth = max(0, depth - 1)
        yield token, match.start(), depth
        if token in _OPENING:
            depth += 1


def closing(text: str) -> int | None:
    """Return where the first bracket of `text` is closed; None if it is not."""
    for token, start, depth in tokens(text):
        if depth == 0 and token in _CLOSING:
            return start
    return None


def split(text: str, separators: Collection[str]) -> list[str]:
    """Split at separators outside all brackets."""
    parts, begin = [], 0
    for token, start, depth in tokens(text):
        if depth == 0 and token in separators:
            parts.append(text[begin:start].strip())
            begin = start + len(token)
    return [*parts, text[begin:].strip()]


# Units: `15\text{ cm}^2`, `5 miles per hour`, `\$5`, `3 p.m.`, `52_8`, `12 apples`. A single letter is a unit only if
# it is set as text: `3m` is three times m. Units are not converted.

_UNIT_NAMES = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "lb": "pound", "oz": "ounce", "mL": "ml milliliter millilitre", "L": "l liter litre", "gal": "gallon",
    "qt": "quart",
    "s": "sec second", "ms": "millisecond", "min": "minute", "h": "hr hour", "day": "", "week": "", "month": "",
    "yr": "year", "$": "dollar USD", "cent": "penny", "deg": "degree", "rad": "radian", "N": "newton", "J": "joule",
    "W": "watt", "V": "volt", "K": "kelvin", "Hz": "hertz", "Pa": "pascal", "C": "", "F": "", "eV": "", "keV": "",
    "MeV": "", "erg": "", "pc": "parsec", "acre": "", "ha": "hectare",
}  # fmt: skip
_UNITS = {name: unit for unit, names in _UNIT_NAMES.items() for name in [unit, *names.split()]}
_SPEEDS = {"mph": "mi/h", "kmph": "km/h", "kph": "km/h"}
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_NO_UNIT = re.compile(
    r"\b(?:and|or|if|when|where|for|mod|not|than|but|except|plus|minus|times|over|only|is|are|of|with|to|by)\b",
    re.I,
)
"""Words that belong to a sentence, not to a unit."""
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_BASES = {word: str(base) for base, word in enumerate(_DIGITS)}

_HALF_DAY = re.compile(r"(?<=\d)\s*(?:\\text\{)?([ap])\.?\s?m\.?\s*\}?$", re.I)
_SCALE_AS_TEXT = re.compile(rf"\s*\\text\{{({'|'.join(SCALES)})\b\s*([^{{}}]*)\}}")
_MONEY = re.compile(r"(-?)\s*\\\$\s*")
_BASE = re.compile(r"(-?\d+)_(?:(\d+)|\{\s*(\d+)\s*\}|\{?\s*\\text\{(\w+)\}\s*\}?)")
_SPEED = r"(?<![A-Za-z\\])(?:km|cm|mm|ft|mi|m)/(?:h|s|min)(?![A-Za-z])"
_UNIT_TOKEN = re.compile(rf"\\text\{{[^{{}}]*\}}|\^\s*(?:\{{\s*-?\d\s*\}}|-?\d)|{_SPEED}|{TOKEN.pattern}", re.DOTALL)
_UNIT_PART = re.compile(r"\^\s*\{?\s*(-?\d)|(?<=[A-Za-z])(\d)|/|[A-Za-z$]+")
_END_OF_QUANTITY = re.compile(r"(?:[\d})\]'!|%.]|\\pi|\\infty|(?<![A-Za-z\\])[A-Za-z])$")
_HAS_NUMBER = re.compile(r"\d|\\pi")
_SCALE = re.compile(rf"\s*(?:{'|'.join(SCALES)})\s*$")
_BARE_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")


def split_unit(text: str) -> tuple[str, str]:
    """Split a normalized answer into quantity and unit; the unit is "" if there is none, or an unknown word."""
    if len(text) > MAX_PLAIN:
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
    return quantity, _spell_unit(("$ " if money else "") + text[start:])


def _start_of_unit(text: str) -> int:
    """Return where the unit at the end of a text starts; the text's length if it has none."""
    start = len(text)
    for piece in reversed(list(_UNIT_TOKEN.finditer(text))):
        token = piece[0]
        if token.startswith("\\text{"):
            if _NO_UNIT.search(token):
                return len(text)
            if len(token) == len("\\text{m}") and token[6] not in _UNITS:
                break
            start = piece.start()
        elif token.isalpha():
            if _NO_UNIT.fullmatch(token):
                return len(text)
            is_known = token == "per" or token in _POWERS or _unit(token) is not None
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
    return start if is_quantity and (_HAS_NUMBER.search(quantity) or _spell_unit(text[start:])) else len(text)


def _unit(word: str) -> str | None:
    """Return the short name of a known unit."""
    for form in (word, word.removesuffix("s"), word.lower(), word.lower().removesuffix("s")):
        if form in _UNITS:
            return _UNITS[form]
    return _SPEEDS.get(word.lower())


def _spell_unit(unit: str) -> str:
    """Normalize the spelling of a unit, its powers and order: `cm^2` for `square centimeters`."""
    powers: Counter[str] = Counter()
    sign, power, last = 1, 1, ""
    for part in _UNIT_PART.finditer(unit.replace("\\text", "").replace("\\cdot", " ")):
        word = part[0]
        if word in ("/", "per"):
            sign = -1
        elif exponent := part[1] or part[2] or (str(_POWERS[word]) if word.endswith("ed") and word in _POWERS else ""):
            powers[last] *= int(exponent)
        elif word in _POWERS:
            power = _POWERS[word]
        elif (name := _unit(word)) is None:
            return ""
        else:
            above, _, below = name.partition("/")
            powers[above] += sign * power
            if below:
                powers[below] -= sign
            power, last = 1, below or above
    return " ".join(name if n == 1 else f"{name}^{n}" for name, n in sorted(powers.items()) if n)


# Numbers, times and words

_MAX_EXPONENT = 300
KEY_DIGITS = 12
"""Numbers that agree to this many significant digits count as one answer in a vote."""
_ROUNDING = 6
"""The minimum number of decimal places (below 0.1: of significant ones) that a decimal may be rounded to."""


@dataclass(frozen=True, slots=True)
class Numeral:
    """A number as it was written."""

    value: Fraction
    """The value; a percent sign is divided out: 50% is 1/2."""
    places: int | None = None
    """The number of decimal places, to which it may have been rounded; None if it is exact."""
    is_percent: bool = False


_DECIMAL = re.compile(
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
    """Read a normalized answer as a plain number, perhaps with a unit (`5 dollars`); None if it is not one."""
    if len(answer) > MAX_PLAIN:
        return None
    answer, _ = split_unit(answer)
    if scaled := _SCALED.fullmatch(answer):
        number = numeral(scaled[1])
        return number and Numeral(number.value * SCALES[scaled[2]])
    unsigned = answer[1:].lstrip() if answer[:1] in ("+", "-") else answer
    bare = unsigned.removesuffix("%").strip()
    parsed = _decimal(bare) or _fraction(bare) or _repeating(bare)
    if parsed is None:
        return None
    if unsigned.endswith("%"):
        parsed = Numeral(parsed.value / 100, None if parsed.places is None else parsed.places + 2, is_percent=True)
    return Numeral(-parsed.value, parsed.places, parsed.is_percent) if answer.startswith("-") else parsed


def _decimal(text: str) -> Numeral | None:
    match = _DECIMAL.fullmatch(text)
    if match is None or not text[:2].strip("."):
        return None
    whole, part = re.sub(r"\D", "", match["whole"] or "0"), match["part"] or ""
    power = int((match["power"] or "0").replace(" ", ""))
    if abs(power) > _MAX_EXPONENT or not (match["whole"] or part):
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
    r"""Read a repeating decimal: 0.1\overline{6} is 1/6."""
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    places, period = len(match["plain"].partition(".")[2]), len(match["again"])
    rest = Fraction(int(match["again"]), 10**period - 1) / 10**places
    return Numeral(Fraction(f"0{match['plain']}") + rest)


def same_number(reference: Numeral, answer: Numeral, tolerance: float = 0.0) -> bool:
    """Whether `answer` is right for `reference`.

    It is if the two are equal, or within the relative `tolerance`, or if one is the other rounded or truncated to its
    decimals. If only one has a percent sign, it may also be just a unit: 50% is right for both 1/2 and 50.
    """
    answers = [answer]
    if reference.is_percent != answer.is_percent:
        shift = 2 if answer.is_percent else -2
        places = None if answer.places is None else answer.places - shift
        answers.append(Numeral(answer.value * Fraction(10) ** shift, places))
    return any(_close(reference, candidate, tolerance) for candidate in answers)


def _close(a: Numeral, b: Numeral, tolerance: float) -> bool:
    if a.value == b.value:
        return True
    if 0 < tolerance < math.inf and abs(a.value - b.value) <= Fraction(tolerance) * abs(a.value):
        return True
    if a.places is None and b.places is None:
        return False
    enough = _ROUNDING
    if abs(a.value) < Fraction(1, 10):  # with six decimal places, 0.0000672 and 0.000067 would be equal
        small = max(abs(a.value), abs(b.value))
        while small < Fraction(1, 10):
            small, enough = small * 10, enough + 1
    short, long = sorted((a, b), key=lambda number: float("inf") if number.places is None else number.places)
    assert short.places is not None, "exact numbers sort last"
    places = max(short.places, enough)
    if round(short.value, places) == round(long.value, places):
        return True
    return short.places == places and short.value == int(long.value * 10**places) / Fraction(10) ** places


_COMMA = re.compile(r"\s*,\s*")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?")


def _clock(text: str, half: str) -> tuple[int, bool] | None:
    """Return minutes since midnight, and whether the half of the day is certain; None if it is not a time."""
    match = _CLOCK.fullmatch(text)
    if match is None or int(match[1]) > 24 or not (match[2] or half in ("am", "pm")):
        return None
    hour = int(match[1])
    if half in ("am", "pm") and hour <= 12:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return hour * 60 + int(match[2] or 0), half in ("am", "pm") or not 1 <= hour <= 12


_WORDS = re.compile(r"\(?\s*((?=.*[A-Za-z]{3})[A-Za-z]+(?:[ -][A-Za-z]+)*|[A-Za-z])\s*\)?")
"""One letter, or words of which one has three letters: two letters may be a product (xy and yx)."""
_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def _word(answer: str) -> str | None:
    """Return a normalized answer that is plain words (a name, the letter of a choice) in lower case; else None."""
    match = _WORDS.fullmatch(_TEXT.sub(r" \1 ", answer).strip())
    return " ".join(match[1].lower().split()) if match else None


def _is_no_product(text: str) -> bool:
    """Whether a text can only be words: `abc` may be a product, `east` and `ABC` are not."""
    return len(text) > 3 or (len(text) == 3 and text.isupper())


def same_plainly(reference: str, answer: str, tolerance: float = 0.0) -> bool | None:
    """Whether two normalized answers are the same; None if algebra is needed."""
    if _COMMA.sub(",", reference) == _COMMA.sub(",", answer):  # 100,200 may be a list, like 100, 200
        return True
    (a, unit_a), (b, unit_b) = split_unit(reference), split_unit(answer)
    if unit_a and unit_b and unit_a != unit_b and not (unit_a in ("am", "pm") and unit_b in ("am", "pm")):
        return False
    time_a, time_b = _clock(a, unit_a), _clock(b, unit_b)
    if time_a and time_b:
        modulus = 24 * 60 if time_a[1] and time_b[1] else 12 * 60
        return (time_a[0] - time_b[0]) % modulus == 0
    expected, given = numeral(a), numeral(b)
    if expected and given:
        return same_number(expected, given, tolerance)
    if (one := _word(reference)) and (other := _word(answer)):
        return True if one == other else False if _is_no_product(reference) or _is_no_product(answer) else None
    return None


def number_key(value: Fraction, digits: int = KEY_DIGITS) -> str:
    """Return the key under which a number votes."""
    if value.denominator == 1:
        return str(value.numerator)
    context = Context(prec=digits)
    return str(context.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize(context))


def plain_key(answer: str, digits: int = KEY_DIGITS) -> str | None:
    """Return the key under which a normalized answer votes; None if algebra is needed. Units are ignored."""
    quantity, unit = split_unit(answer)
    if time := _clock(quantity, unit):
        return f"{time[0] // 60}:{time[0] % 60:02}"
    number = numeral(quantity)
    return number_key(number.value, digits) if number else _word(answer)


def text_key(answer: str) -> str:
    """Return the key of an answer that can only be compared as text; for a long text, a hash."""
    text = "".join(_TEXT.sub(r"\1", normalize(answer)).split())
    if len(text) > MAX_PLAIN:
        text = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"text:{text}"

r"""LaTeX as tokens: strip the mark-up of an answer, and cut it at its own separators.

Everything here looks at whole tokens. Seen as characters, the row separator in `1 \\ -2` is a backslash and a spacing
command, and without that "spacing" the column vector is the number -1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|[A-Za-z]+|\s+|.", re.DOTALL)
"""A command, a number, letters in a row, white space, or any other single character."""
_OPENING = frozenset(["{", "(", "[", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin"])
_CLOSING = frozenset(["}", ")", "]", r"\}", r"\rangle", r"\rfloor", r"\rceil", r"\end"])
_MAX_WRAPPINGS = 8
"""Wrappings around an answer are taken off this often; nobody needs more, and each costs a look at the whole text."""

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ",
     "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "√": r"\sqrt ",
     "∅": r"\emptyset ", "°": "", "′": "'", "’": "'", "…": r"\ldots ", "²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}",
     "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "“": "", "”": "", '"': "", "±": r"\pm ",
     "∓": r"\mp ", "～": " ", "，": ","}
)  # fmt: skip
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"))
"""Spaces without width, joiners, marks of direction, soft hyphens: web pages have them anywhere."""
_SPELLINGS = {
    "": r"! ( ) [ ] left right middle displaystyle textstyle limits nolimits boxed fbox framebox degree rm hline"
        r" big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr",
    " ": ", ; : > quad qquad enspace thinspace",
    r"\frac": "dfrac tfrac cfrac", r"\binom": "dbinom tbinom", r"\{": "lbrace", r"\}": "rbrace", "[": "lbrack",
    "]": "rbrack", "|": "lvert rvert vert", r"\le": "leq leqslant", r"\ge": "geq geqslant", r"\ne": "neq", "<": "lt",
    ">": "gt", r"\emptyset": "varnothing", r"\ldots": "dots cdots dotsc", ":": "colon", r"\cdot": "ast", "%": "%",
    r"\text": "textbf textit textrm textsf textnormal mbox hbox mathrm mathbf mathit mathsf boldsymbol bm operatorname",
}  # fmt: skip
_ONE_NAME = {"\\" + name: new for new, names in _SPELLINGS.items() for name in names.split()}
_ONE_NAME |= {"\\ ": " ", "\\\n": " ", "$": "", "~": " "}

_THOUSANDS = re.compile(
    r"(?<=\d)\s*(?:\{\s*,\s*\}(?:\s*\\!)?|,\s*\\!|\\!\s*,|\\text\s*\{\s*,\s*\}|\\[,;:> ]|~)\s*(?=\d{3}(?!\d))"
)
r"""Separators that can be no comma of a list, as in 1,\!000 or 1{,}000 or 1\,000."""
_COMMAND = re.compile(
    r"(\\\\)(?:\s*\[\s*[\d.]+\s*[a-z]{2}\s*\])?|\\(?:left|right)\s*\.(?!\d)|\\[A-Za-z]+|\\.|[$~]", re.DOTALL
)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
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
    (re.compile(r"\s+"), " "),
]  # fmt: skip
_WRAPPED = re.compile(r"\\text\{([^{}]*)\}|\*\*(.*)\*\*", re.DOTALL)


def normalise(answer: str) -> str:
    """The answer without mark-up (delimiters, sizes, spacing, degrees, a final stop), with one name per command."""
    text = _COMMAND.sub(_one_name, _THOUSANDS.sub("", answer.translate(_INVISIBLE)).translate(_SIGNS))
    text = _PRIMES.sub(lambda match: "'" * match[0].count("p"), text)
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    text = _TEXT.sub(_tidy_text, text)
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
    if match[1]:  # the end of a row, without the space after it that `\\[4pt]` asks for
        return match[1]
    return _ONE_NAME.get(match[0], "" if match[0].endswith(".") else match[0])


def _tidy_text(match: re.Match[str]) -> str:
    """Words stay marked as such; a sign or a number set as text is what it is."""
    inside = match[1].strip()
    return f"\\text{{{inside}}}" if any(character.isalpha() for character in inside) else f" {inside} "


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Each token, where it starts, and how many brackets are open around it (for a bracket: around the whole of it)."""
    depth = 0
    for match in TOKEN.finditer(text):
        token = match[0]
        if token in _CLOSING:
            depth = max(0, depth - 1)
        yield token, match.start(), depth
        if token in _OPENING:
            depth += 1


def closing(text: str) -> int | None:
    """Where the bracket with which `text` starts is closed; None if it is not."""
    for token, start, depth in tokens(text):
        if depth == 0 and token in _CLOSING:
            return start
    return None


def split(text: str, separators: Collection[str] | Callable[[str], bool]) -> list[str]:
    """The parts between separators outside all brackets."""
    is_separator = separators if callable(separators) else separators.__contains__
    parts, begin = [], 0
    for token, start, depth in tokens(text):
        if depth == 0 and is_separator(token):
            parts.append(text[begin:start].strip())
            begin = start + len(token)
    return [*parts, text[begin:].strip()]

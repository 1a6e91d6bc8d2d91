r"""The outer form of an answer: a list, a tuple, a set, an interval, a matrix, something with a name, or none of these.

It is read from the tokens, and only its parts go to the formula parser, which mistakes tuples for sets and pairs for
intervals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prism_prm.answers.latex import closing, split, tokens
from prism_prm.answers.numerals import numeral
from prism_prm.answers.units import split_unit

_MAX_DEPTH = 20
"""Forms inside forms are read this deep; what is deeper is text."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What has no outer form: a number, a word, a formula."""

    text: str


@dataclass(frozen=True, slots=True)
class Group:
    r"""Parts in brackets or between commas: `(1,2]`, `\{1,2\}`, `1, 2`, `1:2:3`."""

    brackets: str
    """One of "()", "[]", "(]", "[)", "{}"; ":" for a ratio, "∪" for `x < 1 or x > 2`, "" for a bare list."""
    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows of cells: "matrix", or "cases"."""

    name: str
    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class Named:
    r"""A value with its name: `x = 5`, `f(x) = 2x`, `x \in [1,2]`, `(x,y) = (1,2)`."""

    name: str
    value: Form


Form = Leaf | Group | Cells | Named

_OPEN = {"(": "(", "[": "[", r"\{": "{", r"\langle": "("}
_CLOSE = {")": ")", "]": "]", r"\}": "}", r"\rangle": ")"}
_BRACKETS = frozenset(["()", "[]", "(]", "[)", "{}"])
_MATRICES = ["pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array"]
_TABLES = dict.fromkeys(_MATRICES, "matrix") | {"cases": "cases"}
_TABLE = re.compile(r"\\begin\s*\{(\w+)\}(?:\s*\{[lcr| ]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)
_AND = re.compile(r"(?:,\s*)?(?:\\text\{(?:and|or)\}|(?<![A-Za-z\\{])(?:and|or)(?![A-Za-z}]))")
_OR = re.compile(r"\\text\{or\}|(?<![A-Za-z\\{])or(?![A-Za-z}])")
_INEQUALITY = re.compile(r"[<>]|\\[lg]e(?![A-Za-z])")
_GREEK = "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega|varphi"
_SYMBOL = rf"(?:[A-Za-z]|\\(?:{_GREEK}))(?:_(?:\w|\{{[^{{}}]*\}}))?'*"
_NAME = re.compile(
    rf"{_SYMBOL}(?:\s*\([^()]*\))?|\(\s*{_SYMBOL}(?:\s*,\s*{_SYMBOL})*\s*\)|\\text\{{[^{{}}]*\}}|\|?[A-Z]{{2,}}\|?"
    r"|\\(?:angle|overline|triangle)\s*\{?[A-Z ]+\}?"
)
_UNKNOWN = re.compile(rf"(?<![A-Za-z\\])[A-Za-z]|\\(?:text|{_GREEK})(?![A-Za-z])")


def read(text: str, depth: int = 0) -> Form:
    """The form of a normalised answer."""
    text = text.strip()
    if depth > _MAX_DEPTH:
        return Leaf(text)
    if text.startswith("{") and closing(text) == len(text) - 1:
        return read(text[1:-1], depth + 1)
    conditions = split(_OR.sub(";", text), ";") if _OR.search(text) else []
    if len(conditions) > 1 and all(_INEQUALITY.search(condition) for condition in conditions):
        return Group("∪", tuple(read(condition, depth + 1) for condition in conditions))
    parts = _parts(text)
    if len(parts) > 1:
        return Leaf(text) if numeral(text) else Group("", _read_all(parts, depth))
    if form := _read_brackets(text, depth):
        return form
    if r"\pm" in text or r"\mp" in text:
        signs = [text.replace(r"\pm", plus).replace(r"\mp", minus) for plus, minus in ("+-", "-+")]
        return Group("", _read_all(signs, depth))
    sides = split(text, ("=", r"\in"))
    if len(sides) > 1 and all(sides):
        return _read_equation(text, sides, depth)
    quantity, _ = split_unit(text)
    if quantity != text and (form := _read_brackets(quantity, depth)):
        return form
    ratio = split(text, ":")
    if len(ratio) > 2 and all(ratio):
        return Group(":", tuple(read(part, depth + 1) for part in ratio))
    return _read_table(text, depth) or Leaf(text)


def _parts(text: str) -> list[str]:
    """The parts between commas."""
    return [part for part in split(_AND.sub(",", text), ",;") if part]


def _read_all(parts: list[str], depth: int) -> tuple[Form, ...]:
    """The forms of the parts of a list; `1 \\pm 2` among them is two."""
    found: list[Form] = []
    for part in parts:
        form = read(part, depth + 1)
        found += form.parts if isinstance(form, Group) and form.brackets == "" else [form]
    return tuple(found)


def _read_brackets(text: str, depth: int) -> Form | None:
    """What stands in brackets; round ones around one thing mean nothing."""
    first = next((token for token, _, _ in tokens(text)), "")
    end = closing(text) if first in _OPEN else None
    if end is None or text[end:] not in _CLOSE:
        return None
    brackets = _OPEN[first] + _CLOSE[text[end:]]
    inside = text[len(first) : end].strip()
    if brackets not in _BRACKETS or not inside:
        return None
    parts = _parts(inside)
    if brackets == "{}":
        condition = split(inside, ("|", r"\mid", ":"))
        if len(condition) == 2 and _NAME.fullmatch(split(condition[0], (r"\in",))[0]):
            return read(condition[1], depth + 1)
        return Group(brackets, _read_all(parts, depth))
    if len(parts) > 1:
        if r"\pm" in inside or r"\mp" in inside:
            return None
        return Group(brackets, tuple(read(part, depth + 1) for part in parts))
    return read(inside, depth + 1) if brackets in ("()", "[]") else None


def _read_equation(text: str, sides: list[str], depth: int) -> Form:
    """What has a name is its value, and so is the end of a calculation; an equation of unknowns stays as it is."""
    first, last = sides[0], sides[-1]
    if _NAME.fullmatch(first) and ("(" in first or not _NAME.fullmatch(last)):
        return Named("".join(first.split()), read(last, depth + 1))
    if _NAME.fullmatch(last) and len(sides) == 2 and not _UNKNOWN.search(first):
        return Named("".join(last.split()), read(first, depth + 1))
    return Leaf(text) if _UNKNOWN.search(text) else read(last, depth + 1)


def _read_table(text: str, depth: int) -> Cells | None:
    table = _TABLE.fullmatch(text)
    if table is None or table[1] not in _TABLES or r"\begin" in table[2]:
        return None
    rows = split(table[2], (r"\\",))
    if not rows[-1]:
        rows.pop()
    return Cells(_TABLES[table[1]], tuple(tuple(read(cell, depth + 1) for cell in split(row, "&")) for row in rows))

r"""Compare answers with algebra. Any of this can hang, so it runs in worker processes that can be killed.

`equivalent` decides whether an answer is right for a reference. `key` returns a string that equal answers share:
grouping by it is symmetric and transitive by construction, which judging is not (`1,2` is right for `(1,2)` and for
`2,1`).

First the outer form is read from the tokens: a list, a tuple, a set, an interval, a matrix, a named value. Only its
parts go to the formula parser, which mistakes tuples for sets and pairs for intervals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prism_prm.grading.formulas import NotAFormulaError, key_of_value, parse, real_value
from prism_prm.grading.plain_answers import (  # fmt: skip
    KEY_DIGITS,
    Numeral,
    closing,
    normalize,
    numeral,
    plain_key,
    same_number,
    same_plainly,
    split,
    split_unit,
    text_key,
    tokens,
)

_MAX_DEPTH = 20
"""Forms are read up to this nesting depth; deeper ones are text."""


@dataclass(frozen=True, slots=True)
class PlainForm:
    """An answer without an outer form: a number, a word, a formula."""

    text: str


@dataclass(frozen=True, slots=True)
class GroupForm:
    r"""Parts in brackets or between commas: `(1,2]`, `\{1,2\}`, `1, 2`, `1:2:3`."""

    brackets: str
    """One of "()", "[]", "(]", "[)", "{}"; ":" for a ratio, "∪" for `x < 1 or x > 2`, "" for a bare list."""
    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class TableForm:
    """Rows of cells: "matrix", or "cases"."""

    name: str
    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class NamedForm:
    r"""A value with its name: `x = 5`, `f(x) = 2x`, `x \in [1,2]`, `(x,y) = (1,2)`."""

    name: str
    value: Form


Form = PlainForm | GroupForm | TableForm | NamedForm

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


def read_form(text: str, depth: int = 0) -> Form:
    """Read the form of a normalized answer."""

    def inside(*parts: str) -> tuple[Form, ...]:
        return tuple(read_form(part, depth + 1) for part in parts)

    text = text.strip()
    if depth > _MAX_DEPTH:
        return PlainForm(text)
    if text.startswith("{") and closing(text) == len(text) - 1:
        return read_form(text[1:-1], depth + 1)
    conditions = split(_OR.sub(";", text), ";") if _OR.search(text) else []
    if len(conditions) > 1 and all(_INEQUALITY.search(condition) for condition in conditions):
        return GroupForm("∪", inside(*conditions))
    parts = _parts(text)
    if len(parts) > 1:
        return PlainForm(text) if numeral(text) else GroupForm("", _flat(inside(*parts)))
    if form := _read_brackets(text, depth):
        return form
    if r"\pm" in text or r"\mp" in text:
        signs = [text.replace(r"\pm", plus).replace(r"\mp", minus) for plus, minus in ("+-", "-+")]
        return GroupForm("", _flat(inside(*signs)))
    sides = split(text, ("=", r"\in"))
    if len(sides) > 1 and all(sides):
        # A named value and a calculation count as their last part; an equation of unknowns stays as it is.
        first, last = sides[0], sides[-1]
        if _NAME.fullmatch(first) and ("(" in first or not _NAME.fullmatch(last)):
            return NamedForm("".join(first.split()), read_form(last, depth + 1))
        if _NAME.fullmatch(last) and len(sides) == 2 and not _UNKNOWN.search(first):
            return NamedForm("".join(last.split()), read_form(first, depth + 1))
        return PlainForm(text) if _UNKNOWN.search(text) else read_form(last, depth + 1)
    quantity, _ = split_unit(text)
    if quantity != text and (form := _read_brackets(quantity, depth)):
        return form
    ratio = split(text, ":")
    if len(ratio) > 2 and all(ratio):
        return GroupForm(":", inside(*ratio))
    table = _TABLE.fullmatch(text)
    if table is None or table[1] not in _TABLES or r"\begin" in table[2]:
        return PlainForm(text)
    rows = split(table[2], (r"\\",))
    return TableForm(_TABLES[table[1]], tuple(inside(*split(row, "&")) for row in (rows if rows[-1] else rows[:-1])))


def _parts(text: str) -> list[str]:
    """Split at commas, semicolons, "and" and "or"."""
    return [part for part in split(_AND.sub(",", text), ",;") if part]


def _flat(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    r"""Flatten the parts of a list; `1 \pm 2` among them is two parts."""
    parts: list[Form] = []
    for form in forms:
        parts += form.parts if isinstance(form, GroupForm) and form.brackets == "" else [form]
    return tuple(parts)


def _read_brackets(text: str, depth: int) -> Form | None:
    """Read a form in brackets; brackets around a single part are dropped."""
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
            return read_form(condition[1], depth + 1)
    elif len(parts) < 2:
        return read_form(inside, depth + 1) if brackets in ("()", "[]") else None
    elif r"\pm" in inside or r"\mp" in inside:
        return None
    forms = tuple(read_form(part, depth + 1) for part in parts)
    return GroupForm(brackets, _flat(forms) if brackets == "{}" else forms)


_EXACT = 30
"""Formulas are equivalent, not only equal in a vote, if they agree to this many digits."""
_NO_VALUE = (NotAFormulaError, TypeError, ValueError, AttributeError, NotImplementedError)  # sympy raises any of these


def warm_up() -> None:
    """Import sympy before the first call, whose time is limited."""
    equivalent("x+1", "1+x")


def equivalent(reference: str, answer: str, tolerance: float = 0.0) -> bool:
    """Whether an answer is right; `tolerance` is relative and applies to its numbers."""
    reference, answer = normalize(reference), normalize(answer)
    plain = same_plainly(reference, answer, tolerance)
    return _same(read_form(reference), read_form(answer), tolerance) if plain is None else plain


def key(answer: str) -> str:
    """Return a string that equal answers share; the text itself if the answer cannot be parsed."""
    answer = normalize(answer)
    return plain_key(answer) or _key(read_form(answer), KEY_DIGITS)


def _same(a: Form, b: Form, tolerance: float) -> bool:
    """Whether `b` is right for the reference `a`."""
    if (isinstance(a, NamedForm) and _is_equation(b)) or (isinstance(b, NamedForm) and _is_equation(a)):
        return _key(_equation(a), _EXACT) == _key(_equation(b), _EXACT)
    a, b = _value(a), _value(b)
    if isinstance(a, PlainForm) and isinstance(b, PlainForm):
        return _same_leaf(a, b, tolerance)
    if isinstance(a, TableForm) and isinstance(b, TableForm):
        shapes = [(table.name, [len(row) for row in table.rows]) for table in (a, b)]
        return shapes[0] == shapes[1] and all(
            _same(cell, other, tolerance)
            for row, others in zip(a.rows, b.rows, strict=True)
            for cell, other in zip(row, others, strict=True)
        )
    if isinstance(a, GroupForm) and isinstance(b, GroupForm):
        return _same_group(a, b, tolerance)
    return _key(a, _EXACT) == _key(b, _EXACT)


def _is_equation(form: Form) -> bool:
    return isinstance(form, PlainForm) and len(split(form.text, "=")) > 1


def _equation(form: Form) -> Form:
    """Convert the named value `y = 2x` to an equation, to compare it with `y - 2x = 0`."""
    if isinstance(form, NamedForm) and isinstance(form.value, PlainForm):
        return PlainForm(f"{form.name}={form.value.text}")
    return form


def _value(form: Form) -> Form:
    """Remove the name; a set of one element becomes that element."""
    while True:
        if isinstance(form, NamedForm):
            form = form.value
        elif isinstance(form, GroupForm) and form.brackets in ("", "{}") and len(form.parts) == 1:
            form = form.parts[0]
        else:
            return form


def _same_group(a: GroupForm, b: GroupForm, tolerance: float) -> bool:
    """Compare tuples and intervals in order, sets and bare lists in any order; a bare list may stand for either."""
    kinds, names_a, names_b = {a.brackets, b.brackets}, _names(a), _names(b)
    if kinds == {"∪"} or (kinds <= {"", "{}"} and bool(names_a) == bool(names_b)):
        parts, others = _members(a), _members(b)
        if sorted(names_a) != sorted(names_b) or len(parts) != len(others):
            return False
        for part in parts:
            for i, other in enumerate(others):
                if isinstance(part, NamedForm) and isinstance(other, NamedForm) and part.name != other.name:
                    continue
                if _same(part, other, tolerance):
                    del others[i]
                    break
            else:
                return False
        return True
    may_differ = {"", "()", "[]"} if len(a.parts) > 2 else {"", "()"}
    if len(a.parts) != len(b.parts) or (len(kinds) > 1 and not kinds <= may_differ):
        return False
    if names_a != sorted(names_a) or names_b != sorted(names_b):  # x=1, y=2 is (1,2); y=1, x=2 is not
        return False
    have_names = all(any(isinstance(part, NamedForm) for part in group.parts) for group in (a, b))
    if bool(names_a) != bool(names_b) and have_names:  # a=2, x=3 is not a=2, a=3
        return False
    return all(_same(x, y, tolerance) for x, y in zip(a.parts, b.parts, strict=True))


def _names(group: GroupForm) -> list[str]:
    """Return the names of the parts if they differ, as in `x=1, y=2`, but not in `x=1, x=2`."""
    names = [part.name for part in group.parts if isinstance(part, NamedForm)]
    return names if len(set(names)) > 1 else []


def _members(group: GroupForm) -> list[Form]:
    """Return the parts of a set or list; in braces, each once."""
    return list({_key(part, _EXACT): part for part in group.parts}.values() if group.brackets == "{}" else group.parts)


def _same_leaf(a: PlainForm, b: PlainForm, tolerance: float) -> bool:
    plain = same_plainly(a.text, b.text, tolerance)
    if plain is not None:
        return plain
    sides_a, sides_b = split(a.text, "="), split(b.text, "=")
    if len(sides_b) > 1 == len(sides_a) and not (sides_b[-1] == "0" and _has_digit(sides_b[0])):  # a + b = 25 for 25 …
        return _same(a, read_form(sides_b[-1]), tolerance)
    if len(sides_a) > 1 == len(sides_b) and not _has_digit(sides_a[0]):  # … and 25 for it
        return _same(read_form(sides_a[-1]), b, tolerance)
    if _key(a, _EXACT) == _key(b, _EXACT):
        return True
    expected, given = _number(a.text), _number(b.text)
    return expected is not None and given is not None and same_number(expected, given, tolerance)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _number(text: str) -> Numeral | None:
    """Evaluate a text to a real number; None if it is not one."""
    text, _ = split_unit(text)
    if plain := numeral(text):
        return plain
    try:
        value = real_value(parse(text))
    except _NO_VALUE:
        return None
    return Numeral(value) if value is not None else None


def _key(form: Form, digits: int) -> str:
    form = _value(form)
    if isinstance(form, PlainForm):
        if plain := plain_key(form.text, digits):
            return plain
        quantity, _ = split_unit(form.text)
        try:
            return key_of_value(parse(quantity), digits)
        except _NO_VALUE:
            return text_key(quantity)
    if isinstance(form, TableForm):
        rows = ("&".join(_key(cell, digits) for cell in row) for row in form.rows)
        return ("" if form.name == "matrix" else form.name) + "[" + ";".join(rows) + "]"
    assert isinstance(form, GroupForm), "_value removes names"
    if form.brackets in ("", "{}"):
        # Elements in any order; `x=1, x=2` is the set {1, 2}, but `x=1, y=2` keeps its names.
        has_names = bool(_names(form))
        keys = sorted(
            (f"{part.name}=" if has_names and isinstance(part, NamedForm) else "") + _key(part, digits)
            for part in _members(form)
        )
        return keys[0] if len(keys) == 1 else "{" + ",".join(keys) + "}"
    keys = [_key(part, digits) for part in form.parts]
    if form.brackets == "∪":
        return "∪".join(sorted(keys))
    return ":".join(keys) if form.brackets == ":" else form.brackets[0] + ",".join(keys) + form.brackets[1]

r"""Parse a formula with sympy, after rewriting what its parser would misread, and compute a key of its value.

The parser, latex2sympy, adds adjacent numbers (`3(4)` is 7, `3\binom{5}{2}` is 13), drops the base of `52_8` and the
prime of `y'`, reads `\gamma + 1` as a value of the gamma function, and words as products of letters. So factors get a
dot, mixed numbers a plus, arguments braces, and some names a tilde; text that is not a formula is not parsed.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from prism_prm.grading.plain_answers import TOKEN, number_key, plain_key

_COMPLEX = re.compile(r"\bi\b|\\imath\b|\\mathbb\{C\}|\\det|\\(?:arg|Re|Im)\{|\\text\{(?:rank|Re|Im)\}")
"""Formulas whose unknowns may be complex numbers or matrices; all other unknowns are real."""


class NotAFormulaError(Exception):
    """The parser cannot read a text, or would misread it."""


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Any:
    """Parse a normalized formula to a sympy value; decimals become exact fractions, `f(x)` and `dx/dt` unknowns."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import Basic, Derivative, Float, MatrixBase, Rational, Symbol
    from sympy.core.function import AppliedUndef

    spelled = spell_out(text)
    try:
        value = latex2sympy(
            spelled, is_real=not _COMPLEX.search(spelled), convert_degrees=False, normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )  # fmt: skip
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # the parser has no exception class of its own
        raise NotAFormulaError(text) from error
    if not isinstance(value, Basic | MatrixBase):
        raise NotAFormulaError(text)
    exact = {number: Rational(str(number)) for number in value.atoms(Float)}
    unknown = {function: Symbol(str(function)) for function in value.atoms(AppliedUndef, Derivative)}
    return value.xreplace(exact | unknown) if exact or unknown else value


def spell_out(text: str) -> str:
    """Rewrite a formula with a dot between numbers, a plus in mixed numbers, and braces around arguments."""
    try:
        return _Speller(text).sequence()
    except RecursionError:
        raise NotAFormulaError("brackets are nested too deeply") from None


AtomKind = Literal["number", "value", "name", "operator"]


@dataclass(slots=True)
class _Atom:
    text: str
    kind: AtomKind

    @property
    def is_numeric(self) -> bool:
        """Whether the parser may read it as a plain number."""
        return self.kind in ("number", "value") and not re.search(r"[A-Za-z]", _OF_NUMBERS.sub("", self.text))


_OF_NUMBERS = re.compile(r"\\(?:frac|binom|cdot|times|lfloor|rfloor|lceil|rceil|(?:begin|end)\{vmatrix\})(?![A-Za-z])")
_OPERATOR = re.compile(r"[-+*/=<>,;:&|]|\\(?:\\|cdot|times|div|le|ge|ne|in|cup|cap|setminus|to)")
_BRACKETS = {"(": ")]", "[": ")]", r"\{": [r"\}"], r"\lfloor": [r"\rfloor"], r"\lceil": [r"\rceil"]}
_ACCENT = re.compile(r"\\(?:vec|hat|bar|dot|ddot|tilde|overline|mathbb|mathcal|mathfrak|overrightarrow)")
_FRACTION_OF_DIGITS = re.compile(r"\\frac\{\d+\}\{\d+\}")
_ENDS_AS_COMMAND = re.compile(r"\\[A-Za-z]+$")
_LETTER_WITH_A_MEANING = re.compile("[IE]")
"""The parser reads I as the imaginary unit, whatever its sub- or superscript, and E cannot have a subscript."""
_WORD = 4
"""A run of this many letters is a word."""


class _Speller:
    """Rewrites a formula in one pass over its tokens."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [token for token in TOKEN.findall(text.replace("**", "^")) if not token.isspace()]
        self._at = 0

    def sequence(self, *ends: str) -> str:
        """Rewrite everything before the first of `ends`, which is not consumed; without `ends`, everything."""
        atoms: list[_Atom] = []
        while self._at < len(self._tokens) and self._tokens[self._at] not in ends:
            token = self._next()
            if token in ("^", "_", "'", "!", "%"):
                self._attach(token, atoms)
            else:
                self._append(self._atom(token), atoms)
        if ends and self._at == len(self._tokens):
            raise NotAFormulaError("a bracket is not closed")
        return _joined(atoms)

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise NotAFormulaError("unexpected end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _atom(self, token: str) -> _Atom:
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return _Atom(token, "number")
        if _OPERATOR.fullmatch(token):
            return _Atom(token, "operator")
        if token in _BRACKETS:
            inside = self.sequence(*_BRACKETS[token])
            return _Atom(f"{token} {inside} {self._next()}", "value")
        if token == "{":
            return _Atom(f"{{{self._to_brace()}}}", "value")
        if token in (r"\frac", r"\binom"):
            return _Atom(f"{token}{{{self._argument(one_digit=True)}}}{{{self._argument()}}}", "value")
        if token == r"\sqrt":
            degree = ""
            if self._peek() == "[":
                self._next()
                degree = f"[{self.sequence(']')}]"
                self._next()
            return _Atom(rf"\sqrt{degree}{{{self._argument()}}}", "value")
        if token == r"\begin":
            name = self._raw()
            columns = f"{{{self._raw()}}}" if name == "array" and self._peek() == "{" else ""
            inside = self.sequence(r"\end")
            self._next()
            if self._raw() != name:
                raise NotAFormulaError(f"{name} does not end")
            kind: AtomKind = "value" if name == "vmatrix" else "name"
            return _Atom(rf"\begin{{{name}}}{columns} {inside} \end{{{name}}}", kind)
        if token.startswith("\\"):
            return self._command(token)
        if token.isalpha() and len(token) >= _WORD:
            raise NotAFormulaError(f"a word: {token}")
        return _Atom(_LETTER_WITH_A_MEANING.sub(r"\\tilde{\g<0>}", token), "name")

    def _append(self, atom: _Atom, atoms: list[_Atom]) -> None:
        """Append an atom; adjacent numbers become a mixed number or a product, because the parser would add them."""
        before = atoms[-1] if atoms else _Atom("", "operator")
        if before.kind == atom.kind == "number":
            raise NotAFormulaError("two numbers side by side")
        if before.text == "e" and atom.kind == "number" and len(atoms) > 1 and atoms[-2].kind == "number":
            raise NotAFormulaError("a power of ten that the parser reads as Euler's number")
        if before.kind == "number" and before.text.isdigit() and _FRACTION_OF_DIGITS.fullmatch(atom.text):
            atoms[-1] = _Atom(f"({before.text}+{atom.text})", "value")
        elif atom.is_numeric and (before.is_numeric or before.text == r"\pi"):
            atoms += [_Atom(r"\cdot", "operator"), atom]
        else:
            atoms.append(atom)

    def _attach(self, token: str, atoms: list[_Atom]) -> None:
        """Attach a script, a prime, a factorial or a percent sign to the atom before it."""
        if not atoms or atoms[-1].kind == "operator":
            raise NotAFormulaError(f"nothing before {token}")
        atom = atoms[-1]
        if token == "^":
            sign = self._next() if self._peek() == "-" else ""
            atom.text += f"^{{{sign}{self._argument()}}}"
        elif token == "_":
            if atom.kind == "number":
                raise NotAFormulaError("a number with a subscript")
            # A subscript stays as it is written, because it is part of a name; it may have words.
            script = re.sub(r"\\text|[{}]", "", self._raw()) if self._peek() == "{" else self._argument()
            atom.text += f"_{{{script}}}"
        elif token == "!":
            atom.text += "!"
        elif token == "%":
            if atom.kind != "number":
                raise NotAFormulaError("a percent sign without a number")
            atom.text += r"\%"
        else:
            primes = 1
            while self._peek() == "'":
                primes, self._at = primes + 1, self._at + 1
            if not re.fullmatch(r"[A-Za-z]|\\[a-z]+", atom.text):
                raise NotAFormulaError("a prime without a name")
            atom.text += f"_{{prime{primes}}}"
        atom.kind = "value" if atom.kind == "number" else atom.kind

    def _argument(self, *, one_digit: bool = False) -> str:
        """Return the argument of a command or a script: the content of braces, or else the next atom."""
        token = self._next()
        if token == "{":
            return self._to_brace()
        if token.isalpha() and len(token) > 1:  # of a run of letters, only the first
            self._at -= 1
            self._tokens[self._at] = token[1:]
            return self._atom(token[0]).text
        if one_digit and token.isdigit() and len(token) > 1:  # \frac12
            self._at -= 1
            self._tokens[self._at] = token[1:]
            return token[0]
        if _OPERATOR.fullmatch(token):
            raise NotAFormulaError(f"{token} where an argument should be")
        return self._atom(token).text

    def _to_brace(self) -> str:
        inside = self.sequence("}")
        self._next()
        return inside

    def _raw(self) -> str:
        """Return the content of the next braces, unchanged."""
        self._next()
        start, depth = self._at, 1
        while depth:
            token = self._next()
            depth += (token == "{") - (token == "}")
        return _joined([_Atom(token, "name") for token in self._tokens[start : self._at - 1]])

    def _command(self, token: str) -> _Atom:
        if token == r"\text":
            letters = self._raw()
            if len(letters) != 1:
                raise NotAFormulaError(f"words: {letters}")
            return _Atom(letters, "name")
        if token in (r"\ldots", r"\$", r"\angle", r"\triangle"):
            raise NotAFormulaError(f"no formula has {token}")
        if token in (r"\gamma", r"\Gamma"):
            return _Atom(rf"\tilde{{{token[1:]}}}", "name")
        if self._peek() != "{":
            return _Atom(token, "name")
        if _ACCENT.fullmatch(token):
            return _Atom(f"{token}{{{self._raw()}}}", "name")
        self._next()
        return _Atom(f"{token}{{{self._to_brace()}}}", "name")


def _joined(atoms: list[_Atom]) -> str:
    """Join atoms, with a space only where a command would run into a letter."""
    text = ""
    for atom in atoms:
        text += " " + atom.text if text and _ENDS_AS_COMMAND.search(text) and atom.text[:1].isalpha() else atom.text
    return text


_POINTS = 3
"""Formulas with unknowns are the same answer if they agree at this many fixed points."""
_STEPS = 24
"""Step functions (floors, remainders) must agree at this many more points, which are spread wider."""
_PRECISION = 60
_NOISE = Fraction(1, 10**45)
"""Parts smaller than this, relative to the whole value, are rounding errors of a zero."""
_IMAGINARY = "i"
"""The parser reads the imaginary unit as an unknown of this name."""


def real_value(value: Any) -> Fraction | None:
    """Evaluate an expression without unknowns; None if it is not a finite real number."""
    from sympy import Expr, Rational

    if not isinstance(value, Expr) or value.free_symbols:
        return None
    value = value.doit()
    if isinstance(value, Rational):
        return Fraction(int(value.p), int(value.q))
    values = _values(value)
    return values[0][0] if values and isinstance(values[0][0], Fraction) and not values[0][1] else None


def key_of_value(value: Any, digits: int) -> str:
    """Return a string that equal values share."""
    import sympy
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import Boolean

    if isinstance(value, sympy.Symbol):  # first, because for sympy a symbol is also a condition
        return plain_key(value.name) or str(value.name)
    if isinstance(value, sympy.MatrixBase):
        rows = ("&".join(key_of_value(entry, digits) for entry in value.row(i)) for i in range(value.rows))
        return "[" + ";".join(rows) + "]"
    if isinstance(value, sympy.MatrixExpr):
        matrix = value.doit()
        return key_of_value(matrix, digits) if isinstance(matrix, sympy.MatrixBase) else str(sympy.srepr(matrix))
    if isinstance(value, sympy.Set):
        return _set_key(value.doit(), digits)
    if isinstance(value, sympy.Tuple):
        return "(" + ",".join(key_of_value(entry, digits) for entry in value) + ")"
    if isinstance(value, Relational | Boolean):
        return _condition_key(value, digits)
    return _expression_key(value, digits) if isinstance(value, sympy.Expr) else str(sympy.srepr(value))


def _set_key(value: Any, digits: int) -> str:
    import sympy

    if isinstance(value, sympy.Union):
        return "∪".join(sorted(_set_key(part, digits) for part in value.args))
    if isinstance(value, sympy.FiniteSet):
        keys = sorted({key_of_value(element, digits) for element in value.args})
        return keys[0] if len(keys) == 1 else "{" + ",".join(keys) + "}"
    if isinstance(value, sympy.Interval):
        left, right = "(" if value.left_open else "[", ")" if value.right_open else "]"
        return f"{left}{key_of_value(value.start, digits)},{key_of_value(value.end, digits)}{right}"
    return str(sympy.srepr(value))


def _condition_key(condition: Any, digits: int) -> str:
    """Return the key of a condition: with one unknown, of the set it describes, else of the difference of its sides."""
    import sympy

    if isinstance(condition, sympy.Eq):
        return _comparison_key("=", condition.lhs - condition.rhs, digits)
    if len(condition.free_symbols) == 1:
        try:
            return _set_key(condition.as_set(), digits)
        except (NotImplementedError, AttributeError, TypeError, ValueError):
            pass
    if isinstance(condition, sympy.And):
        return "∧".join(sorted(_condition_key(part, digits) for part in condition.args))
    match condition:
        case sympy.Ne():
            return _comparison_key("≠", condition.lhs - condition.rhs, digits)
        case sympy.StrictLessThan() | sympy.LessThan():
            return _comparison_key(condition.rel_op, condition.rhs - condition.lhs, digits)
        case sympy.StrictGreaterThan() | sympy.GreaterThan():
            return _comparison_key(condition.rel_op.replace(">", "<"), condition.lhs - condition.rhs, digits)
    return str(sympy.srepr(condition))


def _comparison_key(sign: str, difference: Any, digits: int) -> str:
    """Return the key of 0 = …, 0 < … and so on, up to a factor; a negative factor only if it changes nothing."""
    import sympy

    values = _values(difference)
    scale = values[0][0] if values else None
    if not values or not isinstance(scale, Fraction) or not scale or not difference.free_symbols:
        return f"0{sign}{sympy.srepr(difference)}"
    if "<" in sign:
        scale = abs(scale)
    return f"0{sign}" + _spell(
        [tuple(part / scale if isinstance(part, Fraction) else part for part in value) for value in values], digits
    )


def _expression_key(expression: Any, digits: int) -> str:
    import sympy

    expression = expression.doit()
    if expression.has(sympy.zoo, sympy.nan):  # 1/0 and 2/0 have no value, so they are not equal
        raise ValueError("no value")
    if isinstance(expression, sympy.Rational):
        return number_key(Fraction(int(expression.p), int(expression.q)), digits)
    values = _values(expression)
    if values is None:
        return str(sympy.srepr(expression))
    spelled = _spell(values, digits)
    for symbol in expression.free_symbols:
        if spelled == _spell(_values(symbol, len(values)) or [], digits):
            return key_of_value(symbol, digits)
    first = _spell(values[:1], digits)
    return first if spelled == ";".join([first] * len(values)) else spelled  # sin² + cos² is a number


Complex = tuple[Fraction | str, ...]
"""Real and imaginary part; infinite ones as words."""


def _values(expression: Any, num_points: int = 0) -> list[Complex] | None:
    """Evaluate an expression at fixed points, which depend only on the unknowns' names; None if it has no value."""
    from sympy import Float, Mod, Rational, ceiling, floor, oo

    values: list[Complex] = []
    num_points = num_points or _POINTS + (_STEPS if expression.has(floor, ceiling, Mod) else 0)
    for point in range(num_points if expression.free_symbols else 1):
        at = {symbol: _coordinate(symbol.name, point) for symbol in expression.free_symbols}
        try:
            parts = expression.evalf(_PRECISION, subs=at).as_real_imag()
        except (TypeError, ValueError, OverflowError, AttributeError):
            return None
        value: list[Fraction | str] = []
        for part in parts:
            part = Rational(part) if isinstance(part, Float) else part
            if part in (oo, -oo):
                value.append("inf" if part == oo else "-inf")
            elif isinstance(part, Rational):
                value.append(Fraction(int(part.p), int(part.q)))
            else:
                return None
        size = max((abs(part) for part in value if isinstance(part, Fraction)), default=Fraction(0))
        least = _NOISE * (size if size > _NOISE else 1)
        is_noise = [isinstance(part, Fraction) and abs(part) < least for part in value]
        values.append(tuple(Fraction(0) if noise else part for part, noise in zip(value, is_noise, strict=True)))
    return values


def _coordinate(name: str, point: int) -> Any:
    """Return a pseudo-random number of size 0.5 to 1.5 (for steps 0 to 60); the first is negative: |x| is not x."""
    import sympy

    if name == _IMAGINARY:
        return sympy.I
    seed = hashlib.blake2b(f"{name}/{point}".encode(), digest_size=4).digest()
    size = sympy.Rational(int.from_bytes(seed, "big"), 2**32)
    if point >= _POINTS:
        return 60 * size
    return -size - sympy.Rational(1, 2) if point == 0 else size + sympy.Rational(1, 2)


def _spell(values: list[Complex], digits: int) -> str:
    """Spell values like `number_key`, so that sqrt(4) votes with 2."""

    def spell(part: Fraction | str) -> str:
        if isinstance(part, str):
            return part
        nearest = round(part)
        return str(nearest) if abs(part - nearest) * 10**digits <= max(1, abs(part)) else number_key(part, digits)

    spelled = [(spell(real), spell(imaginary)) for real, imaginary in values]
    return ";".join(real if imaginary == "0" else f"{real}+{imaginary}i" for real, imaginary in spelled)

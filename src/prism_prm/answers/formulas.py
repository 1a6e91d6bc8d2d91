r"""Read a formula with sympy, after rewriting what its parser would misread.

The parser, latex2sympy, adds adjacent numbers (`3(4)` is 7, `3\binom{5}{2}` is 13), drops the base of `52_8` and the
prime of `y'`, reads `\gamma + 1` as a value of the gamma function and words as products of letters. So factors get a
dot, mixed numbers a plus, arguments braces, some names a tilde, and text that is not a formula is not sent.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal

from prism_prm.answers.latex import TOKEN


class NotAFormulaError(Exception):
    """A text that the parser cannot read, or would misread."""


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Any:
    """The sympy value of a normalised formula; decimals are exact fractions, `f(x)` and `dx/dt` unknowns."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from math_verify.grader import should_treat_as_complex
    from sympy import Basic, Derivative, Float, MatrixBase, Rational, Symbol
    from sympy.core.function import AppliedUndef

    spelled = spell_out(text)
    try:
        value = latex2sympy(
            spelled, is_real=not should_treat_as_complex(spelled), convert_degrees=False, normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )  # fmt: skip
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # it has no exception of its own
        raise NotAFormulaError(text) from error
    if not isinstance(value, Basic | MatrixBase):
        raise NotAFormulaError(text)
    exact = {number: Rational(str(number)) for number in value.atoms(Float)}
    unknown = {function: Symbol(str(function)) for function in value.atoms(AppliedUndef, Derivative)}
    return value.xreplace(exact | unknown) if exact or unknown else value


def spell_out(text: str) -> str:
    """The formula with a dot between numbers, a plus in mixed numbers, and braces around arguments."""
    try:
        return _Speller(text).sequence()
    except RecursionError:
        raise NotAFormulaError("brackets are nested too deeply") from None


@dataclass(slots=True)
class _Atom:
    text: str
    kind: Literal["number", "value", "name", "operator"]

    @property
    def is_numeric(self) -> bool:
        """Whether the parser may see a plain number in it."""
        return self.kind in ("number", "value") and not re.search(r"[A-Za-z]", _OF_NUMBERS.sub("", self.text))


_OF_NUMBERS = re.compile(r"\\(?:frac|binom|cdot|times|lfloor|rfloor|lceil|rceil|(?:begin|end)\{vmatrix\})(?![A-Za-z])")
_OPERATOR = re.compile(r"[-+*/=<>,;:&|]|\\(?:\\|cdot|times|div|le|ge|ne|in|cup|cap|setminus|to)")
_BRACKETS = {"(": ")]", "[": ")]", r"\{": [r"\}"], r"\lfloor": [r"\rfloor"], r"\lceil": [r"\rceil"]}
_ACCENT = re.compile(r"\\(?:vec|hat|bar|dot|ddot|tilde|overline|mathbb|mathcal|mathfrak|overrightarrow)")
_FRACTION_OF_DIGITS = re.compile(r"\\frac\{\d+\}\{\d+\}")
_ENDS_AS_COMMAND = re.compile(r"\\[A-Za-z]+$")
_LETTER_WITH_A_MEANING = re.compile("[IE]")
"""To the parser, I is the imaginary unit whatever its sub- or superscript, and E cannot have a subscript."""
_WORD = 4
"""This many letters in a row are a word."""


class _Speller:
    """Goes through the tokens of a formula once."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [token for token in TOKEN.findall(text.replace("**", "^")) if not token.isspace()]
        self._at = 0

    def sequence(self, *ends: str) -> str:
        """Everything up to the first of `ends`, which is left to be taken; without `ends`, everything."""
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
            raise NotAFormulaError("the end comes too soon")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _atom(self, token: str) -> _Atom:
        if _is_number(token):
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
            return self._root()
        if token == r"\begin":
            return self._environment()
        if token.startswith("\\"):
            return self._command(token)
        if token.isalpha() and len(token) >= _WORD:
            raise NotAFormulaError(f"a word: {token}")
        return _Atom(_LETTER_WITH_A_MEANING.sub(r"\\tilde{\g<0>}", token), "name")

    def _append(self, atom: _Atom, atoms: list[_Atom]) -> None:
        """Numbers side by side are a mixed number or a product, and not left to the parser."""
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
        """A script, a prime, a factorial or a percent sign belongs to what stands before it."""
        if not atoms or atoms[-1].kind == "operator":
            raise NotAFormulaError(f"nothing before {token}")
        atom = atoms[-1]
        if token == "^":
            atom.text += f"^{{{self._exponent()}}}"
        elif token == "_":
            if atom.kind == "number":
                raise NotAFormulaError("a number with a subscript")
            atom.text += f"_{{{self._subscript()}}}"
        elif token == "!":
            atom.text += "!"
        elif token == "%":
            if atom.kind != "number":
                raise NotAFormulaError("a percent sign after no number")
            atom.text += r"\%"
        else:
            primes = 1
            while self._peek() == "'":
                primes, self._at = primes + 1, self._at + 1
            if not re.fullmatch(r"[A-Za-z]|\\[a-z]+", atom.text):
                raise NotAFormulaError("a prime after no name")
            atom.text += f"_{{prime{primes}}}"
        atom.kind = "value" if atom.kind == "number" else atom.kind

    def _exponent(self) -> str:
        if self._peek() == "-":
            self._at += 1
            return "-" + self._argument()
        return self._argument()

    def _argument(self, *, one_digit: bool = False) -> str:
        """What a command or a script applies to: what is in braces, or else the next thing."""
        token = self._next()
        if token == "{":
            return self._to_brace()
        if token.isalpha() and len(token) > 1:  # of letters in a row, the first
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

    def _subscript(self) -> str:
        """As it is written, since it is part of a name; words may stand there."""
        if self._peek() != "{":
            return self._argument()
        return self._raw().replace(r"\text", "").replace("{", "").replace("}", "")

    def _raw(self) -> str:
        """The tokens of what is in the braces that come next, as they are."""
        self._next()
        start, depth = self._at, 1
        while depth:
            token = self._next()
            depth += (token == "{") - (token == "}")
        return _joined([_Atom(token, "name") for token in self._tokens[start : self._at - 1]])

    def _root(self) -> _Atom:
        degree = ""
        if self._peek() == "[":
            self._next()
            degree = f"[{self.sequence(']')}]"
            self._next()
        return _Atom(rf"\sqrt{degree}{{{self._argument()}}}", "value")

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

    def _environment(self) -> _Atom:
        name = self._raw()
        columns = f"{{{self._raw()}}}" if name == "array" and self._peek() == "{" else ""
        inside = self.sequence(r"\end")
        self._next()
        if self._raw() != name:
            raise NotAFormulaError(f"{name} does not end")
        return _Atom(rf"\begin{{{name}}}{columns} {inside} \end{{{name}}}", "value" if name == "vmatrix" else "name")


def _is_number(token: str) -> bool:
    return token[0].isdigit() or (token[0] == "." and len(token) > 1)


def _joined(atoms: list[_Atom]) -> str:
    """With a space only where a command would run into a letter."""
    text = ""
    for atom in atoms:
        text += " " + atom.text if text and _ENDS_AS_COMMAND.search(text) and atom.text[:1].isalpha() else atom.text
    return text

"""The algebra, with math-verify; meant to run inside a worker that can be killed, since any of it can hang.

`equivalent` says whether an answer is right where a reference is asked for. `key` spells an answer so that equal
answers get equal spellings: grouping by it is symmetric and transitive by construction, which math-verify's own
relation is not.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from fractions import Fraction
from typing import Any

from prism_prm.answers.numerals import KEY_DIGITS, number_key, text_key

_POINTS = 3
"""Formulas with unknowns are the same answer if they agree at this many fixed points."""
_PRECISION = 25
_IMAGINARY = "i"
"""math-verify reads the imaginary unit as an unknown of this name."""


def warm_up() -> None:
    """Import the algebra before the first call, whose time is limited."""
    equivalent("x+1", "1+x")


@functools.lru_cache(maxsize=256)
def _parse(answer: str) -> list[Any]:
    from math_verify import parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off; ours is on
    return list(parse(f"\\boxed{{{answer}}}", parsing_timeout=None))


def equivalent(reference: str, answer: str, tolerance: float = 0.0) -> bool:
    """Whether math-verify takes `answer` for `reference`, or both have one key, or are numbers within `tolerance`."""
    from math_verify import verify

    gold, found = _parse(reference), _parse(answer)
    if verify(gold, found, timeout_seconds=None) or key(reference) == key(answer):
        return True
    if not (tolerance and gold and found):
        return False
    expected, got = _real(gold[0]), _real(found[0])
    return expected is not None and got is not None and abs(expected - got) <= tolerance * abs(expected)


def _real(value: Any) -> float | None:
    """The value of an expression without unknowns, where it is a real number."""
    from sympy import Expr

    if not isinstance(value, Expr) or value.free_symbols:
        return None
    number = value.doit().evalf(_PRECISION)
    return float(number) if number.is_real else None


def key(answer: str) -> str:
    """A spelling that equal answers share; the normalised text where the answer is no mathematics we can read."""
    parsed = _parse(answer)
    if not parsed or isinstance(parsed[0], str):
        return text_key(answer)
    return _key(_last_side(parsed[0]))


def _last_side(value: Any) -> Any:
    """What an answer like `x = 5`, `f(x) = 5` or `2 + 3 = 5` comes to; an equation proper (`x + y = 5`) stays."""
    from sympy import And, Eq, Symbol
    from sympy.core.function import AppliedUndef

    while True:
        equations = value.args if isinstance(value, And) else [value]
        if not all(isinstance(equation, Eq) for equation in equations):
            return value
        if not isinstance(equations[0].lhs, Symbol | AppliedUndef) and value.free_symbols:
            return value
        value = equations[-1].rhs


def _key(value: Any) -> str:
    import sympy
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import Boolean

    if isinstance(value, sympy.Symbol):  # first, since sympy also takes a symbol for a condition
        return str(value.name).lower()
    if isinstance(value, sympy.MatrixBase):
        rows = ("&".join(_key(entry) for entry in value.row(i)) for i in range(value.rows))
        return "[" + ";".join(rows) + "]"
    if isinstance(value, sympy.FiniteSet):
        return _set_key(list(value.args))
    if isinstance(value, sympy.Interval):
        left, right = "(" if value.left_open else "[", ")" if value.right_open else "]"
        return f"{left}{_key(value.start)},{_key(value.end)}{right}"
    if isinstance(value, sympy.Tuple | tuple | list):
        return "(" + ",".join(_key(entry) for entry in value) + ")"
    if isinstance(value, sympy.Union):
        return "∪".join(sorted(_key(part) for part in value.args))
    if isinstance(value, sympy.Eq):
        return _equation_key(value)
    if isinstance(value, Relational | Boolean) or type(value).__name__ == "And":
        return _condition_key(value)
    if isinstance(value, sympy.Expr):
        return _expression_key(value)
    return str(sympy.srepr(value))


def _set_key(elements: list[Any]) -> str:
    """Elements in any order; `x=1, x=2` is the set of 1 and 2, while `x=1, y=2` keeps its names."""
    import sympy

    names = {element.lhs for element in elements if isinstance(element, sympy.Eq)}
    if len(names) == 1 and all(isinstance(element, sympy.Eq) for element in elements):
        elements = [element.rhs for element in elements]
    keys = sorted({_key(element) for element in elements})
    return keys[0] if len(keys) == 1 else "{" + ",".join(keys) + "}"


def _condition_key(condition: Any) -> str:
    """An inequality in one unknown is the set that it describes."""
    import sympy

    if len(condition.free_symbols) == 1:
        try:
            return _key(condition.as_set())
        except (NotImplementedError, AttributeError, TypeError, ValueError):
            pass
    return str(sympy.srepr(condition))


def _equation_key(equation: Any) -> str:
    """An assignment is its name and value; any other equation is its zero set, whatever factor stands before it."""
    import sympy

    if isinstance(equation.lhs, sympy.Symbol):
        return f"{equation.lhs.name}={_key(equation.rhs)}"
    values = _values(equation.lhs - equation.rhs)
    if values is None or not values[0]:
        return str(sympy.srepr(equation))
    return "0=" + _spell([value / values[0] for value in values])


def _expression_key(expression: Any) -> str:
    import sympy

    expression = expression.doit()
    if isinstance(expression, sympy.Rational):
        return number_key(Fraction(int(expression.p), int(expression.q)))
    values = _values(expression)
    if values is None:
        return str(sympy.srepr(expression))
    unknowns = sorted(symbol.name for symbol in expression.free_symbols if symbol.name != _IMAGINARY)
    return ",".join(unknowns) + "→" + _spell(values) if unknowns else _spell(values[:1])


def _values(expression: Any) -> list[complex] | None:
    """The expression at fixed points of its unknowns, each told from its name alone; None where it has no value."""
    values = []
    for point in range(_POINTS):
        at = {symbol: _coordinate(symbol.name, point) for symbol in expression.free_symbols}
        try:
            values.append(complex(expression.evalf(_PRECISION, subs=at)))
        except (TypeError, ValueError, OverflowError):
            return None
    return values


def _coordinate(name: str, point: int) -> Any:
    """A number of size 0.5 to 1.5 with no pattern; negative at the first point, so that |x| is not x."""
    import sympy

    if name == _IMAGINARY:
        return sympy.I
    seed = hashlib.blake2b(f"{name}/{point}".encode(), digest_size=4).digest()
    size = sympy.Rational(int.from_bytes(seed, "big"), 2**32) + sympy.Rational(1, 2)
    return -size if point == 0 else size


def _spell(values: list[complex]) -> str:
    return ";".join(
        f"{_spell_real(value.real)}+{_spell_real(value.imag)}i" if _is_complex(value) else _spell_real(value.real)
        for value in values
    )


def _is_complex(value: complex) -> bool:
    """Whether the imaginary part is more than rounding."""
    return abs(value.imag) > 1e-12 * max(1.0, abs(value.real))


def _spell_real(value: float) -> str:
    """As `number_key` would, so that sqrt(4) votes with 2."""
    if value in (float("inf"), float("-inf")) or value != value:
        return str(value)
    nearest = round(value)
    if abs(value - nearest) <= 1e-12 * max(1.0, abs(value)):
        return str(nearest)
    return number_key(Fraction(f"{value:.{KEY_DIGITS - 1}e}"))

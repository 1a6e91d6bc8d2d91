"""Spell a sympy value so that equal values get equal spellings, to as many digits as are asked for."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Any

from prism_prm.answers.numerals import number_key, plain_key

_POINTS = 3
"""Formulas with unknowns are the same answer if they agree at this many fixed points."""
_STEPS = 24
"""Formulas with steps (floors, remainders) must agree at this many more points, which are spread wider."""
_PRECISION = 60
_NOISE = Fraction(1, 10**45)
"""What is smaller than this, relative to the rest of a value, is the rounding of a zero."""
_IMAGINARY = "i"
"""The parser reads the imaginary unit as an unknown of this name."""


def real_value(value: Any) -> Fraction | None:
    """The value of an expression without unknowns, where it is a finite real number."""
    from sympy import Expr, Rational

    if not isinstance(value, Expr) or value.free_symbols:
        return None
    value = value.doit()
    if isinstance(value, Rational):
        return Fraction(int(value.p), int(value.q))
    values = _values(value)
    return values[0][0] if values and isinstance(values[0][0], Fraction) and not values[0][1] else None


def key_of_value(value: Any, digits: int) -> str:
    """The spelling of a value."""
    import sympy
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import Boolean

    if isinstance(value, sympy.Symbol):  # first: sympy also takes a symbol for a condition
        return plain_key(value.name) or str(value.name)
    if isinstance(value, sympy.MatrixBase):
        rows = ("&".join(key_of_value(entry, digits) for entry in value.row(i)) for i in range(value.rows))
        return "[" + ";".join(rows) + "]"
    if isinstance(value, sympy.MatrixExpr):
        whole = value.doit()
        return key_of_value(whole, digits) if isinstance(whole, sympy.MatrixBase) else str(sympy.srepr(whole))
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
    """A condition on one unknown is the set that it describes; others are told by where their two sides differ."""
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
    """0 = …, 0 < … and so on, whatever factor stands before it; a negative one only where it changes nothing."""
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
    if expression.has(sympy.zoo, sympy.nan):  # 1/0 and 2/0 have no value, and so not the same one
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
"""Real and imaginary part; the infinite ones as words."""


def _values(expression: Any, num_points: int = 0) -> list[Complex] | None:
    """The expression at fixed points of its unknowns, each told from its name alone; None where it has no value."""
    from sympy import Mod, ceiling, floor

    values: list[Complex] = []
    num_points = num_points or _POINTS + (_STEPS if expression.has(floor, ceiling, Mod) else 0)
    for point in range(num_points if expression.free_symbols else 1):
        at = {symbol: _coordinate(symbol.name, point) for symbol in expression.free_symbols}
        try:
            parts = expression.evalf(_PRECISION, subs=at).as_real_imag()
        except (TypeError, ValueError, OverflowError, AttributeError):
            return None
        value = [_number(part) for part in parts]
        if None in value:
            return None
        values.append(_without_noise([part for part in value if part is not None]))
    return values


def _number(part: Any) -> Fraction | str | None:
    from sympy import Float, Rational, oo

    if part in (oo, -oo):
        return "inf" if part == oo else "-inf"
    if isinstance(part, Float):
        part = Rational(part)
    return Fraction(int(part.p), int(part.q)) if isinstance(part, Rational) else None


def _without_noise(value: list[Fraction | str]) -> Complex:
    size = max((abs(part) for part in value if isinstance(part, Fraction)), default=Fraction(0))
    least = _NOISE * (size if size > _NOISE else 1)
    return tuple(Fraction(0) if isinstance(part, Fraction) and abs(part) < least else part for part in value)


def _coordinate(name: str, point: int) -> Any:
    """A number of size 0.5 to 1.5 (0 to 60 at points for steps) with no pattern; first a negative one: |x| is not x."""
    import sympy

    if name == _IMAGINARY:
        return sympy.I
    seed = hashlib.blake2b(f"{name}/{point}".encode(), digest_size=4).digest()
    size = sympy.Rational(int.from_bytes(seed, "big"), 2**32)
    if point >= _POINTS:
        return 60 * size
    return -size - sympy.Rational(1, 2) if point == 0 else size + sympy.Rational(1, 2)


def _spell(values: list[Complex], digits: int) -> str:
    return ";".join("+".join(_spell_value(value, digits)) for value in values)


def _spell_value(value: Complex, digits: int) -> list[str]:
    real, imaginary = (_spell_part(part, digits) for part in value)
    return [real] if imaginary == "0" else [real, f"{imaginary}i"]


def _spell_part(part: Fraction | str, digits: int) -> str:
    """As `number_key` would, so that sqrt(4) votes with 2."""
    if isinstance(part, str):
        return part
    nearest = round(part)
    return str(nearest) if abs(part - nearest) * 10**digits <= max(1, abs(part)) else number_key(part, digits)

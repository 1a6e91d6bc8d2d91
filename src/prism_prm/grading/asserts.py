"""Tests that are written as Python, read as (arguments, expected) without running any of it.

`assert f(1, 2) == 3` and the examples of a docstring, `>>> f(1, 2)` or `f(1, 2) -> 3`, are read; anything else, such as
an assert in a loop, is counted and left out.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sized
from typing import Any

from prism_prm.grading.problems import Case

_MAX_ITEMS = 100_000
_MEANS = re.compile(
    r"[ \t]*#?[ \t]*(?:={1,2}>?|->|➞|returns?\b|(?:,?\s*your function )?should (?:return|be equal to)\b|is\b)[ \t]*:?"
)
"""What writers of docstrings put between a call and its value."""
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_VIEWED = ("tuple", "list", "set", "sorted")
"""What a test may do to a returned value before it compares it."""
COMPARING = (*_VIEWED, "abs", "fabs", "isclose")
"""Functions that a test calls to compare, whatever it is about."""
_CONTAINERS: dict[str, Callable[..., Any]] = {"set": set, "tuple": tuple, "list": list, "frozenset": frozenset}
_VALUE_END = re.compile(r"(?=\s|[.;,]|$)")


class NotPlainError(ValueError):
    """An expression that is not a value."""


def parse_python(source: str) -> ast.Module:
    """Python as a tree, or a NotPlainError; its warnings are nobody's concern here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NotPlainError(str(error)) from None


def _plain_value(node: ast.expr) -> Any:
    """The value of an expression of literals; small arithmetic on them is done (`"ab" * 3`, `1 / 2`)."""
    try:
        return _value(node)
    except (TypeError, ValueError, ArithmeticError, SyntaxError, MemoryError, RecursionError) as error:
        raise NotPlainError(str(error)) from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Mod) and isinstance(left, str | bytes):
            raise NotPlainError("a format")
        lengths = [len(side) for side in (left, right) if isinstance(side, Sized)]
        times = [abs(side) for side in (left, right) if isinstance(side, int)]
        if isinstance(node.op, ast.Mult) and lengths and max(lengths) * max(times, default=0) > _MAX_ITEMS:
            raise NotPlainError("a large value")
        return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.Call) and _name(node.func) in _CONTAINERS and len(node.args) < 2 and not node.keywords:
        return _CONTAINERS[_name(node.func)](*map(_value, node.args))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return _CONTAINERS[type(node).__name__.lower()](map(_value, node.elts))
    if isinstance(node, ast.Dict):
        keys = [_value(key) for key in node.keys if key is not None]  # `**other` has no key
        return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)


def read_asserts(source: str, called: str) -> tuple[list[Case], int]:
    """The tests that a source states about the function `called`, and how many of its asserts are of another form.

    Asserts that are always true and test nothing (`assert True, "…"`) are not counted.
    """
    try:
        tree = parse_python(source)
    except NotPlainError:
        return [], 1
    unconditional = {id(node) for node in _unconditional(tree.body)}
    cases: list[Case] = []
    num_others = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assert) or (isinstance(node.test, ast.Constant) and node.test.value):
            continue
        try:
            if id(node) not in unconditional:
                raise NotPlainError("in a loop or a condition")
            cases.append(_case(node.test, called))
        except NotPlainError:
            num_others += 1
    return cases, num_others


def _unconditional(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that are certain to run: those of a module and of `def check`."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield from _unconditional(node.body)
        else:
            yield node


def _case(test: ast.expr, called: str) -> Case:
    """`f(…) == value`, `tuple(f(…)) == value`, `f(…)`, `not f(…)`, `abs(f(…) - value) < 1e-6`, `math.isclose(…)`."""
    if _is_call(test, called):
        return Case(_arguments(test, called), True, view="truth")
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return Case(_arguments(test.operand, called), False, view="truth")
    if isinstance(test, ast.Call) and ast.unparse(test.func) in ("math.isclose", "isclose"):
        given = {str(keyword.arg): _tolerance(keyword.value) for keyword in test.keywords}
        if len(test.args) != 2 or not given.keys() <= {"rel_tol", "abs_tol"}:
            raise NotPlainError("not math's isclose")
        call, value = _call_first(test.args[0], test.args[1], called)
        relative, absolute = given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0)
        return Case(_arguments(call, called), _plain_value(value), absolute, relative=relative)
    match test:
        case ast.Compare(left, [ast.Eq() | ast.Is()], [right]):
            call, value = _call_first(left, right, called)
            inside = _without_view(call)
            view = _name(call.func) if isinstance(call, ast.Call) and inside is not call else ""
            return Case(_arguments(inside, called), _plain_value(value), view=view)
        case ast.Compare(ast.Call(distance, [ast.BinOp(first, ast.Sub(), second)]), [ast.Lt() | ast.LtE()], [right]):
            if _name(distance) in ("abs", "fabs"):
                call, value = _call_first(first, second, called)
                return Case(_arguments(call, called), _plain_value(value), _tolerance(right))
    raise NotPlainError("another kind of test")


def _tolerance(node: ast.expr) -> float:
    value = _plain_value(node)
    if not isinstance(value, int | float):
        raise NotPlainError("not a number")
    return value


def _call_first(left: ast.expr, right: ast.expr, called: str) -> tuple[ast.expr, ast.expr]:
    return (left, right) if _is_call(_without_view(left), called) else (right, left)


def _without_view(node: ast.expr) -> ast.expr:
    """`f(…)` of `tuple(f(…))` and the like."""
    match node:
        case ast.Call(func, [inside], []) if _name(func) in _VIEWED:
            return inside
    return node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_call(node: ast.expr, called: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == called


def _arguments(node: ast.expr, called: str) -> tuple[Any, ...]:
    if not isinstance(node, ast.Call) or node.keywords or not _is_call(node, called):
        raise NotPlainError("not a plain call")
    return tuple(_plain_value(argument) for argument in node.args)


def read_examples(docstring: str, called: str) -> list[Case]:
    """The examples of a docstring, in their order, each once."""
    found: dict[str, Case] = {}
    for start in re.finditer(rf"(?<![\w.]){re.escape(called)}\(", docstring):
        before, rest = docstring[: start.start()], docstring[start.start() :]
        call = _leading_call(rest)
        if call is None:
            continue
        after = rest[len(call) :]
        prompted = re.search(r">>>[ \t]*$", before.rsplit("\n", 1)[-1])
        shown = re.match(r"[ \t]*\n[ \t]*(?!>>>)(?P<value>\S[^\n]*)", after) if prompted else None
        meant = _MEANS.match(after)
        text = shown["value"] if shown else after[meant.end() :] if meant else ""
        try:
            case = Case(_arguments(_expression(call), called), _leading_value(text))
        except NotPlainError:
            continue
        found.setdefault(call, case)
    return list(found.values())


def _expression(source: str) -> ast.expr:
    match parse_python(source).body:
        case [ast.Expr(value)]:
            return value
    raise NotPlainError("not one expression")


def _leading_call(text: str) -> str | None:
    """The call at the beginning of a text, within its paragraph."""
    limit = text.find("\n\n") if "\n\n" in text else len(text)
    end = text.find(")")
    while 0 <= end < limit:
        try:
            _expression(text[: end + 1])
            return text[: end + 1]
        except NotPlainError:
            end = text.find(")", end + 1)
    return None


def _leading_value(text: str) -> Any:
    """The longest value at the beginning of a text or of its first line."""
    text = text.strip()
    for candidate in (text, text.split("\n")[0]):
        ends = [match.start() for match in _VALUE_END.finditer(candidate)]
        for end in reversed(ends[:200]):
            if candidate[:end].endswith(","):  # the sentence's comma, not a tuple's
                continue
            try:
                return _plain_value(_expression(candidate[:end].strip()))
            except NotPlainError:
                continue
    raise NotPlainError("no value")

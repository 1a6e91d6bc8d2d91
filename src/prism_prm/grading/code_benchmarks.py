"""Read problems that ask for a program: records of LiveCodeBench, HumanEval and MBPP, and users' own.

Tests written in Python are read as (arguments, expected) without running any code: `assert f(1, 2) == 3`, and the
examples of a docstring, `>>> f(1, 2)` or `f(1, 2) -> 3`. Anything else, such as an assert in a loop, is counted and
left out. This file also counts what programs do that a benchmark's own harness handles differently.
"""

from __future__ import annotations

import ast
import builtins
import json
import operator
import random
import re
import string
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

from prism_prm.errors import DataError
from prism_prm.grading.problems import (
    SECONDS,
    Case,
    Packed,
    ProgramTests,
    TaskProblem,
    read_cases,
    read_reference,
    unpack,
)

_MAX_ITEMS = 100_000
_MEANS = re.compile(
    r"[ \t]*#?[ \t]*(?:={1,2}>?|->|➞|returns?\b|(?:,?\s*your function )?should (?:return|be equal to)\b|is\b)[ \t]*:?"
)
"""Matches what docstrings put between a call and its value."""
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_VIEWED = ("tuple", "list", "set", "sorted")
"""Conversions of a returned value that a test may apply before comparing."""
_COMPARING = (*_VIEWED, "abs", "fabs", "isclose")
"""Functions that a test calls to compare values."""
_CONTAINERS: dict[str, Callable[..., Any]] = {"set": set, "tuple": tuple, "list": list, "frozenset": frozenset}
_VALUE_END = re.compile(r"(?=\s|[.;,]|$)")


class NotPlainError(ValueError):
    """An expression is not a plain value."""


def parse_python(source: str) -> ast.Module:
    """Parse Python code without warnings. Raises NotPlainError if it is invalid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NotPlainError(str(error)) from None


def _plain_value(node: ast.expr) -> Any:
    """Evaluate an expression of literals, including small arithmetic (`"ab" * 3`, `1 / 2`)."""
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
    """Read the tests of the function `called` from asserts; also returns how many asserts have another form.

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
    """Yield statements that always run: those of a module and of `def check`."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield from _unconditional(node.body)
        else:
            yield node


def _case(test: ast.expr, called: str) -> Case:
    """Read `f(…) == v`, `tuple(f(…)) == v`, `f(…)`, `not f(…)`, `abs(f(…) - v) < 1e-6`, `math.isclose(…)`."""
    if _is_call(test, called):
        return Case(_arguments(test, called), True, view="truth")
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return Case(_arguments(test.operand, called), False, view="truth")
    if isinstance(test, ast.Call) and ast.unparse(test.func) in ("math.isclose", "isclose"):
        tolerances = {str(keyword.arg): _tolerance(keyword.value) for keyword in test.keywords}
        if len(test.args) != 2 or not tolerances.keys() <= {"rel_tol", "abs_tol"}:
            raise NotPlainError("not math.isclose")
        call, value = _call_first(test.args[0], test.args[1], called)
        relative, absolute = tolerances.get("rel_tol", 1e-9), tolerances.get("abs_tol", 0.0)
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
    """Return `f(…)` of `tuple(f(…))` and the like."""
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
    """Read the examples of a docstring, in order, each once."""
    cases: dict[str, Case] = {}
    for start in re.finditer(rf"(?<![\w.]){re.escape(called)}\(", docstring):
        before, rest = docstring[: start.start()], docstring[start.start() :]
        call = _leading_call(rest)
        if call is None:
            continue
        after = rest[len(call) :]
        prompted = re.search(r">>>[ \t]*$", before.rsplit("\n", 1)[-1])
        printed = re.match(r"[ \t]*\n[ \t]*(?!>>>)(?P<value>\S[^\n]*)", after) if prompted else None
        arrow = _MEANS.match(after)
        text = printed["value"] if printed else after[arrow.end() :] if arrow else ""
        try:
            case = Case(_arguments(_expression(call), called), _leading_value(text))
        except NotPlainError:
            continue
        cases.setdefault(call, case)
    return list(cases.values())


def _expression(source: str) -> ast.expr:
    match parse_python(source).body:
        case [ast.Expr(value)]:
            return value
    raise NotPlainError("not one expression")


def _leading_call(text: str) -> str | None:
    """Return the call at the beginning of a text, within its first paragraph."""
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
    """Return the longest value at the beginning of a text or of its first line."""
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


Record = Mapping[str, Any]


def _prompt(task: str, instructions: str) -> str:
    """Write a problem's text: the task, how the program is run, and where to write it."""
    return f"{task}\n\n{instructions}\n\nPut the program into one block that begins with ```python and ends with ```."


def _string(record: Record, field: str) -> str:
    value = record.get(field)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"`{field}` is {value!r:.60}, expected a string", reason="wrong-type")
    return value


# LiveCodeBench: contest problems with public and private tests

ERRATA = frozenset({
    "abc311_c", "abc326_d", "abc327_b", "abc333_e", "abc343_e", "abc362_c", "find-words-containing-character",
    "find-the-peaks", "generate-binary-strings-without-adjacent-zeros",
    "abc337_e", "abc355_e",
    "abc350_c",
})  # fmt: skip
"""Problems in the benchmark's own errata: several right outputs, interactive problems, and wrong tests."""
_STAR_IMPORTS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json",
)  # fmt: skip
LIVECODEBENCH_PRELUDE = "\n".join(
    [
        *(f"from {name} import *" for name in (*_STAR_IMPORTS, "builtins", "typing")),
        *(f"import {name}" for name in _STAR_IMPORTS),
        "sys.setrecursionlimit(50000)",
    ]
)
"""The benchmark runs these imports before every program, so programs may rely on them."""


def _read_livecodebench(record: Record) -> TaskProblem:
    """Read a contest problem. Raises if a payload cannot be read or contains code."""
    metadata = record.get("metadata") or {}
    try:
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        name = metadata.get("func_name")
    except (ValueError, AttributeError, RecursionError):
        raise DataError(f"`metadata` is {metadata!r:.60}, expected a JSON object", reason="wrong-type") from None
    function = name if isinstance(name, str) and name else None
    packed = Packed(_string(record, "private_test_cases"), function)
    public = read_cases(unpack(_string(record, "public_test_cases")), function)
    # Unpack now, to report a bad payload before any work on the problem.
    if not packed.cases() and not public:
        raise DataError("there are no tests, neither public nor private", reason="missing-field")
    instructions = "The program reads standard input and prints its answer to standard output."
    start = record.get("starter_code")
    if isinstance(start, str) and start.strip():
        instructions = f"Use this code as a start:\n\n```python\n{start.rstrip()}\n```"
    return TaskProblem(
        _prompt(_string(record, "question_content").strip(), instructions),
        name=str(record.get("question_id") or ""),
        level=str(record.get("difficulty") or ""),
        tests=ProgramTests(public, packed, function, LIVECODEBENCH_PRELUDE),
        date=str(record.get("contest_date") or "")[:10],
        in_errata=any(str(record.get(field)) in ERRATA for field in ("question_id", "question_title")),
    )


# HumanEval: a function's head and docstring to complete, and Python that tests it


def _read_humaneval(record: Record) -> TaskProblem:
    prompt, name = _string(record, "prompt"), _string(record, "entry_point")
    tests, num_others = read_asserts(_string(record, "test"), "candidate")
    if name in _LOOPS:
        tests, num_others = _LOOPS[name](), num_others - 1
    try:
        body = parse_python(prompt + "\n    pass\n").body
    except NotPlainError as error:
        raise DataError(f"`prompt` is not Python: {error}", reason="wrong-type") from None
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not functions:
        raise DataError(f"`prompt` does not define {name}, which `entry_point` names", reason="wrong-type")
    prelude = "\n".join(prompt.split("\n")[: functions[-1].lineno - 1]).strip()  # imports and other functions
    examples = read_examples(ast.get_docstring(functions[-1]) or "", name)
    return TaskProblem(
        _prompt("Complete this Python function, and give the whole function.", f"```python\n{prompt.strip()}\n```"),
        name=str(record.get("task_id") or name),
        # HumanEval's limit of 3 seconds is for all tests of a problem; here it applies to each.
        tests=ProgramTests(
            tuple(examples), tuple(tests), name, prelude, 3.0, judged_on_public=False, tuples_are_lists=False,
            num_unread=num_others,
        ),
    )  # fmt: skip


def _words() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(10, 20))) for _ in range(100)]


def _cyclic_cases() -> list[Case]:
    def encoded(word: str) -> str:
        threes = [word[i : i + 3] for i in range(0, len(word), 3)]
        return "".join(three[1:] + three[0] if len(three) == 3 else three for three in threes)

    return [Case((encoded(word),), word) for word in _words()]


def _shifted_cases() -> list[Case]:
    letters = string.ascii_lowercase
    shift = str.maketrans(letters, letters[5:] + letters[:5])
    return [Case((word.translate(shift),), word) for word in _words()]


def _polynomial_cases() -> list[Case]:
    rng = random.Random(42)
    factors = [[rng.randint(-10, 10) or 1 for _ in range(2 * rng.randint(1, 4))] for _ in range(100)]
    return [Case((each,), 0.0, 1e-4, "polynomial") for each in factors]


_LOOPS = {"decode_cyclic": _cyclic_cases, "decode_shift": _shifted_cases, "find_zero": _polynomial_cases}
"""Three problems are tested in a loop over random inputs; these functions draw such inputs with a fixed seed."""


# MBPP: a sentence that asks for a function, and three asserts


def _read_mbpp(record: Record) -> TaskProblem:
    """Read an MBPP problem. The first assert, which has the function's name, is public; the others are hidden.

    The benchmark's own prompt shows all three asserts, which leaves none hidden.
    """

    def strings(field: str) -> list[str]:
        items = record.get(field) or []
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise DataError(f"`{field}` must be a list of strings", reason="wrong-type")
        return items

    # The sanitized and the full dataset have the sentence in different fields.
    task = next((record[field] for field in ("prompt", "text") if isinstance(record.get(field), str)), None)
    asserts = [*strings("test_list"), *strings("challenge_test_list")]
    if task is None or not asserts:
        raise DataError(f"no prompt or text, or no asserts; found {sorted(record)}", reason="missing-field")
    name = _function_under_test(asserts[0])
    public, num_bad = read_asserts(asserts[0], name)
    hidden, num_others = read_asserts("\n".join(asserts[1:]), name)
    setup = [record["test_setup_code"]] if isinstance(record.get("test_setup_code"), str) else []
    prelude = "\n".join([*strings("test_imports"), *setup]).strip()
    tests = ProgramTests(
        tuple(public), tuple(hidden), name, prelude, tuples_are_lists=False, num_unread=num_bad + num_others
    )  # fmt: skip
    instructions = f"The function must pass this test:\n\n```python\n{asserts[0].strip()}\n```"
    return TaskProblem(_prompt(task.strip(), instructions), name=f"MBPP/{record.get('task_id', '')}", tests=tests)


def _function_under_test(test: str) -> str:
    """Return the first function that an assert calls; a builtin only if there is no other."""
    try:
        nodes = list(ast.walk(parse_python(test)))
    except NotPlainError:
        nodes = []
    names = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    called = [name for name in names if name not in _COMPARING]
    if not called:
        raise DataError(f"no function is called in the test {test[:60]!r}", reason="wrong-type")
    return next((name for name in called if not hasattr(builtins, name)), called[0])  # one problem asks for `sum`


# Users' own records


def _read_own(record: Record) -> TaskProblem:
    """Read a problem with `tests` and optionally `public_tests`, `function`, `prelude` and `seconds`."""
    function = _string(record, "function") if record.get("function") is not None else None
    field = next((field for field in ("problem", "question", "prompt") if record.get(field)), "problem")
    seconds = record.get("seconds", SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
        raise DataError(f"`seconds` is {seconds!r:.40}, expected a number up to 3600", reason="wrong-type")
    prelude = _string(record, "prelude") if record.get("prelude") else ""
    written = record.get("public_tests")
    if isinstance(written, str):  # as `prism search` writes them into pools
        try:
            tests = read_reference(written)
        except DataError as error:
            raise DataError(f"`public_tests` is not valid: {error}", reason="wrong-type") from None
        if tests is None:
            raise DataError("`public_tests` must be a list of tests", reason="wrong-type")
    else:
        public, hidden = (read_cases(record.get(name) or [], function) for name in ("public_tests", "tests"))
        tests = ProgramTests(public, hidden, function, prelude, float(seconds))
    name = next((str(record[key]) for key in ("name", "id") if isinstance(record.get(key), str | int)), "")
    level, date = (str(record.get(key) or "") for key in ("level", "date"))
    return TaskProblem(_string(record, field), name=name, level=level, tests=tests, date=date[:10])


_READERS: dict[tuple[str, ...], Callable[[Record], TaskProblem]] = {
    ("question_content", "public_test_cases", "private_test_cases"): _read_livecodebench,
    ("prompt", "entry_point", "test"): _read_humaneval,
    ("test_list",): _read_mbpp,
    ("tests",): _read_own,
    ("public_tests",): _read_own,
}
"""The fields of a kind of record → its reader; the first match is used."""


def read_code_problem(record: Record) -> TaskProblem | None:
    """Read a record that asks for a program; None for any other record."""
    for fields, read in _READERS.items():
        if all(record.get(field) is not None for field in fields):
            return read(record)
    return None


# What a benchmark's own harness handles differently. LiveCodeBench's runs programs in its own process, with mocked
# input and files; and harnesses have packages installed, while this sandbox has only the standard library.

_QUIRKS = {
    "read sys.stdin.buffer by lines (there always the first)": re.compile(r"\bstdin\.buffer\.readline\b"),
    "read all lines of sys.stdin (there without line ends, and one more)": re.compile(r"\bstdin\.readlines\b"),
    "call quit (there None)": re.compile(r"(?<![\w.])quit\s*\("),
    "open files (there mocked)": re.compile(r"(?<![\w.])open\s*\("),
    "exit with a code (there no failure)": re.compile(r"(?<!\w)exit\s*\(\s*[^)\s]"),
}
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([^\n#;]+))", re.MULTILINE)


def count_quirks(programs: Iterable[tuple[ProgramTests | None, str | None]]) -> Counter[str]:
    """Count programs for LiveCodeBench's stdin problems that do what its harness handles differently."""
    counts: Counter[str] = Counter()
    for tests, program in programs:
        if tests is not None and tests.prelude == LIVECODEBENCH_PRELUDE and tests.function is None and program:
            counts.update(name for name, pattern in _QUIRKS.items() if pattern.search(program))
    return counts


def count_packages(programs: Iterable[tuple[ProgramTests | None, str | None]]) -> Counter[str]:
    """Count the programs that import each package outside the standard library."""
    counts: Counter[str] = Counter()
    for tests, program in programs:
        if tests is not None and program:
            names = (name or each.strip() for name, several in _IMPORT.findall(program) for each in several.split(","))
            counts.update({re.split(r"\W", name)[0] for name in names} - sys.stdlib_module_names - {""})
    return counts

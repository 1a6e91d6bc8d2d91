"""HumanEval's records: a function's head and docstring to complete, and Python that tests it."""

from __future__ import annotations

import ast
import random
import string
from collections.abc import Mapping
from typing import Any

from prism_prm.errors import DataError
from prism_prm.programs.asserts import NotPlainError, parsed, read_asserts, read_examples
from prism_prm.programs.cases import Case, Tests
from prism_prm.programs.statement import Statement, asked_for, text_of

FIELDS = frozenset({"prompt", "entry_point", "test"})
SECONDS = 3.0
"""HumanEval's limit; it is for all tests of a problem, ours for each."""


def read_humaneval(record: Mapping[str, Any]) -> Statement:
    """A record of HumanEval."""
    prompt, name = text_of(record, "prompt"), text_of(record, "entry_point")
    tests, others = read_asserts(text_of(record, "test"), "candidate")
    if name in LOOPS:
        tests, others = LOOPS[name](), others - 1
    prelude, docstring = _around(prompt, name)
    text = asked_for("Complete this Python function, and give the whole function.", f"```python\n{prompt.strip()}\n```")
    return Statement(
        text,
        Tests(
            tuple(read_examples(docstring, name)), tuple(tests), name, prelude, SECONDS, judged_on_public=False,
            tuples_are_lists=False, num_unread=others,
        ),
        name=str(record.get("task_id") or name),
    )  # fmt: skip


def _around(prompt: str, name: str) -> tuple[str, str]:
    """What the prompt has before the function (imports and other functions), and the function's docstring."""
    try:
        body = parsed(prompt + "\n    pass\n").body
    except NotPlainError as error:
        raise DataError(f"`prompt` is not Python: {error}", reason="wrong-type") from None
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise DataError(f"`prompt` does not define {name}, which `entry_point` names", reason="wrong-type")
    before = "\n".join(prompt.split("\n")[: found[-1].lineno - 1])
    return before.strip(), ast.get_docstring(found[-1]) or ""


def _words() -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(10, 20))) for _ in range(100)]


def _cyclic() -> list[Case]:
    def encoded(word: str) -> str:
        threes = [word[i : i + 3] for i in range(0, len(word), 3)]
        return "".join(three[1:] + three[0] if len(three) == 3 else three for three in threes)

    return [Case((encoded(word),), word) for word in _words()]


def _shifted() -> list[Case]:
    letters = string.ascii_lowercase
    shift = str.maketrans(letters, letters[5:] + letters[:5])
    return [Case((word.translate(shift),), word) for word in _words()]


def _polynomials() -> list[Case]:
    draw = random.Random(42)
    cases = []
    for _ in range(100):
        factors = [draw.randint(-10, 10) or 1 for _ in range(2 * draw.randint(1, 4))]
        cases.append(Case((factors,), 0.0, 1e-4, "polynomial"))
    return cases


LOOPS = {"decode_cyclic": _cyclic, "decode_shift": _shifted, "find_zero": _polynomials}
"""Three problems are tested in a loop over random inputs; these are such inputs, drawn with a fixed seed."""

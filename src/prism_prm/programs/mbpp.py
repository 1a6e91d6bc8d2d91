"""MBPP's records: a sentence that asks for a function, and three asserts."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

from prism_prm.errors import DataError
from prism_prm.programs.asserts import COMPARING, NotPlainError, parsed, read_asserts
from prism_prm.programs.cases import Tests
from prism_prm.programs.statement import Statement, asked_for

FIELDS = frozenset({"test_list"})
ASKING = ("prompt", "text")
"""Where the sanitised and the full data set have the sentence."""


def read_mbpp(record: Mapping[str, Any]) -> Statement:
    """A record of MBPP.

    Its own prompt shows all three asserts, which leaves none hidden. We show the first, which tells the function's
    name, and judge by the others.
    """
    asked = next((record[field] for field in ASKING if isinstance(record.get(field), str)), None)
    asserts = [*_texts(record, "test_list"), *_texts(record, "challenge_test_list")]
    if asked is None or not asserts:
        raise DataError(f"no {' or '.join(ASKING)}, or no asserts; found {sorted(record)}", reason="missing-field")
    name = _called(asserts[0])
    public, bad = read_asserts(asserts[0], name)
    hidden, others = read_asserts("\n".join(asserts[1:]), name)
    setup = [record["test_setup_code"]] if isinstance(record.get("test_setup_code"), str) else []
    prelude = "\n".join([*_texts(record, "test_imports"), *setup]).strip()
    text = asked_for(asked.strip(), f"The function must pass this test:\n\n```python\n{asserts[0].strip()}\n```")
    tests = Tests(
        tuple(public), tuple(hidden), name, prelude, tuples_are_lists=False, num_unread=bad + others
    )  # fmt: skip
    return Statement(text, tests, name=f"MBPP/{record.get('task_id', '')}")


def _texts(record: Mapping[str, Any], field: str) -> list[str]:
    found = record.get(field) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise DataError(f"`{field}` must be a list of texts", reason="wrong-type")
    return found


def _called(test: str) -> str:
    """The function that an assert is about: the first one it calls, and Python's own only where there is no other."""
    try:
        nodes = list(ast.walk(parsed(test)))
    except NotPlainError:
        nodes = []
    names = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    called = [name for name in names if name not in COMPARING]
    if not called:
        raise DataError(f"no function is called in the test {test[:60]!r}", reason="wrong-type")
    return next((name for name in called if not hasattr(builtins, name)), called[0])  # one problem asks for `sum`

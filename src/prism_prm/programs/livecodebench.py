"""LiveCodeBench's records: contest problems with public and private tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from prism_prm.errors import DataError
from prism_prm.programs.cases import Packed, Tests, read_cases, unpack
from prism_prm.programs.statement import Statement, asked_for, text_of

FIELDS = frozenset({"question_content", "public_test_cases", "private_test_cases"})

ERRATA = frozenset({
    "abc311_c", "abc326_d", "abc327_b", "abc333_e", "abc343_e", "abc362_c", "find-words-containing-character",
    "find-the-peaks", "generate-binary-strings-without-adjacent-zeros",
    "abc337_e", "abc355_e",
    "abc350_c",
})  # fmt: skip
"""Problems that the benchmark's own errata list: several right outputs, interactive ones, and wrong tests."""

_ALL_OF = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json",
)  # fmt: skip
PRELUDE = "\n".join(
    [
        *(f"from {name} import *" for name in (*_ALL_OF, "builtins", "typing")),
        *(f"import {name}" for name in _ALL_OF),
        "sys.setrecursionlimit(50000)",
    ]
)
"""The benchmark imports all of these before every program, which may rely on it."""
READS = "The program reads standard input and prints its answer to standard output."
FILLS = "Use this code as a start:"


def read_livecodebench(record: Mapping[str, Any]) -> Statement:
    """A record of LiveCodeBench; payloads that cannot be read, or that hold code, are refused."""
    function = _function(record)
    packed = Packed(text_of(record, "private_test_cases"), function)
    public = read_cases(unpack(text_of(record, "public_test_cases")), function)
    # A bad payload is refused before anybody works on the problem.
    if not packed.cases() and not public:
        raise DataError("there are no tests, neither public nor private", reason="missing-field")
    start = record.get("starter_code")
    how = f"{FILLS}\n\n```python\n{start.rstrip()}\n```" if isinstance(start, str) and start.strip() else READS
    names = {str(record.get(field) or "") for field in ("question_id", "question_title")}
    return Statement(
        asked_for(text_of(record, "question_content").strip(), how),
        Tests(public, packed, function, PRELUDE),
        name=str(record.get("question_id") or ""),
        level=str(record.get("difficulty") or ""),
        date=str(record.get("contest_date") or "")[:10],
        in_errata=bool(names & ERRATA),
    )


def _function(record: Mapping[str, Any]) -> str | None:
    said = record.get("metadata") or {}
    try:
        said = json.loads(said) if isinstance(said, str) else said
        name = said.get("func_name")
    except (ValueError, AttributeError):
        raise DataError(f"`metadata` is {said!r:.60}, expected a JSON object", reason="wrong-type") from None
    return name if isinstance(name, str) and name else None

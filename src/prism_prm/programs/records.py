"""Which records ask for a program, by their fields, and how each kind is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prism_prm.errors import DataError
from prism_prm.programs import humaneval, livecodebench, mbpp
from prism_prm.programs.cases import SECONDS, Tests, read_cases, read_reference
from prism_prm.programs.statement import Statement, text_of

PROBLEM_FIELDS = ("problem", "question", "prompt")


def read_own(record: Mapping[str, Any]) -> Statement:
    """A user's own record: a problem, `tests`, and maybe `public_tests`, `function`, `prelude` and `seconds`."""
    function = text_of(record, "function") if record.get("function") is not None else None
    field = next((field for field in PROBLEM_FIELDS if record.get(field)), PROBLEM_FIELDS[0])
    seconds = record.get("seconds", SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 3600:
        raise DataError(f"`seconds` is {seconds!r:.40}, expected a number up to 3600", reason="wrong-type")
    prelude = text_of(record, "prelude") if record.get("prelude") else ""
    written = record.get("public_tests")
    if isinstance(written, str):  # as `prism search` writes them into pools
        tests = _read_written(written)
    else:
        public, hidden = (read_cases(record.get(name) or [], function) for name in ("public_tests", "tests"))
        tests = Tests(public, hidden, function, prelude, float(seconds))
    names = (record[name] for name in ("name", "id") if isinstance(record.get(name), str | int))
    level, date = (str(record.get(name) or "") for name in ("level", "date"))
    return Statement(text_of(record, field), tests, str(next(names, "")), level, date[:10])


def _read_written(text: str) -> Tests:
    try:
        tests = read_reference(text)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"`public_tests` is not what was written there ({error})", reason="wrong-type") from None
    if tests is None:
        raise DataError("`public_tests` must be a list of tests", reason="wrong-type")
    return tests


KINDS: dict[frozenset[str], Callable[[Mapping[str, Any]], Statement]] = {
    livecodebench.FIELDS: livecodebench.read_livecodebench,
    humaneval.FIELDS: humaneval.read_humaneval,
    mbpp.FIELDS: mbpp.read_mbpp,
    frozenset({"tests"}): read_own,
    frozenset({"public_tests"}): read_own,
}
"""Fields that a kind of record has → its reader; the first that fits."""


def read_statement(record: Mapping[str, Any]) -> Statement | None:
    """The problem of a record that asks for a program; None for any other record."""
    for fields, read in KINDS.items():
        if all(record.get(field) is not None for field in fields):
            return read(record)
    return None

"""Golden files: what the package computed when they were written, so that a refactor can prove it changed nothing.

    make golden                       # rewrite all of them
    make golden ARGS='-k search'      # rewrite some of them

A golden that changes is a decision: commit it together with its reason. A file states its tolerance: floats may differ
by that much, absolutely or relative to the golden value, whichever is larger; everything else is exact.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FLOAT64, FLOAT32 = 1e-9, 1e-5


def check(name: str, actual: Any, *, tolerance: float) -> None:
    """Compare with `tests/golden/NAME.json`, or write that file where PRISM_WRITE_GOLDEN is set."""
    file = FOLDER / f"{name}.json"
    actual = json.loads(json.dumps(actual))
    if os.environ.get("PRISM_WRITE_GOLDEN"):
        file.write_text(dump({"tolerance": tolerance, "golden": actual}) + "\n", encoding="utf-8")
        return
    stored = json.loads(file.read_text(encoding="utf-8"))
    assert stored["tolerance"] == tolerance
    found = list(differences(stored["golden"], actual, tolerance))
    assert not found, f"{file.name} differs in {len(found)} places:\n" + "\n".join(found[:20])


def differences(golden: Any, actual: Any, tolerance: float, place: str = "") -> Any:
    """Yield a line for every place where two JSON values differ."""
    if isinstance(golden, dict) and isinstance(actual, dict):
        for key in sorted(golden.keys() | actual.keys()):
            if key in golden and key in actual:
                yield from differences(golden[key], actual[key], tolerance, f"{place}.{key}")
            else:
                yield f"{place}.{key}: only in the {'golden' if key in golden else 'actual'} value"
    elif isinstance(golden, list) and isinstance(actual, list):
        if len(golden) != len(actual):
            yield f"{place}: {len(golden)} items in the golden value, {len(actual)} now"
        for index, (one, other) in enumerate(zip(golden, actual, strict=False)):
            yield from differences(one, other, tolerance, f"{place}[{index}]")
    elif isinstance(golden, float) and isinstance(actual, float):
        same = math.isclose(golden, actual, rel_tol=tolerance, abs_tol=tolerance)
        if not same and not (math.isnan(golden) and math.isnan(actual)):
            yield f"{place}: {golden!r} in the golden value, {actual!r} now"
    elif golden != actual or type(golden) is not type(actual):
        yield f"{place}: {golden!r} in the golden value, {actual!r} now"


def dump(value: Any, indent: str = "") -> str:
    """JSON with one item per line, where lists of numbers and short values stay on one."""
    flat = json.dumps(value, ensure_ascii=False)
    numbers = isinstance(value, list) and all(isinstance(item, int | float) for item in value)
    if len(flat) < 120 or numbers or not isinstance(value, dict | list):
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + dump(item, inner) for item in value) + f"\n{indent}]"

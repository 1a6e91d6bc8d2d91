"""The comparison that golden files rest on."""

from __future__ import annotations

import json
import math

from golden import differences, dump


def test_floats_have_a_tolerance_and_everything_else_is_exact() -> None:
    golden = {"a": [1.0, 2, "x", None], "b": math.nan, "c": 1e6}
    assert not list(differences(golden, {"a": [1.0 + 1e-10, 2, "x", None], "b": math.nan, "c": 1e6 + 1e-4}, 1e-9))
    assert list(differences(golden, {"a": [1.0 + 1e-8, 3, "y", False], "d": 1, "c": 1e6}, 1e-9)) == [
        ".a[0]: 1.0 in the golden value, 1.00000001 now",
        ".a[1]: 2 in the golden value, 3 now",
        ".a[2]: 'x' in the golden value, 'y' now",
        ".a[3]: None in the golden value, False now",
        ".b: only in the golden value",
        ".d: only in the actual value",
    ]
    assert list(differences([1, 2], [1, 2, 3], 0)) == [": 2 items in the golden value, 3 now"]


def test_a_written_file_reads_back() -> None:
    value = {"long": ["word " * 30, {"é": [0.1] * 60}], "short": {"a": 1}}
    assert json.loads(dump(value)) == value
    assert dump(value).count("\n") == 8

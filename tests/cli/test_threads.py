"""Idle threads of the prism command sleep soon; the library leaves the environment alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prism_prm.cli.threads import SETTINGS, SPIN_COUNT, limit_openmp_spin

COMMAND = """
import sys
from prism_prm.cli import main
sys.argv = ["prism", "--version"]
try:
    main()
except SystemExit:
    assert "torch" not in sys.modules, "too late to settle anything"
    import torch
"""
LIBRARY = "import prism_prm; prism_prm.load_prm"


def spin_count(code: str, **settings: str) -> str:
    """What torch's OpenMP says of itself when it is loaded."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **settings}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    (line,) = (line for line in result.stderr.splitlines() if "GOMP_SPINCOUNT" in line)
    return line.split("'")[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only there torch brings libgomp")
@pytest.mark.parametrize(
    ("code", "settings", "expected"),
    [
        (COMMAND, {}, SPIN_COUNT),
        (COMMAND, {"GOMP_SPINCOUNT": "77"}, "77"),
        (COMMAND, {"OMP_WAIT_POLICY": "passive"}, "0"),
        (LIBRARY, {}, "300000"),
    ],
)
def test_what_openmp_reads(code: str, settings: dict[str, str], expected: str) -> None:
    assert spin_count(code, **settings) == expected


def test_what_the_user_has_settled_stays() -> None:
    for name in SETTINGS:
        environment = {name: "x"}
        limit_openmp_spin(environment)
        assert environment == {name: "x"}

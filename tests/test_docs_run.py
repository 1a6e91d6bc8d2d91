"""What the README and the tutorial tell people to type works; the demo's test runs the tutorial on a small demo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs_code import blocks, run_from_answers, run_tutorial
from prism_process import run


def test_the_readmes_first_example_prints_what_the_readme_says() -> None:
    example, expected = blocks("README.md", "python")[0], blocks("README.md", "")[1]
    done = run(code=example)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def best_of_16(folder: Path, prm: str) -> float:
    curves = json.loads((folder / "runs" / "tutorial" / "rerank" / "metrics.json").read_text())["curves"]
    [found] = [
        curve["value"] for curve in curves
        if (curve["method"], curve["prm"], curve["aggregator"], curve["n"]) == ("best-of-n", prm, "min", 16)
    ]  # fmt: skip
    return float(found)


@pytest.mark.slow
def test_the_tutorial_ends_in_a_gain(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "prism_prm", "demo", "--out", tmp_path / "demo"], check=True)
    run_tutorial(tmp_path / "demo", tmp_path)
    assert best_of_16(tmp_path, "mine") > best_of_16(tmp_path, "base") + 0.2
    run_from_answers(tmp_path / "demo", tmp_path / "answers")
    made = tmp_path / "answers" / "runs" / "answers"
    assert json.loads((made / "labels" / "metrics.json").read_text())["num_problems"] == 600
    assert (made / "comparison" / "report.html").exists()

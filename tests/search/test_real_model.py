"""A real language model solves real problems: run by hand with PRISM_SMOLLM2 naming a folder with its GGUF file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from prism_prm import init_prm
from prism_prm.cli import app
from prism_prm.data.pools import read_pool


@pytest.mark.slow
def test_smollm2_on_five_problems_of_gsm8k(real_data: Path, tmp_path: Path) -> None:
    smollm2 = os.environ.get("PRISM_SMOLLM2")
    if not smollm2:
        pytest.skip("needs a real model: set PRISM_SMOLLM2 to the folder that holds its GGUF file")
    from tiny import language_model

    init_prm(language_model("qwen2", tmp_path / "lm"), family="qwen").save(tmp_path / "prm")
    command = [
        "search", "--policy", f"hf:{smollm2}", "--prm", str(tmp_path / "prm"), "--task", "gsm8k", "--task-data",
        str(real_data / "gsm8k" / "test.jsonl"), "--limit", "5", "--method", "beam", "-n", "4", "-P", "max_tokens=256",
        "--set", "max_steps=8", "--out", str(tmp_path / "out"), "--set", "judges=1",
        "-P", "user={problem} Solve it step by step, with a blank line between steps. End with: The answer is ...",
    ]  # fmt: skip
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    pool = read_pool(tmp_path / "out" / "pools" / "prm-n4.jsonl")
    assert len(pool.problems) == 5
    for solution in pool.solutions:
        assert solution.scores is not None
        assert len(solution.scores) == len(solution.steps)
    assert max(len(solution.steps) for solution in pool.solutions) > 1, "it writes in steps"
    (point,) = json.loads((tmp_path / "out" / "metrics.json").read_text())["points"]
    assert 0 <= point["accuracy"]["value"] <= 1
    assert point["policy_tokens"] > 100
    print(json.dumps([[list(s.steps) for s in e.solutions] for e in pool.problems], indent=1))

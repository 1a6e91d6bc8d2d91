"""`prism score --pairs`: the table it writes, and pairs that are longer than the PRM's context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prism_prm import PrismError, Step, StepPair, StepTree, init_prm, load_prm
from prism_prm.calibration import sigmoid
from prism_prm.cli import app
from prism_prm.data.tables import write_pairs, write_trees

LONG = [f"then {'x + 2 = 3, ' * 20} so x = {i}" for i in range(12)]
"""Steps that fill a tiny model's context together, and not alone."""


def margins(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["score", "--pairs", *map(str, arguments)])


def test_margins_of_pairs_and_of_those_too_long(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    init_prm(tiny_lm("qwen2"), family="qwen").save(tmp_path / "prm")
    size = len(LONG)
    steps = (*(Step(text, label=1.0) for text in LONG), Step("x = 4", label=0.0), Step("so x = 9", label=0.0))
    tree = StepTree(0, "What is x?", steps, (*range(-1, size - 1), -1, size - 2), tuple(range(size)))
    write_trees(tmp_path / "trees.parquet", [tree], split="train")
    pairs = [StepPair(0, 0, 0, 0, size, 0, "annotated"), StepPair(1, 0, size - 1, size - 1, size + 1, 0, "annotated")]
    write_pairs(tmp_path / "pairs.parquet", pairs, split="train")
    common = (tmp_path, "--prm", tmp_path / "prm", "--out", tmp_path / "m.parquet", "--device", "cpu")

    refused = margins(*common)
    assert isinstance(refused.exception, PrismError)
    assert "on_too_long='window'" in str(refused.exception)
    assert "skip" not in str(refused.exception), "eval and margins cannot do without a score"
    done = margins(*common, "--set", "load.on_too_long=window", "--family", "qwen")
    assert done.exit_code == 0, done.output
    table = pq.read_table(tmp_path / "m.parquet")
    assert table["pair_id"].to_pylist() == [0, 1]
    prm = load_prm(tmp_path / "prm")
    right, wrong = (prm.score(tree.problem, [text])[0] for text in (LONG[0], "x = 4"))
    assert table["margin"].to_pylist()[0] == pytest.approx(right - wrong, abs=1e-6)
    up, down = (sigmoid(table[f"{side}_log_odds"].to_numpy()) for side in ("chosen", "rejected"))
    assert table["margin"].to_pylist() == pytest.approx((up - down).tolist(), abs=1e-12)

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from eval_helpers import prmbench_row, processbench_row, write_jsonl

from prism_prm.backends.load_prm import init_prm
from prism_prm.cli import app
from prism_prm.errors import ConfigError, PrismError
from prism_prm.models.card import set_threshold

DRAWS = ("--set", "num_draws=100")


def prism(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def output(result: Result) -> Path:
    if result.exception is not None:
        raise result.exception
    return Path(result.stdout.strip().splitlines()[-1])


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_jsonl(
        tmp_path / "data" / "processbench" / "math.jsonl",
        [processbench_row(f"math-{i}", 3, (i % 4) - 1) for i in range(12)],
    )
    write_jsonl(
        tmp_path / "data" / "prmbench" / "nr.jsonl",
        [prmbench_row("redundency", f"{i}", 4, [1 + i % 4]) for i in range(8)],
    )
    return tmp_path / "data"


@pytest.fixture(scope="module")
def prm(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prm") / "tiny-reasoneval"
    init_prm(tiny_lm("mistral"), family="reasoneval").save(folder)
    return folder


def test_a_prm_is_scored_once_and_measured_often(tmp_path: Path, data: Path, prm: Path) -> None:
    common = ["eval", "--bench", "prmbench,processbench", "--data", data, "--prm", prm, "--out", tmp_path / "out"]
    page = output(prism(*common, *DRAWS))
    assert page == tmp_path / "out" / "report.html"
    first = metrics(tmp_path / "out")
    table = tmp_path / "out" / "prmbench.scores.parquet"
    written = table.stat().st_mtime_ns
    output(prism(*common, *DRAWS, "--threshold", 0.9))
    assert table.stat().st_mtime_ns == written, "nothing was scored again"
    second = metrics(tmp_path / "out")
    rates = [m["benchmarks"]["prmbench"]["subsets"]["all"]["metrics"]["steps"] for m in (first, second)]
    assert rates[0]["auroc"] == rates[1]["auroc"]
    assert rates[1]["tpr"]["value"] <= rates[0]["tpr"]["value"]
    # The same from the scores table alone.
    output(prism("eval", "--bench", "prmbench", "--data", data, "--scores", table, "--out", tmp_path / "again",
                 *DRAWS))  # fmt: skip
    again = metrics(tmp_path / "again")
    assert again["benchmarks"]["prmbench"]["subsets"] == first["benchmarks"]["prmbench"]["subsets"]
    assert again["run"]["model_hash"] == first["run"]["model_hash"] != ""


def test_the_threshold_that_training_saved(tmp_path: Path, data: Path, prm: Path) -> None:
    shutil.copytree(prm, tmp_path / "prm")
    set_threshold(tmp_path / "prm", 0.375)
    common = ["--bench", "processbench", "--data", data, "--out", tmp_path / "out", *DRAWS]
    output(prism("eval", *common, "--prm", tmp_path / "prm", "--threshold", "prm"))
    found = metrics(tmp_path / "out")["benchmarks"]["processbench"]["threshold"]
    assert (found["value"], found["origin"]) == (0.375, "from the PRM's card")
    (tmp_path / "prm" / "prism.json").unlink()
    write_jsonl(tmp_path / "x.jsonl", [{"id": "math-1", "scores": [0.5]}])
    for source in (["--prm", tmp_path / "prm"], ["--predictions", tmp_path / "x.jsonl"]):
        refused = prism("eval", *common, *source, "--threshold", "prm")
        assert isinstance(refused.exception, ConfigError)
        assert "--threshold prm needs a --prm with a prism.json" in str(refused.exception)


def test_the_threshold_is_the_cards_unless_the_benchmark_has_a_rule(tmp_path: Path, data: Path, prm: Path) -> None:
    """A table of scores knows what the card said; predictions have no card."""
    shutil.copytree(prm, tmp_path / "prm")
    set_threshold(tmp_path / "prm", 0.375)
    rows = [{"prompt": f"{i}?", "completions": ["a", "b"], "labels": [True, i % 2 == 0]} for i in range(4)]
    labeled = write_jsonl(tmp_path / "labelled.jsonl", rows)
    common = ["eval", "--data", labeled, *DRAWS, "--bench", "labeled"]

    def threshold(*more: object, bench: str = "labeled") -> tuple[float, str]:
        output(prism(*common, *more, "--out", tmp_path / "out"))
        found = metrics(tmp_path / "out")["benchmarks"][bench]["threshold"]
        return found["value"], found["origin"]

    assert threshold("--prm", tmp_path / "prm") == (0.375, "from the PRM's card")
    assert "above 0.375 (from the PRM's card)" in (tmp_path / "out" / "report.md").read_text()
    table = (tmp_path / "out" / "labeled.scores.parquet").rename(tmp_path / "table.parquet")
    assert threshold("--scores", table) == (0.375, "from the PRM's card")
    assert threshold("--scores", table, "--threshold", 0.25) == (0.25, "as given")
    predictions = write_jsonl(tmp_path / "p.jsonl", [{"id": f"tree-{i}", "scores": [0.9, 0.4]} for i in range(4)])
    assert threshold("--predictions", predictions) == (0.5, "the default, since no card sets it")
    common = ["eval", "--data", data, *DRAWS, "--bench", "processbench"]
    assert threshold("--prm", tmp_path / "prm", bench="processbench") == (0.5, "the benchmark's rule")


def test_a_table_of_prism_score_serves_as_well(tmp_path: Path, data: Path, prm: Path) -> None:
    for bench in ("prmbench", "processbench"):
        table, out = tmp_path / f"{bench}.parquet", tmp_path / bench
        scored = prism("score", data / bench, "--prm", prm, "--out", table)
        assert scored.exception is None
        output(prism("eval", "--bench", bench, "--data", data, "--scores", table, "--out", out, *DRAWS))
        assert metrics(out)["benchmarks"][bench]["subsets"]["all"]["items"] > 0


def test_predictions_compare_and_theory(tmp_path: Path, data: Path) -> None:
    for name, high in (("base", 0.8), ("better", 0.3)):
        rows = [
            {"id": f"math-{i}", "scores": [high if step == (i % 4) - 1 else 0.9 for step in range(3)]}
            for i in range(12)
        ]
        predictions = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        output(prism("eval", "--bench", "processbench", "--data", data, "--predictions", predictions, *DRAWS,
                     "--out", tmp_path / name))  # fmt: skip
    found = metrics(tmp_path / "better")["benchmarks"]["processbench"]["subsets"]["all"]["metrics"]["split:math"]
    assert found["f1"]["value"] == 1
    output(prism("compare", tmp_path / "base", tmp_path / "better", "--out", tmp_path / "cmp", *DRAWS))
    difference = metrics(tmp_path / "cmp")["benchmarks"]["processbench"]["differences"]["better"]["fpr"]
    assert difference["difference"] == -1
    page = output(prism("theory", "--out", tmp_path / "theory", "--no-simulate", "--runs", tmp_path / "better",
                        "--runs", tmp_path / "base"))  # fmt: skip
    assert "processbench: better against base" in page.read_text()
    assert metrics(tmp_path / "theory")["best_of_n"]["ceiling"] == pytest.approx(0.24 / 0.38)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bench", "prmbench"], "give one of --prm, --scores and --predictions; got none"),
        (["--bench", "nope", "--prm", "x"], "Unknown benchmark 'nope'"),
        (["--bench", "prmbench,processbench", "--scores", "x"], "--scores is one file, so give one --bench"),
        (["--bench", "prmbench", "--prm", "x", "--threshold", "fpr=0.1"], "must be a finite number or one of prm"),
        (["--bench", "prmbench", "--prm", "x", "--target-tpr", "1.5"], "--target-tpr 1.5: must be above 0"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = prism("eval", *arguments, "--out", tmp_path / "out")
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_runs_for_theory_come_in_twos(tmp_path: Path) -> None:
    result = prism("theory", "--runs", "a", "--out", tmp_path)
    assert isinstance(result.exception, PrismError)


def test_errors_end_with_status_2_and_one_line(tmp_path: Path, data: Path) -> None:
    """As the user sees it: no traceback."""
    bad = write_jsonl(tmp_path / "p.jsonl", [{"id": "math-0", "scores": [0.1]}])
    command = [sys.executable, "-m", "prism_prm", "eval", "--bench", "processbench", "--data", str(data),
               "--predictions", str(bad), "--out", str(tmp_path / "out")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no scores for 11 of 12 items" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "report.html").exists()

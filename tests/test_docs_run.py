"""What the README and the tutorial tell people to type works, and gives the numbers that the pages state.

`CHECKED` has the sentences and rows whose numbers come from running a page's commands on the default demo. A number is
stale if it differs from what the commands write by more than 5 %, and by more than 3, or 0.03 if it has three decimals.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from docs_code import ROOT, THREADS, blocks, run_from_answers, run_tutorial, stated
from prism_prm.cli import app
from prism_process import run

TUTORIAL, LABELS = "docs/start/tutorial.md", "docs/guides/label.md"


def metrics(folder: Path) -> Any:
    return json.loads((folder / "metrics.json").read_text())


def with_interval(found: dict[str, float]) -> list[float]:
    """In percent, as people read it: the value, and where its interval begins and ends."""
    return [100 * found[part] for part in ("value", "low", "high")]


def validated(runs: Path, name: str) -> list[float]:
    found = json.loads((runs / "tutorial" / "run" / "run.json").read_text())["rounds"][name]
    columns = ("auroc", "fpr_at_tpr_90", "fpr_at_0.5", "fnr_at_0.5", "pairwise_accuracy", "threshold")
    return [found[column] for column in columns]


def shifted(runs: Path) -> list[float]:
    found = metrics(runs / "tutorial" / "comparison")["benchmarks"]["labeled"]
    base, mine = found["control"]["mine"]["at_fnr"]["metrics"]["fpr"], found["metrics"]["mine"]["steps"]["fpr"]
    return [*with_interval(base), *with_interval(mine)]


def reranked(runs: Path, method: str, n: int) -> list[float]:
    """Accuracy with the base PRM and with that of the tutorial; the mean needs none."""
    points = {
        (one["method"], one["prm"], one["n"]): 100 * one["value"]
        for one in metrics(runs / "tutorial" / "rerank")["curves"]
        if one["aggregator"] in ("", "min")
    }
    return [points[method, "" if method == "mean" else prm, n] for prm in ("base", "mine")]


def searched(runs: Path) -> list[float]:
    points = {(one["prm"], one["n"]): one["accuracy"] for one in metrics(runs / "tutorial" / "beam")["points"]}
    return [*with_interval(points["base", 16]), *with_interval(points["mine", 16])]


def labeled(runs: Path) -> list[float]:
    found = metrics(runs / "answers" / "labels")
    counts = [found[name] for name in ("num_solved", "num_problems", "num_labeled", "rollouts", "policy_tokens")]
    return [*counts, 100 * found["num_right"] / found["num_labeled"], found["pairs"]["0"], found["pairs"]["0.5"]]


def noise(runs: Path, group: str, *rates: str) -> list[float]:
    found = metrics(runs / "answers" / "labels")["label_noise"]["groups"][group]
    return [number for rate in rates for number in with_interval(found[rate])]


def evaluated(runs: Path, name: str, *rates: str) -> list[float]:
    """Rates of steps in percent; the threshold of these evaluations is 0.5."""
    found = metrics(runs / "answers" / f"eval-{name}")["benchmarks"]["labeled"]["subsets"]["all"]["metrics"]["steps"]
    return [100 * found[rate]["value"] for rate in rates]


def row(runs: Path, name: str) -> list[float]:
    auroc, *rates = evaluated(runs, name, "auroc", "fpr", "fnr", "fpr_at_tpr_90")
    return [auroc / 100, *rates]


CHECKED: dict[tuple[str, str], Callable[[Path], list[float]]] = {
    (TUTORIAL, "0 0 0 {} 1 0 1 {} 2 0 2 {} 3 0 3 {} 4 1 0 {} 5 1 1 {} 6 1 2 {} 7 1 3 {} ```"): lambda runs: list(
        pd.read_parquet(runs / "tutorial" / "scores.parquet")["probability"]
    ),
    (TUTORIAL, "(row 5) is wrong, and the base PRM gives it a probability of {} of being right."): lambda runs: [
        pd.read_parquet(runs / "tutorial" / "scores.parquet")["probability"][5]
    ],
    (TUTORIAL, "│ 0_base │ {} │ {} │ {} │ {} │ {} │ {} │"): lambda runs: validated(runs, "0_base"),
    (TUTORIAL, "│ 1_all │ {} │ {} │ {} │ {} │ {} │ {} │"): lambda runs: validated(runs, "1_all"),
    (TUTORIAL, "with the base PRM shifted to your PRM's FNR | {} [{}, {}] | {} [{}, {}] |"): shifted,
    (TUTORIAL, "| accuracy, one solution | {} | {} |"): lambda runs: reranked(runs, "mean", 1),
    (TUTORIAL, "| accuracy, Best-of-16 | {} | {} |"): lambda runs: reranked(runs, "best-of-n", 16),
    (TUTORIAL, "| accuracy, weighted vote of 16 | {} | {} |"): lambda runs: reranked(runs, "weighted", 16),
    (TUTORIAL, "| accuracy, beam search with 16 candidates | {} [{}, {}] | {} [{}, {}] |"): searched,
    (
        LABELS,
        "The policy solves {} of {} problems. {} steps get labels from {} rollouts ({} tokens): {} % right, and {} "
        "matched pairs, {} of them with a gap of at least 0.5.",
    ): labeled,
    (
        LABELS,
        "the labels call {} % [{}, {}] of the wrong steps right and {} % [{}, {}] of the right ones wrong.",
    ): lambda runs: noise(runs, "all", "fpr", "fnr"),
    (LABELS, "{} % at the first position, {} % at the fourth"): lambda runs: [
        noise(runs, f"position {place}", "fpr")[0] for place in (1, 4)
    ],
    (LABELS, "| base | {} | {} % | {} % | {} % |"): lambda runs: row(runs, "base"),
    (LABELS, "| trained on pairs from rollouts | {} | {} % | {} % | {} % |"): lambda runs: row(runs, "mine"),
    (LABELS, "FPR at TPR 95 rises from {} to {} %"): lambda runs: [
        evaluated(runs, name, "fpr_at_tpr_95")[0] for name in ("base", "mine")
    ],
}


def stale(runs: Path, page: str) -> dict[str, tuple[list[str], list[float]]]:
    """What a page says and what its commands wrote, where they differ."""
    found = {}
    for (where, words), measure in CHECKED.items():
        if where != page:
            continue
        said, measured = stated(page, words), measure(runs)
        allowed = [0.03 if len(text.partition(".")[2]) == 3 else 3.0 for text in said]
        close = [
            float(text.replace(",", "")) == pytest.approx(number, rel=0.05, abs=most)
            for text, number, most in zip(said, measured, allowed, strict=True)
        ]
        if not all(close):
            found[words] = (said, [round(number, 3) for number in measured])
    return found


def test_the_ten_second_example_prints_what_the_readme_and_the_install_page_state() -> None:
    example, expected = blocks("README.md", "python")[0], blocks("README.md", "")[1]
    done = run(code=example)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    page = "docs/start/install.md"
    assert (blocks(page, "python")[0], blocks(page, "text")[0]) == (example, expected)


@pytest.mark.parametrize(("page", "words"), CHECKED, ids=lambda one: one[:40])
def test_checked_numbers_are_in_their_page(page: str, words: str) -> None:
    assert len(stated(page, words)) == words.count("{}")


def test_the_tutorials_own_labels_give_the_pairs_that_it_says(tmp_path: Path) -> None:
    page = (ROOT / TUTORIAL).read_text(encoding="utf-8")
    assert "These two lines give one lookahead pair and no annotated pair" in page
    (tmp_path / "mine.jsonl").write_text(blocks(TUTORIAL, "json")[0], encoding="utf-8")
    command = ["pairs", str(tmp_path / "mine.jsonl"), "--out", str(tmp_path / "pairs"), "--json"]
    made = CliRunner().invoke(app, command, catch_exceptions=False)
    pairs = json.loads(made.stdout)["pairs"]
    assert (pairs["lookahead"], pairs["annotated"]) == (1, 0)


@pytest.mark.slow
def test_the_pages_state_what_their_commands_give(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": THREADS}
    subprocess.run([sys.executable, "-m", "prism_prm", "demo", "--out", tmp_path / "demo"], check=True, env=environment)
    run_tutorial(tmp_path / "demo", tmp_path, as_stated=True)
    runs = tmp_path / "runs"
    base, mine = reranked(runs, "best-of-n", 16)
    assert mine > base + 20, "the tutorial ends in a gain"
    run_from_answers(tmp_path / "demo", tmp_path / "answers", as_stated=True)
    made = tmp_path / "answers" / "runs"
    assert (made / "answers" / "comparison" / "report.html").exists()
    assert stale(runs, TUTORIAL) | stale(made, LABELS) == {}

"""What a model could learn from pairs without reasoning; values by hand, and PRM800K's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from eval_helpers import write_jsonl

from docs_code import stated
from prism_prm import PairRecipe, PairSettings, build_pairs
from prism_prm.cli import app
from prism_prm.evaluate.diagnose_pairs import CROSSOVER, Diagnosis, advice, diagnose_pairs, fit_intercept, kish


def record(problem: str, *steps: list[tuple[str, int | None]]) -> dict[str, Any]:
    """A PRM800K record; a rating of None marks the step that a person wrote, which continues the solution."""
    positions = []
    for candidates in steps:
        completions = [
            {"text": text, "rating": rating, "flagged": None} for text, rating in candidates if rating is not None
        ]
        human = next(({"text": text, "rating": None} for text, rating in candidates if rating is None), None)
        positions.append(
            {"completions": completions, "human_completion": human, "chosen_completion": None if human else 0}
        )
    return {
        "labeler": "x", "timestamp": "t", "generation": None, "is_quality_control_question": False,
        "is_initial_screening_question": False, "question": {"problem": problem, "ground_truth_answer": "1"},
        "label": {"steps": positions, "total_time": 1, "finish_reason": "solution"},
    }  # fmt: skip


def diagnosed(tmp_path: Path, *records: dict[str, Any], **settings: Any) -> Diagnosis:
    source = write_jsonl(tmp_path / "in.jsonl", records)
    build_pairs(source, tmp_path / "pairs", PairRecipe(PairSettings(**settings)))
    return diagnose_pairs(tmp_path / "pairs")


def values(found: Diagnosis, kind: str) -> dict[str, tuple[str, float]]:
    return {one.feature: (one.direction, one.accuracy.value) for one in found.kinds[kind].shortcuts}


def test_annotated_pairs_by_hand(tmp_path: Path) -> None:
    """Two prefixes. First "2 is even" against "2 and 7 are odd" and "no": longer than one of two. It shares 2 and "is"
    with the problem's five tokens, 2 / 6, against 1 / 9 ("2") and 0. It has no new number, against 7 of 2 and 7, and
    none. Then a person's "so 5" against "so 6 9": shorter; both share nothing with the step before; all numbers new."""
    found = diagnosed(
        tmp_path,
        record(
            "What is 2 + 3?",
            [("2 is even", 1), ("2 and 7 are odd", -1), ("no", -1)],
            [("so 5", None), ("so 6 9", -1)],
        ),
        lookahead="none",
    )
    annotated = found.kinds["annotated"]
    assert annotated.num == 3
    assert annotated.human == {"right": 1, "wrong": 0}
    assert annotated.only_human == 1
    assert values(found, "annotated") == {
        "authorship": ("is by a person", pytest.approx((0.5 + 0.5 + 1) / 3)),
        "length": ("is shorter", pytest.approx(2 / 3)),
        "position": ("", 0.5),
        "overlap": ("shares more with the step before", pytest.approx(2.5 / 3)),
        "unseen_numbers": ("has fewer new numbers", pytest.approx((1 + 0.5 + 0.5) / 3)),
    }
    assert annotated.effective == {"prefixes": (2, pytest.approx(9 / 5)), "trees": (1, 1.0), "problems": (1, 1.0)}
    assert values(found, "labels")["position"][1] == pytest.approx((1 + 2.5) / 6), "0, 1 against 0, 0, 1"


def test_steps_by_models_only(tmp_path: Path) -> None:
    one = record("What is 2 + 3?", [("2 is even", 1), ("no", -1)], [("so 5", None), ("so 6", -1)], [("5 is odd", 1)])
    pairs = diagnosed(tmp_path / "any", one, audit="off").kinds
    assert (pairs["annotated"].num, pairs["lookahead"].num) == (2, 3)
    models = diagnosed(tmp_path / "model", one, audit="off", origin="model").kinds
    assert (models["annotated"].num, models["lookahead"].num) == (1, 1)
    assert models["annotated"].human == {"right": 0, "wrong": 0}
    summary = json.loads((tmp_path / "model" / "pairs" / "summary.json").read_text())
    assert summary["dropped_pairs"] == {"annotated": {"human_written": 1}, "lookahead": {"human_written": 2}}


def test_unknown_writers_and_a_shortcut(tmp_path: Path) -> None:
    """Of 20 problems, the right step is always longer, and nobody says who wrote it."""
    rows = [
        {"prompt": f"P{i}?", "completions": ["a long step", "end"], "labels": [True, True]} for i in range(20)
    ]  # fmt: skip
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    command = ["pairs", str(source), "--diagnose", "--set", "audit=off", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "authorship │ unknown" in " ".join(result.output.split())
    text = " ".join(result.output.split())
    assert "Warning: lookahead pairs: that the right step is longer ranks 100.0 [100.0, 100.0] % of them right" in text
    assert "Who wrote the steps is unknown" in text
    stored = json.loads((tmp_path / "out" / "diagnosis" / "metrics.json").read_text())
    assert stored["kinds"]["lookahead"]["human"] is None
    assert stored["intercept"] is None, "no prefix has two labeled steps"
    assert "| authorship | unknown | unknown |" in (tmp_path / "out" / "diagnosis" / "report.md").read_text()
    found = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(found.stdout)["diagnosis"]["kinds"]["lookahead"]["num"] == 20


def test_data_without_labels_has_nothing_to_diagnose(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [{"problem": "P?", "solution": "One.\n\nTwo."}])
    command = ["pairs", str(source), "--diagnose", "--set", "split_steps=true", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert "There are no pairs." in (tmp_path / "out" / "diagnosis" / "report.md").read_text()


@pytest.mark.parametrize(("weights", "expected"), [([1, 1, 1], 3), ([3, 1], 1.6), ([5], 1)])
def test_effective_numbers(weights: list[int], expected: float) -> None:
    assert kish(weights) == pytest.approx(expected)


def test_labels_that_do_not_differ_by_prefix() -> None:
    """One of two is right everywhere: less spread than by chance, so the SD is 0 and the log-odds are 0."""
    found = fit_intercept(np.array([[1, 2]] * 50))
    assert found is not None
    assert (found.sd, found.low) == (0, 0)
    assert found.mean == pytest.approx(0, abs=1e-4)
    assert (found.num_prefixes, found.num_steps) == (50, 100)
    assert "cross-entropy on labels fits" in advice(found)
    assert fit_intercept(np.array([[1, 1], [0, 1]])) is None, "single steps say nothing about spread"
    assert fit_intercept(np.array([[2, 2], [2, 2]])) is None, "all labels are equal"
    assert fit_intercept(np.zeros((0, 2), np.int64)) is None


@pytest.mark.parametrize("sd", [0.0, 1.0, 2.5])
def test_the_spread_of_simulated_labels(sd: float) -> None:
    rng = np.random.default_rng(1)
    odds = -0.5 + sd * rng.normal(size=3000)
    right = rng.binomial(5, 1 / (1 + np.exp(-odds)))
    found = fit_intercept(np.stack([right, np.full(3000, 5)], axis=1))
    assert found is not None
    assert found.low - 0.02 <= sd <= found.high + 0.02
    assert found.high - found.low < 0.35
    assert found.mean == pytest.approx(-0.5, abs=0.15)


def test_the_crossover_is_that_of_the_experiment() -> None:
    """Labels as in experiments/label_offsets.py, with an offset of one SD of quality."""
    rng = np.random.default_rng(0)
    quality, offset = rng.normal(size=(4000, 6)), rng.normal(size=(4000, 1))
    right = (quality + 0.3 * rng.logistic(size=quality.shape) > offset).sum(axis=1)
    found = fit_intercept(np.stack([right, np.full(len(right), 6)], axis=1))
    assert found is not None
    assert found.sd == pytest.approx(CROSSOVER, abs=0.1)


@pytest.mark.real_data
def test_prm800k(real_data: Path, tmp_path: Path) -> None:
    """The numbers of the guide, which are those of earlier counts by hand."""
    source = real_data / "prm800k" / "phase1_train.jsonl"
    build_pairs(source, tmp_path / "all")
    found = diagnose_pairs(tmp_path / "all")
    annotated, lookahead = found.kinds["annotated"], found.kinds["lookahead"]
    assert annotated.human == {"right": 10_256, "wrong": 0}
    assert (annotated.num, annotated.only_human, annotated.effective["prefixes"][0]) == (26_621, 1_928, 4_581)
    assert [round(annotated.effective[name][1]) for name in ("prefixes", "trees", "problems")] == [3_752, 308, 238]
    build_pairs(source, tmp_path / "one", PairRecipe(PairSettings(lookahead=1, audit="off")))
    build_pairs(source, tmp_path / "audited", PairRecipe(PairSettings(lookahead=1)))
    by_folder = [values(diagnose_pairs(tmp_path / name), "lookahead") for name in ("one", "audited", "all")]
    shown = [f"{100 * own[name][1]:.1f}" for own in by_folder for name in ("overlap", "unseen_numbers")]
    assert shown == stated(
        "docs/guides/data.md",
        "With one later step per position and without the audit, overlap alone ranks {} % of lookahead pairs right and "
        "unseen numbers {} %; with the audit, {} % and {} %; with all later steps and the audit (the default), {} % "
        "and {} %.",
    )
    assert found.intercept is not None
    fitted = found.intercept
    assert [f"{value:.2f}" for value in (fitted.sd, fitted.low, fitted.high)] == stated(
        "docs/guides/data.md", "SD {} [{}, {}] over"
    )
    assert lookahead.effective["problems"][0] == 842

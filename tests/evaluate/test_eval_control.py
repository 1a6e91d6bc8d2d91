"""`prism compare` shows the first PRM with only its level moved, and says whether the other is more than that."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eval_helpers import prmbench_row, processbench_row, score_with, write_jsonl
from test_eval_evaluate import FAST, run

from prism_prm.arrays import Floats
from prism_prm.evaluate.benchmarks import ItemSet, read_benchmark
from prism_prm.evaluate.benchmarks.prmbench import CLASSES
from prism_prm.evaluate.compare import Control, compare_bench, compare_runs, load_runs
from prism_prm.evaluate.report import RunInfo, write_run


def benchmark(tmp_path: Path, num: int = 120) -> ItemSet:
    rows = [processbench_row(f"math-{i}", 6, i % 7 - 1) for i in range(num)]
    return read_benchmark("processbench", [write_jsonl(tmp_path / "math.jsonl", rows)])


def evidence(separation: float, seed: int = 0) -> Callable[[str, int, float | None], float]:
    """Log-odds that tell right from wrong by so much, with noise, and a level that credits too much."""
    rng = np.random.default_rng(seed)
    return lambda _name, _i, label: float(0.8 + separation * (2 * (label or 0) - 1) + rng.normal())


def probability(logit: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logit)))


def write(tmp_path: Path, items: ItemSet, name: str, scores: Callable[[Floats], Floats], raw: Any, **more: Any) -> str:
    """An evaluated run whose probabilities are `scores` of the raw numbers."""
    steps = score_with(items, lambda *_: 0.5)
    steps = replace(steps, probability=scores(np.array(raw)), **more)
    write_run(tmp_path / name, RunInfo(name, name), [run(items, steps)], FAST)
    return str(tmp_path / name)


def raw(items: ItemSet, separation: float, seed: int = 0) -> list[float]:
    said = evidence(separation, seed)
    return [said(item.tree.name, i, node.label) for item in items.items for i, node in enumerate(item.tree.nodes)]


def controlled(places: list[str], bench: str = "processbench") -> Control:
    compared = compare_bench(load_runs(places), bench, num_draws=200)
    (control,) = compared.controls.values()
    return control


def test_the_first_prm_shifted_is_no_more_than_a_shift(tmp_path: Path) -> None:
    items = benchmark(tmp_path)
    logits = raw(items, 0.7)
    places = [
        write(tmp_path, items, "base", probability, logits),
        write(tmp_path, items, "stricter", lambda logit: probability(logit - 1.3), logits),
    ]
    compared = compare_bench(load_runs(places), "processbench", num_draws=200)
    tables = compared.tables
    fell = tables["stricter"]["steps"]["fpr"].minus(tables["base"]["steps"]["fpr"])
    assert fell.high < -0.2, "judged by FPR at one threshold it looks like a great success"
    control = compared.controls["stricter"]
    for match in ("fnr", "fpr"):
        assert control.at[match].shift.value == pytest.approx(-1.3, abs=0.05)
        assert control.at[match].shift.interval().low == pytest.approx(-1.3, abs=0.05), "fitted anew in every draw"
        for rate in ("fpr", "fnr", "precision", "prm_score"):
            found = control.difference(match, rate)
            assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1), (match, rate)
    assert control.verdict == "a shift"


@pytest.mark.parametrize(("separation", "verdict", "sign"), [(1.3, "better", -1), (0.2, "worse", 1)])
def test_what_a_shift_cannot_do_is_seen(tmp_path: Path, separation: float, verdict: str, sign: int) -> None:
    items = benchmark(tmp_path)
    places = [
        write(tmp_path, items, "base", probability, raw(items, 0.7)),
        write(tmp_path, items, "other", lambda logit: probability(logit - 1), raw(items, separation, seed=1)),
    ]
    control = controlled(places)
    assert control.verdict == verdict
    for match, free in (("fnr", "fpr"), ("fpr", "fnr")):
        found = control.difference(match, free)
        assert sign * found.difference > 0.1
        assert sign * (found.low if sign > 0 else found.high) > 0
        assert control.at[match].rates[match].value == control.own[match].value, "without ties the match is exact"


def test_tied_scores_are_matched_as_nearly_as_possible(tmp_path: Path) -> None:
    items = benchmark(tmp_path)
    coarse = write(tmp_path, items, "base", lambda logit: np.where(logit > 0.8, 0.8, 0.3), raw(items, 0.7))
    other = write(tmp_path, items, "other", lambda logit: probability(logit + 0.1), raw(items, 1.0, seed=1))
    control = controlled([coarse, other])
    steps = compare_bench(load_runs([coarse, other]), "processbench", num_draws=100).steps["base"]
    own_fnr = control.own["fnr"].value
    reachable = [np.mean(steps.probability[steps.right] <= cut) for cut in (0.1, 0.5, 0.9)]
    nearest = min(reachable, key=lambda fnr: abs(fnr - own_fnr))
    assert control.at["fnr"].rates["fnr"].value == pytest.approx(nearest)
    assert abs(nearest - own_fnr) > 0.01
    assert control.verdict == "unmatched"
    report = compare_runs([coarse, other], tmp_path / "cmp", num_draws=100)
    assert f"(it reaches {100 * nearest:.1f} %)" in report.markdown()


def test_saturated_scores_stay_and_are_counted(tmp_path: Path) -> None:
    items = benchmark(tmp_path)
    # As 16-bit models do: a good part of the probabilities is exactly 1.
    saturated = write(
        tmp_path, items, "base", lambda logit: np.where(logit > 2, 1.0, probability(logit)), raw(items, 0.7)
    )
    other = write(tmp_path, items, "other", lambda logit: probability(logit - 9), raw(items, 0.7))
    compared = compare_bench(load_runs([saturated, other]), "processbench", num_draws=100)
    control, steps = compared.controls["other"], compared.steps["base"]
    ones = steps.probability == 1
    assert control.num_fixed == (ones & steps.judged).sum() > 50
    assert control.own["fnr"].value > 0.99
    assert control.at["fnr"].rates["fnr"].value == 1 - (ones & steps.right).sum() / steps.right.sum()
    assert np.isfinite(control.at["fnr"].shift.value)


def test_verdicts_have_no_level_to_move(tmp_path: Path) -> None:
    items = benchmark(tmp_path)
    hard = write(tmp_path, items, "base", lambda logit: (logit > 0).astype(float), raw(items, 0.7), hard=True)
    soft = write(tmp_path, items, "other", probability, raw(items, 0.7))
    report = compare_runs([hard, soft], tmp_path / "cmp", num_draws=100)
    assert "base cannot be shifted" in report.markdown()
    assert report.metrics["benchmarks"]["processbench"]["control"] == {}
    assert controlled([soft, hard]).verdict in {"a shift", "better", "worse", "mixed"}, "the other may be verdicts"


def test_steps_judged_by_redundancy_are_not_shifted(tmp_path: Path) -> None:
    rows = [
        prmbench_row(kind, f"{i}", 6, [2, 4] if kind != "multi_solutions" else [])
        for kind in CLASSES
        for i in range(20)
    ]
    items = read_benchmark("prmbench", [write_jsonl(tmp_path / "all.jsonl", rows)])
    logits = raw(items, 0.7)
    redundancy = np.random.default_rng(5).random(len(logits))
    places = [
        write(tmp_path, items, "base", probability, logits, redundancy=redundancy),
        write(tmp_path, items, "stricter", lambda logit: probability(logit - 1.3), logits, redundancy=redundancy),
    ]
    control = controlled(places, "prmbench")
    assert control.num_fixed == 2 * 20 * 6, "two classes of nine are judged by redundancy"
    assert control.difference("fnr", "fpr").difference == control.difference("fpr", "fnr").difference == 0


def test_the_report_begins_with_the_finding(tmp_path: Path, said: list[str]) -> None:
    items = benchmark(tmp_path)
    places = [
        write(tmp_path, items, "base", probability, raw(items, 0.7)),
        write(tmp_path, items, "other", lambda logit: probability(logit - 1), raw(items, 1.3, seed=1)),
    ]
    report = compare_runs(places, tmp_path / "cmp", num_draws=200)
    markdown = (tmp_path / "cmp" / "report.md").read_text()
    assert report.finding.startswith("On processbench, other is better than base shifted: at the same FNR (")
    [first] = said
    assert first.startswith("processbench: other is better than base shifted. At other's FNR of ")
    found = json.loads((tmp_path / "cmp" / "metrics.json").read_text())["benchmarks"]["processbench"]["control"][
        "other"
    ]
    at = found["at_fnr"]
    assert found["finding"] in markdown
    for text in ("base shifted to the same FNR", "base shifted to the same FPR", "Is other better than base shifted?"):
        assert text in markdown
        assert text in (tmp_path / "cmp" / "report.html").read_text()
    fpr, difference = at["metrics"]["fpr"], at["differences"]["fpr"]
    assert fpr["low"] < fpr["value"] < fpr["high"]
    assert f"base shifted has FPR {100 * fpr['value']:.1f} [{100 * fpr['low']:.1f}, {100 * fpr['high']:.1f}]" in first
    assert f"difference −{-100 * difference['difference']:.1f} [−{-100 * difference['low']:.1f}, " in first

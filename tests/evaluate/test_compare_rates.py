"""Printed rates: is a gain more than a shift of the threshold? Values by hand, and the tables of the PRISM paper."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from docs_code import ROOT
from prism_prm import ConfigError, compare_rates
from prism_prm.cli import app
from prism_prm.evaluate.compare_rates import RateControl, Rates, infer_prevalence

ONE_SD = 0.8413447460685429
"""The share of a normal distribution below one SD above its mean."""

QWEN = {
    "Qwen-PRM-7B": (95.36, 69.34), "pairwise 12k": (92.41, 61.13), "pairwise 12k + CL": (92.79, 60.58),
    "pointwise 132k": (94.0, 67.0), "PRISM": (87.3, 47.13),
}  # fmt: skip
"""TPR and FPR in percent, as the paper's table of rates on PRMBench prints them."""
REASONEVAL = {
    "ReasonEval-7B": (95.5, 100 - 21.2), "CL1": (100 - 4.21, 78.79), "CL2": (100 - 8.05, 69.76),
    "CL3": (100 - 9.9, 66.8), "CL4": (100 - 13.6, 61.7),
}  # fmt: skip
"""From the printed TNR, and from the printed FPR and FNR of its rounds."""


def test_d_prime_is_the_distance_in_sds() -> None:
    assert Rates(ONE_SD, 0.5).d_prime == pytest.approx(1)
    assert Rates(ONE_SD, 1 - ONE_SD).d_prime == pytest.approx(2)
    assert Rates(0.5, ONE_SD).d_prime == pytest.approx(-1), "worse than chance"


@pytest.mark.parametrize(("slope", "fpr"), [(0.8, 0.10565), (1.0, 0.158655), (1.2, 0.202328)])
def test_a_shift_moves_along_the_curve(slope: float, fpr: float) -> None:
    """From z = 1 to z = 0 the TPR falls by one SD, so the FPR falls by 1 / slope SDs: to Φ(−1.25), Φ(−1), Φ(−0.83)."""
    assert Rates(ONE_SD, 0.5).shifted_fpr(0.5, slope) == pytest.approx(fpr, abs=1e-5)
    assert Rates(ONE_SD, 0.5).shifted_fpr(ONE_SD, slope) == pytest.approx(0.5), "no shift"


def test_prm_score() -> None:
    """Of 100 steps 50 are right: TP 40, FN 10, FP 25, TN 25; F1 = 80 / 115 and negative F1 = 50 / 85."""
    assert Rates(0.8, 0.5).prm_score(0.5) == pytest.approx((80 / 115 + 50 / 85) / 2)


def test_the_best_shift_is_in_the_middle_of_equal_classes() -> None:
    """d′ = 2 and as many right as wrong steps: at the middle, TPR = 1 − FPR = F1 = negative F1."""
    best = Rates(0.5, 1 - 0.9772498680518208).best_shifted(0.5)
    assert (best.tpr, best.fpr) == pytest.approx((ONE_SD, 1 - ONE_SD), abs=1e-3)
    assert best.prm_score(0.5) == pytest.approx(ONE_SD, abs=1e-5)
    assert best.d_prime == pytest.approx(2)


@pytest.mark.parametrize(
    ("fpr", "verdict"), [(0.09, "more"), (0.1, "within"), (0.16, "within"), (0.21, "within"), (0.22, "less")]
)
def test_verdicts(fpr: float, verdict: str) -> None:
    """The slopes give 10.6 to 20.2 %, and a point does not count."""
    assert RateControl("a", "b", Rates(ONE_SD, 0.5), Rates(0.5, fpr)).verdict == verdict


def test_the_paper() -> None:
    found = compare_rates(QWEN, prevalence=0.86).metrics
    assert {name: round(own["d_prime"], 3) for name, own in found["rates"].items()} == {
        "Qwen-PRM-7B": 1.175, "pairwise 12k": 1.150, "pairwise 12k + CL": 1.192, "pointwise 132k": 1.115,
        "PRISM": 1.213,
    }  # fmt: skip
    prism = found["control"]["PRISM"]
    assert {slope: round(100 * fpr, 1) for slope, fpr in prism["shifted_fpr"].items()} == {
        "0.8": 43.3, "1.0": 48.6, "1.2": 52.2,
    }  # fmt: skip
    assert prism["verdict"] == "within"
    assert round(100 * found["best_shift"]["prm_score"], 1) == 67.4
    assert round(100 * found["rates"]["PRISM"]["prm_score"], 1) == 67.7
    pointwise = compare_rates({name: QWEN[name] for name in ("pointwise 132k", "PRISM")}).metrics["control"]["PRISM"]
    assert round(47.13 - 100 * pointwise["shifted_fpr"]["1.0"]) == -4
    rounds = compare_rates(REASONEVAL).metrics["rates"]
    assert [round(own["d_prime"], 2) for own in rounds.values()] == [0.90, 0.93, 0.88, 0.85, 0.80]


def test_the_guide_states_what_the_printed_numbers_give() -> None:
    page = " ".join((ROOT / "docs/guides/evaluate.md").read_text(encoding="utf-8").split())
    found = compare_rates(QWEN, prevalence=0.86).metrics
    for name, own in found["rates"].items():
        row = f"| {name} | {100 * own['tpr']:.2f}/{100 * own['fpr']:.2f} | {own['d_prime']:.3f} |"
        if name in found["control"]:
            control = found["control"][name]
            low, middle, high = sorted(100 * fpr for fpr in control["shifted_fpr"].values())
            row += f" {middle:.1f} ({low:.1f}–{high:.1f}) | {control['verdict']} |"
        assert page.count(row) == 1, row
    reached, prism = found["best_shift"]["prm_score"], found["rates"]["PRISM"]["prm_score"]
    assert f"A shift of Qwen-PRM-7B reaches PRMScore {100 * reached:.1f}; PRISM's rates give {100 * prism:.1f}" in page
    by_tnr = compare_rates({"base": QWEN["Qwen-PRM-7B"], "pointwise": (94.0, 100 - 33.5)}).metrics["control"]
    assert by_tnr["pointwise"]["verdict"] == "within"
    assert "With its printed TNR (33.5), pointwise is `within`" in page
    rounds = compare_rates(REASONEVAL).metrics
    base, *others = (f"{own['d_prime']:.3f}" for own in rounds["rates"].values())
    assert {control["verdict"] for control in rounds["control"].values()} == {"within"}
    assert (
        f"ReasonEval-7B (95.50/78.80) has d′ {base}, its rounds CL1 to CL4 {', '.join(others[:-1])} and {others[-1]}, "
        "all `within`."
    ) in page


def run(*words: str) -> str:
    found = CliRunner().invoke(app, ["compare", *words])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_the_command_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run("--rates", "base=95.36,69.34", "a_b=87.3,47.13", "--prevalence", "0.86")
    assert "a_b is within what a shift of base gives: at TPR 87.3 % its FPR is 47.1 %" in shown
    assert "that of base shifted 48.6 % (43.3 to 52.2 % for ROC slopes 0.8 to 1.2)." in shown
    assert re.search(r"a_b +│ 87.30 │ 47.13 │ 1.213 │ +43.3 │ +48.6 │ +52.2 │ +67.7", shown)
    assert "The best PRMScore that a shift of base reaches is 67.4" in shown
    facts: dict[str, Any] = json.loads(run("--rates", "base=95.36,69.34", "new=87.3,47.13", "--json"))
    assert facts["control"]["new"]["verdict"] == "within"
    assert "best_shift" not in facts
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_written_if_wanted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--rates", "base=95.36,69.34", "new=80,10", "--out", str(out))
    assert run(*words).splitlines()[-1] == str(out / "report.html")
    assert json.loads((out / "metrics.json").read_text())["control"]["new"]["verdict"] == "more"
    assert "new is more than a shift of base" in (out / "report.md").read_text()


def test_one_prm_or_four_rates_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least two PRMs"):
        compare_rates({"base": (95.36, 69.34)})
    with pytest.raises(ConfigError, match="base has 4 rates; give TPR and FPR"):
        compare_rates({"base": (95.36, 69.34, 65.5, 1.0), "new": (87.3, 47.13)})
    with pytest.raises(ConfigError, match="prevalence 86: must be above 0 and below 1"):
        compare_rates({"base": (95.36, 69.34), "new": (87.3, 47.13)}, prevalence=86)


def test_the_prevalence_that_printed_scores_imply() -> None:
    """With TPR 0.8 and FPR 0.5 the score is (80 / 115 + 50 / 85) / 2 where half of the steps are right; the score rises
    and falls with the share, so a lower share fits as well, unless a second PRM excludes it."""
    half = Rates(0.8, 0.5, (80 / 115 + 50 / 85) / 2)
    other = Rates(0.9, 0.3, Rates(0.9, 0.3).prm_score(0.5))
    both = infer_prevalence([half, other, Rates(0.7, 0.2)])
    assert both is not None
    assert both.value == pytest.approx(0.5)
    assert both.misfit == pytest.approx(0, abs=1e-12)
    assert both.ranges == ((pytest.approx(0.5), pytest.approx(0.5)),)
    alone = infer_prevalence([Rates(0.8, 0.5, Rates(0.8, 0.5).prm_score(0.9))])
    assert alone is not None
    assert alone.value == pytest.approx(0.9)
    assert len(alone.ranges) == 2
    assert alone.ranges[0][1] < 0.5 < alone.ranges[1][0]
    assert infer_prevalence([Rates(0.8, 0.5)]) is None


def test_printed_scores_of_the_paper() -> None:
    """The table prints 65.5 and 68.0; claims about it used a prevalence of 0.86."""
    report = compare_rates({"base": (95.36, 69.34, 65.5), "PRISM": (87.3, 47.13, 68.0)})
    assert report.metrics["prevalence"] == pytest.approx(0.855)
    assert report.metrics["inferred_prevalence"]["misfit"] < 0.001
    assert report.metrics["rates"]["PRISM"]["printed_score"] == 0.68
    assert any("imply that 85.5 % of the steps are right" in line for line in report.metrics["findings"])
    off = compare_rates({"base": (95.36, 69.34, 65.5), "PRISM": (87.3, 47.13)}, prevalence=0.5).metrics
    assert off["inferred_prevalence"] is None
    assert any(
        line
        == "The printed PRMScore of base is 65.5, but its rates give 58.7: the prevalence or a printed number is off."
        for line in off["findings"]
    )

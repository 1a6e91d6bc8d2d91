"""Real scores of two PRMs on 250 items each of ProcessBench gsm8k and math."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from docs_code import stated
from prism_prm import metrics
from prism_prm.evaluate.compare import finding, make_controls
from prism_prm.evaluate.measure import AUROCS, Measurer, Steps, error_curve
from prism_prm.evaluate.report import draw_error_curves
from prism_prm.lab.theory import dominance
from prism_prm.lab.theory.dominance import add_dominance
from prism_prm.report import Report

MODELS = ("Qwen2.5-Math-PRM-7B", "Qwen2.5-Math-7B-PRM800K")


def published(real_data: Path, model: str, split: str) -> Steps:
    """The steps as columns. The files do not say where items end, save that a wrong step ends its item: runs of items
    up to such a step serve as clusters."""
    stored = json.loads((real_data / "prm_scores" / model / f"{split}.json").read_text())
    right = np.array(stored["y_true_step_level"])
    starts = np.concatenate([[0], np.flatnonzero(~right[:-1]) + 1])
    lengths = np.diff(np.append(starts, len(right)))
    num = len(starts)
    parent = np.arange(len(right)) - np.repeat(starts, lengths) - 1
    return Steps(
        tuple(f"{split}-{i}" for i in range(num)), (split,), np.zeros(num, np.int64), np.arange(num), num,
        np.full(num, -1, np.int8), starts, parent, right.astype(np.int8), np.array(stored["y_pred_step_level"]),
    )  # fmt: skip


@pytest.mark.parametrize("split", ["gsm8k", "math"])
def test_error_curves_are_drawn_from_them(real_data: Path, split: str) -> None:
    steps = {model: published(real_data, model, split) for model in MODELS}
    curves = {model: error_curve(own) for model, own in steps.items()}
    for model, own in steps.items():
        for threshold in (0.1, 0.5, 0.9):
            at = curves[model]["threshold"].index(pytest.approx(threshold))
            counts = metrics.sum_counts(own.right, own.probability > curves[model]["threshold"][at])
            assert curves[model]["fpr"][at] == pytest.approx(float(metrics.RATES["fpr"](counts)))
            assert curves[model]["fnr"][at] == pytest.approx(float(metrics.RATES["fnr"](counts)))
    report = Report("FPR and FNR")
    with report.figure("curves", caption="", alt="") as axes:
        draw_error_curves(axes, curves, dict.fromkeys(MODELS, 0.5))
        drawn = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) > 1]
    assert np.allclose(drawn[0][:, 1], curves[MODELS[0]]["fpr"])
    assert np.allclose(drawn[1][:, 0], curves[MODELS[1]]["fnr"])
    figure = report.blocks[0]
    assert all(model in ElementTree.tostring(ElementTree.fromstring(figure.svgs[0]), "unicode") for model in MODELS)  # type: ignore[union-attr]


@pytest.mark.parametrize("split", ["gsm8k", "math"])
def test_the_shift_assumption_fails_on_them(real_data: Path, split: str) -> None:
    a, b = (published(real_data, model, split) for model in MODELS)
    up = dominance.check_shift(a.probability[a.right], b.probability[b.right], direction=1, bounded=True)
    assert up.room == 0, "some right step has the score 1 already, so none can be added to all of them"
    assert up.distance > 0.2, "what is left after the best shift is far from nothing"
    report = Report("t")
    add_dominance(report, split, *MODELS, a, b)
    found = report.metrics["dominance"][split]
    assert found["verdict"] == "A mostly"
    for tpr in (0.5, 0.9):
        at = int(np.argmin(np.abs(found["tpr"] - tpr)))
        assert found["fpr_a"][at] < found["fpr_b"][at], "the larger data gives the lower FPR at equal TPR"


def test_the_better_of_them_is_more_than_the_other_shifted(real_data: Path) -> None:
    strict = {model: Measurer(published(real_data, model, "math"), 0.5) for model in reversed(MODELS)}
    control = make_controls(strict, strict[MODELS[1]].steps.probability)[MODELS[0]]
    assert control.verdict == "better"
    assert control.num_fixed == 26, "16-bit probabilities: some are exactly 1"
    # docs/guides/evaluate.md quotes this sentence.
    assert (
        "At Qwen2.5-Math-PRM-7B's FNR of 3.7 %, Qwen2.5-Math-7B-PRM800K shifted has FPR 41.3 [30.7, 52.7] %; "
        "Qwen2.5-Math-PRM-7B has 25.3 [18.0, 32.7] %: difference −16.0 [−26.0, −7.3] points."
    ) in finding(control)


def test_auroc_in_parts(real_data: Path) -> None:
    """The numbers of the guide; no prefix has two candidates. Clusters are runs of steps up to a wrong one."""
    shown: list[str] = []
    for model in MODELS:
        gsm8k, math = (published(real_data, model, split) for split in ("gsm8k", "math"))
        both = Steps(
            gsm8k.items + math.items, ("all",), np.zeros(len(gsm8k.items) + len(math.items), np.int64),
            np.concatenate([gsm8k.item_cluster, math.item_cluster + gsm8k.num_clusters]),
            gsm8k.num_clusters + math.num_clusters, np.concatenate([gsm8k.item_contaminated, math.item_contaminated]),
            np.concatenate([gsm8k.starts, math.starts + len(gsm8k.label)]), np.concatenate([gsm8k.parent, math.parent]),
            np.concatenate([gsm8k.label, math.label]), np.concatenate([gsm8k.probability, math.probability]),
        )  # fmt: skip
        found = Measurer(both, 0.5).rankings(names=tuple(AUROCS))
        assert np.isnan(found["auroc_prefix"].value)
        for name in ("auroc_problem", "auroc"):
            one = found[name].interval()
            shown += [f"{100 * value:.1f}" for value in (one.value, one.low, one.high)]
    assert (
        stated(
            "docs/guides/evaluate.md",
            "Qwen2.5-Math-PRM-7B has {} [{}, {}] within problem and {} [{}, {}] pooled, "
            "Qwen2.5-Math-7B-PRM800K {} [{}, {}] and {} [{}, {}].",
        )
        == shown
    )

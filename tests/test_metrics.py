from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from prism_prm import metrics, stats

RIGHT = np.array([1, 1, 1, 1, 0, 0, 0], dtype=bool)
GOOD = np.array([1, 1, 1, 0, 1, 0, 0], dtype=bool)


def test_counts_and_rates_by_hand() -> None:
    counts = metrics.sum_counts(RIGHT, GOOD)
    assert counts.tolist() == [3, 1, 2, 1]
    rates = {name: float(rate(counts)) for name, rate in metrics.RATES.items()}
    assert rates == pytest.approx(
        {
            "fpr": 1 / 3,
            "fnr": 1 / 4,
            "tpr": 3 / 4,
            "tnr": 2 / 3,
            "precision": 3 / 4,
            "f1": 3 / 4,
            "negative_f1": 2 / 3,
            "accuracy": 5 / 7,
            "prm_score": (3 / 4 + 2 / 3) / 2,
        }
    )


def test_rates_without_data_are_nan() -> None:
    only_right = np.array([2.0, 0, 0, 1])
    assert math.isnan(metrics.RATES["fpr"](only_right))
    assert math.isnan(metrics.RATES["tnr"](only_right))
    assert metrics.RATES["fnr"](only_right) == pytest.approx(1 / 3)
    nothing = np.zeros(4)
    assert all(math.isnan(rate(nothing)) for rate in metrics.RATES.values())
    # Nothing right was found, but there was something to find: a real zero.
    assert metrics.RATES["f1"](np.array([0.0, 1, 0, 0])) == 0


@pytest.mark.parametrize(
    ("counts", "positives_only", "expected"),
    [
        ([3, 1, 2, 1], False, (0.75 + 2 / 3) / 2),
        ([4, 0, 0, 1], True, 8 / 9),  # multi_solutions: F1 alone
        ([4, 0, 0, 0], False, 0.0),  # negative F1: precision −1 and recall −1 give −1; ½·1 − ½ = 0
        ([5, 3, 0, 0], False, 0.5 * 10 / 13),  # all judged good: negative precision −1, recall 0 give 0
        ([0, 0, 3, 5], False, 0.5 * 6 / 11),  # all judged bad: the mirror image
        ([0, 2, 0, 3], False, 0.0),  # all judged wrongly: both are −1, floored
        ([6, 2, 0, 1], False, 0.0),  # TN = 0, FN > 0: ½·0.8 − ½ < 0, floored
        ([0, 0, 0, 3], True, 0.0),
    ],
)
def test_prmscore_follows_prmbench_on_zero_divisions(counts: list[int], positives_only: bool, expected: float) -> None:
    assert float(metrics.prmbench_score(np.array(counts, float), positives_only=positives_only)) == pytest.approx(
        expected
    )


def slow_prmbench_score(tp: int, fp: int, tn: int, fn: int) -> float:
    """The rule in words, one branch at a time."""

    def share(part: float, whole: float) -> float:
        return part / whole if whole != 0 else -1

    def f1(precision: float, recall: float) -> float:
        return 2 * precision * recall / (precision + recall) if precision + recall != 0 else -1

    return max(
        0.0,
        0.5 * f1(share(tp, tp + fp), share(tp, tp + fn)) + 0.5 * f1(share(tn, tn + fn), share(tn, tn + fp)),
    )


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=20))
def test_prmscore_is_vectorised(rows: list[tuple[int, int, int, int]]) -> None:
    rows = [row for row in rows if sum(row)]
    counts = np.array(rows, float).reshape(-1, 4)
    expected = [slow_prmbench_score(*row) for row in rows]
    assert metrics.prmbench_score(counts).tolist() == pytest.approx(expected)


def test_auroc_by_hand() -> None:
    # Right 0.9 0.5, wrong 0.5 0.1: pairs 1 + 1 + ½ + 1 of 4.
    ranking = metrics.Ranking.of(np.array([1, 1, 0, 0], bool), np.array([0.9, 0.5, 0.5, 0.1]))
    assert ranking.metrics()["auroc"] == 3.5 / 4


def test_fpr_at_tpr_by_hand() -> None:
    right = np.array([1] * 20 + [0] * 4, bool)
    scores = np.concatenate([np.linspace(1, 0.05, 20), [0.97, 0.5, 0.12, 0.07]])
    found = metrics.Ranking.of(right, scores).metrics()
    # 95 % of 20 is exactly 19: the threshold sits at 0.10 and lets 0.97, 0.5 and 0.12 through.
    assert found["fpr_at_tpr_95"] == 3 / 4
    # 90 %: 18 right steps, down to 0.15.
    assert found["fpr_at_tpr_90"] == 2 / 4
    # 80 %: 16 right steps, down to 0.25.
    assert found["fpr_at_tpr_80"] == 2 / 4


scored_steps = st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=60).filter(
    lambda rows: len({row[0] for row in rows}) == 2
)


@given(scored_steps)
def test_rankings_equal_scikit_learn_with_ties(rows: list[tuple[bool, int]]) -> None:
    right, scores = np.array([r for r, _ in rows]), np.array([s / 8 for _, s in rows])
    found = metrics.Ranking.of(right, scores).metrics()
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(right, scores), abs=1e-12)
    assert found["auprc"] == pytest.approx(sk.average_precision_score(right, scores), abs=1e-12)
    assert found["auprc_errors"] == pytest.approx(sk.average_precision_score(~right, -scores), abs=1e-12)
    fpr, tpr, _ = sk.roc_curve(right, scores, drop_intermediate=False)
    for level in (80, 90, 95):
        assert found[f"fpr_at_tpr_{level}"] == pytest.approx(fpr[tpr >= level / 100 - 1e-12].min(), abs=1e-12)


@given(scored_steps, st.integers(0, 99))
@settings(max_examples=40)
def test_resampled_rankings_equal_a_loop_over_repeated_steps(rows: list[tuple[bool, int]], seed: int) -> None:
    right, scores = np.array([r for r, _ in rows]), np.array([s / 8 for _, s in rows])
    clusters = np.random.default_rng(seed).integers(5, size=len(rows))
    draws = stats.cluster_draws(5, 6, seed)
    fast = metrics.Ranking.of(right, scores).resampled(clusters, draws)
    for i, draw in enumerate(draws):
        repeated = np.repeat(np.arange(len(rows)), draw[clusters])
        slow = metrics.Ranking.of(right[repeated], scores[repeated]).metrics()
        for name, value in slow.items():
            assert fast[name][i] == pytest.approx(value, abs=1e-12, nan_ok=True)


def test_rankings_without_both_kinds_are_nan() -> None:
    found = metrics.Ranking.of(np.array([True, True]), np.array([0.1, 0.2])).metrics()
    assert all(math.isnan(value) for value in found.values())
    empty = metrics.Ranking.of(np.zeros(0, bool), np.zeros(0)).metrics()
    assert all(math.isnan(value) for value in empty.values())


@given(scored_steps, st.floats(-0.1, 1.1))
def test_error_curve_is_strict(rows: list[tuple[bool, int]], threshold: float) -> None:
    right, scores = np.array([r for r, _ in rows]), np.array([s / 8 for _, s in rows])
    thresholds = np.array([threshold, 0.5, *scores[:3]])
    fpr, fnr = metrics.Ranking.of(right, scores).error_curve(thresholds)
    for i, cut in enumerate(thresholds):
        counts = metrics.sum_counts(right, scores > cut)
        assert fpr[i] == pytest.approx(float(metrics.RATES["fpr"](counts)))
        assert fnr[i] == pytest.approx(float(metrics.RATES["fnr"](counts)))


@given(scored_steps, st.floats(0.01, 1.0))
def test_threshold_for_a_tpr_is_the_highest_that_keeps_enough(rows: list[tuple[bool, int]], target: float) -> None:
    right, scores = np.array([r for r, _ in rows]), np.array([s / 8 for _, s in rows])
    threshold = metrics.Ranking.of(right, scores).threshold(metrics.Target("tpr", target))
    assert np.mean(scores[right] > threshold) >= target - 1e-9
    higher = scores[scores > threshold].min()
    assert np.mean(scores[right] > higher) < target, "the next higher cut keeps too few"


@pytest.mark.parametrize("start", [0.0, 0.1, 0.9999999, 1e-310, -30.0])
def test_threshold_for_a_tpr_between_scores_that_have_no_number_between_them(start: float) -> None:
    scores = [start]
    for _ in range(9):
        scores.append(float(np.nextafter(scores[-1], np.inf)))
    right = np.ones(10, bool)
    for kept in range(1, 11):
        threshold = metrics.Ranking.of(right, np.array(scores)).threshold(metrics.Target("tpr", kept / 10))
        assert np.sum(np.array(scores) > threshold) == kept


def test_threshold_for_a_tpr_without_right_steps() -> None:
    ranking = metrics.Ranking.of(np.array([False]), np.array([0.5]))
    assert math.isnan(ranking.threshold(metrics.Target("tpr", 0.9)))


TARGETS = ("tpr=0.7", "fpr=0.3", "f1", "prm-score", "cost=3:1", "cost=1:4")


@given(scored_steps, st.sampled_from(TARGETS))
def test_a_threshold_for_a_target_is_the_best_of_all(rows: list[tuple[bool, int]], text: str) -> None:
    right, scores = np.array([r for r, _ in rows]), np.array([s / 8 for _, s in rows])
    target = metrics.parse_target(text)
    threshold = metrics.Ranking.of(right, scores).threshold(target)
    if right.all() or not right.any():
        return
    tried = {cut: metrics.sum_counts(right, scores > cut) for cut in [*np.unique(scores).tolist(), -1.0]}
    found = metrics.sum_counts(right, scores > threshold)
    _, fp, _, fn = found
    if target.metric == "tpr":
        enough = [cut for cut, (tp, _, _, fn) in tried.items() if tp / (tp + fn) >= 0.7]
        assert found.tolist() == tried[max(enough)].tolist()
    elif target.metric == "fpr":
        few = [cut for cut, (_, fp, tn, _) in tried.items() if fp / (fp + tn) <= 0.3 + 1e-9]
        assert found.tolist() == tried[min(few)].tolist()
    elif target.metric == "cost":
        costs = [target.cost_fp * fp + target.cost_fn * fn for _, fp, _, fn in tried.values()]
        assert target.cost_fp * fp + target.cost_fn * fn == min(costs)
    else:
        score = {"f1": metrics.f1, "prm-score": metrics.prmbench_score}[target.metric]
        assert float(score(found)) == pytest.approx(max(float(score(counts)) for counts in tried.values()))


def test_thresholds_by_hand() -> None:
    ranking = metrics.Ranking.of(np.array([1, 1, 0, 1, 0, 0], bool), np.array([0.9, 0.8, 0.7, 0.6, 0.3, 0.2]))
    found = {text: ranking.threshold(metrics.parse_target(text)) for text in
             ("tpr=0.6", "tpr=0.9", "fpr=0.1", "fpr=0.4", "f1", "prm-score", "cost=5:1", "cost=1:5")}  # fmt: skip
    assert found == pytest.approx(
        {"tpr=0.6": 0.75, "tpr=0.9": 0.45, "fpr=0.1": 0.75, "fpr=0.4": 0.45, "f1": 0.45, "prm-score": 0.75,
         "cost=5:1": 0.75, "cost=1:5": 0.45}
    )  # fmt: skip


def test_a_weight_of_a_step_is_that_many_steps() -> None:
    right, scores = np.array([1, 0, 1, 0, 1], bool), np.array([0.9, 0.7, 0.6, 0.4, 0.1])
    weights = np.array([1, 3, 0, 2, 4])
    ranking = metrics.Ranking.of(right, scores)
    repeated = metrics.Ranking.of(np.repeat(right, weights), np.repeat(scores, weights))
    for text in TARGETS:
        target = metrics.parse_target(text)
        weighted, plain = ranking.threshold(target, weights[ranking.order]), repeated.threshold(target)
        assert (scores > weighted)[weights > 0].tolist() == (scores > plain)[weights > 0].tolist()


@pytest.mark.parametrize("text", ["", "x", "tpr", "tpr=", "tpr=0", "tpr=1", "tpr=90", "fpr=nan", "f1=0.9", "cost",
                                  "cost=1", "cost=0:1", "cost=1:-1", "cost=1:inf", "cost=1:2:3"])  # fmt: skip
def test_a_senseless_target(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|takes no value"):
        metrics.parse_target(text)


@pytest.mark.parametrize("text", ["tpr=0.9", "fpr=0.05", "f1", "prm-score", "cost=5:1"])
def test_a_target_reads_as_it_was_written(text: str) -> None:
    assert str(metrics.parse_target(text)) == text


def test_reliability_by_hand() -> None:
    right, probability = np.array([1, 0, 1, 1], bool), np.array([0.05, 0.01, 0.81, 0.89])
    found = metrics.reliability(right, probability)
    assert found["steps"] == [2, 2]
    assert found["right"] == [0.5, 1.0]
    assert found["probability"] == pytest.approx([0.03, 0.85])


def test_calibration_error_by_hand() -> None:
    right = np.array([1, 0, 1, 1], bool)
    probability = np.array([0.15, 0.15, 0.95, 1.0])
    gaps = metrics.calibration_gaps(right, probability)
    # Bin 0.1: 0.30 against one right step; bin 0.9 (with 1.0): 1.95 against two.
    assert float(metrics.calibration_error(gaps.sum(axis=0), np.array(4.0))) == pytest.approx((0.7 + 0.05) / 4)
    assert math.isnan(metrics.calibration_error(np.zeros(10), np.array(0.0)))


def test_first_bad_and_outcomes_by_hand() -> None:
    bad = np.array([0, 1, 1, 0, 0, 1, 0, 0, 1], bool)
    predicted = metrics.first_bad(bad, np.array([0, 3, 5, 7]))
    assert predicted.tolist() == [1, -1, 0, 1]
    gold = np.array([1, 1, 1, 0])
    assert metrics.first_error_outcomes(gold, predicted).tolist() == [
        [1, 0, 0, 0],  # exact
        [0, 0, 0, 1],  # missed
        [0, 1, 0, 0],  # an earlier step was blamed
        [0, 0, 1, 0],  # a later one
    ]
    assert metrics.first_error_outcomes(np.array([-1]), np.array([2])).tolist() == [[0, 0, 0, 0]]


def test_processbench_by_hand() -> None:
    gold = np.array([0, 2, 1, -1, -1])
    predicted = np.array([0, 1, -1, -1, 3])
    tallies = metrics.processbench_tallies(gold, predicted).sum(axis=0)
    assert tallies.tolist() == [3, 1, 2, 1]
    rates = {name: float(value) for name, value in metrics.processbench_rates(tallies).items()}
    assert rates == pytest.approx({"acc_error": 1 / 3, "acc_correct": 1 / 2, "f1": 0.4})
    assert float(metrics.processbench_rates(np.array([3.0, 0, 2, 0]))["f1"]) == 0
    assert math.isnan(metrics.processbench_rates(np.array([3.0, 1, 0, 0]))["f1"])


def test_pairs_by_hand() -> None:
    chosen, rejected = np.array([0.9, 0.5, 0.2, 0.7]), np.array([0.1, 0.5, 0.3, 0.55])
    assert metrics.pairwise_accuracy(chosen, rejected).tolist() == [1, 0.5, 0, 1]
    bins = metrics.pairs_by_margin(chosen - rejected, np.array([0, 0.125, 0.5, 1.0]))
    assert [b.tolist() for b in bins] == [[1, 2], [3], [0]]
    other = metrics.pairs_by_margin(np.array([0.0, 0.5, -1.0, 0.2]), np.array([0, 0.5, 1.0]))
    assert [b.tolist() for b in other] == [[0, 3], [1, 2]]


@pytest.mark.parametrize("model", ["Qwen2.5-Math-PRM-7B", "Qwen2.5-Math-7B-PRM800K"])
@pytest.mark.parametrize("split", ["gsm8k", "math"])
@pytest.mark.parametrize("level", ["step_level", "instance_level"])
def test_published_scores_give_the_stored_metrics(real_data: Path, model: str, split: str, level: str) -> None:
    stored = json.loads((real_data / "prm_scores" / model / f"{split}.json").read_text())
    right, scores = np.array(stored[f"y_true_{level}"]), np.array(stored[f"y_pred_{level}"])
    reference = stored["performance"][level]
    counts = metrics.sum_counts(right, scores > reference["threshold"])
    assert metrics.Ranking.of(right, scores).metrics()["auroc"] == pytest.approx(reference["auroc"], abs=1e-9)
    for ours, theirs in {"f1": "f1", "precision": "precision", "tpr": "recall", "accuracy": "accuracy"}.items():
        assert float(metrics.RATES[ours](counts)) == pytest.approx(reference[theirs], abs=1e-9)


def test_pairs_ranked_right_within_groups() -> None:
    """Group 0: 0.9 against 0.5 and 0.1, then 0.5 against both: 2 + 1.5 of 4. Group 1: 0.2 against 0.8. Group 2 has
    only right steps, and nobody is in group 3."""
    right = np.array([1, 0, 1, 0, 0, 1, 1], bool)
    scores = np.array([0.9, 0.5, 0.5, 0.1, 0.8, 0.2, 0.3])
    groups = np.array([0, 0, 0, 0, 1, 1, 2])
    found = metrics.ranked_pairs(right, scores, groups, 4)
    assert found.tolist() == [[3.5, 4], [0, 1], [0, 0], [0, 0]]


@given(st.integers(0, 2**32 - 1))
def test_pairs_within_groups_are_those_of_every_group(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(0, 40))
    right, scores = rng.random(size) < 0.5, rng.integers(0, 5, size) / 4
    groups = rng.integers(0, 4, size)
    slow = [
        [
            float(sum((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2 for i in ups for j in downs)),
            float(len(ups) * len(downs)),
        ]
        for g in range(4)
        for ups, downs in [(np.flatnonzero((groups == g) & right), np.flatnonzero((groups == g) & ~right))]
    ]
    assert metrics.ranked_pairs(right, scores, groups, 4).tolist() == slow

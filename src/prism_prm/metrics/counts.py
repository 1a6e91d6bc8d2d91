"""Metrics from counts of judged steps; every function takes arrays (..., 4) of [TP, FP, TN, FN].

Leading axes are kept, so the counts of a thousand bootstrap draws go through the same function as one table's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from prism_prm.arrays import Bools, Floats

TP, FP, TN, FN = range(4)


def confusion(right: Bools, good: Bools) -> Floats:
    """(steps, 4): a one in the column each step falls in."""
    return np.stack([right & good, ~right & good, ~right & ~good, right & ~good], axis=-1).astype(np.float64)


def sum_counts(right: Bools, good: Bools) -> Floats:
    """(4,): TP, FP, TN, FN of some steps."""
    return np.asarray(confusion(right, good).sum(axis=0))


def ratio(part: Floats, whole: Floats) -> Floats:
    """part / whole; 0/0 is NaN."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(whole > 0, part / whole, np.nan), dtype=np.float64)


def fpr(counts: Floats) -> Floats:
    """Wrong steps judged good, of all wrong steps."""
    return ratio(counts[..., FP], counts[..., FP] + counts[..., TN])


def fnr(counts: Floats) -> Floats:
    """Right steps judged bad, of all right steps."""
    return ratio(counts[..., FN], counts[..., FN] + counts[..., TP])


def precision(counts: Floats) -> Floats:
    """Right steps, of all that were judged good."""
    return ratio(counts[..., TP], counts[..., TP] + counts[..., FP])


def f1(counts: Floats) -> Floats:
    """Harmonic mean of precision and TPR; 0 where nothing right was found, NaN where there was nothing to find."""
    return ratio(2 * counts[..., TP], 2 * counts[..., TP] + counts[..., FP] + counts[..., FN])


def negative_f1(counts: Floats) -> Floats:
    """F1 of the wrong steps."""
    return ratio(2 * counts[..., TN], 2 * counts[..., TN] + counts[..., FN] + counts[..., FP])


def accuracy(counts: Floats) -> Floats:
    """Steps judged as they are, of all steps."""
    return ratio(counts[..., TP] + counts[..., TN], counts.sum(axis=-1))


def _share(part: Floats, whole: Floats) -> Floats:
    """A ratio with PRMBench's rule: 0/0 counts as −1."""
    share = ratio(part, whole)
    return np.where(np.isnan(share), -1.0, share)


def prmbench_f1(hits: Floats, precision_whole: Floats, recall_whole: Floats) -> Floats:
    """F1 with PRMBench's own rule, that any 0/0 on the way counts as −1, also precision + recall = 0."""
    precise, recalled = _share(hits, precision_whole), _share(hits, recall_whole)
    total = precise + recalled
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(total != 0, 2 * precise * recalled / total, -1.0), dtype=np.float64)


def prmbench_score(counts: Floats, *, positives_only: bool = False) -> Floats:
    """PRMScore: ½ F1 + ½ negative F1, never below 0; for `positives_only` classes (multi_solutions) F1 alone.

    NaN only where there is no step at all.
    """
    tp, fp, tn, fn = (counts[..., i] for i in range(4))
    score = prmbench_f1(tp, tp + fp, tp + fn)
    if not positives_only:
        score = 0.5 * score + 0.5 * prmbench_f1(tn, tn + fn, tn + fp)
    return np.where(counts.sum(axis=-1) > 0, np.maximum(score, 0.0), np.nan)


RATES: dict[str, Callable[[Floats], Floats]] = {
    "fpr": fpr,
    "fnr": fnr,
    "tpr": lambda counts: 1 - fnr(counts),
    "tnr": lambda counts: 1 - fpr(counts),
    "precision": precision,
    "f1": f1,
    "negative_f1": negative_f1,
    "accuracy": accuracy,
    "prm_score": prmbench_score,
}
"""Name → function of counts (..., 4)."""


def calibration_gaps(right: Bools, probability: Floats, num_bins: int = 10) -> Floats:
    """(steps, bins): probability minus truth, in the column of the equally wide bin the probability falls in."""
    column = np.minimum((probability * num_bins).astype(np.int64), num_bins - 1)
    gaps = np.zeros((len(right), num_bins))
    gaps[np.arange(len(right)), column] = probability - right
    return gaps


def calibration_error(gap_sums: Floats, num_steps: Floats) -> Floats:
    """Expected calibration error: |mean probability − share of right steps| per bin, weighted by the bin's steps.

    With sums per bin this is Σ|Σ gap| / steps, whatever the draw.
    """
    return ratio(np.abs(gap_sums).sum(axis=-1), num_steps)

"""Metrics per solution: where the first bad step is, and ProcessBench's two accuracies.

Steps of all solutions lie in one array, solution after solution; `starts` says where each begins.
"""

from __future__ import annotations

import numpy as np

from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.metrics.counts import ratio

OUTCOMES = ("exact", "early", "late", "missed")
"""How a solution's first error was judged: found, an earlier step blamed, a later one, or none."""


def first_bad(bad: Bools, starts: Ints) -> Ints:
    """Per solution the position of its first bad step, or −1. Every solution has at least one step."""
    if len(starts) == 0:
        return np.zeros(0, np.int64)
    lengths = np.diff(np.append(starts, len(bad)))
    assert (lengths > 0).all(), "a solution has at least one step"
    positions = np.arange(len(bad)) - np.repeat(starts, lengths)
    never = len(bad)
    first = np.minimum.reduceat(np.where(bad, positions, never), starts)
    return np.where(first == never, -1, first)


def first_error_outcomes(gold: Ints, predicted: Ints) -> Floats:
    """(solutions, 4): a one under the outcome of each solution that has an error, nothing for the others."""
    wrong = gold >= 0
    flagged = predicted >= 0
    return np.stack(
        [
            wrong & (predicted == gold),
            wrong & flagged & (predicted < gold),
            wrong & (predicted > gold),
            wrong & ~flagged,
        ],
        axis=-1,
    ).astype(np.float64)


def processbench_tallies(gold: Ints, predicted: Ints) -> Floats:
    """(solutions, 4): has an error, and was matched; has none, and was matched."""
    wrong, match = gold >= 0, gold == predicted
    return np.stack([wrong, wrong & match, ~wrong, ~wrong & match], axis=-1).astype(np.float64)


def processbench_rates(tallies: Floats) -> dict[str, Floats]:
    """acc_error, acc_correct and their harmonic mean F1 of summed tallies (..., 4).

    F1 is NaN without solutions of both kinds, and 0 where both accuracies are 0: that is a score, not a lack of data.
    """
    acc_error = ratio(tallies[..., 1], tallies[..., 0])
    acc_correct = ratio(tallies[..., 3], tallies[..., 2])
    total = acc_error + acc_correct
    f1 = np.where(total == 0, 0.0, ratio(2 * acc_error * acc_correct, total))
    return {"acc_error": acc_error, "acc_correct": acc_correct, "f1": f1}

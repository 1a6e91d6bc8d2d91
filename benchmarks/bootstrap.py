"""Bootstrap of PRMBench's metrics: all draws at once, against a loop over draws that calls scikit-learn.

83,371 synthetic steps with PRMBench's class sizes, 758 problems, 1,000 draws of whole problems; both sides compute the
counts, TPR, FPR and PRMScore of every class and pooled, and the pooled AUROC, and must give the same numbers for the
same draws. The loop is timed on the first 40 draws, since every draw costs it the same; `--full` times all of them.

Run: python benchmarks/bootstrap.py [--full --repeats 1]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score

from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm import metrics
from prism_prm.stats import cluster_draws, resampled_sums

CLASSES = {  # steps, of these negative; PRMBench after de-duplication
    "circular": (7813, 2135), "redundency": (11613, 1537), "counterfactual": (10477, 2074),
    "step_contradiction": (10765, 1192), "domain_inconsistency": (10031, 1338), "confidence": (10748, 1304),
    "missing_condition": (9613, 1869), "deception": (10070, 1700), "multi_solutions": (2241, 0),
}  # fmt: skip
NUM_PROBLEMS, NUM_DRAWS, THRESHOLD = 758, 1000, 0.5
WIDTH = 4 * len(CLASSES)
OURS, PEER = "all draws at once", "a loop over scikit-learn"


def make_steps() -> tuple[Any, ...]:
    """(right, score, class, problem) of every step."""
    rng = np.random.default_rng(0)
    right = np.concatenate([np.arange(steps) >= wrong for steps, wrong in CLASSES.values()])
    kind = np.repeat(np.arange(len(CLASSES)), [steps for steps, _ in CLASSES.values()])
    score = 1 / (1 + np.exp(-(1.0 + 1.2 * (2 * right - 1) + 1.5 * rng.normal(size=len(right)))))
    return right, score, kind, rng.integers(NUM_PROBLEMS, size=len(right))


RIGHT, SCORE, KIND, PROBLEM = make_steps()
GOOD = SCORE > THRESHOLD


def all_at_once(draws: Any) -> dict[str, Any]:
    """Counts by one matrix product, AUROC by one cumulative sum per draw."""
    outcome = np.argmax(metrics.confusion(RIGHT, GOOD), axis=1)
    cells = np.bincount(PROBLEM * WIDTH + KIND * 4 + outcome, minlength=NUM_PROBLEMS * WIDTH)
    drawn = resampled_sums(cells.reshape(NUM_PROBLEMS, WIDTH).astype(np.float64), draws)
    counts = drawn.reshape(len(draws), len(CLASSES), 4)
    counts = np.concatenate([counts, counts.sum(axis=1, keepdims=True)], axis=1)
    scores = metrics.prmbench_score(counts)
    only_right = list(CLASSES).index("multi_solutions")
    scores[:, only_right] = metrics.prmbench_score(counts[:, only_right], positives_only=True)
    auroc = metrics.Ranking.of(RIGHT, SCORE).resampled(PROBLEM, draws, ("auroc",))["auroc"]
    return {
        "counts": counts,
        "tpr": metrics.RATES["tpr"](counts),
        "fpr": metrics.RATES["fpr"](counts),
        "prm_score": scores,
        "auroc": auroc,
    }


def loop_over_draws(draws: Any) -> dict[str, Any]:
    """The peer: repeat the steps of the drawn problems and call scikit-learn."""
    found: dict[str, list[Any]] = {name: [] for name in ("counts", "tpr", "fpr", "prm_score", "auroc")}
    for draw in draws:
        rows = np.repeat(np.arange(len(RIGHT)), draw[PROBLEM])
        right, good, kind = RIGHT[rows], GOOD[rows], KIND[rows]
        values = [_of_class(right[kind == i], good[kind == i], name) for i, name in enumerate(CLASSES)]
        values.append(_of_class(right, good, "pooled"))
        for name, column in zip(("counts", "tpr", "fpr", "prm_score"), zip(*values, strict=True), strict=True):
            found[name].append(column)
        found["auroc"].append(roc_auc_score(right, SCORE[rows]))
    return {name: np.array(values) for name, values in found.items()}


def _of_class(right: Any, good: Any, name: str) -> tuple[Any, float, float, float]:
    tn, fp, fn, tp = confusion_matrix(right, good, labels=[False, True]).ravel()
    f1 = f1_score(right, good, zero_division=0)
    score = f1 if name == "multi_solutions" else 0.5 * f1 + 0.5 * f1_score(~right, ~good, zero_division=0)
    fpr = fp / (fp + tn) if fp + tn else np.nan
    return np.array([tp, fp, tn, fn]), tp / (tp + fn), fpr, score


def main() -> None:
    """Time both, and check that their numbers are equal."""
    parser = options(__doc__, repeats=3)
    parser.add_argument("--full", action="store_true", help="time the loop on all draws")
    arguments = parser.parse_args()
    draws = cluster_draws(NUM_PROBLEMS, NUM_DRAWS)
    some = draws if arguments.full else cluster_draws(NUM_PROBLEMS, 40)  # the first of them
    fast, slow = all_at_once(some), loop_over_draws(some)
    for name, values in slow.items():
        np.testing.assert_allclose(fast[name], values, rtol=0, atol=1e-12, err_msg=name)
    print(f"{len(RIGHT):,} steps, {NUM_PROBLEMS} problems; equal to 1e-12 on {len(some):,} draws: {', '.join(slow)}")
    seconds = side_by_side(
        {PEER: lambda: loop_over_draws(some), OURS: lambda: all_at_once(draws)},
        repeats=arguments.repeats,
        beside=arguments.busy,
    )
    seconds[PEER] = [value * len(draws) / len(some) for value in seconds[PEER]]
    print(f"seconds for {len(draws):,} draws (the loop timed on {len(some):,})")
    print_ratios(seconds, peer=PEER)
    conclude(seconds[OURS], seconds[PEER], peer=PEER)


if __name__ == "__main__":
    main()

"""`prism calibrate` on published step scores: two Qwen PRMs on 250 items each of ProcessBench gsm8k and math.

Writes the steps as labeled data and as predictions, calibrates for each target, prints the table of
docs/guides/evaluate.md, and counts how many choices of Best-of-32 each map changes on the MATH-500 pool. The files do
not say where items end, save that a wrong step ends its item: runs of items up to such a step serve as problems.

Run: python experiments/published_calibration.py --data $PRISM_DATA --out runs/published-calibration
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from prism_prm import CalibrateSettings, calibrate_prm
from prism_prm.aggregate import AGGREGATORS, log_score
from prism_prm.calibration import Calibration
from prism_prm.evaluate.measure import shown
from prism_prm.evaluate.score_files import read_scored_problems
from prism_prm.files import write_text

PRMS = ("Qwen2.5-Math-PRM-7B", "Qwen2.5-Math-7B-PRM800K")
TARGETS = ("tpr=0.9", "fpr=0.1", "f1", "prm-score", "cost=5:1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with prm_scores and best_of_n_prm")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    given = parser.parse_args()
    for prm in PRMS:
        folder = given.out / prm
        write_inputs(given.data / "prm_scores" / prm, folder)
        for method in ("none", "platt", "isotonic"):
            for target in TARGETS if method == "none" else TARGETS[:1]:
                found = calibrate_prm(
                    None, folder / "steps.jsonl", predictions=folder / "predictions.jsonl",
                    settings=CalibrateSettings(target, method), out=folder / f"{method}-{target.replace(':', '-')}",
                )  # fmt: skip
                names = ("tpr", "fpr", "prm_score", "calibration_error")
                changes = [f"{shown(found.before[name])} → {shown(found.after[name])}" for name in names]
                cells = [prm, method, target, found.shown_threshold(), *changes]
                print("| " + " | ".join(cells) + " |")
            if prm == PRMS[0]:
                count_changes(
                    given.data / "best_of_n_prm" / "math500_scores_qwen2.5-math-prm-7b.jsonl", found.calibration
                )


def write_inputs(source: Path, folder: Path) -> None:
    """Write steps.jsonl and predictions.jsonl of one PRM."""
    data: list[dict[str, object]] = []
    predictions: list[dict[str, object]] = []
    for split in ("gsm8k", "math"):
        stored = json.loads((source / f"{split}.json").read_text(encoding="utf-8"))
        right, scores = stored["y_true_step_level"], stored["y_pred_step_level"]
        ends = [*(i + 1 for i, is_right in enumerate(right[:-1]) if not is_right), len(right)]
        for start, end in zip([0, *ends], ends, strict=False):
            steps = [f"step {i + 1}" for i in range(end - start)]
            predictions.append({"id": f"tree-{len(data)}", "scores": scores[start:end]})
            data.append({"prompt": f"{split}, run {len(data)}", "completions": steps, "labels": right[start:end]})
    for name, rows in (("steps.jsonl", data), ("predictions.jsonl", predictions)):
        write_text(folder / name, "".join(json.dumps(row) + "\n" for row in rows))


def count_changes(scores: Path, calibration: Calibration) -> None:
    """Print for how many problems Best-of-N picks another solution with calibrated scores, by aggregator."""
    problems = [own for _, own in read_scored_problems(scores).values()]
    for how in AGGREGATORS:
        changed = 0
        for solutions in problems:
            own = [np.array(steps) for steps in solutions if steps]
            raw = [log_score(steps, how) for steps in own]
            mapped = [log_score(calibration.of_probability(steps), how) for steps in own]
            changed += raw[int(np.argmax(mapped))] < max(raw)
        print(f"Best-of-32 by {how}: another choice for {changed} of {len(problems)} problems")


if __name__ == "__main__":
    main()

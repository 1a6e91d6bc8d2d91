"""From GSM8K problems with answers to a PRM, no annotation: label → pairs → train → eval with SmolLM2-135M.

Problems of the training set with the fewest calculations, shortest first: a model this small seldom solves others, and
a step from which no rollout ever succeeds makes no pair. Every step is a command of `prism` that is printed before it
runs. So few problems show that the parts fit, not how good the PRM is. Interrupted, the same command goes on where it
was.

Run: python experiments/label_gsm8k.py --data DATA --policy HuggingFaceTB/SmolLM2-135M-Instruct --out runs/label-gsm8k
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = (
    "Question: Tom has 3 boxes of 4 pens and gives away 5 pens. How many pens are left?\n"
    "Answer: Tom has 3 * 4 = 12 pens.\nAfter giving away 5 he has 12 - 5 = 7 pens.\n#### 7\n\n"
    "Question: {problem}\nAnswer in the same form, one calculation per line, the number after #### last."
)
RECIPE = """
report_to = []
[data]
folder = "{pairs}"
[base]
backbone = "{policy}"
[objective]
name = "hybrid"
space = "log-odds"
[curriculum]
mode = "none"
bins = [[-1.0, 1.0]]
[train]
lr = 1e-4
epochs = 2
pairs_per_update = 8
[validation]
split = ""
"""


def prism(*words: object) -> None:
    """Run a command of `prism`."""
    line = [str(word) for word in words]
    print("prism", *line, flush=True)
    subprocess.run([sys.executable, "-m", "prism_prm", *line], check=True, env=os.environ)


def easy_problems(file: Path, count: int) -> list[str]:
    """Lines of the problems with the fewest calculations, shortest first."""

    def difficulty(line: str) -> tuple[int, int, str]:
        record = json.loads(line)
        return max(1, record["answer"].count("<<")), len(record["question"]), line

    return sorted(file.read_text(encoding="utf-8").splitlines(), key=difficulty)[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds gsm8k/train.jsonl")
    parser.add_argument("--policy", required=True, help="hub id or folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--method", default="monte-carlo")
    arguments = parser.parse_args()

    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    easy = easy_problems(arguments.data / "gsm8k" / "train.jsonl", arguments.problems)
    (out / "problems.jsonl").write_text("".join(f"{line}\n" for line in easy), encoding="utf-8")
    prism(
        "label", out / "problems.jsonl", "--policy", f"hf:{arguments.policy}", "--user", EXAMPLE, "--method",
        arguments.method, "--rollouts", 4, "--alternatives", 3, "--max-tokens", 64, "--max-step-tokens", 32, "--set",
        'label.sampling.stop="\\n"', "--judges", 1, "--out", out / "labels",
    )  # fmt: skip
    prism(
        "pairs", out / "labels" / "trees.parquet", "--lookahead", "none", "--min-value-gap", 0.25, "--split",
        "train=1.0", "--out", out / "pairs",
    )  # fmt: skip
    recipe = RECIPE.format(pairs=out / "pairs", policy=arguments.policy)
    (out / "recipe.toml").write_text(recipe, encoding="utf-8")
    prism("train", out / "recipe.toml", "--out", out / "run")
    # Too few problems to hold some out: this only shows that a PRM of such labels can be measured by such labels.
    prism(
        "eval", "--bench", "labeled", "--data", out / "labels" / "trees.parquet", "--prm", out / "run", "--threshold",
        0.5, "--out", out / "eval",
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""Windows against a long context: how much step scores of real thinking text change if the context is cut.

The PRM is SmolLM2-135M-Instruct read as a verdict (`verdict`), whose own limit is 8,192 tokens, so it reads every trace
whole. The same PRM with `context` 512 and 1,024 reads them in windows. Traces are JSON lines with a `text`, each
`<think>…</think>` and a response, cut by `thinking`.

Run: python experiments/thinking_windows.py TRACES --model FOLDER [--traces 8]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from prism_prm import init_prm
from prism_prm.models.prm import PRM
from prism_prm.segments import split_text
from prism_prm.stats import mean_interval
from prism_prm.tree import StepTree

PROBLEM = "Answer the question."


def main() -> None:
    """Score all traces with every context, and print the differences with intervals over traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="the folder of SmolLM2-135M-Instruct")
    parser.add_argument("--traces", type=int, default=8, help="how many, evenly spread over the file")
    arguments = parser.parse_args()
    lines = [json.loads(line)["text"] for line in arguments.file.open(encoding="utf-8")]
    some = [lines[round(i * (len(lines) - 1) / (arguments.traces - 1))] for i in range(arguments.traces)]
    trees = [StepTree.chain(PROBLEM, split_text(text, "thinking"), tree_id=i) for i, text in enumerate(some)]
    prm = init_prm(arguments.model, family="verdict")
    whole = prm.score_trees(trees)
    tokens = [prm.count_tokens(tree) for tree in trees]
    num_steps = sum(len(tree.nodes) for tree in trees)
    print(f"{len(trees)} traces, {num_steps} steps, {np.median(tokens):.0f} tokens (median)", flush=True)
    for context in (512, 1024):
        cut = PRM(prm.module, prm.family, prm.card, context=context, on_too_long="window")
        found = cut.score_trees(trees)
        fits, beyond, ranks = [], [], []
        for one, other in zip(whole, found, strict=True):
            gap = np.abs(one.probability - other.probability)
            is_long = np.isin(np.arange(len(gap)), other.too_long)
            fits += gap[~is_long].tolist()
            if is_long.any():
                beyond.append(float(gap[is_long].mean()))
                if is_long.sum() > 2:
                    order = [
                        np.argsort(np.argsort(values[is_long])).astype(np.float64)
                        for values in (one.probability, other.probability)
                    ]
                    ranks.append(float(np.corrcoef(order[0], order[1])[0, 1]))
        num_long = sum(len(other.too_long) for other in found)
        print(
            f"context {context}: {num_long} steps beyond it in {len(beyond)} traces; largest gap of the others", end=" "
        )
        print(f"{max(fits):.1e}", flush=True)
        if len(beyond) > 1:
            of_gap, of_rank = (mean_interval(np.array(values), np.arange(len(values))) for values in (beyond, ranks))
            print(f"  mean |difference| {of_gap.value:.4f} [{of_gap.low:.4f}, {of_gap.high:.4f}]")
            print(f"  rank correlation {of_rank.value:.3f} [{of_rank.low:.3f}, {of_rank.high:.3f}]")


if __name__ == "__main__":
    main()

"""Reward 16 × 8 real completions: packed trees against one sequence per completion.

The completions are those of a real policy to problems of MATH-500 (`best_of_n/math500_pool_100.jsonl`). A causal PRM
reads all steps of a completion in one pass, so the peer runs each completion once, after its whole prompt. It does so
as TRL runs a reward model: all of a batch in one forward pass, padded to the longest. A kinder peer sorts by length and
runs batches of our token budget. What trees save by themselves is the prompt, 7 times of 8, and common beginnings, so
that the ratio hangs on the length of the prompt: it is measured as it is, and with `--prompt-tokens` more before it,
as few-shot examples or a document would be.

Run: PRISM_DATA=… python benchmarks/rl_reward.py [--prompt-tokens 0] [--problems 16] [--completions 8]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from _real_trees import small_prm
from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm import PRM, PRMReward, StepTree, read_pool
from prism_prm.rl.spans import cut_steps
from prism_prm.scorer.protocol import sigmoid

Sequences = Sequence[tuple[list[int], list[int]]]
"""Of each completion its ids, and where its steps are read."""


def real_completions(problems: int, completions: int) -> tuple[list[str], list[str]]:
    """(problem of each completion, completion), as a trainer has them."""
    folder = os.environ.get("PRISM_DATA")
    if not folder:
        print("skipped: set PRISM_DATA to the folder that holds best_of_n/math500_pool_100.jsonl")
        sys.exit(0)
    pool = read_pool(Path(folder) / "best_of_n" / "math500_pool_100.jsonl").problems[:problems]
    found = [(one.problem.text, "\n\n".join(each.steps)) for one in pool for each in one.solutions[:completions]]
    return [problem for problem, _ in found], [text for _, text in found]


def sequences(prm: PRM, problems: Sequence[str], texts: Sequence[str]) -> Sequences:
    """Each completion after its prompt."""
    found = []
    for problem, text in zip(problems, texts, strict=True):
        tree = prm.encode_tree(StepTree.chain(problem, cut_steps(text)))
        ids = [*tree.prompt, *(token for step in tree.ids for token in step)]
        found.append((ids, [start + read for start, read in zip(tree.starts, tree.reads, strict=True)]))
    return found


def score_batch(prm: PRM, some: Sequences) -> list[list[float]]:
    """P(right) of the steps of some completions, right-padded to the longest, causal attention without any mask."""
    batch = torch.zeros(len(some), max(len(ids) for ids, _ in some), dtype=torch.int64)
    for row, (ids, _) in enumerate(some):
        batch[row, : len(ids)] = torch.tensor(ids)
    with torch.inference_mode():
        hidden = prm.module.backbone(input_ids=batch, use_cache=False).last_hidden_state
        return [
            sigmoid(prm.module.read(hidden[row, reads])[:, 0].numpy()).tolist() for row, (_, reads) in enumerate(some)
        ]


def score_sorted(prm: PRM, every: Sequences) -> None:
    """The kinder peer: batches of the token budget, sorted by length."""
    left = sorted(every, key=lambda one: -len(one[0]))
    while left:
        size = max(1, prm.token_budget // len(left[0][0]))
        score_batch(prm, left[:size])
        left = left[size:]


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=0, help="more words before each problem")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    arguments = parser.parse_args()

    problems, texts = real_completions(arguments.problems, arguments.completions)
    problems = ["so " * arguments.prompt_tokens + problem for problem in problems]
    prm = small_prm([*problems, *texts], hidden=arguments.hidden, layers=arguments.layers, context=32768)
    reward = PRMReward(prm, "min", gate=False)
    every = sequences(prm, problems, texts)
    prompt = len(prm.encode_tree(StepTree.chain(problems[0], [])).prompt)
    lengths = [len(ids) for ids, _ in every]
    print(f"{sum(p.numel() for p in prm.module.parameters()) / 1e6:.1f}M parameters, {torch.get_num_threads()} threads")
    print(f"{len(every)} completions, {sum(lengths) / len(every):.0f} tokens each with a prompt of {prompt}, ", end="")
    print(f"at most {max(lengths)}")

    rewards = reward(prompts=problems, completions=texts)
    expected = [min(own) for own in score_batch(prm, every)]
    differences = [abs((a or 0.0) - b) for a, b in zip(rewards, expected, strict=True)]
    print(f"largest difference of a reward: {max(differences):.1e}")

    ours, peer = "packed trees (PRMReward as a whole)", "one sequence per completion"
    seconds = side_by_side(
        {
            ours: lambda: reward(prompts=problems, completions=texts),
            peer: lambda: score_batch(prm, every),
            "the same, sorted by length": lambda: score_sorted(prm, every),
        },
        repeats=arguments.repeats,
        beside=arguments.busy,
    )
    print_ratios(seconds, peer=peer)
    conclude(seconds[ours], seconds[peer], peer=peer)


if __name__ == "__main__":
    main()

"""Reward 16 × 8 real completions: packed trees against one sequence per completion.

The completions are those of a real policy for problems of MATH-500 (`best_of_n/math500_pool_100.jsonl`), cut off at 256
tokens. A causal PRM reads all steps of a completion in one pass, so the peer runs each completion once, after its
prompt, in batches of the same token budget, sorted by length and right-padded, with causal attention and no mask. Trees
save 7 of 8 prompts and common prefixes, so the ratio depends on the length of the prompt: by default each problem is
preceded by 1,000 words, like a document or few-shot examples.

Run: PRISM_DATA=… python benchmarks/rl_reward.py [--prompt-words 1000] [--completion-tokens 256]
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
from prism_prm.calibration import sigmoid
from prism_prm.steps import cut_steps

Sequences = Sequence[tuple[list[int], list[int]]]
"""The ids of each completion, and the positions at which its steps are read."""


def real_completions(problems: int, completions: int) -> tuple[list[str], list[str]]:
    """(problem of each completion, completion), as a trainer gets them."""
    folder = os.environ.get("PRISM_DATA")
    if not folder:
        print("skipped: set PRISM_DATA to the folder with best_of_n/math500_pool_100.jsonl")
        sys.exit(0)
    pool = read_pool(Path(folder) / "best_of_n" / "math500_pool_100.jsonl").problems[:problems]
    found = [(one.problem.text, "\n\n".join(each.steps)) for one in pool for each in one.solutions[:completions]]
    return [problem for problem, _ in found], [text for _, text in found]


def first_tokens(prm: PRM, text: str, count: int) -> str:
    """The text of the first `count` tokens."""
    spans = prm.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    return text[: spans[:count][-1][1]]


def sequences(prm: PRM, problems: Sequence[str], texts: Sequence[str]) -> Sequences:
    """Each completion after its prompt."""
    found = []
    for problem, text in zip(problems, texts, strict=True):
        tree = prm.encode_tree(StepTree.chain(problem, cut_steps(text)))
        ids = [*tree.prompt, *(token for step in tree.ids for token in step)]
        found.append((ids, [start + read for start, read in zip(tree.starts, tree.reads, strict=True)]))
    return found


def score_batch(prm: PRM, some: Sequences) -> list[list[float]]:
    """P(right) of the steps of a batch, right-padded to the longest, with causal attention and no mask."""
    batch = torch.zeros(len(some), max(len(ids) for ids, _ in some), dtype=torch.int64)
    for row, (ids, _) in enumerate(some):
        batch[row, : len(ids)] = torch.tensor(ids)
    with torch.inference_mode():
        hidden = prm.module.backbone(input_ids=batch, use_cache=False).last_hidden_state
        return [
            sigmoid(prm.module.read(hidden[row, reads])[:, 0].numpy()).tolist() for row, (_, reads) in enumerate(some)
        ]


def score_sequences(prm: PRM, every: Sequences) -> list[list[float]]:
    """P(right) of all steps, in batches of the token budget, sorted by length."""
    order = sorted(range(len(every)), key=lambda i: -len(every[i][0]))
    found: dict[int, list[float]] = {}
    while order:
        size = max(1, prm.token_budget // len(every[order[0]][0]))
        some, order = order[:size], order[size:]
        found |= dict(zip(some, score_batch(prm, [every[i] for i in some]), strict=True))
    return [found[i] for i in range(len(every))]


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--prompt-words", type=int, default=1000, help="words before each problem")
    parser.add_argument("--completion-tokens", type=int, default=256, help="length limit of completions")
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=1)
    arguments = parser.parse_args()

    problems, texts = real_completions(arguments.problems, arguments.completions)
    problems = ["so " * arguments.prompt_words + problem for problem in problems]
    prm = small_prm([*problems, *texts], hidden=arguments.hidden, layers=arguments.layers, context=32768)
    texts = [first_tokens(prm, text, arguments.completion_tokens) for text in texts]
    reward = PRMReward(prm, "min", gate=False)
    every = sequences(prm, problems, texts)
    prompt = len(prm.encode_tree(StepTree.chain(problems[0], [])).prompt)
    lengths = [len(ids) for ids, _ in every]
    print(f"{sum(p.numel() for p in prm.module.parameters()) / 1e6:.1f}M parameters, {torch.get_num_threads()} threads")
    print(f"{len(every)} completions, {sum(lengths) / len(every):.0f} tokens each with a prompt of {prompt}, ", end="")
    print(f"at most {max(lengths)}")

    rewards = reward(prompts=problems, completions=texts)
    expected = [min(own) for own in score_sequences(prm, every)]
    differences = [abs((a or 0.0) - b) for a, b in zip(rewards, expected, strict=True)]
    print(f"largest difference of a reward: {max(differences):.1e}")

    ours, peer = "packed trees (PRMReward as a whole)", "one sequence per completion"
    seconds = side_by_side(
        {
            ours: lambda: reward(prompts=problems, completions=texts),
            peer: lambda: score_sequences(prm, every),
        },
        repeats=arguments.repeats,
        beside=arguments.busy,
    )
    print_ratios(seconds, peer=peer)
    conclude(seconds[ours], seconds[peer], peer=peer)


if __name__ == "__main__":
    main()

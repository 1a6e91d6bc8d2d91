"""Score pairs of real PRM800K trajectories: packed trees against two sequences per pair.

The peer is what pairwise trainers do (such as TRL's RewardTrainer): both sides of every pair are separate sequences,
right-padded and sorted by length, with causal attention and no mask, in batches of the same token budget. A stronger
peer computes every distinct sequence once. Trajectories of more than 30 steps (one in seven) are left out: they gain
most, but the peer takes too long.

Run: PRISM_DATA=… python benchmarks/tree_scoring.py [--trajectories 50] [--lookaheads 4]
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from _real_trees import Encoded, Work, real_trees, score_sequences, small_prm, with_pairs
from _side_by_side import conclude, median, options, print_ratios, side_by_side
from prism_prm import PRM
from prism_prm.models.packing import pack
from prism_prm.models.prm import pair_cost


def sequences(prm: PRM, works: Sequence[Work]) -> list[list[tuple[Encoded, Encoded]]]:
    """For each tree, the ids of both sides of each pair."""
    found = []
    for work in works:
        tree = prm.encode_tree(work.tree)
        whole: dict[int, Encoded] = {}
        for node in range(len(tree.ids)):
            parent = tree.parents[node]
            whole[node] = (*(tree.prompt if parent < 0 else whole[parent]), *tree.ids[node])
        found.append([(whole[a], whole[b]) for a, b in work.pairs])
    return found


def matmul_rate() -> float:
    """The speed of this machine in large matrix products, in operations per second."""
    a, b = torch.randn(2048, 1024), torch.randn(1024, 2048)
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(5):
            a @ b
        rates.append(5 * 2 * a.shape[0] * a.shape[1] * b.shape[1] / (time.perf_counter() - started))
    return max(rates)


def main() -> None:
    parser = options(__doc__, repeats=2)
    parser.add_argument("--trajectories", type=int, default=50)
    parser.add_argument("--max-steps", type=int, default=30, help="skip longer trajectories: the peer takes hours")
    parser.add_argument("--lookaheads", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()

    trees = real_trees(arguments.trajectories, arguments.max_steps)
    prm = small_prm([node.text for t in trees for node in t.nodes], hidden=arguments.hidden, layers=arguments.layers)
    works = [with_pairs(tree, arguments.lookaheads) for tree in trees]
    wanted = [sorted({node for pair in work.pairs for node in pair}) for work in works]
    pairs = sequences(prm, works)
    both = [side for tree in pairs for pair in tree for side in pair]
    distinct = list({side: None for tree in pairs for side in dict.fromkeys(s for pair in tree for s in pair)})
    rows = pack(
        [prm.encode_tree(work.tree) for work in works], prm.token_budget, [[(n,) for n in w] for w in wanted],
        pair_cost=pair_cost(prm.module),
    )  # fmt: skip
    tokens = {"trees": sum(map(len, rows)), "pairs": sum(map(len, both)), "distinct": sum(map(len, distinct))}
    parameters = sum(p.numel() for p in prm.module.parameters())
    print(f"{parameters / 1e6:.1f}M parameters, {torch.get_num_threads()} threads, {len(works)} trajectories")
    print(f"{sum(map(len, pairs))} pairs, {len(distinct)} distinct sequences, {len(rows)} rows of tree parts")

    checked = works[:5]
    found = prm.score_trees([work.tree for work in checked], wanted[:5])
    expected = score_sequences(prm, [side for tree in pairs[:5] for pair in tree for side in pair])
    packed = [scores.log_odds_NO[n, 0] for w, scores in zip(checked, found, strict=True) for p in w.pairs for n in p]
    print(f"largest difference of a log-odds in {len(checked)} of them: ", end="")
    print(f"{(torch.tensor(packed) - expected).abs().max():.1e}")

    ours, peer = "packed trees (with tokenizing and packing)", "two sequences per pair"
    seconds = side_by_side(
        {
            ours: lambda: prm.score_trees([w.tree for w in works], wanted),
            peer: lambda: score_sequences(prm, both),
            "distinct sequences": lambda: score_sequences(prm, distinct),
        },
        repeats=arguments.repeats,
        beside=arguments.busy,
    )
    print_ratios(seconds, peer=peer)
    print(f"tokens: {tokens['pairs'] / tokens['trees']:.1f}x fewer than pairs, ", end="")
    print(f"{tokens['distinct'] / tokens['trees']:.1f}x fewer than distinct sequences")
    embedding = prm.module.backbone.get_input_embeddings().weight.numel()
    work = 2 * (parameters - embedding) * tokens["trees"] / median(seconds, ours)
    rate = 100 * work / matmul_rate()
    print(
        f"the trees' linear layers run at {work / 1e9:.1f} GFLOP/s, {rate:.0f} % of this machine's big matrix products"
    )
    conclude(seconds[ours], seconds[peer], peer=peer)


if __name__ == "__main__":
    main()

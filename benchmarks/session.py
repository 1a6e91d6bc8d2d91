"""Score a beam search: a session that keeps key/values against scoring every whole prefix again.

Each iteration every beam gets one more step (a real one of PRM800K), the best quarter of a problem's beams stays and
is copied to fill up again. The peer is what search code does today (search-and-learn, OpenR, compute-optimal-tts):
after each step it scores problem and all steps anew, right-padded and sorted by length, without any mask. It gets the
prefixes of the same search for free.

Run: PRISM_DATA=… python benchmarks/session.py [--problems 8] [--beams 8] [--steps 20]
"""

from __future__ import annotations

import argparse
import random

import torch

from _real_trees import Encoded, real_trees, score_sequences, small_prm
from _side_by_side import print_ratios, side_by_side
from prism_prm import Prm
from prism_prm.scorer.session import Node


def search(
    prm: Prm, problems: list[str], texts: list[str], beams: int, steps: int
) -> tuple[list[list[Node]], int, int]:
    """The nodes of each iteration, and the most memory and tokens that the session held."""
    rng = random.Random(0)
    iterations: list[list[Node]] = []
    memory = tokens = 0
    with prm.session(problems) as session:
        live = [root for root in session.roots for _ in range(beams)]
        for _ in range(steps):
            nodes = session.extend([(beam, rng.choice(texts)) for beam in live])
            iterations.append(nodes)
            memory, tokens = max(memory, session.memory_bytes), max(tokens, session.num_tokens)
            live = []
            for start in range(0, len(nodes), beams):
                best = sorted(nodes[start : start + beams], key=lambda node: -node.probability)[: beams // 4]
                live += [node for node in best for _ in range(beams // len(best))]
            session.keep(live)
    return iterations, memory, tokens


def prefixes(nodes: list[Node]) -> list[Encoded]:
    """The whole sequences that the peer scores in one iteration."""
    return [tuple(token for node in beam.path() for token in node.ids) for beam in nodes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--beams", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()

    trees = real_trees(50, 30)
    texts = [node.text for tree in trees for node in tree.nodes]
    prm = small_prm(texts, hidden=options.hidden, layers=options.layers)
    problems = [tree.problem for tree in trees[: options.problems]]

    iterations, memory, tokens = search(prm, problems, texts, options.beams, options.steps)
    whole = [prefixes(nodes) for nodes in iterations]
    again = score_sequences(prm, whole[-1])
    kept = torch.tensor([node.log_odds[0] for node in iterations[-1]])
    print(
        f"{options.problems} problems, {options.beams} beams, {options.steps} steps; {torch.get_num_threads()} threads"
    )
    print(f"largest difference of a log-odds after the last step: {(kept - again).abs().max():.1e}")
    medians = side_by_side(
        {
            "session": lambda: search(prm, problems, texts, options.beams, options.steps),
            "every prefix again": lambda: [score_sequences(prm, some) for some in whole],
        },
        repeats=options.repeats,
    )
    print_ratios(medians, peer="every prefix again")
    new = sum({id(node): len(node.ids) for nodes in iterations for node in nodes}.values())
    again_tokens = sum(len(ids) for some in whole for ids in some)
    print(f"tokens: {again_tokens / new:.1f}x fewer")
    print(f"the session held at most {tokens} tokens, {memory / 1e6:.1f} MB of key/values")


if __name__ == "__main__":
    main()

"""Score a beam search: a session with cached key/values, against scoring every whole prefix again.

In each iteration, every beam gets one more step (a real one of PRM800K), and the best quarter of a problem's beams is
kept and copied to fill up again. The peer is what search code does today (search-and-learn, OpenR,
compute-optimal-tts): after each step it scores the problem and all steps again, right-padded and sorted by length,
without a mask. It gets the prefixes of the same search for free.

Run: PRISM_DATA=… python benchmarks/session.py [--problems 8] [--beams 8] [--steps 20]
"""

from __future__ import annotations

import random

import torch

from _real_trees import Encoded, real_trees, score_sequences, small_prm
from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm import PRM
from prism_prm.models.session import SessionNode


def search(
    prm: PRM, problems: list[str], texts: list[str], beams: int, steps: int
) -> tuple[list[list[SessionNode]], int, int]:
    """The nodes of each iteration, and the peak memory and tokens of the session."""
    rng = random.Random(0)
    iterations: list[list[SessionNode]] = []
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


def prefixes(nodes: list[SessionNode]) -> list[Encoded]:
    """The whole sequences that the peer scores in one iteration."""
    return [tuple(token for node in beam.path() for token in node.ids) for beam in nodes]


def main() -> None:
    parser = options(__doc__, repeats=2)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--beams", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()

    trees = real_trees(50, 30)
    texts = [node.text for tree in trees for node in tree.nodes]
    prm = small_prm(texts, hidden=arguments.hidden, layers=arguments.layers)
    problems = [tree.problem for tree in trees[: arguments.problems]]

    iterations, memory, tokens = search(prm, problems, texts, arguments.beams, arguments.steps)
    whole = [prefixes(nodes) for nodes in iterations]
    again = score_sequences(prm, whole[-1])
    kept = torch.tensor([node.log_odds[0] for node in iterations[-1]])
    print(f"{arguments.problems} problems, {arguments.beams} beams, {arguments.steps} steps")
    print(f"{torch.get_num_threads()} threads")
    print(f"largest difference of a log-odds after the last step: {(kept - again).abs().max():.1e}")
    peer = "every prefix again"
    seconds = side_by_side(
        {
            "session": lambda: search(prm, problems, texts, arguments.beams, arguments.steps),
            peer: lambda: [score_sequences(prm, some) for some in whole],
        },
        repeats=arguments.repeats,
        beside=arguments.busy,
    )
    print_ratios(seconds, peer=peer)
    new = sum({id(node): len(node.ids) for nodes in iterations for node in nodes}.values())
    again_tokens = sum(len(ids) for some in whole for ids in some)
    print(f"tokens: {again_tokens / new:.1f}x fewer")
    print(f"the session held at most {tokens} tokens, {memory / 1e6:.1f} MB of key/values")
    conclude(seconds["session"], seconds[peer], peer=peer)


if __name__ == "__main__":
    main()

"""Rollouts for labels: many per batch through shared prefixes, against one request per rollout from scratch.

The peer is what labelling scripts do with a model of transformers: every rollout is a request of its own that reads
problem and prefix again. Both sides label the same problems with the same noise, and must write the same texts.
"Batched, from scratch" keeps batches and shares no prefix: it shows how much of the gain is due to sharing.

The policy is a small random Qwen2 model over single characters, about 30 of which make a step, with problems of 150.
Random texts would end anywhere, so here all run to the limit on tokens.

Run: python benchmarks/label.py [--problems 1] [--rollouts 4] [--parts]
"""

from __future__ import annotations

import random
import string
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm.backends.hf import HfPolicy, load_hf
from prism_prm.backends.policy import Sampling, StepRequest, Written
from prism_prm.data.tasks import TaskProblem
from prism_prm.search.label_engine import label_problems
from prism_prm.search.label_rules import LabelSettings
from search import make_model


class Noting:
    """The policy as it is, noting all that it writes."""

    def __init__(self, policy: HfPolicy) -> None:
        self.policy = policy
        self.name, self.has_log_likelihood = policy.name, True
        self.identity, self.prompt, self.close = policy.identity, policy.prompt, policy.close
        self.texts: list[str] = []

    def batches(self, asks: Sequence[StepRequest]) -> list[list[int]]:
        """What is asked for together."""
        return [list(range(len(asks)))]

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """Write batch by batch."""
        found: dict[int, Written] = {}
        for batch in self.batches(asks):
            found.update(zip(batch, self.policy.write([asks[i] for i in batch], sampling), strict=True))
        written = [found[i] for i in range(len(asks))]
        self.texts += [one.text for one in written]
        return written


class OneByOne(Noting):
    """One request per text, which is read from its start."""

    def batches(self, asks: Sequence[StepRequest]) -> list[list[int]]:
        """Each alone."""
        return [[i] for i in range(len(asks))]

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """Forget what was kept."""
        return super().write([replace(ask, state=None) for ask in asks], sampling)


class Unshared(OneByOne):
    """The same in batches of different texts, so that none is read for another."""

    def batches(self, asks: Sequence[StepRequest]) -> list[list[int]]:
        """The first ask of every text, then the second, and so on."""
        waiting, found = list(range(len(asks))), []
        while waiting:
            batch = list({asks[i].text: i for i in reversed(waiting)}.values())
            found.append(batch)
            waiting = [i for i in waiting if i not in set(batch)]
        return found


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--problems", type=int, default=1)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--alternatives", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--parts", action="store_true", help="time batching without sharing, too")
    arguments = parser.parse_args()

    rng = random.Random(0)
    texts = ["".join(rng.choices(string.ascii_lowercase + " ", k=150)) for _ in range(arguments.problems)]
    sampling = Sampling(temperature=1.0, max_step_tokens=64, max_tokens=64, stop="\n")
    settings = LabelSettings(rollouts=arguments.rollouts, alternatives=arguments.alternatives, sampling=sampling)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), arguments.hidden, arguments.layers)
        policy = load_hf(folder)
    policy.end_ids = frozenset()
    ours, peer = "batched through shared prefixes", "one request per rollout, from scratch"
    ways: dict[str, Noting] = {ours: Noting(policy), peer: OneByOne(policy)}
    if arguments.parts:
        ways["batched, from scratch"] = Unshared(policy)

    def run(name: str) -> None:
        ways[name].texts.clear()
        label_problems([TaskProblem(text, "0") for text in texts], ways[name], lambda _: [], settings)

    runs: dict[str, Callable[[], None]] = {name: partial(run, name) for name in ways}
    seconds = side_by_side(runs, repeats=arguments.repeats, beside=arguments.busy)
    assert all(way.texts == ways[peer].texts for way in ways.values()), "all write the same texts"
    print(f"{len(texts)} problems, {len(ways[peer].texts)} texts, which are equal")
    print_ratios(seconds, peer=peer)
    conclude(seconds[ours], seconds[peer], peer=peer)


if __name__ == "__main__":
    main()

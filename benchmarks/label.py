"""Rollouts for labels: batched with shared prefixes, against one request per rollout from scratch.

The peer is what labeling scripts do with a transformers model: every rollout is a separate request that reads the
problem and the prefix again. Both sides label the same problems with the same noise, and must write the same texts.
"Batched, from scratch" uses batches without shared prefixes: it shows how much of the gain is due to sharing.

The policy is a small random Qwen2 model over single characters, about 30 per step, with problems of 150. Random texts
would end anywhere, so all of them run to the token limit here.

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


class RecordingPolicy:
    """The policy, with a record of all that it writes."""

    def __init__(self, policy: HfPolicy) -> None:
        self.policy = policy
        self.name, self.has_log_likelihood = policy.name, True
        self.identity, self.prompt, self.close = policy.identity, policy.prompt, policy.close
        self.texts: list[str] = []

    def batches(self, requests: Sequence[StepRequest]) -> list[list[int]]:
        """The indices of the requests in each batch."""
        return [list(range(len(requests)))]

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """Write batch by batch."""
        found: dict[int, Written] = {}
        for batch in self.batches(requests):
            found.update(zip(batch, self.policy.write([requests[i] for i in batch], sampling), strict=True))
        written = [found[i] for i in range(len(requests))]
        self.texts += [one.text for one in written]
        return written


class OneByOne(RecordingPolicy):
    """One request per text, which is read from its start."""

    def batches(self, requests: Sequence[StepRequest]) -> list[list[int]]:
        """One request per batch."""
        return [[i] for i in range(len(requests))]

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """Clear the cache first."""
        return super().write([replace(request, state=None) for request in requests], sampling)


class Unshared(OneByOne):
    """Batches of different texts, so that no prefix is shared."""

    def batches(self, requests: Sequence[StepRequest]) -> list[list[int]]:
        """The first request of every text, then the second, and so on."""
        waiting, found = list(range(len(requests))), []
        while waiting:
            batch = list({requests[i].text: i for i in reversed(waiting)}.values())
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
    ways: dict[str, RecordingPolicy] = {ours: RecordingPolicy(policy), peer: OneByOne(policy)}
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

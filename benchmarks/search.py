"""Guided beam search: all problems in one batch with cached key/values, against one problem at a time from scratch.

The peer is what search code does today (search-and-learn, OpenR, compute-optimal-tts): problem by problem, after each
step the policy reads its whole prefix again and the PRM scores the problem and all steps again. Both sides run the same
search with the same noise, and must find the same texts. "Batched, from scratch" shows how much of the gain is due to
batching over problems alone.

Policy and PRM are small random Qwen2 models over single characters, about 30 per step; the PRM is the larger one, as in
the paper (1.5B and 7B).

Run: python benchmarks/search.py [--problems 32] [--n 8] [--steps 4] [--parts]
"""

from __future__ import annotations

import random
import string
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm import PRM, init_prm
from prism_prm.backends.hf import HfPolicy, load_hf
from prism_prm.backends.policy import Sampling, StepRequest, Written
from prism_prm.models.session import Session, SessionNode
from prism_prm.search.engine import search_problems
from prism_prm.search.methods import SearchSettings
from prism_prm.search.tree import SearchResult


def make_model(folder: Path, hidden: int, layers: int) -> None:
    """A random Qwen2 whose tokens are characters, so that its text has the same tokens when it is read again."""
    characters = string.ascii_lowercase + " +=.\n"
    ids = {character: i for i, character in enumerate([*characters, "<|im_start|>", "<|im_end|>", "<unk>"])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", unk_token="<unk>")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(fast), hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=max(1, hidden // 64), max_position_embeddings=4096,
        eos_token_id=len(fast) - 2,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)


class Stateless:
    """The same policy without a cache: it reads every prefix from its start."""

    def __init__(self, policy: HfPolicy) -> None:
        self.policy = policy
        self.name, self.has_log_likelihood = policy.name, True
        self.identity, self.prompt, self.close = policy.identity, policy.prompt, policy.close

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """Clear the cache first."""
        return self.policy.write([replace(request, state=None) for request in requests], sampling)


class Rescoring(Session):
    """A session without a cache: every new step is scored with its whole prefix."""

    def extend(self, steps: Iterable[tuple[SessionNode, str]]) -> list[SessionNode]:
        """Score whole solutions, as plain sequences."""
        nodes = [SessionNode(parent.problem, parent, text, (), 0, 0, parent.depth + 1) for parent, text in steps]
        distinct = {(node.parent, node.text): node for node in nodes}
        whole = [(self.problems[node.problem], node.steps()) for node in distinct.values()]
        for node, scores in zip(distinct.values(), self.prm.score_many(whole, progress=False), strict=True):
            node.log_odds = (float(torch.logit(torch.tensor(scores[-1], dtype=torch.float64))),)
        return [distinct[node.parent, node.text] for node in nodes]

    def keep(self, nodes: Iterable[SessionNode]) -> None:
        """Nothing is cached."""

    def drop(self, nodes: Iterable[SessionNode]) -> None:
        """Nothing is cached."""


def from_scratch(
    policy: HfPolicy, prm: PRM, problems: list[str], settings: SearchSettings, at_once: int
) -> list[SearchResult]:
    """The peer: no cache."""
    model: Any = prm
    model.session = lambda problems: Rescoring(prm, problems)
    try:
        return search_problems(Stateless(policy), prm, problems, settings, at_once=at_once)
    finally:
        del model.session


def texts(found: list[SearchResult]) -> list[list[tuple[str, ...]]]:
    return [[solution.steps for solution in entry.solutions] for entry in found]


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--policy-hidden", type=int, default=128)
    parser.add_argument("--prm-hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--parts", action="store_true", help="also time batching and caching separately")
    arguments = parser.parse_args()

    rng = random.Random(0)
    problems = ["".join(rng.choices(string.ascii_lowercase + " ", k=150)) for _ in range(arguments.problems)]
    sampling = Sampling(temperature=1.0, max_step_tokens=96, stop="\n")
    settings = SearchSettings(method="beam", n=arguments.n, expand=4, max_steps=arguments.steps, sampling=sampling)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), arguments.policy_hidden, arguments.layers)
        policy = load_hf(folder)
        make_model(Path(folder), arguments.prm_hidden, arguments.layers)
        prm = init_prm(folder, family="qwen", settings={"system": ""})
    many, peer = f"batched over {len(problems)} problems", "one problem at a time, from scratch"
    ours = f"{many}, cached key/values"
    ways: dict[str, Callable[[], list[SearchResult]]] = {
        ours: partial(search_problems, policy, prm, problems, settings, at_once=len(problems)),
        peer: partial(from_scratch, policy, prm, problems, settings, 1),
    }
    if arguments.parts:
        ways[f"{many}, from scratch"] = partial(from_scratch, policy, prm, problems, settings, len(problems))
        ways["one problem at a time, cached key/values"] = partial(
            search_problems, policy, prm, problems, settings, at_once=1
        )
    found: dict[str, list[Any]] = {}

    def run(name: str) -> None:
        found[name] = texts(ways[name]())

    seconds = side_by_side(
        {name: partial(run, name) for name in ways}, repeats=arguments.repeats, beside=arguments.busy
    )
    assert all(own == found[peer] for own in found.values()), "all find the same texts"
    lengths = [len(step) for entry in found[peer] for steps in entry for step in steps]
    tokens = sum(lengths) / len(lengths)
    print(f"{len(problems)} problems, n = {arguments.n}, {tokens:.0f} tokens per step; texts are equal")
    print_ratios(seconds, peer=peer)
    conclude(seconds[ours], seconds[peer], peer=peer)


if __name__ == "__main__":
    main()

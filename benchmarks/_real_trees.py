"""Shared parts of the scoring benchmarks: real PRM800K trees, their pairs as leaves, and a small random PRM."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2Model
from transformers.utils import logging

from prism_prm import PRM, Step, StepTree, annotated_pairs, init_prm, lookahead_pairs, read_trees
from prism_prm.data.pair_rules import PairSettings

Pair = tuple[int, int]
"""(chosen, rejected): nodes of one tree with one parent."""
Encoded = tuple[int, ...]
"""The ids of a whole sequence that is read at its end."""


@dataclass(frozen=True)
class Work:
    """A tree with its negatives as leaves, and the pairs to compare."""

    tree: StepTree
    pairs: list[Pair]


def real_trees(count: int, max_steps: int = 10**9) -> list[StepTree]:
    """The first trees of PRM800K phase 1 with at most `max_steps` steps; exits if PRISM_DATA is not set."""
    folder = os.environ.get("PRISM_DATA")
    if not folder:
        print("skipped: set PRISM_DATA to the folder with prm800k/phase1_train.jsonl")
        sys.exit(0)
    trees = read_trees(Path(folder) / "prm800k" / "phase1_train.jsonl")
    return list(islice((tree for tree in trees if len(tree.trunk) <= max_steps), count))


def with_pairs(tree: StepTree, lookaheads: int) -> Work:
    """All annotated pairs, and at each position lookahead pairs, whose negatives become new leaves."""
    pairs = [(pair.chosen, pair.rejected) for pair in annotated_pairs(tree)]
    leaves: list[tuple[int, Step]] = []
    for pair in lookahead_pairs(tree, PairSettings(lookahead=lookaheads)):
        pairs.append((pair.chosen, len(tree.nodes) + len(leaves)))
        leaves.append((tree.parents[pair.chosen], tree.nodes[pair.rejected]))
    return Work(tree.with_leaves(leaves), pairs)


def score_sequences(prm: PRM, ids: Sequence[Encoded]) -> torch.Tensor:
    """The peer: whole sequences, right-padded in batches sorted by length, with causal attention and no mask."""
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    scores = torch.empty(len(ids))
    while order:
        longest = len(ids[order[0]])
        size = max(1, prm.token_budget // longest)
        some, order = order[:size], order[size:]
        batch = torch.zeros(len(some), longest, dtype=torch.int64)
        for row, i in enumerate(some):
            batch[row, : len(ids[i])] = torch.tensor(ids[i])
        with torch.inference_mode():
            hidden = prm.module.backbone(input_ids=batch, use_cache=False).last_hidden_state
            ends = torch.tensor([len(ids[i]) - 1 for i in some])
            scores[some] = prm.module.read(hidden[torch.arange(len(some)), ends])[:, 0]
    return scores


def small_prm(texts: Sequence[str], *, hidden: int, layers: int, context: int = 4096, **options: Any) -> PRM:
    """A random Qwen2 PRM with a tokenizer trained on the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=4096, initial_alphabet=alphabet, show_progress=False)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(fast),
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=context,
        initializer_range=0.1,
    )
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        Qwen2Model(config).save_pretrained(folder)
        fast.save_pretrained(folder)
        return init_prm(folder, family="qwen", **options)

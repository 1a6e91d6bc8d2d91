"""Real PRM800K trees, their pairs as leaves, and a small random PRM: what the scoring benchmarks share."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2Model

from prism_prm import Prm, Step, StepTree, init_prm, read_trees
from prism_prm.packing import with_leaves

Pair = tuple[int, int]
"""(chosen, rejected): nodes of one tree with one parent."""


@dataclass(frozen=True)
class Work:
    """A tree with its negatives as leaves, and the pairs to compare."""

    tree: StepTree
    pairs: list[Pair]


def real_trees(count: int) -> list[StepTree]:
    """The first trees of PRM800K phase 1, or the end of the benchmark where there is no data."""
    folder = os.environ.get("PRISM_DATA")
    if not folder:
        print("skipped: set PRISM_DATA to the folder that holds prm800k/phase1_train.jsonl")
        sys.exit(0)
    trees = read_trees(Path(folder) / "prm800k" / "phase1_train.jsonl")
    return [tree for tree, _ in zip(trees, range(count), strict=False)]


def with_pairs(tree: StepTree, lookaheads: int, rng: random.Random) -> Work:
    """All annotated pairs, and at each position some pairs with a later step of the trunk as a new leaf."""
    pairs: list[Pair] = []
    for _, nodes in tree.positions():
        right = [n for n in nodes if tree.nodes[n].label == 1.0]
        wrong = [n for n in nodes if tree.nodes[n].label == 0.0]
        pairs += [(a, b) for a in right for b in wrong if tree.nodes[a].text != tree.nodes[b].text]
    leaves: list[tuple[int, Step]] = []
    for position, chosen in enumerate(tree.trunk):
        later = [n for n in tree.trunk[position + 1 :] if tree.nodes[n].text != tree.nodes[chosen].text]
        for node in rng.sample(later, min(lookaheads, len(later))):
            pairs.append((chosen, len(tree.nodes) + len(leaves)))
            leaves.append((tree.parents[chosen], tree.nodes[node]))
    return Work(with_leaves(tree, leaves), pairs)


def small_prm(texts: Sequence[str], *, hidden: int, layers: int, context: int = 4096, **options: Any) -> Prm:
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
    with tempfile.TemporaryDirectory() as folder:
        Qwen2Model(config).save_pretrained(folder)
        fast.save_pretrained(folder)
        return init_prm(folder, family="qwen", **options)

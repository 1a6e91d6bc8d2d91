"""Section [train] of a recipe; separate from the training loop, so that a recipe can be read without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from prism_prm.config import Count, NotNegative, Positive, Range, check

Packing = Literal["tree", "pair", "none"]
Decay = Annotated[float, Range(0, below=1)]


@dataclass(frozen=True)
class TrainSettings:
    """Section [train]: how the objective is minimised. Every round starts with a fresh optimiser and schedule."""

    lr: Positive = 1e-6
    """The highest learning rate."""
    epochs: Annotated[int, Range(1, 10_000)] = 1
    """Passes over the pairs of a round."""
    pairs_per_update: Count = 64
    """Pairs (or labelled steps) per update, regardless of packing, micro-batches and number of processes."""
    max_pairs_per_tree_per_update: Count = 8
    """The maximum number of pairs from one tree in an update. They share their prefix, so more are cheaper; 1 makes
    the pairs of an update independent. A tree with too many pairs is spread evenly over the round, and such trees are
    counted."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate changes after the warm-up: constant, or falling to 0 (linear, cosine)."""
    warmup: Annotated[float, Range(0, below=1)] = 0.03
    """The share of a round's updates during which the learning rate rises from 0."""
    weight_decay: NotNegative = 0.0
    """The weight decay of AdamW."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """The decay rates of AdamW's two averages."""
    eps: Positive = 1e-8
    """The epsilon in AdamW's denominator."""
    max_grad_norm: NotNegative = 1.0
    """Gradients are clipped to this norm. 0 turns clipping off."""
    pack: Packing = "tree"
    """What shares its prefix: the pairs of a `tree`, the two steps of a `pair`, or `none`. The result is the same."""
    row_tokens: Count = 4096
    """A packed tree longer than this is split between pairs, repeating the trunk."""
    microbatch_tokens: Count = 8192
    """Tokens per forward and backward pass, including padding."""
    on_too_long: Literal["error", "skip"] = "error"
    """What to do with pairs longer than the model's context: stop (`error`), or leave them out and count them
    (`skip`)."""
    checkpoint_every: Count = 100
    """Updates between checkpoints."""
    keep_checkpoints: Count = 1
    """How many checkpoints are kept."""

    def __post_init__(self) -> None:
        check(self)

    def lr_at(self, update: int, updates: int) -> float:
        """The learning rate of an update (from 0) of a round of `updates`: a formula, so nothing to resume."""
        rising = math.ceil(self.warmup * updates)
        if update < rising:
            return self.lr * (update + 1) / rising
        done = (update - rising) / max(1, updates - rising)
        return (
            self.lr * {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]
        )

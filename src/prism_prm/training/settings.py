"""Section [train] of a recipe; apart from the loop that it rules, so that a recipe is read without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from prism_prm.errors import ConfigError

Packing = Literal["tree", "pair", "none"]


@dataclass(frozen=True)
class TrainSettings:
    """Section [train]: how the objective is minimised. Every round starts with a fresh optimiser and schedule."""

    lr: float = 1e-6
    """The highest learning rate."""
    epochs: int = 1
    """Passes over the pairs of a round."""
    pairs_per_update: int = 64
    """Pairs (or labelled steps) of one update, whatever the packing, micro-batches and number of processes."""
    max_pairs_per_tree_per_update: int = 8
    """Pairs of one tree share their prefix, so more are cheaper; 1 makes the pairs of an update independent. Trees that
    have too many pairs for it are spread evenly over all updates of a round, and the run says how many they are."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls to 0 over a round, after the warm-up."""
    warmup: float = 0.03
    """Share of a round's updates in which the learning rate rises from 0."""
    weight_decay: float = 0.0
    """The weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """The decay rates of AdamW's two averages."""
    eps: float = 1e-8
    """What AdamW adds to its denominator."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 leaves them alone."""
    pack: Packing = "tree"
    """`tree`: pairs of a tree share its prefix. `pair`: the two steps of a pair do. `none`: nothing is. All equal."""
    row_tokens: int = 4096
    """A packed tree longer than this is split between pairs, its trunk repeated."""
    microbatch_tokens: int = 8192
    """Padded tokens of one forward and backward pass."""
    on_too_long: Literal["error", "skip"] = "error"
    """What happens to pairs longer than the model's context: `skip` leaves them out, counted."""
    checkpoint_every: int = 100
    """Updates between checkpoints."""
    keep_checkpoints: int = 1
    """How many checkpoints are kept."""

    def __post_init__(self) -> None:
        for key in ("lr", "epochs", "pairs_per_update", "max_pairs_per_tree_per_update", "row_tokens",
                    "microbatch_tokens", "checkpoint_every", "keep_checkpoints"):  # fmt: skip
            if not getattr(self, key) > 0:
                raise ConfigError(f"train.{key} = {getattr(self, key)}: must be above 0.")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"train.warmup = {self.warmup}: a share of the round's updates, from 0 to below 1.")

    def lr_at(self, update: int, updates: int) -> float:
        """The learning rate of an update (from 0) of a round of `updates`: a formula, so nothing to resume."""
        rising = math.ceil(self.warmup * updates)
        if update < rising:
            return self.lr * (update + 1) / rising
        done = (update - rising) / max(1, updates - rising)
        return (
            self.lr * {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]
        )

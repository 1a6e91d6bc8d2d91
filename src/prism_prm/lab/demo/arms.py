"""The arms of the comparison: what each trains on the same base PRM, as ordinary recipes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAPER_BINS = [[0.5, 1.0], [0.3, 0.5], [0.2, 0.3], [0.1, 0.2]]
ALL_BINS = [[-1.0, 1.0]]
"""Every pair, in one round, whatever its margin."""
BASE_LR = 3e-3
"""The learning rate of the base PRM."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long something trains: the same for all arms."""

    epochs: int
    pairs_per_update: int = 128


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train on from the base PRM."""

    title: str
    about: str
    objective: dict[str, Any]
    bins: list[list[float]]
    lr: float
    """Chosen on validation problems of development seeds, or from a similar arm; experiments/LOG.md says which."""
    curriculum: str = "none"
    lookahead: str | int = "all"
    lookahead_ratio: float | None = None
    trees: str = "annotated"
    """Which trees of the world it trains on."""
    full: bool = False
    """Only with `--full`."""

    def recipe(self, trees: Path, base: Path, budget: Budget, seed: int) -> dict[str, Any]:
        """The arm as a recipe of `prism train`."""
        mixed = {} if self.lookahead_ratio is None else {"lookahead_ratio": self.lookahead_ratio}
        if self.objective.get("on") == "labels":  # a pair is two steps; and there are fewer labels than steps of pairs
            budget = Budget(2 * budget.epochs, 2 * budget.pairs_per_update)
        return {
            **_start(trees, {"lookahead": self.lookahead, "audit": "off"}, base, seed),
            "objective": self.objective,
            "curriculum": {"mode": self.curriculum, "bins": self.bins},
            "train": _training(self.lr, budget),
            **mixed,
        }


def _start(trees: Path, pairs: dict[str, Any], prm: Path, seed: int) -> dict[str, Any]:
    """The seed, the data and the PRM to start from."""
    return {
        "seed": seed,
        "report_to": [],
        "data": {"inputs": [str(trees)], "split": {"train": 0.9, "validation": 0.1}, "pairs": pairs},
        "base": {"prm": str(prm)},
    }


def _training(lr: float, budget: Budget) -> dict[str, Any]:
    """Section [train] of every recipe here."""
    return {
        "lr": lr,
        "epochs": budget.epochs,
        "pairs_per_update": budget.pairs_per_update,
        "max_pairs_per_tree_per_update": 8,
        "warmup": 0.05,
        "betas": [0.9, 0.98],  # the usual 0.999 remembers more updates than there are
        "microbatch_tokens": 16384,
        "checkpoint_every": 200,
    }


def base_recipe(trees: Path, start: Path, budget: Budget, seed: int) -> dict[str, Any]:
    """The base PRM: pointwise on all labels of many problems, lenient as they are."""
    return {
        **_start(trees, {"lookahead": "none"}, start, seed),
        "objective": {"name": "bce", "on": "labels"},
        "curriculum": {"mode": "none"},
        "train": _training(BASE_LR, budget),
        "validation": {"criterion": "auroc"},
    }


_SC = {"name": "sc"}
_SC_LOG_ODDS = {"name": "sc", "space": "log-odds"}
_HYBRID = {"name": "hybrid", "space": "log-odds", "anchor_weight": 1.0}
_RATIO = 0.5
"""Lookahead pairs per annotated pair; all of them would be several times as many."""

ARMS: dict[str, Arm] = {
    "pointwise": Arm(
        "pointwise", "cross-entropy on the steps of the same pairs as our PRISM", {"name": "bce"}, ALL_BINS,
        2e-3, lookahead_ratio=_RATIO,
    ),
    "prism": Arm(
        "PRISM (ours)", "step-contrastive loss on log-odds plus cross-entropy, one lookahead pair per two annotated "
        "ones", _HYBRID, ALL_BINS, 4e-3, lookahead_ratio=_RATIO,
    ),
    "paper": Arm(
        "PRISM (paper)", "step-contrastive loss on probabilities, all lookahead pairs, four rounds from "
        "easy to hard", _SC, PAPER_BINS, 2e-3, "bins",
    ),
    "continued": Arm(
        "continued", "cross-entropy on the base PRM's own lenient labels: does more training alone help?",
        {"name": "bce", "on": "labels"}, ALL_BINS, 2e-3, lookahead="none", trees="base", full=True,
    ),
    "pairs": Arm(
        "pairs only", "step-contrastive loss on probabilities, annotated pairs, no lookahead, no curriculum", _SC,
        ALL_BINS, 1e-3, lookahead="none", full=True,
    ),
    "lookahead": Arm(
        "pairs + lookahead", "the same with lookahead pairs mixed in", _SC, ALL_BINS, 1e-3, lookahead_ratio=_RATIO,
        full=True,
    ),
    "curriculum": Arm(
        "pairs + lookahead + curriculum", "the same in four rounds from easy to hard", _SC, PAPER_BINS, 2e-3, "bins",
        lookahead_ratio=_RATIO, full=True,
    ),
    "log-odds": Arm(
        "log-odds", "our PRISM without its cross-entropy", _SC_LOG_ODDS, ALL_BINS, 4e-3, lookahead_ratio=_RATIO,
        full=True,
    ),
}  # fmt: skip
"""Every arm by name."""

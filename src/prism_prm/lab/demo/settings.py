"""Settings of demos: the arms of the comparison as ordinary recipes, and the presets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prism_prm.lab.demo.reinforcement import Reinforcement
from prism_prm.lab.world.build import WORLDS, WorldSettings
from prism_prm.lab.world.validity_head import VALIDITY
from prism_prm.rl.credit import CREDITS

PAPER_BINS = [[0.5, 1.0], [0.3, 0.5], [0.2, 0.3], [0.1, 0.2]]
VALIDITY_BASE = "reasoneval-base"
"""The base PRM with ReasonEval's head."""
ALL_BINS = [[-1.0, 1.0]]
"""All pairs in one round, regardless of the margin."""


@dataclass(frozen=True, slots=True)
class TrainingBudget:
    """The length of training, the same for all arms."""

    epochs: int
    pairs_per_update: int = 128
    updates: int | None = None
    """The same number of updates for every arm, whatever its pairs, instead of epochs."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to continue training from the base PRM."""

    title: str
    about: str
    objective: dict[str, Any]
    bins: list[list[float]]
    lr: float
    """Chosen on validation problems of development seeds, or copied from a similar arm (see experiments/LOG.md)."""
    curriculum: str = "none"
    lookahead: str | int = "all"
    lookahead_ratio: float | None = None
    trees: str = "annotated"
    """The trees of the world to train on."""
    family: str = "qwen"
    """The family of the base PRM that it starts from."""
    full: bool = True
    """Only with `--full`."""

    def recipe(self, trees: Path, base: Path, budget: TrainingBudget, seed: int) -> dict[str, Any]:
        """The arm as a recipe of `prism train`."""
        if self.objective.get("on") == "labels":  # a pair is two steps, and there are fewer labels than steps in pairs
            budget = replace(budget, epochs=2 * budget.epochs, pairs_per_update=2 * budget.pairs_per_update)
        return {
            **_recipe(trees, {"lookahead": self.lookahead, "audit": "off"}, base, self.lr, budget, seed, self.family),
            "objective": self.objective,
            "curriculum": {"mode": self.curriculum, "bins": self.bins},
            **({} if self.lookahead_ratio is None else {"lookahead_ratio": self.lookahead_ratio}),
        }


def base_recipe(trees: Path, start: Path, budget: TrainingBudget, seed: int, family: str = "qwen") -> dict[str, Any]:
    """The recipe of the base PRM: pointwise on all lenient labels of many problems."""
    return {
        **_recipe(trees, {"lookahead": "none"}, start, 3e-3, budget, seed, family),
        "objective": {"name": "bce", "on": "labels"},
        "curriculum": {"mode": "none"},
        "validation": {"criterion": "auroc"},
    }


def _recipe(
    trees: Path, pairs: dict[str, Any], prm: Path, lr: float, budget: TrainingBudget, seed: int, family: str
) -> dict[str, Any]:
    """The common part of all recipes."""
    return {
        "seed": seed,
        "report_to": [],
        "data": {"inputs": [str(trees)], "split": {"train": 0.9, "validation": 0.1}, "pairs": pairs},
        "base": {"prm": str(prm), **({} if family == "qwen" else {"family": family})},
        "train": {
            "lr": lr,
            "epochs": budget.epochs,
            **({} if budget.updates is None else {"updates": budget.updates}),
            "pairs_per_update": budget.pairs_per_update,
            "max_pairs_per_tree_per_update": 8,
            "warmup": 0.05,
            "betas": [0.9, 0.98],  # the usual 0.999 averages over more updates than there are
            "microbatch_tokens": 16384,
            "checkpoint_every": 200,
        },
    }


_LABELS = {"name": "bce", "on": "labels"}
_SC = {"name": "sc"}
_SC_LOG_ODDS = {"name": "sc", "space": "log-odds"}
_HYBRID = {"name": "hybrid", "space": "log-odds", "anchor_weight": 1.0}
_RATIO = 0.5
"""Lookahead pairs per annotated pair; there are several times as many in all."""

ARMS: dict[str, Arm] = {
    "pointwise": Arm(
        "pointwise", "cross-entropy on the steps of the same pairs as our PRISM", {"name": "bce"}, ALL_BINS,
        2e-3, lookahead_ratio=_RATIO, full=False,
    ),
    "prism": Arm(
        "PRISM (ours)", "step-contrastive loss on log-odds plus cross-entropy, one lookahead pair per two annotated "
        "ones", _HYBRID, ALL_BINS, 4e-3, lookahead_ratio=_RATIO, full=False,
    ),
    "paper": Arm(
        "PRISM (paper)", "step-contrastive loss on probabilities, all lookahead pairs, four rounds from "
        "easy to hard", _SC, PAPER_BINS, 2e-3, "bins", full=False,
    ),
    "continued": Arm(
        "continued", "cross-entropy on the base PRM's own lenient labels: does more training alone help?",
        _LABELS, ALL_BINS, 2e-3, lookahead="none", trees="base",
    ),
    "exact-labels": Arm(
        "exact labels", "cross-entropy on the exact labels of the same trees, unpaired", _LABELS, ALL_BINS, 2e-3,
        lookahead="none",
    ),
    "pairs": Arm(
        "pairs only", "step-contrastive loss on probabilities, annotated pairs, no lookahead, no curriculum", _SC,
        ALL_BINS, 1e-3, lookahead="none",
    ),
    "lookahead": Arm(
        "pairs + lookahead", "the same with lookahead pairs mixed in", _SC, ALL_BINS, 1e-3, lookahead_ratio=_RATIO,
    ),
    "filter-only": Arm(
        "… + filter only", "pairs + lookahead without margins below 0.1, in one round", _SC, PAPER_BINS, 2e-3,
        lookahead_ratio=_RATIO,
    ),
    "order-only": Arm(
        "… + order only", "pairs + lookahead, all of them, in rounds from easy to hard, negative margins last", _SC,
        [*PAPER_BINS, [0.0, 0.1], [-1.0, 0.0]], 2e-3, "bins", lookahead_ratio=_RATIO,
    ),
    "curriculum": Arm(
        "pairs + lookahead + curriculum", "the same in four rounds from easy to hard", _SC, PAPER_BINS, 2e-3, "bins",
        lookahead_ratio=_RATIO,
    ),
    "bins-from-0.7": Arm(
        "paper, bins from 0.7", "PRISM (paper) with the first of the paper's two other sets of bins", _SC,
        [[0.7, 1.0], [0.5, 0.7], [0.3, 0.5], [0.1, 0.3]], 2e-3, "bins",
    ),
    "bins-three": Arm(
        "paper, three bins", "PRISM (paper) with the second of the paper's two other sets of bins", _SC,
        [[0.5, 1.0], [0.3, 0.5], [0.1, 0.3]], 2e-3, "bins",
    ),
    "reasoneval": Arm(
        "ReasonEval head", "PRISM (paper) with the bins of its appendix, from a base PRM with validity and redundancy",
        _SC, [[0.5, 1.0], [0.3, 0.5], [0.1, 0.3], [0.0, 0.1]], 2e-3, "bins", family=VALIDITY,
    ),
    "log-odds": Arm(
        "log-odds", "our PRISM without its cross-entropy", _SC_LOG_ODDS, ALL_BINS, 4e-3, lookahead_ratio=_RATIO,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What a demo runs for each seed."""

    world: WorldSettings
    base: TrainingBudget
    arms: TrainingBudget
    rl: Reinforcement | None
    """How policies are trained with these PRMs; None to skip it."""
    names: tuple[str, ...] = tuple(name for name, arm in ARMS.items() if not arm.full)
    """The arms besides the base PRM, in the order of the report."""
    equal_updates: int = 400
    """With `--full`, the updates of every arm, instead of epochs."""
    far: bool = False
    """Whether to measure out of distribution, too."""


PRESETS = {
    "demo": DemoSettings(WORLDS["demo"], TrainingBudget(6, 256), TrainingBudget(2), Reinforcement()),
    "quick": DemoSettings(
        WORLDS["quick"], TrainingBudget(10, 64), TrainingBudget(1),
        Reinforcement(updates=6, prompts=8, held_out=40, every=3), equal_updates=8,
    ),
}  # fmt: skip
"""`demo` is what `prism demo` runs; `quick` checks in about a minute that everything works."""


def demo_settings(*, quick: bool = False, full: bool = False) -> DemoSettings:
    """A preset; `full` adds all ablations, out-of-distribution tests, and all ways to assign credit."""
    settings = PRESETS["quick" if quick else "demo"]
    if not full:
        return settings
    assert settings.rl is not None, "every preset has it"
    rl = replace(settings.rl, credits=tuple(CREDITS), betas=(0.0, 0.1))
    arms = replace(settings.arms, updates=settings.equal_updates)
    return replace(settings, names=tuple(ARMS), far=True, rl=rl, arms=arms)

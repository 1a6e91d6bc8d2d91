"""Where over-credit comes from: share of right labels × label noise × loss, with a PRM of equal budget for each cell.

In three new worlds like the demo's, labeled steps are drawn with a given share of right ones, then some of the wrong
ones are labeled right. Each such stream provides the labeled steps for cross-entropy, and pairs with a common prefix
for the other losses. All PRMs see the same number of updates and steps. They start from a model that already
distinguishes right from wrong (trained on exact labels of other problems) with a new head, so that the effect of the
labels is not confounded with what was not learned yet; `--start backbone` skips this, and needs more updates.

A finished cell is a small JSON file; a stopped run resumes with the same command. It prints the tables of
docs/lab/over-credit.md, and `--figure` draws its figure.

Run: python experiments/origin_map.py --out runs/origin-map --figure docs/figures/origin-map.svg
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from origin_report import draw, map_tables
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.backends.load_prm import init_prm
from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.data.pair_examples import Examples, labeled_steps
from prism_prm.data.tables import iter_trees
from prism_prm.job import content_key, once
from prism_prm.lab.world.build import FORMAT, World, build_world, world_settings
from prism_prm.lab.world.policy import PRM_SETTINGS
from prism_prm.lab.world.trees import let_errors_pass
from prism_prm.losses import Objective
from prism_prm.metrics import Ranking, Target, calibration_error, calibration_gaps, fnr, fpr, sum_counts
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.models.prm import PRM, pair_cost
from prism_prm.train.batches import RowLimits, batch_maker
from prism_prm.train.loop import TrainingRound
from prism_prm.train.recipe import TrainSettings
from prism_prm.tree import StepTree

SHARES = (0.5, 0.7, 0.85, 0.95, 0.98)
NOISES = {"none": None, "independent": 1e6, "systematic": 0.25}
"""Name → how evenly the kinds of errors pass as right; see `let_errors_pass`."""
PASSING = 0.4
"""The share of wrong steps that are labeled right, as in the demo."""
LOSSES = {
    "cross-entropy": Objective("bce", on="labels"),
    "cross-entropy on pairs": Objective("bce"),
    "contrastive": Objective("sc"),
    "hybrid": Objective("hybrid", space="log-odds"),
}
SEEDS = (30, 31, 32)


@dataclass(frozen=True)
class Budget:
    """The same for every cell; chosen on the world of seed 100."""

    labels: int = 5_120
    """Labeled steps of a stream."""
    updates: int = 40
    steps_per_update: int = 128
    """Labeled steps per update; half as many pairs."""
    lr: float = 3e-3


JUDGE = Budget(updates=500, steps_per_update=256)
"""The training of the start model."""


class Lab:
    """One world with the trees that cells draw from, and the model they start from."""

    def __init__(self, seed: int, out: Path, start: str) -> None:
        settings = replace(
            world_settings("demo", seed=seed), base_trees=4000, passing_errors=0.0, pair_trees=2500, pool_problems=1,
            pool_size=1,
        )  # fmt: skip
        self.seed = seed
        self.out = out
        self.world: World = build_world(settings, out / "world")
        self.test = list(iter_trees(self.world.trees("natural")))
        exact = list(iter_trees(self.world.trees("annotated")))
        self.trees = {
            noise: exact if evenness is None else let_errors_pass(exact, PASSING, evenness, seed)
            for noise, evenness in NOISES.items()
        }
        self._prm = init_prm(self.world.backbone, family="qwen", settings=PRM_SETTINGS, seed=seed, device="cpu")
        if start == "judge":
            self._prm.module.backbone.load_state_dict(self._judge().module.backbone.state_dict())
        self._start = copy.deepcopy(self._prm.module.state_dict())

    def fresh(self) -> PRM:
        """The PRM that every cell starts from: its head is random."""
        self._prm.module.load_state_dict(self._start)
        return self._prm

    def _judge(self) -> PRM:
        """A PRM trained on exact labels of problems that no cell has."""
        folder = self.out / f"judge-{content_key(FORMAT, self.world.data.name, JUDGE.updates)}"
        if not folder.exists():
            prm = init_prm(self.world.backbone, family="qwen", settings=PRM_SETTINGS, seed=self.seed, device="cpu")
            examples = labeled_steps({tree.tree_id: tree for tree in iter_trees(self.world.trees("base"))})
            train(prm, examples, LOSSES["cross-entropy"], JUDGE, self.seed, self.out)
            say(f"judge of world {self.seed}: {json.dumps(measure(prm, self.test))}")
            prm.save(folder)
        return PRM.from_pretrained(folder, device="cpu")


def draw_stream(trees: Sequence[StepTree], share: float, count: int, seed: int) -> set[tuple[int, int]]:
    """(tree, node) of `count` steps, a `share` of them right.

    Every wrong step comes with the right step after the same prefix, so that it has a partner; other right steps fill
    up.
    """
    rng = np.random.default_rng([seed, 11])
    places = [(tree.tree_id, node) for tree in trees for node in range(len(tree.nodes))]
    by_id = {tree.tree_id: tree for tree in trees}
    right = [at for at in places if by_id[at[0]].nodes[at[1]].label == 1.0]
    wrong = [at for at in places if by_id[at[0]].nodes[at[1]].label == 0.0]
    num_wrong = round((1 - share) * count)
    assert num_wrong <= len(wrong), "the world has too few wrong steps"
    assert count - num_wrong <= len(right), "the world has too few right steps"
    chosen = {wrong[i] for i in rng.permutation(len(wrong))[:num_wrong]}
    prefixes = {(tree, by_id[tree].parents[node]) for tree, node in chosen}
    is_partner = np.array([(tree, by_id[tree].parents[node]) in prefixes for tree, node in right])
    shuffled = rng.permutation(len(right))
    partners_first = shuffled[np.argsort(~is_partner[shuffled], kind="stable")]
    return chosen | {right[i] for i in partners_first[: count - num_wrong]}


def examples_of(trees: Sequence[StepTree], stream: set[tuple[int, int]], on: str) -> Examples:
    """The labeled steps of a stream, or all pairs of a step labeled right and one labeled wrong after one prefix."""
    rows: list[tuple[int, int, int, float]] = []
    for tree in trees:
        for _, nodes in tree.positions():
            here = [node for node in nodes if (tree.tree_id, node) in stream]
            if on == "labels":
                rows += [(tree.tree_id, node, node, tree.nodes[node].label or 0.0) for node in here]
                continue
            good, bad = ([node for node in here if tree.nodes[node].label == label] for label in (1.0, 0.0))
            rows += [(tree.tree_id, a, b, 1.0) for a in good for b in bad]
    tree_N, chosen_N, rejected_N = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    labels_N = np.array([row[3] for row in rows]) if on == "labels" else None
    by_id = {tree.tree_id: tree for tree in trees}
    return Examples(by_id, np.arange(len(rows)), tree_N, chosen_N, rejected_N, tree_N, labels_N)


def plan(examples: Examples, updates: int, size: int, seed: int) -> list[Ints]:
    """Exactly `updates` × `size` examples: pass after pass over all of them, trees in random order."""
    rng = np.random.default_rng([seed, 12])
    trees = examples.by_tree()
    order = np.concatenate(
        [trees[i] for _ in range(updates * size // len(examples) + 1) for i in rng.permutation(len(trees))]
    )
    return list(order[: updates * size].reshape(updates, size))


def train(prm: PRM, examples: Examples, objective: Objective, budget: Budget, seed: int, folder: Path) -> int:
    """Train in place with the package's loop; returns the number of tokens."""
    from accelerate import Accelerator

    settings = TrainSettings(
        lr=budget.lr, warmup=0.05, betas=(0.9, 0.98), microbatch_tokens=16384, checkpoint_every=10**6
    )
    limits = RowLimits(settings.row_tokens, pair_cost(prm.module))
    maker = batch_maker(prm.module, settings.microbatch_tokens)
    tokens: list[int] = []
    work = TrainingRound(
        "map", prm.module, prm.family, maker, limits, examples, objective, settings, (seed, 0), folder / "checkpoints",
        on_update=lambda line: tokens.append(line["tokens"]),
    )  # fmt: skip
    size = budget.steps_per_update if examples.labels is not None else budget.steps_per_update // 2
    work.updates = plan(examples, budget.updates, size, seed)
    work.run(Accelerator(cpu=True))
    prm.module.eval()
    return sum(tokens)


def measure(prm: PRM, trees: Sequence[StepTree]) -> dict[str, float]:
    """Errors by the oracle's labels, on all steps of test trees."""
    probability = np.concatenate([found.probability for found in prm.score_trees(trees)])
    right = np.array([node.label == 1.0 for tree in trees for node in tree.nodes])
    return errors(right, probability)


def errors(right: Bools, probability: Floats) -> dict[str, float]:
    """The errors of scores."""
    counts = sum_counts(right, probability > 0.5)
    gaps = calibration_gaps(right, probability)
    ranking = Ranking.of(right, probability)
    ranked = ranking.metrics()
    return {
        "fpr": float(fpr(counts)),
        "fnr": float(fnr(counts)),
        "fpr_at_tpr_90": ranked["fpr_at_tpr_90"],
        "auroc": ranked["auroc"],
        "ece": float(calibration_error(gaps.sum(axis=0), np.array(len(right)))),
        "threshold_for_tpr_90": ranking.threshold(Target("tpr", 0.9)),
    }


def run_cell(lab: Lab, share: float, noise: str, loss: str, budget: Budget) -> dict[str, Any]:
    """Train one PRM; returns its data and its errors."""
    stream = draw_stream(lab.trees["none"], share, budget.labels, lab.seed)
    trees = lab.trees[noise]
    by_id = {tree.tree_id: tree for tree in trees}
    examples = examples_of(trees, stream, LOSSES[loss].on)
    prm = lab.fresh()
    started = time.process_time()
    tokens = train(prm, examples, LOSSES[loss], budget, lab.seed, lab.out)
    return {
        "seed": lab.seed, "share": share, "noise": noise, "loss": loss, "examples": len(examples),
        "labelled_right": float(np.mean([by_id[tree].nodes[node].label == 1.0 for tree, node in stream])),
        "tokens": tokens, "cpu_seconds": time.process_time() - started, **measure(prm, lab.test),
    }  # fmt: skip


def main() -> None:
    """Run the cells that are not done yet, then print all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument("--start", choices=["judge", "backbone"], default="judge")
    parser.add_argument("--updates", type=int, default=Budget.updates)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    budget = Budget(updates=given.updates)
    cells = []
    with quiet_transformers():
        for seed in given.seeds:
            lab = Lab(seed, given.out, given.start)
            for share, noise, loss in itertools.product(given.shares, given.noises, given.losses):
                name = f"{given.start}-{seed}-{share:g}-{noise}-{loss.replace(' ', '-')}"
                key = content_key(FORMAT, name, budget, LOSSES[loss], lab.world.data.name)
                path = given.out / "cells" / f"{name}-{key}.json"
                is_new = not path.exists()
                cells.append(once(path, key, lambda: run_cell(lab, share, noise, loss, budget)))  # noqa: B023
                if is_new:
                    say(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in cells[-1].items()}))
    print(map_tables(cells))
    if given.figure:
        draw(cells, given.figure)


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()

"""The demo's base PRM on labels from rollouts: does it over-credit as strongly as on injected noise?

In worlds built by `prism demo`, the labels of the base PRM are replaced by labels from rollouts of the world's own
policy, or by the oracle's, and its recipe is run again: same problems, start, budget and seed. With `--arms`, the base
PRM on any of 8 is trained further by the recipe of PRISM (ours), with pairs from rollouts alone or exact ones.

Every finished part is a file; a stopped run resumes with the same command.

Run: prism demo --seeds 5 --set first_seed=20 --out runs/demo
     python experiments/demo_labels.py --demo runs/demo --out runs/demo-labels
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from natural_origin import SAMPLING, any_of, noise, solves, some, sure, with_labels
from origin_map import measure
from origin_report import arm_tables, demo_tables
from prism_prm.backends.policy import open_policy
from prism_prm.cli.ui import Terminal
from prism_prm.config import from_mapping
from prism_prm.console import say, shown_on
from prism_prm.data.tables import iter_trees, write_trees
from prism_prm.job import content_key, once
from prism_prm.lab.demo.settings import ARMS, PRESETS, TrainingBudget, base_recipe
from prism_prm.lab.world.build import FORMAT, World, build_world
from prism_prm.lab.world.oracle import judge_step
from prism_prm.lab.world.problems import Problem
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.models.prm import PRM
from prism_prm.search.label_engine import label_trees
from prism_prm.search.label_rules import LabelSettings
from prism_prm.train.recipe import Recipe
from prism_prm.train.train_prm import train_prm
from prism_prm.tree import StepTree

SEEDS = (20, 21, 22, 23, 24)
ROLLOUTS = (8, 16, 32)
AT_ONCE = 250
ARM_TREES, ARM_BUDGET = 2000, TrainingBudget(epochs=6)
"""A quarter of the demo's problems, three times as often."""
PAIR_RULES: dict[str, Callable[[float, int], float | None]] = {"any-8": some, "sure": sure}


class DemoWorld:
    """A world of the demo, with the labels of its base PRM from several sources."""

    def __init__(self, seed: int, demo: Path, out: Path) -> None:
        self.seed = seed
        self.world: World = build_world(replace(PRESETS["demo"].world, seed=seed), demo / "world")
        self.demo = demo / f"seed-{seed}"
        self.folder = out / f"world-{seed}-{content_key(FORMAT, self.world.data.name)}"
        self.injected = list(iter_trees(self.world.trees("base")))
        self.exact = exactly(self.injected, self.world.settings.modulus)
        self.test = list(iter_trees(self.world.trees("natural")))

    def rolled(self, name: str, trees: Sequence[StepTree], settings: LabelSettings) -> list[StepTree]:
        """The same trees with values from rollouts."""
        path = self.folder / f"{name}-{settings.rollouts}.parquet"
        if not path.exists():
            wall, cpu = time.monotonic(), time.process_time()
            with contextlib.closing(open_policy(f"hf:{self.world.policy}")) as policy:
                found = label_trees(
                    trees, policy, solves, replace(settings, seed=self.seed, sampling=SAMPLING), at_once=AT_ONCE
                )
            write_trees(path, found)
            seconds = f"{time.monotonic() - wall:.0f} s ({time.process_time() - cpu:.0f} s of CPU)"
            say(f"world {self.seed}: {len(trees):,} trees labeled in {seconds}")
        return list(iter_trees(path))

    def labels(self, name: str) -> list[StepTree]:
        """The trees with labels from this source."""
        if name in ("exact", "injected"):
            return self.exact if name == "exact" else self.injected
        until_hit = LabelSettings("adaptive", rollouts=max(ROLLOUTS), alternatives=0)
        rolled = self.rolled("rolled", self.injected, until_hit)
        return with_labels(rolled, any_of(int(name.removeprefix("any-"))))

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A cached result of this world."""
        path = self.folder / f"{name}.json"
        is_new = not path.exists()
        found: dict[str, Any] = once(path, content_key(FORMAT, self.world.data.name, name), make)
        if is_new:
            say(f"{self.seed} {name}: {json.dumps(found)[:300]}")
        return found

    def noise(self, name: str) -> dict[str, Any]:
        """The errors of the labels, compared with the oracle's."""
        return self.once(f"noise-{name}", lambda: noise(self.exact, self.labels(name), self.world.settings.modulus))

    def errors(self, name: str) -> dict[str, float]:
        """The errors of the base PRM with these labels on the demo's test problems."""
        return self.once(
            f"base-{name}", lambda: measure(PRM.from_pretrained(self._base(name), device="cpu"), self.test)
        )

    def _base(self, name: str) -> Path:
        """The base PRM with these labels; that with injected noise is the demo's own."""
        if name == "injected":
            (run,) = self.demo.glob("base-*/run.json")
            return run.parent / str(json.loads(run.read_text(encoding="utf-8"))["best"])
        trees = self.folder / f"{name}.parquet"
        if not trees.exists():
            write_trees(trees, self.labels(name))
        (fresh,) = self.demo.glob("fresh-*")
        return self._train(name, base_recipe(trees, fresh, PRESETS["demo"].base, self.seed))

    def _train(self, name: str, recipe: dict[str, Any]) -> Path:
        from accelerate import Accelerator

        return Path(
            train_prm(from_mapping(Recipe, recipe), self.folder / f"run-{name}", accelerator=Accelerator(cpu=True))[
                "best"
            ]
        )

    def pairs(self, name: str) -> list[StepTree]:
        """Trees for pairs, with labels from this source."""
        exact = list(iter_trees(self.world.trees("annotated")))[:ARM_TREES]
        if name == "exact":
            return exact
        rolled = self.rolled("pairs", exact, LabelSettings("monte-carlo", rollouts=8, alternatives=0))
        return with_labels(rolled, PAIR_RULES[name])

    def arm(self, name: str) -> dict[str, float]:
        """The errors of the base PRM on any of 8 after further training with these pairs."""

        def make() -> dict[str, float]:
            trees = self.folder / f"pairs-{name}.parquet"
            if not trees.exists():
                write_trees(trees, self.pairs(name))
            recipe = ARMS["prism"].recipe(trees, self._base("any-8"), ARM_BUDGET, self.seed)
            return measure(PRM.from_pretrained(self._train(f"pairs-{name}", recipe), device="cpu"), self.test)

        return self.once(f"arm-{name}", make)


def exactly(trees: Sequence[StepTree], modulus: int) -> list[StepTree]:
    """The same trees with the oracle's labels."""

    def label(tree: StepTree, problem: Problem, node: int) -> float:
        *prefix, text = tree.texts(tree.path(node))
        return float(judge_step(problem, prefix, text) == "right")

    found = []
    for tree in trees:
        problem = Problem.parse(tree.problem, modulus)
        nodes = tuple(replace(step, label=label(tree, problem, i)) for i, step in enumerate(tree.nodes))
        found.append(replace(tree, nodes=nodes))
    return found


def main() -> None:
    """Run what is not done yet, then print all results."""
    names = ("injected", *(f"any-{k}" for k in ROLLOUTS), "exact")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, required=True, help="a folder of `prism demo`, with the worlds to use")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--labels", nargs="+", default=list(names), choices=names)
    parser.add_argument("--arms", action="store_true", help="also train the base PRM on any of 8 further")
    given = parser.parse_args()
    with quiet_transformers():
        worlds = [DemoWorld(seed, given.demo.resolve(), given.out) for seed in given.seeds]
        results = {name: [world.errors(name) for world in worlds] for name in given.labels}
        counts = {name: [world.noise(name) for world in worlds] for name in given.labels}
        arms = {name: [world.arm(name) for world in worlds] for name in (*PAIR_RULES, "exact")} if given.arms else {}
    print(demo_tables(results, counts))
    if given.arms:
        print(arm_tables(results["any-8"], arms))


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()

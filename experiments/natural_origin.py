"""The natural origin of over-credit: base PRMs trained on labels from rollouts, and how to fix them without an oracle.

In worlds like the demo's, the steps of trees are labeled by rollouts of the world's own policy (`prism label`), and the
labels are compared with the oracle's by error class, position, number of rollouts, policy and length. Then base PRMs
are trained on exact labels, on the demo's injected noise and on labels from rollouts, with the same problems and
budget, and one of them is trained further with matched pairs: from rollouts alone, agreed on by two policies, or exact.

Every finished part is a file; a stopped run resumes with the same command.

Run: python experiments/natural_origin.py --out runs/natural-origin
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from origin_map import LOSSES, Budget, errors, examples_of, measure, train
from origin_report import natural_tables
from prism_prm.backends.load_prm import init_prm
from prism_prm.backends.policy import Sampling, open_policy
from prism_prm.cli.ui import Terminal
from prism_prm.console import say, shown_on
from prism_prm.data.tables import iter_trees, write_trees
from prism_prm.data.tasks import TaskProblem
from prism_prm.job import content_key, once
from prism_prm.lab.world.build import FORMAT, World, WorldSettings, build_world, world_settings
from prism_prm.lab.world.oracle import judge_step
from prism_prm.lab.world.policy import PRM_SETTINGS, STEP_END
from prism_prm.lab.world.problems import ANSWER_MARK, Problem, ProblemSettings
from prism_prm.lab.world.trees import let_errors_pass
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.models.prm import PRM
from prism_prm.search.label_checks import keep_agreed
from prism_prm.search.label_engine import label_trees
from prism_prm.search.label_rules import LabelSettings
from prism_prm.tree import StepTree

SEEDS = (30, 31, 32)
INJECTED = (0.4, 0.25)
"""The demo's noise: the share of wrong steps that pass, and how evenly over kinds of steps."""
BASE = Budget(updates=300, steps_per_update=256)
"""For a base PRM: the demo's learning rate and labels per update, fewer problems and updates."""
ARM = Budget(updates=60, steps_per_update=256, lr=4e-3)
"""For further training of a base PRM: the demo's learning rate and pairs per update."""
SAMPLING = Sampling(temperature=1.0, max_step_tokens=8, max_tokens=48)
ROLLOUTS = (8, 16, 32)
TRAINED = (8, 32)
"""The numbers of rollouts for the labels of base PRMs."""


def solves(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
    """Whether solutions end with the right answer."""
    return [text.split(STEP_END)[-1] == f"{ANSWER_MARK}{problem.answer}" for problem, text in solutions]


def label_by_rollouts(trees: Sequence[StepTree], policy: Path, settings: LabelSettings, path: Path) -> list[StepTree]:
    """The same trees labeled by rollouts; cached in a file."""
    if not path.exists():
        with contextlib.closing(open_policy(f"hf:{policy}")) as who:
            found = label_trees(trees, who, solves, replace(settings, sampling=SAMPLING))
        write_trees(path, found)
    return list(iter_trees(path))


def with_labels(trees: Sequence[StepTree], rule: Callable[[float, int], float | None]) -> list[StepTree]:
    """Labels from (value, rollouts) of each step's estimate; a step that ends its solution keeps its verdict."""

    def label(step: Any) -> float | None:
        assert step.estimate is not None, "every step was labeled by rollouts"
        if not step.estimate.rollouts:
            return float(step.estimate.value)
        return rule(step.estimate.value, step.estimate.rollouts)

    return [replace(tree, nodes=tuple(replace(step, label=label(step)) for step in tree.nodes)) for tree in trees]


def any_of(k: int) -> Callable[[float, int], float]:
    """Right if one of the first k rollouts reached the answer; sampling stopped at the first that did."""
    return lambda value, rollouts: float(value > 0 and rollouts <= k)


def noise(exact: Sequence[StepTree], guessed: Sequence[StepTree], modulus: int) -> dict[str, Any]:
    """Wrong steps labeled right and right ones labeled wrong, by error class and by the number of operations left."""
    passed, wrong = Counter[str](), Counter[str]()
    failed = right = 0
    for tree, other in zip(exact, guessed, strict=True):
        problem = Problem.parse(tree.problem, modulus)
        for node, depth in enumerate(tree.depths()):
            if other.nodes[node].label is None:
                continue
            called_right = other.nodes[node].label == 1.0
            if tree.nodes[node].label == 1.0:
                right += 1
                failed += not called_right
                continue
            *prefix, text = tree.texts(tree.path(node))
            for name in ("all", judge_step(problem, prefix, text), f"{len(problem.operations) - depth} left"):
                wrong[name] += 1
                passed[name] += called_right
    return {
        "wrong": dict(wrong), "passed": {name: passed[name] for name in wrong}, "right": right, "failed": failed,
    }  # fmt: skip


class Lab:
    """One world: its trees, their labels by rollouts, and the PRMs trained on them."""

    def __init__(self, settings: WorldSettings, out: Path, *, second: Path | None = None) -> None:
        self.world: World = build_world(settings, out / "world")
        self.seed = settings.seed
        self.key = content_key(FORMAT, self.world.data.name)
        self.folder = out / f"world-{self.seed}-{self.key}"
        self.second = second
        self.test = list(iter_trees(self.world.trees("natural")))
        self.base = list(iter_trees(self.world.trees("base")))
        self.pairs = list(iter_trees(self.world.trees("annotated")))

    def rolled(self, name: str, policy: Path, settings: LabelSettings) -> list[StepTree]:
        """The trees `name` labeled by a policy."""
        trees = {"base": self.base, "pairs": self.pairs}[name]
        who = "own" if policy == self.world.policy else "second"
        return label_by_rollouts(trees, policy, settings, self.folder / f"{name}-{who}-{settings.method}.parquet")

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A cached result of this world."""
        path = self.folder / f"{name}.json"
        is_new = not path.exists()
        found: dict[str, Any] = once(path, content_key(self.key, name, BASE, ARM), make)
        if is_new:
            say(f"{self.seed} {name}: {json.dumps(found)[:300]}")
        return found

    def train_base(self, name: str, trees: Sequence[StepTree]) -> dict[str, float]:
        """The errors of a base PRM trained on all labels of some trees."""

        def make() -> dict[str, float]:
            prm = init_prm(self.world.backbone, family="qwen", settings=PRM_SETTINGS, seed=self.seed, device="cpu")
            train(
                prm,
                examples_of(trees, every_step(trees), "labels"),
                LOSSES["cross-entropy"],
                BASE,
                self.seed,
                self.folder,
            )
            prm.save(self.folder / f"prm-{name}")
            return measure(prm, self.test)

        return dict(self.once(f"base-{name}", make))

    def train_arm(self, name: str, base: str, trees: Sequence[StepTree], loss: str) -> dict[str, float]:
        """The errors of a base PRM after further training."""

        def make() -> dict[str, float]:
            prm = PRM.from_pretrained(self.folder / f"prm-{base}", device="cpu")
            examples = examples_of(trees, every_step(trees), LOSSES[loss].on)
            train(prm, examples, LOSSES[loss], ARM, self.seed, self.folder)
            return {**measure(prm, self.test), "examples": len(examples)}

        return dict(self.once(f"arm-{name}", make))


def every_step(trees: Sequence[StepTree]) -> set[tuple[int, int]]:
    """(tree, node) of every step that has a label."""
    return {(tree.tree_id, i) for tree in trees for i, step in enumerate(tree.nodes) if step.label is not None}


ARMS = ("any", "sure", "consensus")
"""The sources of pair labels other than the oracle."""
NOISES = ("injected", *(f"any-{k}" for k in ROLLOUTS), *(f"pairs-{arm}" for arm in ARMS))
"""Labels whose noise is shown."""


def run_world(lab: Lab) -> dict[str, dict[str, float]]:
    """The errors of all PRMs of one world."""
    rolled = lab.rolled("base", lab.world.policy, until_hit(lab.seed))
    injected = let_errors_pass(lab.base, *INJECTED, lab.seed)
    lab.once("noise-injected", lambda: noise(lab.base, injected, lab.world.settings.modulus))
    noise_by_rollouts(lab)
    found = {
        "exact labels": lab.train_base("exact", lab.base),
        "injected noise": lab.train_base("injected", injected),
        **{f"any of {k}": lab.train_base(f"any-{k}", with_labels(rolled, any_of(k))) for k in TRAINED},
    }
    labels = pair_labels(lab)
    found["continued"] = lab.train_arm("continued", "any-8", labels["any"], "cross-entropy")
    for name, trees in {**labels, "exact": lab.pairs}.items():
        found[f"pairs: {name}"] = lab.train_arm(f"pairs-{name}", "any-8", trees, "hybrid")
    return found


def pair_labels(lab: Lab) -> dict[str, list[StepTree]]:
    """The trees of pairs with the labels of each arm, and their noise."""
    assert lab.second is not None, "consensus needs a second policy"
    eight = LabelSettings("monte-carlo", rollouts=8, alternatives=0, seed=lab.seed)
    first = lab.rolled("pairs", lab.world.policy, eight)
    second = with_labels(lab.rolled("pairs", lab.second, replace(eight, seed=lab.seed + 1)), some)
    labels = {
        "any": with_labels(first, some),
        "sure": with_labels(first, sure),
    }
    labels["consensus"] = keep_agreed(labels["any"], second, Counter())

    def of(name: str) -> Callable[[], Any]:
        return lambda: noise(lab.pairs, labels[name], lab.world.settings.modulus)

    for name in ARMS:
        lab.once(f"noise-pairs-{name}", of(name))
    return labels


def some(value: float, rollouts: int) -> float:  # noqa: ARG001
    """Right if any rollout reached the answer."""
    return float(value > 0)


def sure(value: float, rollouts: int) -> float | None:  # noqa: ARG001
    """Right if at least half of the rollouts reached the answer, wrong if none did; else no label."""
    return 1.0 if value >= 0.5 else 0.0 if value == 0 else None


LENGTHS = (2, 3, 4, 5)
STRENGTHS = (0.7, 0.8, 0.9)
VARIED_TREES = 120
"""Problems of each length, and for each policy."""


def vary(out: Path, seed: int) -> dict[str, Any]:
    """Label noise by the length of problems, and by the policy's share of right steps."""
    demo = world_settings("demo", seed=seed)
    found: dict[str, Any] = {}
    for strength in STRENGTHS:
        is_demos = strength == demo.policy.target
        policy = demo.policy if is_demos else replace(demo.policy, target=strength, backbone_target=0.0)
        for length in LENGTHS if is_demos else (4,):
            problems = ProblemSettings(demo.modulus, demo.problems.operators, length, length)
            few = replace(
                demo, policy=policy, problems=problems, base_trees=VARIED_TREES, passing_errors=0.0, pair_trees=1,
                test_trees=1, pool_problems=1, pool_size=1,
            )  # fmt: skip
            for k, counts in noise_by_rollouts(Lab(few, out)).items():
                found.setdefault(f"{100 * strength:.0f} % right steps, {length} operations", {})[k] = counts
    return found


def noise_by_rollouts(lab: Lab) -> dict[int, Any]:
    """The noise of the base PRM's labels for several numbers of rollouts: right if any of them reaches the answer."""
    rolled = lab.rolled("base", lab.world.policy, until_hit(lab.seed))
    modulus = lab.world.settings.modulus

    def of(k: int) -> Callable[[], Any]:
        return lambda: noise(lab.base, with_labels(rolled, any_of(k)), modulus)

    return {k: lab.once(f"noise-any-{k}", of(k)) for k in ROLLOUTS}


LIMIT_TREES, LIMIT_ROLLOUTS = 60, 64


def limits(lab: Lab) -> dict[str, dict[str, float]]:
    """The errors of a PRM that has learned its labels perfectly: its score is the probability of being labeled right.

    That probability is estimated without bias from more rollouts than a label uses: how often k of them, drawn without
    replacement, give the label "right".
    """
    settings = LabelSettings("monte-carlo", rollouts=LIMIT_ROLLOUTS, alternatives=0, seed=lab.seed + 2)
    trees = lab.test[:LIMIT_TREES]
    rolled = label_by_rollouts(trees, lab.world.policy, settings, lab.folder / "test-own-monte-carlo.parquet")
    right = np.array([step.label == 1.0 for tree in trees for step in tree.nodes])
    values = np.array([step.estimate.value for tree in rolled for step in tree.nodes if step.estimate is not None])
    hits = np.rint(values * LIMIT_ROLLOUTS)
    needed = {f"any of {k}": (k, 1) for k in ROLLOUTS} | {f"half of {k}": (k, k // 2) for k in ROLLOUTS}
    chances = {name: hypergeom.sf(least - 1, LIMIT_ROLLOUTS, hits, k) for name, (k, least) in needed.items()}
    chances["injected noise"] = injected_chances(lab, trees)
    return {
        name: {**errors(right, chance), "passing": float(chance[~right].mean())} for name, chance in chances.items()
    }


def injected_chances(lab: Lab, trees: Sequence[StepTree], copies: int = 200) -> Any:
    """The same probabilities for the demo's noise, which depend only on the kind of step; by drawing it many times."""
    drawn = [let_errors_pass([tree] * copies, *INJECTED, lab.seed) for tree in trees]
    labels = [np.array([[step.label for step in tree.nodes] for tree in some]).mean(axis=0) for some in drawn]
    return np.concatenate(labels)


def until_hit(seed: int) -> LabelSettings:
    """Rollouts until one reaches the answer: gives the labels by any of 8, 16 and 32."""
    return LabelSettings("adaptive", rollouts=max(ROLLOUTS), alternatives=0, seed=seed)


def settings_of(seed: int) -> WorldSettings:
    """The demo's world with fewer problems and exact labels."""
    return replace(
        world_settings("demo", seed=seed), base_trees=1500, passing_errors=0.0, pair_trees=1000, pool_problems=1,
        pool_size=1,
    )  # fmt: skip


def main() -> None:
    """Run what is not done yet, then print all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    given = parser.parse_args()
    with quiet_transformers():
        every = {seed: Lab(settings_of(seed), given.out) for seed in dict.fromkeys((*SEEDS, *given.seeds))}
        policies = [lab.world.policy for lab in every.values()]
        for lab, other in zip(every.values(), (*policies[1:], policies[0]), strict=True):
            lab.second = other
        labs = [every[seed] for seed in given.seeds]
        limit, results = [], []
        for lab in labs:
            limit.append(lab.once("learned", partial(limits, lab)))
            results.append(run_world(lab))
        varied = [vary(given.out, seed) for seed in given.seeds]
    counts = {name: [lab.once(f"noise-{name}", dict) for lab in labs] for name in NOISES}
    print(natural_tables(results, limit, counts, varied))


if __name__ == "__main__":
    with shown_on(Terminal()):
        main()

"""Accuracy and cost of each way to spend rollouts in the embedded world: the table of docs/guides/label.md.

Candidates after right prefixes are valued by many rollouts of the world's policy. These values determine exactly how
likely each method labels a step like the oracle, and how many rollouts it needs.

Run: python experiments/label_budgets.py --policy POLICY_FOLDER [--world demo] [--problems 80] [--rollouts 256]
The folder is `models-…/policy` in the cache of `prism demo`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prism_prm.backends.hf import load_hf
from prism_prm.backends.policy import Sampling
from prism_prm.data.tasks import TaskGrader
from prism_prm.lab.world.build import load_policy, world_settings
from prism_prm.lab.world.problems import draw_problems
from prism_prm.lab.world.trees import sample_trees
from prism_prm.search.label_engine import by_answer, label_trees
from prism_prm.search.label_rules import LabelSettings, expected
from prism_prm.tree import StepTree

BUDGETS = (4, 8, 16, 32, 64)
WAYS = {
    "monte-carlo": LabelSettings(),
    "adaptive": LabelSettings(method="adaptive", per_round=1),
    "adaptive, two at a time": LabelSettings(method="adaptive", per_round=2),
    "adaptive, confidence 0.8": LabelSettings(method="adaptive", per_round=1, confidence=0.8),
    "once certain": LabelSettings(method="binary", per_round=1),
}
"""`once certain` is the lower bound for equal labels: with fewer rollouts, the label of all is not determined."""


@dataclass(frozen=True)
class Outcome:
    """Means over the steps of a sample."""

    rollouts: float
    fpr: float
    fnr: float
    accuracy: float


def measure(values: Sequence[float], truths: Sequence[bool], settings: LabelSettings) -> Outcome:
    """The accuracy and cost of a method."""
    found = {value: expected(value, settings) for value in set(values)}
    right = np.array([found[value].right for value in values])
    truth = np.array(truths)
    agreed = np.where(truth, right, 1 - right)
    rollouts = float(np.mean([found[value].rollouts for value in values]))
    return Outcome(rollouts, float(right[~truth].mean()), float(1 - right[truth].mean()), float(agreed.mean()))


def valued(exact: Sequence[StepTree], labeled: Sequence[StepTree]) -> tuple[list[float], list[bool]]:
    """Values and truths of the steps that have rollouts."""
    values, truths = [], []
    for a, b in zip(exact, labeled, strict=True):
        for real, found in zip(a.nodes, b.nodes, strict=True):
            if found.estimate is not None and found.estimate.rollouts:
                values.append(found.estimate.value)
                truths.append(real.label == 1.0)
    return values, truths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--world", default="demo")
    parser.add_argument("--problems", type=int, default=80)
    parser.add_argument("--rollouts", type=int, default=256)
    arguments = parser.parse_args()

    problems = draw_problems(
        world_settings(arguments.world).problems, arguments.problems, np.random.default_rng(2**31)
    )  # fmt: skip
    exact = sample_trees(*load_policy(arguments.policy), problems, candidates=3)
    sampling = Sampling(temperature=1.0, max_step_tokens=8, max_tokens=60)
    settings = LabelSettings(rollouts=arguments.rollouts, sampling=sampling)
    with TaskGrader(workers=1) as grader:
        labeled = label_trees(exact, load_hf(arguments.policy), by_answer(grader), settings)
    values, truths = valued(exact, labeled)
    print(f"{len(values)} steps, {np.mean(truths):.1%} right; values from {arguments.rollouts} rollouts each")
    for rule in ("any", "half"):
        print(f"\nrule {rule}\n| method | most | rollouts | of monte-carlo | FPR | FNR | accuracy |")
        print("|---|---|---|---|---|---|---|")
        for budget in BUDGETS:
            for name, way in WAYS.items():
                found = measure(values, truths, replace(way, rollouts=budget, rule=rule))
                numbers = f"{found.fpr:.1%} | {found.fnr:.1%} | {found.accuracy:.1%}"
                print(f"| {name} | {budget} | {found.rollouts:.1f} | {found.rollouts / budget:.0%} | {numbers} |")


if __name__ == "__main__":
    main()

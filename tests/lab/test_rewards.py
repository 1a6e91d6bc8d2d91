"""Rewards under optimization: the parts by hand, and the section of `prism demo --full` in a quick world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prism_prm.lab.demo.rewards import SHOWN, NoisyOracle, RewardStudy, add_rewards
from prism_prm.lab.demo.settings import demo_settings
from prism_prm.lab.world.build import World, build_world, world_settings
from prism_prm.lab.world.oracle import OracleScorer
from prism_prm.models.load_lm import quiet_transformers
from prism_prm.report import Report
from prism_prm.rl.exploits import num_pairs
from prism_prm.tree import ROOT, Step, StepTree

TREE = StepTree(
    0, "1+1+2", (Step("1+1=2", label=1.0), Step("2+2=4", label=1.0), Step("1+1=3", label=1.0), Step("2+2=0", label=0.0),
                 Step("2+2=1", label=0.0)),
    (ROOT, 0, ROOT, 0, 0), (0, 1),
)  # fmt: skip


def study(folder: Path, world: World | None = None) -> RewardStudy:
    settings = demo_settings(quick=True)
    some = world or World(world_settings("quick"), folder, folder, folder)
    return RewardStudy(some, folder / "study", settings, rl_seed=0, prm_seed=0, problems=20)


def test_pairs_are_right_and_wrong_steps_after_one_prefix() -> None:
    assert num_pairs(TREE) == 2, "one right step beside two wrong ones; the other prefix has no wrong step"


def test_labels_are_compared_with_the_oracle(tmp_path: Path) -> None:
    lab = study(tmp_path)  # modulo 5
    assert lab.label_errors([TREE]) == {"right": 2, "right_called_wrong": 0, "wrong": 3, "wrong_called_right": 1}
    (exact,), tokens = lab.label_exactly([TREE])
    assert [step.label for step in exact.nodes] == [1, 1, 0, 0, 0]
    assert tokens == 0
    assert lab.label_errors([exact])["wrong_called_right"] == 0


def test_a_noisy_oracle_is_never_wrong() -> None:
    exact, noisy = (scorer.score_trees([TREE])[0].probability for scorer in (OracleScorer(5), NoisyOracle(5)))
    assert ((exact > 0.5) == (noisy > 0.5)).all()
    assert len(np.unique(noisy)) == len(noisy), "every score differs"
    assert np.abs(exact - noisy).max() <= 0.0101


@pytest.mark.slow
def test_the_section_of_the_full_demo(tmp_path: Path) -> None:
    with quiet_transformers():
        world = build_world(world_settings("quick"), tmp_path / "world")
        lab = study(tmp_path, replace(world))
        report = Report("Demo", "prism demo --full")
        add_rewards(report, lab)
    assert set(report.metrics["rewards"]) == set(SHOWN)
    for numbers in report.metrics["rewards"].values():
        assert 0 <= numbers["worst after it"] <= numbers["best"] <= 1

"""A policy trained with a reward: watched, resumed, stopped by an alarm; whatever it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from prism_prm.errors import ConfigError, PrismError
from prism_prm.lab.demo.reinforcement import OracleGold
from prism_prm.lab.world.build import world_settings
from prism_prm.lab.world.oracle import OracleScorer
from prism_prm.lab.world.policy import prompt_of
from prism_prm.lab.world.problems import draw_problems
from prism_prm.rl.alarm import PROXY, VOTE, EvalPoint, MonitorSettings, TrainedPolicy, read_samples
from prism_prm.rl.reward import PRMReward
from prism_prm.rl.trainer import remove_checkpoints, train_with_reward
from prism_prm.train.recipe import Lora

TRAINER: dict[str, Any] = {
    "max_steps": 4, "per_device_train_batch_size": 16, "num_generations": 4, "learning_rate": 1e-3,
    "max_completion_length": 24, "save_strategy": "steps", "save_steps": 2,
}  # fmt: skip
QUICK = world_settings("quick")


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    problems = draw_problems(QUICK.problems, count, np.random.default_rng(seed))
    return [{"prompt": prompt_of(one.text), "problem": one.text, "answer": one.answer} for one in problems]


def train(policy: Path, out: Path, reward: Any = None, **options: Any) -> TrainedPolicy:
    options = {"trainer": TRAINER, "monitor": MonitorSettings(every=2, samples=2, votes=4), **options}
    return train_with_reward(
        policy, reward or PRMReward(OracleScorer(QUICK.modulus), "min"), train=rows(32, 1), held_out=rows(20, 2),
        gold=OracleGold(QUICK.modulus), out=out, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(world_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedPolicy]:
    out = tmp_path_factory.mktemp("grpo")
    return out, train(world_policy, out, credit="process")


def test_it_is_looked_at_before_between_and_after(done: tuple[Path, TrainedPolicy]) -> None:
    out, curve = done
    assert [look.update for look in curve.points] == [0, 2, 4]
    first, last = curve.points[0], curve.points[-1]
    assert list(first.by_problem) == [PROXY, "answer", "steps", VOTE, "greedy/answer", "greedy/steps"]
    for look in curve.points:
        assert all(len(values) == 20 for values in look.by_problem.values())
        # The oracle's own scores are the reward, so a solution is worth what is true of it.
        assert look.by_problem[PROXY] == pytest.approx(look.by_problem["steps"], abs=1e-6)
        assert look.mean("answer") >= look.mean("steps")
        assert 3 <= look.numbers["num_steps"] <= 24
        assert 0 <= look.numbers["answered"] <= 1
        assert look.numbers["entropy"] > 0
        assert look.numbers["reward/PRMReward/unreadable_steps"] == 0
    assert first.numbers["kl"] == pytest.approx(0, abs=1e-4), "it is the untrained policy"
    assert abs(last.numbers["kl"]) > 1e-3
    logged = {name for line in json.loads((out / "log.json").read_text()) for name in line}
    assert {"reward", "held_out/answer", "held_out/proxy", "held_out/kl"} <= logged, "through the trainer's own log"
    assert (out / "policy" / "model.safetensors").exists()
    assert not (out / "checkpoints").exists()


def test_a_few_solutions_of_every_look_are_kept(done: tuple[Path, TrainedPolicy]) -> None:
    out, curve = done
    kept = read_samples(out)
    assert kept.problems == [row["problem"] for row in rows(20, 2)[:8]]
    assert [look["update"] for look in kept.points] == [0, 2, 4]
    for look, samples in zip(curve.points, kept.points, strict=True):
        for at, solutions in enumerate(samples["solutions"]):
            *sampled, greedy = solutions
            assert len(sampled) == 2
            assert np.mean([one["reward"] for one in sampled]) == pytest.approx(look.by_problem[PROXY][at])
            assert np.mean([one["right"] for one in sampled]) == look.by_problem["answer"][at]
            assert greedy["right"] == look.by_problem["greedy/answer"][at]
            assert "reward" not in greedy
            assert all(isinstance(one["text"], str) for one in solutions)


def test_a_finished_run_is_read_and_other_settings_are_refused(
    done: tuple[Path, TrainedPolicy], world_policy: Path
) -> None:
    out, curve = done
    before = (out / "policy" / "model.safetensors").stat().st_mtime_ns
    again = train(world_policy, out, credit="process")
    assert [look.summary() for look in again.points] == [look.summary() for look in curve.points]
    assert (out / "policy" / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match="learning_rate"):
        train(world_policy, out, credit="process", trainer={**TRAINER, "learning_rate": 1e-4})


class KilledError(Exception):
    pass


class DyingReward(PRMReward):
    """Rewards as the oracle does, and dies at its n-th call."""

    left = 10**9

    def __call__(self, *arguments: Any, **columns: Any) -> list[float | None]:
        self.left -= 1
        if self.left < 0:
            raise KilledError
        return super().__call__(*arguments, **columns)


def test_a_killed_run_goes_on_as_if_nothing_had_been(world_policy: Path, tmp_path: Path) -> None:
    whole = train(world_policy, tmp_path / "whole")
    dying = DyingReward(OracleScorer(QUICK.modulus), "min")
    dying.left = 5  # looks before updates 1 and 3, and three updates
    with pytest.raises(KilledError):
        train(world_policy, tmp_path / "killed", dying)
    assert [path.name for path in (tmp_path / "killed" / "checkpoints").glob("checkpoint-*")] == ["checkpoint-2"]
    resumed = train(world_policy, tmp_path / "killed")
    assert [look.update for look in resumed.points] == [0, 2, 4]
    for ours, theirs in zip(resumed.points, whole.points, strict=True):
        assert ours.by_problem == theirs.by_problem
    assert read_samples(tmp_path / "killed") == read_samples(tmp_path / "whole")


def test_a_resumed_run_is_looked_at_on_schedule(world_policy: Path, tmp_path: Path) -> None:
    dying = DyingReward(OracleScorer(QUICK.modulus), "min")
    dying.left = 3  # the first look, and two updates
    monitor = MonitorSettings(every=3, samples=2, votes=4)
    with pytest.raises(KilledError):
        train(world_policy, tmp_path, dying, monitor=monitor)
    assert [path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")] == ["checkpoint-2"]
    resumed = train(world_policy, tmp_path, monitor=monitor)
    assert [look.update for look in resumed.points] == [0, 3, 4]
    assert [look["update"] for look in read_samples(tmp_path).points] == [0, 3, 4]


def test_a_run_killed_before_its_first_checkpoint_keeps_its_first_look(world_policy: Path, tmp_path: Path) -> None:
    dying = DyingReward(OracleScorer(QUICK.modulus), "min")
    dying.left = 1  # the first look
    with pytest.raises(KilledError):
        train(world_policy, tmp_path, dying)
    resumed = train(world_policy, tmp_path)
    assert [look.update for look in resumed.points] == [0, 2, 4]
    assert all(VOTE in look.by_problem for look in resumed.points)


def test_a_checkpoint_cut_short_is_passed_over(world_policy: Path, tmp_path: Path) -> None:
    dying = DyingReward(OracleScorer(QUICK.modulus), "min")
    dying.left = 5
    with pytest.raises(KilledError):
        train(world_policy, tmp_path, dying)
    (tmp_path / "checkpoints" / "checkpoint-3").mkdir()
    assert [look.update for look in train(world_policy, tmp_path).points] == [0, 2, 4]


def test_adapters_are_trained_resumed_and_merged(world_policy: Path, tmp_path: Path) -> None:
    lora = Lora(r=4)
    whole = train(world_policy, tmp_path / "whole", lora=lora)
    dying = DyingReward(OracleScorer(QUICK.modulus), "min")
    dying.left = 5
    with pytest.raises(KilledError):
        train(world_policy, tmp_path / "killed", dying, lora=lora)
    resumed = train(world_policy, tmp_path / "killed", lora=lora)
    assert [look.by_problem for look in resumed.points] == [look.by_problem for look in whole.points]
    assert whole.points[0].numbers["kl"] == pytest.approx(0, abs=1e-4), "adapters start as nothing"
    before, after = (load_file(folder / "model.safetensors") for folder in (world_policy, whole.policy))
    assert before.keys() == after.keys(), "an ordinary model folder"
    moved = {name.rsplit(".", 2)[-2] for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(lora.targets)
    with pytest.raises(ConfigError, match="lora"):
        train(world_policy, tmp_path / "whole", lora=Lora(r=2))


def flattery(prompts: Sequence[str], completions: Sequence[str], trainer_state: Any, **_: Any) -> list[float]:
    """A reward that rises by itself, whatever is written, and likes short texts."""
    return [0.2 * trainer_state.global_step - 0.05 * len(text) for text in completions][: len(prompts)]


def test_training_ends_at_an_alarm(world_policy: Path, tmp_path: Path, said: list[str]) -> None:
    """A policy that learns to write nothing: its reward rises, and it solves nothing any more."""
    settings = MonitorSettings(every=2, samples=2, votes=0, stop_on_alarm=True)
    trainer = {**TRAINER, "max_steps": 60, "learning_rate": 1e-2, "save_strategy": "no"}
    curve = train(world_policy, tmp_path, flattery, monitor=settings, trainer=trainer)
    alarm = curve.alarms["answer"]
    assert alarm is not None
    assert curve.points[-1].update == alarm.update < 60
    assert said == [f"Alarm at {alarm}. {alarm.advice}"]
    assert curve.alarms[VOTE] is None


@pytest.mark.parametrize(
    ("solved", "left"), [([0.5, 1, 0, 0], ["checkpoint-5"]), ([1, 0, 0, 0], []), ([0.5, 0.5, 1, 1], [])]
)
def test_after_an_alarm_the_checkpoint_before_the_fall_stays(
    tmp_path: Path, solved: list[float], left: list[str]
) -> None:
    """Checkpoints 2, 5 and 10; solved problems at the updates 0, 5, 10 and 15."""
    for update in (2, 5, 10):
        (tmp_path / "checkpoints" / f"checkpoint-{update}").mkdir(parents=True)
    points = [EvalPoint(5 * i, {PROXY: [0.5] * 9, "answer": [float(value)] * 9}) for i, value in enumerate(solved)]
    remove_checkpoints(tmp_path / "checkpoints", TrainedPolicy(points, tmp_path / "policy", []))
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == left
    assert (tmp_path / "checkpoints").exists() == bool(left)


def test_settings_that_trl_does_not_know_are_named(world_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Unknown keys \['max_step'\] in \[trainer\]"):
        train(world_policy, tmp_path, trainer={**TRAINER, "max_step": 3})
    with pytest.raises(PrismError, match="TRL refuses"):
        train(world_policy, tmp_path, trainer={**TRAINER, "num_generations": 5})

"""`Monitor` beside TRL's own trainer: held-out problems are solved, and an alarm ends the training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from prism_prm import Monitor, MonitorSettings
from prism_prm.errors import ConfigError
from prism_prm.lab.world.build import load_policy, world_settings
from prism_prm.lab.world.policy import prompt_of
from prism_prm.lab.world.problems import draw_problems
from prism_prm.rl.alarm import VOTE, Alarm, read_points


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    problems = draw_problems(world_settings("quick").problems, count, np.random.default_rng(seed))
    return [{"prompt": prompt_of(one.text), "problem": one.text, "answer": one.answer} for one in problems]


def shortness(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """A reward that a policy can only raise by writing less."""
    return [-0.05 * len(text) for text in completions][: len(prompts)]


def test_a_plain_trainer_is_watched_and_stopped(world_policy: Path, tmp_path: Path, said: list[str]) -> None:
    model, tokenizer = load_policy(world_policy)
    tokenizer.padding_side = "left"
    settings = MonitorSettings(every=2, samples=2, votes=0, stop_on_alarm=True)
    monitor = Monitor(rows(20, 2), shortness, tmp_path, settings, start=copy.deepcopy(model))
    trainer = GRPOTrainer(
        model, reward_funcs=[shortness], processing_class=tokenizer, train_dataset=Dataset.from_list(rows(32, 1)),
        args=GRPOConfig(
            str(tmp_path / "trl"), max_steps=60, per_device_train_batch_size=16, num_generations=4, learning_rate=1e-2,
            max_completion_length=24, save_strategy="no", report_to=[], use_cpu=True, bf16=False,
            gradient_checkpointing=False, disable_tqdm=True, logging_steps=1,
        ),
    )  # fmt: skip
    monitor.attach(trainer)
    trainer.train()
    alarm = monitor.alarms["answer"]
    assert trainer.state.global_step == alarm.update == monitor.points[-1].update < 60
    assert monitor.points[0].numbers["kl"] == pytest.approx(0, abs=1e-4), "it is the untrained policy"
    assert read_points(tmp_path / "looks.parquet") == monitor.points
    assert monitor.points[0].mean("answer") > monitor.points[-1].mean("answer"), "by their final answers"
    assert said == [f"Alarm at {alarm}. {alarm.advice}"]
    assert any("held_out/answer" in line for line in trainer.state.log_history)


def test_an_alarm_gives_advice() -> None:
    by_truth = Alarm(40, 30, 0.1, 0.02, "answer", "answer")
    assert by_truth.advice == (
        "The policy may exploit the reward: use a checkpoint up to update 30, or train again with a KL penalty "
        "(`trainer.beta`)."
    )
    assert Alarm(40, 0, 0.1, 0.02, "answer", "answer").advice == (
        "The policy may exploit the reward: train again with a KL penalty (`trainer.beta`)."
    )
    assert "Compare with true answers" in Alarm(40, 30, 0.1, 0.02, VOTE, VOTE).advice


def test_without_problems_there_is_nothing_to_watch(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no held-out problems"):
        Monitor([], shortness, tmp_path)


def test_every_process_needs_a_problem_to_watch(tmp_path: Path) -> None:
    trainer = SimpleNamespace(accelerator=SimpleNamespace(num_processes=3))
    with pytest.raises(ConfigError, match=r"2 held-out problems .* 3 processes"):
        Monitor(rows(2, 1), shortness, tmp_path).attach(trainer)

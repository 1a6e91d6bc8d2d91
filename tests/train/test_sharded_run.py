"""Whole runs with sharded weights, as users launch them: killed, and resumed by another number of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from some_pairs import write_sums

from launching import launch
from prism_prm.backends.load_prm import init_prm
from prism_prm.config import from_mapping
from prism_prm.errors import ConfigError
from prism_prm.train.recipe import HardwareSettings, Recipe, load_recipe
from prism_prm.train.train_prm import check_launch, train_prm

ROUNDS = ("1_0_to_1", "2_-1_to_0")
RECIPE = """
report_to = []
[data]
inputs = ["{folder}/sums.jsonl"]
split = {{ train = 0.7, validation = 0.3 }}
[data.pairs]
audit = "off"
[base]
prm = "{folder}/base"
[curriculum]
bins = [[0.0, 1.0], [-1.0, 0.0]]
[train]
lr = 1e-3
pairs_per_update = 32
checkpoint_every = 2
[hardware]
dtype = "float64"
sharding = "fsdp"
"""

DYING = """
import os, signal
from prism_prm.cli import main
from prism_prm.train.loop import TrainingRound as Round
update = Round._update
def dying(work, accelerator, model, optimizer, number):
    if work.name == "2_-1_to_0" and number == 3 and accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(work, accelerator, model, optimizer, number)
Round._update = dying
main()
"""
"""`prism`, of whose processes the second is killed in the second round, after a checkpoint."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    write_sums(folder / "sums.jsonl", num_problems=30)
    init_prm(tiny_lm("qwen2"), family="qwen", seed=3).save(folder / "base")
    (folder / "dying.py").write_text(DYING)
    (folder / "sharded.toml").write_text(RECIPE.format(folder=folder))
    return folder / "sharded.toml"


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    train_prm(load_recipe(recipe), folder, accelerator=Accelerator(cpu=True))
    return folder


def killed(recipe: Path, out: Path, processes: int) -> None:
    """Start a run and lose one process; the others end at once and say why.

    On a busy machine, the launcher may stop them before they see that a process is gone.
    """
    result = launch("train", recipe, "--out", out, processes=processes, program=[str(recipe.parent / "dying.py")])
    assert result.returncode != 0
    assert f"processes: {processes}" in result.stderr
    seen = "Another process of this run has died", "with any number of processes, to resume"
    stopped = "Stopped. Rerun the same command to resume from update 2"
    assert all(words in result.stderr for words in seen) or stopped in result.stderr, result.stderr
    assert "Signal 9 (SIGKILL)" in result.stderr, "the launcher says which"
    assert [path.name for path in (out / "checkpoints" / ROUNDS[1]).iterdir()] == ["update-000002"]
    assert not (out / ".lock").exists()


def assert_same_run(found: Path, wanted: Path) -> None:
    for name in ROUNDS:
        weights = load_file(wanted / "rounds" / name / "model.safetensors")
        for key, value in load_file(found / "rounds" / name / "model.safetensors").items():
            torch.testing.assert_close(value, weights[key], atol=1e-6, rtol=0)
    assert not (found / "checkpoints").exists()
    logs = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in (found, wanted)]
    for key in ("round", "update", "examples"):
        assert [line[key] for line in logs[0]] == [line[key] for line in logs[1]]
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in logs[0]] == pytest.approx([line[key] for line in logs[1]], rel=1e-5)
    results = [json.loads((run / "run.json").read_text()) for run in (found, wanted)]
    for name in ("0_base", *ROUNDS):
        assert results[0]["rounds"][name] == pytest.approx(results[1]["rounds"][name], abs=1e-6)
    assert results[0]["best"] == results[1]["best"]


def test_two_processes_one_killed_and_resumed_by_one(
    recipe: Path, whole: Path, tmp_path: Path, said: list[str]
) -> None:
    killed(recipe, tmp_path, 2)
    train_prm(load_recipe(recipe), tmp_path, accelerator=Accelerator(cpu=True))
    assert any(line.startswith("Resuming round 2_-1_to_0 from update 2 of ") for line in said)
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
def test_four_processes_one_killed_and_resumed_by_two(recipe: Path, whole: Path, tmp_path: Path) -> None:
    killed(recipe, tmp_path, 4)
    result = launch("train", recipe, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Resuming round 2_-1_to_0 from update 2" in result.stderr
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
def test_copies_resume_what_was_sharded(recipe: Path, whole: Path, tmp_path: Path) -> None:
    killed(recipe, tmp_path, 2)
    result = launch("train", recipe, "--out", tmp_path, "--set", "hardware.sharding=none")
    assert result.returncode == 0, result.stderr
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize("kind", [DistributedType.FSDP, DistributedType.DEEPSPEED])
def test_the_launcher_does_not_shard(kind: DistributedType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accelerator, "distributed_type", kind)
    with pytest.raises(ConfigError, match=f'started with {kind.value}.*hardware.sharding = "fsdp"'):
        check_launch(Accelerator(cpu=True))


def test_sharded_weights_have_no_cache(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cache does not work with sharded weights"):
        HardwareSettings(frozen_layers=1, cache=str(tmp_path), sharding="fsdp")
    sections = {"data": {"inputs": ["x"]}, "base": {"prm": "x"}, "hardware": {"sharding": "zero"}}
    with pytest.raises(ConfigError, match="sharding"):
        from_mapping(Recipe, sections)

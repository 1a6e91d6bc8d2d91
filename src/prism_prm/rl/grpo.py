"""Train one policy with one reward by TRL, monitored on held-out problems and resumable."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prism_prm.console import progress
from prism_prm.errors import ConfigError, MissingExtraError, PrismError
from prism_prm.files import write_text, writing
from prism_prm.job import content_key, refuse_changes
from prism_prm.models.load_lm import hash_tensors, language_model, plain_config, quiet_transformers
from prism_prm.models.model_files import local_folder, tokenizer_text
from prism_prm.rl.held_out import Gold, Row
from prism_prm.rl.looks import LOOKS, VOTE, Alarm, Look, MonitorSettings, first_alarm, gold_of, read_looks
from prism_prm.rl.monitors import Monitor, Reward

RUN, POLICY, CHECKPOINTS, LOG = "run.json", "policy", "checkpoints", "log.json"
FREE = (
    "monitor.stop_on_alarm", "trainer.report_to", "trainer.logging_steps", "trainer.save_steps",
    "trainer.save_strategy", "trainer.save_total_limit", "trainer.disable_tqdm", "trainer.use_cpu",
    "trainer.dataloader_num_workers", "trainer.log_completions", "trainer.run_name", "trainer.gradient_checkpointing",
)  # fmt: skip
"""Settings that change no update, and so may differ when a run is resumed."""


@dataclass(frozen=True)
class Curve:
    """A policy's training run: looks, alarms, and where it is."""

    looks: list[Look]
    """From before the first update to after the last."""
    policy: Path
    """The trained policy, as transformers saves it."""
    log: list[dict[str, Any]]
    """What TRL logged."""

    @property
    def gold(self) -> str:
        """The measure of truth that the alarm goes by."""
        return gold_of(self.looks[0])

    @property
    def alarms(self) -> dict[str, Alarm | None]:
        """The first alarm by the gold, and by the votes of the untrained policy; None where there was none."""
        return {name: first_alarm(self.looks, name) for name in (self.gold, VOTE)}


def train_with_reward(
    policy: str | Path,
    reward: Reward,
    *,
    train: Sequence[Row],
    held_out: Sequence[Row],
    gold: Gold,
    out: str | Path,
    trainer: Mapping[str, Any],
    credit: str = "outcome",
    monitor: MonitorSettings | None = None,
    identity: str = "",
    begin: Callable[[], None] = lambda: None,
) -> Curve:
    """Train a policy by GRPO; a stopped run resumes from TRL's last checkpoint, and a finished one is read.

    Args:
        policy: folder or hub id of a causal language model.
        reward: what TRL calls; for other credit than `outcome` it must be a `PRMReward`.
        train: the problems to train on.
        held_out: problems to watch the policy on; they are in no update.
        gold: who says what is true of their solutions.
        out: folder for checkpoints, looks and the trained policy.
        trainer: settings of TRL's `GRPOConfig`, passed on as they are.
        credit: how the steps of a group share what it earned.
        monitor: how often and how closely to look.
        identity: names what decides the reward: a folder whose reward had another one is refused.
        begin: called before the training, once the folder is known to fit these settings.
    """
    check_installed()
    out, monitor = Path(out), monitor or MonitorSettings()
    model, tokenizer = language_model(local_folder(str(policy)), torch.float32)
    texts = json.dumps(plain_config(model.config), sort_keys=True, default=str), tokenizer_text(tokenizer)
    made_with = {
        "policy": hash_tensors(texts, model.state_dict().items()), "reward": identity, "credit": credit,
        "train": content_key([dict(row) for row in train]), "held_out": content_key([dict(row) for row in held_out]),
        "trainer": dict(trainer), "monitor": dataclasses.asdict(monitor),
    }  # fmt: skip
    before = _read_run(out)
    refuse_changes(out, before.get("made_with", made_with), made_with, free=FREE)
    begin()
    if not before.get("finished"):
        settings = grpo_config(trainer, out / CHECKPOINTS)
        start = copy.deepcopy(model) if monitor.kl else None
        watching = Monitor(held_out, reward, gold, out, monitor, start=start)
        with quiet_transformers("trl", "accelerate"):
            grpo = _trainer(model, tokenizer, reward, settings, train, credit)
            watching.attach(grpo)
            if grpo.accelerator.is_main_process:
                write_text(out / RUN, json.dumps({"made_with": made_with}, indent=2) + "\n")
            _train(grpo, out)
        if grpo.accelerator.is_main_process:
            write_text(out / LOG, json.dumps(grpo.state.log_history) + "\n")
            write_text(out / RUN, json.dumps({"made_with": made_with, "finished": True}, indent=2) + "\n")
            shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
        grpo.accelerator.wait_for_everyone()
    return read_curve(out)


def is_finished(out: Path) -> bool:
    """Whether a policy was trained there to its end."""
    return bool(_read_run(out).get("finished"))


def read_curve(out: Path) -> Curve:
    """The curve of a trained policy."""
    return Curve(read_looks(out / LOOKS), out / POLICY, json.loads((out / LOG).read_text(encoding="utf-8")))


def check_installed() -> None:
    """Whether TRL is there."""
    try:
        import trl  # noqa: F401
    except ImportError:
        raise MissingExtraError("trl", "rl") from None


def grpo_config(settings: Mapping[str, Any], folder: Path) -> Any:
    """TRL's `GRPOConfig`; what is not given and would not work or only be noise on this machine is settled here."""
    from trl import GRPOConfig

    known = {field.name for field in dataclasses.fields(GRPOConfig)} - {"output_dir"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(f"Unknown keys {unknown} in [trainer]. Known: the settings of trl.GRPOConfig.")
    here: dict[str, Any] = {"report_to": "none", "logging_steps": 1, "save_total_limit": 2}
    if not torch.accelerator.is_available():
        here |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    try:
        return GRPOConfig(**{**here, **settings}, output_dir=str(folder))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"TRL refuses [trainer]: {error}") from error


def _trainer(model: Any, tokenizer: Any, reward: Reward, settings: Any, train: Sequence[Row], credit: str) -> Any:
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback, ProgressCallback
    from trl import GRPOTrainer

    from prism_prm.rl.reward import PRMReward
    from prism_prm.rl.trainer import StepGRPOTrainer

    tokenizer.padding_side = "left"
    options = {
        "model": model, "reward_funcs": [reward], "args": settings, "processing_class": tokenizer,
        "train_dataset": Dataset.from_list([dict(row) for row in train]),
    }  # fmt: skip
    try:
        knows_steps = isinstance(reward, PRMReward)
        trainer = StepGRPOTrainer(**options, credit=credit) if knows_steps else GRPOTrainer(**options)
    except ValueError as error:
        raise ConfigError(f"TRL refuses this run: {error}") from error
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def _train(grpo: Any, out: Path) -> None:
    """Train from the last whole checkpoint on, and save the policy."""
    from transformers import TrainerCallback

    class Progress(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            advance(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            advance(1)

    checkpoints = Path(grpo.args.output_dir)
    checkpoint = _last_checkpoint(checkpoints)
    grpo.accelerator.wait_for_everyone()
    total = grpo.args.max_steps if grpo.args.max_steps > 0 else None
    try:
        with writing(checkpoints), progress("training the policy", total) as advance:
            grpo.add_callback(Progress())
            grpo.train(resume_from_checkpoint=checkpoint)
    finally:
        if grpo.accelerator.is_main_process:
            for path in set(checkpoints.glob("checkpoint-*")).difference(_whole_checkpoints(checkpoints)):
                shutil.rmtree(path)
    with writing(out / POLICY):
        grpo.save_model(str(out / POLICY))


def _last_checkpoint(folder: Path) -> str | None:
    found = _whole_checkpoints(folder)
    return str(max(found, key=lambda path: int(path.name.rpartition("-")[2]))) if found else None


def _whole_checkpoints(folder: Path) -> list[Path]:
    """Those that were written to their end: the trainer's state is their last file."""
    return [path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").exists()]


def _read_run(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise PrismError(f"{out / RUN}: not a JSON record ({error}); remove it to start again.") from error
    return found

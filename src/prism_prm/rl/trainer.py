"""GRPO with TRL: `StepGRPOTrainer` gives each step its own advantage; `train_with_reward` trains, monitors and resumes.

TRL's loss accepts advantages of shape (batch, tokens) from subclasses. Two private methods are overridden: the one that
computes rewards, to see the step scores, and the one that returns the finished batch, to replace its advantages.
`check_trl` checks their signatures when a trainer is created.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from prism_prm.arrays import Floats
from prism_prm.console import progress, say
from prism_prm.errors import ConfigError, MissingExtraError, PrismError
from prism_prm.files import write_text, writing
from prism_prm.job import content_key, refuse_changes, stoppable
from prism_prm.models.load_lm import hash_tensors, language_model, plain_config, quiet_transformers
from prism_prm.models.model_files import local_folder, tokenizer_text
from prism_prm.rl.alarm import LOG, POLICY, RUN, MonitorSettings, TrainedPolicy, read_run_file, read_trained_policy
from prism_prm.rl.credit import STEPS_ONLY, Graded, find_credit, standardize
from prism_prm.rl.monitor import Gold, Monitor, Reward, Row
from prism_prm.rl.reward import AsyncPRMReward, PRMReward
from prism_prm.rl.spans import TokenSpans
from prism_prm.train.model import merge_adapters
from prism_prm.train.recipe import Lora

try:
    import trl
    from accelerate.utils import gather_object
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise MissingExtraError("TRL 1.16 or later", "rl") from error

OVERRIDDEN = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
}
"""TRL's private methods that are overridden, and their parameters."""


def check_trl(trainer: type = GRPOTrainer) -> None:
    """Raise if this version of TRL has changed the methods that are overridden."""
    for name, expected in OVERRIDDEN.items():
        method = getattr(trainer, name, None)
        parameters = None if method is None else tuple(inspect.signature(method).parameters)
        if parameters != expected:
            change = "is gone" if parameters is None else f"takes {parameters}, not {expected}"
            raise PrismError(
                f"TRL {trl.__version__} has changed what StepGRPOTrainer overrides: GRPOTrainer.{name} {change}. "
                "Install the tested version: pip install 'trl==1.16.0'"
            )


@dataclass(frozen=True)
class _Local:
    """The rewarded completions of this process."""

    graded: list[Graded]
    bonuses: list[float]
    """The bonuses for right answers."""
    owners: list[list[int]]
    """For each completion, the step of each token."""
    rewards: Tensor
    """(completions of all processes, reward functions), as gathered by TRL."""


class StepGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer` with step-level credit. Exactly one `PRMReward` must have a weight.

    Other reward functions, and the bonus for right answers, are standardized over each group and added to all tokens;
    with the credits `outcome` and `progress`, they are part of the solution's reward.

    Args:
        credit: outcome (TRL's own advantages), process, pure or progress; see `prism_prm.rl.credit`.
        arguments: passed to `GRPOTrainer`.
    """

    def __init__(self, *arguments: Any, credit: str = "process", **options: Any) -> None:
        check_trl()
        find_credit(credit)  # raises before a model is loaded
        self.credit = credit
        super().__init__(*arguments, **options)
        functions = [func.reward if isinstance(func, AsyncPRMReward) else func for func in self.reward_funcs]
        weights = self.reward_weights.tolist()
        weighted = [(func, i) for i, func in enumerate(functions) if isinstance(func, PRMReward) and weights[i]]
        if len(weighted) != 1:
            raise ConfigError(
                f"StepGRPOTrainer needs one PRMReward; there are {len(weighted)} with a weight among its "
                f"{len(functions)} reward functions. Give the others the weight 0 (reward_weights), or use "
                "GRPOTrainer, which takes any number and gives one advantage per completion."
            )
        self._step_reward, self._step_column = weighted[0]
        if self._step_reward.eos is None:
            self._step_reward.eos = frozenset({*self.eos_token_ids, self._tokenizer.pad_token_id} - {None})
        self._spans = TokenSpans(self._tokenizer)
        self._local: _Local | None = None

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        judged = self._step_reward.last
        assert len(judged) == len(completion_ids_list), "the reward function was just called with these completions"
        completions = zip(completion_ids_list, judged, strict=True)
        owners = [self._spans.owners(ids, outcome.steps) for ids, outcome in completions]
        graded = []
        for outcome, own in zip(judged, owners, strict=True):
            tokens = np.bincount(np.asarray(own, dtype=np.int64), minlength=len(outcome.steps))
            graded.append(Graded(outcome.scores, outcome.step_rewards, tuple(tokens.tolist()), outcome.prm_reward))
        self._local = _Local(graded, [outcome.bonus for outcome in judged], owners, rewards)
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        local, self._local = self._local, None
        assert local is not None, "TRL computes rewards before it returns a batch"
        original: Tensor = output["advantages"]
        assert original.shape == (len(local.graded),), f"one advantage per completion, found {tuple(original.shape)}"
        completion_ids: Tensor = output["completion_ids"]
        if self.credit == "outcome":
            output["advantages"] = original[:, None].expand(completion_ids.shape).clone()
            return output
        steps = self._step_advantages(local)
        advantages = torch.zeros(completion_ids.shape, dtype=original.dtype)
        for i, (own, owners) in enumerate(zip(steps, local.owners, strict=True)):
            advantages[i, : len(owners)] = torch.as_tensor(own[owners], dtype=original.dtype)
        output["advantages"] = advantages.to(original.device)
        return output

    def _step_advantages(self, local: _Local) -> list[Floats]:
        """The advantage of each step of this process's completions; a group may span several processes."""
        gathered: list[tuple[Graded, float]] = gather_object(list(zip(local.graded, local.bonuses, strict=True)))
        rewards, weights = local.rewards.double().cpu().numpy(), self.reward_weights.double().cpu().numpy()
        assert len(gathered) == len(rewards), "as many completions as rewards"
        weight = float(weights[self._step_column])
        others = np.nansum(np.delete(rewards * weights, self._step_column, axis=1), axis=1)
        extra = others + weight * np.array([bonus for _, bonus in gathered])
        solutions = [
            replace(graded, reward=weight * graded.reward + more)
            for (graded, _), more in zip(gathered, extra, strict=True)
        ]
        size = self.num_generations if self.model.training else self.num_generations_eval
        advantages: list[Floats] = []
        for start in range(0, len(solutions), size):
            steps = find_credit(self.credit)(solutions[start : start + size])
            if self.credit in STEPS_ONLY:
                whole = standardize(extra[start : start + size])
                steps = [weight * own + more for own, more in zip(steps, whole, strict=True)]
            advantages += steps
        first = self.accelerator.process_index * len(local.graded)
        return advantages[first : first + len(local.graded)]


FREE = (
    "monitor.stop_on_alarm", "trainer.report_to", "trainer.logging_steps", "trainer.save_steps",
    "trainer.save_strategy", "trainer.save_total_limit", "trainer.disable_tqdm", "trainer.use_cpu",
    "trainer.dataloader_num_workers", "trainer.log_completions", "trainer.run_name", "trainer.gradient_checkpointing",
)  # fmt: skip
"""Settings that may change when a run resumes, because they affect no update."""


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
    lora: Lora | None = None,
    identity: str = "",
    begin: Callable[[], None] = lambda: None,
) -> TrainedPolicy:
    """Train a policy by GRPO. A stopped run resumes from TRL's last checkpoint, and a finished one is only read.

    Args:
        policy: folder or hub id of a causal language model.
        reward: the reward function; must be a `PRMReward` for any credit but `outcome`.
        train: the problems to train on.
        held_out: problems to monitor the policy on; they are not trained on.
        gold: judges solutions of held-out problems by the truth.
        out: folder for checkpoints, evaluation points and the trained policy.
        trainer: settings of TRL's `GRPOConfig`, passed on unchanged.
        credit: how steps get their advantage; see `prism_prm.rl.credit`.
        monitor: how often to evaluate, and with how many samples.
        lora: train these adapters instead of all weights; the trained policy has them merged in.
        identity: identifies the reward: a run does not resume with another one.
        begin: called before the training, after the settings are checked against those of the folder.
    """
    out, monitor = Path(out), monitor or MonitorSettings()
    checkpoints = out / "checkpoints"
    model, tokenizer = language_model(local_folder(str(policy)), torch.float32)
    tokenizer.padding_side = "left"
    texts = json.dumps(plain_config(model.config), sort_keys=True, default=str), tokenizer_text(tokenizer)
    made_with = {
        "policy": hash_tensors(texts, model.state_dict().items()), "reward": identity, "credit": credit,
        "train": content_key([dict(row) for row in train]), "held_out": content_key([dict(row) for row in held_out]),
        "trainer": dict(trainer), "monitor": dataclasses.asdict(monitor),
        **({} if lora is None else {"lora": {**dataclasses.asdict(lora), "targets": list(lora.targets)}}),
    }  # fmt: skip
    before = read_run_file(out)
    refuse_changes(out, before.get("made_with", made_with), made_with, free=FREE)
    begin()
    if before.get("finished"):
        return read_trained_policy(out)

    class Progress(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            advance(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            advance(1)

    def complete_checkpoints() -> dict[int, Path]:  # the trainer's state is written last
        paths = (path for path in checkpoints.glob("checkpoint-*") if (path / "trainer_state.json").exists())
        return {int(path.name.rpartition("-")[2]): path for path in paths}

    def resume_point() -> str:
        return f"from update {max(done)}" if (done := complete_checkpoints()) else ""

    settings = grpo_config(trainer, checkpoints)
    untrained = copy.deepcopy(model) if monitor.kl else None  # before a trainer wraps its `forward`
    with quiet_transformers("trl", "accelerate"):
        options = {
            "model": model, "reward_funcs": [reward], "args": settings, "processing_class": tokenizer,
            "train_dataset": Dataset.from_list([dict(row) for row in train]),
        }  # fmt: skip
        if lora is not None:
            options["peft_config"] = lora.config(task_type="CAUSAL_LM")
        try:
            has_steps = isinstance(reward, PRMReward)
            grpo: Any = StepGRPOTrainer(**options, credit=credit) if has_steps else GRPOTrainer(**options)
        except ValueError as error:
            raise ConfigError(f"TRL refuses this run: {error}") from error
        is_main = grpo.accelerator.is_main_process
        grpo.remove_callback(PrinterCallback)
        grpo.remove_callback(ProgressCallback)
        Monitor(held_out, reward, out, monitor, gold=gold, start=untrained).attach(grpo)
        if is_main:
            write_text(out / RUN, json.dumps({"made_with": made_with}, indent=2) + "\n")
        found = complete_checkpoints()
        if found:
            say(f"Resuming the policy {resume_point()}")
        grpo.accelerator.wait_for_everyone()
        total = settings.max_steps if settings.max_steps > 0 else None
        try:
            with writing(checkpoints), stoppable(resume_point), progress("training the policy", total) as advance:
                grpo.add_callback(Progress())
                grpo.train(resume_from_checkpoint=str(found[max(found)]) if found else None)
        finally:
            if is_main:
                for path in set(checkpoints.glob("checkpoint-*")).difference(complete_checkpoints().values()):
                    shutil.rmtree(path)
        with writing(out / POLICY):
            if lora is None:
                grpo.save_model(str(out / POLICY))
            elif is_main:
                merge_adapters(grpo.accelerator.unwrap_model(grpo.model)).save_pretrained(out / POLICY)
                tokenizer.save_pretrained(out / POLICY)
    if is_main:
        write_text(out / LOG, json.dumps(grpo.state.log_history) + "\n")
        write_text(out / RUN, json.dumps({"made_with": made_with, "finished": True}, indent=2) + "\n")
        remove_checkpoints(checkpoints, read_trained_policy(out))
    grpo.accelerator.wait_for_everyone()
    return read_trained_policy(out)


def remove_checkpoints(folder: Path, trained: TrainedPolicy) -> None:
    """Remove the checkpoints of a finished run but, after an alarm by true answers, the last one before the fall."""
    alarm = trained.alarms[trained.gold]
    updates = {int(path.name.rpartition("-")[2]): path for path in folder.glob("checkpoint-*")}
    kept = max((update for update in updates if alarm and update <= alarm.since), default=None)
    for update, path in updates.items():
        if update != kept:
            shutil.rmtree(path, ignore_errors=True)
    if kept is None:
        shutil.rmtree(folder, ignore_errors=True)


def grpo_config(settings: Mapping[str, Any], folder: Path) -> Any:
    """TRL's `GRPOConfig`, with our defaults and those for a machine without a GPU."""
    known = {field.name for field in dataclasses.fields(GRPOConfig)} - {"output_dir"}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(f"Unknown keys {unknown} in [trainer]. Known: the settings of trl.GRPOConfig.")
    defaults: dict[str, Any] = {"report_to": "none", "logging_steps": 1, "save_total_limit": 2}
    if not torch.accelerator.is_available():
        defaults |= {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    try:
        return GRPOConfig(**{**defaults, **settings}, output_dir=str(folder))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"TRL refuses [trainer]: {error}") from error

"""`StepGRPOTrainer`: TRL's GRPO with an advantage for each step instead of one for each completion.

TRL's loss takes advantages of shape (batch, tokens) from subclasses. All that is overridden is where rewards are asked
for, to see the scores of steps, and where the finished batch is handed on, to replace its advantages. What that relies
on is checked when a trainer is made (`check_trl`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prism_prm.arrays import Floats
from prism_prm.errors import ConfigError, MissingExtraError, PrismError
from prism_prm.rl.credit import STEPS_ONLY, Graded, find_credit, standardise
from prism_prm.rl.reward import AsyncPRMReward, Judged, PRMReward
from prism_prm.rl.spans import TokenSpans

try:
    import trl
    from accelerate.utils import gather_object
    from trl import GRPOTrainer
except ImportError as error:
    raise MissingExtraError("TRL 1.16 or later", "rl") from error

OVERRIDDEN = {
    "_generate_and_score_completions": ("self", "inputs"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
}
"""TRL's private methods that are overridden, and the arguments that they must have."""


def check_trl(trainer: type = GRPOTrainer) -> None:
    """Refuse a TRL in which what is overridden is gone or has changed."""
    for name, expected in OVERRIDDEN.items():
        method = getattr(trainer, name, None)
        found = None if method is None else tuple(inspect.signature(method).parameters)
        if found != expected:
            what = "is gone" if found is None else f"takes {found}, not {expected}"
            raise PrismError(
                f"TRL {trl.__version__} has changed what StepGRPOTrainer overrides: GRPOTrainer.{name} {what}. Install "
                "the version that it was tested with: pip install 'trl==1.16.0'"
            )


@dataclass(frozen=True)
class _Local:
    """What this process knows of its completions once they are rewarded."""

    graded: list[Graded]
    bonuses: list[float]
    """What right answers have earned."""
    owners: list[list[int]]
    """For each completion, the step of each token."""
    rewards: Tensor
    """(all completions of all processes, reward functions), as TRL gathered them."""


class StepGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer` with credit for single steps; exactly one `PRMReward` has a weight.

    Further reward functions, and a `PRMReward`'s own reward for right answers, are standardised over each group and
    added to all tokens; under the credits `outcome` and `progress` they are part of the solution's reward.

    Args:
        credit: outcome (TRL's own advantages), process, pure or progress; see `prism_prm.rl.credit`.
        arguments: those of `GRPOTrainer`.
    """

    def __init__(self, *arguments: Any, credit: str = "process", **options: Any) -> None:
        check_trl()
        find_credit(credit)  # before a model is loaded
        self.credit = credit
        super().__init__(*arguments, **options)
        self._step_reward, self._step_column = _only_prm_reward(self.reward_funcs, self.reward_weights.tolist())
        if self._step_reward.eos is None:
            self._step_reward.eos = frozenset({*self.eos_token_ids, self._tokenizer.pad_token_id} - {None})
        self._spans = TokenSpans(self._tokenizer)
        self._local: _Local | None = None

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        judged = self._step_reward.last
        assert len(judged) == len(completion_ids_list), "the reward function has just seen these completions"
        owners = [self._spans.owners(ids, one.steps) for ids, one in zip(completion_ids_list, judged, strict=True)]
        graded = [_graded(one, own) for one, own in zip(judged, owners, strict=True)]
        self._local = _Local(graded, [one.bonus for one in judged], owners, rewards)
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        local, self._local = self._local, None
        assert local is not None, "TRL asks for rewards before it hands on a batch"
        theirs: Tensor = output["advantages"]
        assert theirs.shape == (len(local.graded),), f"one advantage per completion, found {tuple(theirs.shape)}"
        completion_ids: Tensor = output["completion_ids"]
        if self.credit == "outcome":
            output["advantages"] = theirs[:, None].expand(completion_ids.shape).clone()
            return output
        steps = self._step_advantages(local)
        advantages = torch.zeros(completion_ids.shape, dtype=theirs.dtype)
        for i, (own, owners) in enumerate(zip(steps, local.owners, strict=True)):
            advantages[i, : len(owners)] = torch.as_tensor(own[owners], dtype=theirs.dtype)
        output["advantages"] = advantages.to(theirs.device)
        return output

    def _step_advantages(self, local: _Local) -> list[Floats]:
        """The advantage of each step of this process's completions; groups may be spread over processes."""
        everyone: list[tuple[Graded, float]] = gather_object(list(zip(local.graded, local.bonuses, strict=True)))
        rewards, weights = local.rewards.double().cpu().numpy(), self.reward_weights.double().cpu().numpy()
        assert len(everyone) == len(rewards), "as many completions as rewards"
        weight = float(weights[self._step_column])
        others = np.nansum(np.delete(rewards * weights, self._step_column, axis=1), axis=1)
        beside = others + weight * np.array([bonus for _, bonus in everyone])
        solutions = [
            replace(graded, reward=weight * graded.reward + more)
            for (graded, _), more in zip(everyone, beside, strict=True)
        ]
        size = self.num_generations if self.model.training else self.num_generations_eval
        found: list[Floats] = []
        for start in range(0, len(solutions), size):
            steps = find_credit(self.credit)(solutions[start : start + size])
            if self.credit in STEPS_ONLY:
                whole = standardise(beside[start : start + size])
                steps = [weight * own + more for own, more in zip(steps, whole, strict=True)]
            found += steps
        first = self.accelerator.process_index * len(local.graded)
        return found[first : first + len(local.graded)]


def _graded(judged: Judged, owners: Sequence[int]) -> Graded:
    tokens = np.bincount(np.asarray(owners, dtype=np.int64), minlength=len(judged.steps))
    return Graded(judged.scores, judged.step_rewards, tuple(tokens.tolist()), judged.prm_reward)


def _only_prm_reward(functions: Sequence[Any], weights: Sequence[float]) -> tuple[PRMReward, int]:
    """The one reward function that knows steps, and which it is; those of weight 0 are only logged."""
    plain = [one.reward if isinstance(one, AsyncPRMReward) else one for one in functions]
    found = [(one, i) for i, one in enumerate(plain) if isinstance(one, PRMReward) and weights[i]]
    if len(found) != 1:
        raise ConfigError(
            f"StepGRPOTrainer gives credit by one PRMReward; there are {len(found)} with a weight among its "
            f"{len(plain)} reward functions. Give the others the weight 0 (reward_weights), or use GRPOTrainer, which "
            "takes any number and gives one advantage per completion."
        )
    return found[0]

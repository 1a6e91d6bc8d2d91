"""verl: a reward manager, agent loops that keep step scores, and advantage estimators. docs/guides/integrations.md has
the commands.

- `PrismRewardManager` scores single rollouts in batches. It knows the token ids, so it sees what was cut off.
- verl drops a rollout whose reward raises, and trains on. So scoring that fails gives NaN here, and the estimators
  below stop the run: the manager refuses others.
- `prism_NAME` is verl's own estimator NAME (`prism_grpo`, `prism_rloo`, …) with that check. `prism_process` and
  `prism_pure` give each step its own advantage, as `prism_prm.rl.credit` does. For these, agent loops of
  verl_agents.yaml put the score of each step on its last token.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import ray
import torch
from torch import Tensor
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from prism_prm.errors import ConfigError, DataError
from prism_prm.rl.connectors.batcher import configured_batcher, logged
from prism_prm.rl.credit import Graded, find_credit
from prism_prm.rl.reward import END, Judged, problem_text
from prism_prm.rl.spans import TokenSpans
from prism_prm.steps import STOP

PROBLEM_FIELDS = ("problem", "question")
"""The fields of `extra_info` that may have the problem, if it is not the last user turn."""
AGENTS = ("prism_agent", "prism_tool_agent")
"""The agent loops of verl_agents.yaml."""
STEP_ESTIMATORS = {"prism_process": "process", "prism_pure": "pure"}
"""Estimators with step-level credit, and its name in `prism_prm.rl.credit`."""
MASK, STEPS = "prism_mask", "prism_steps"
"""Where an agent loop and the manager pass the mask of the policy's tokens, and (last token, score) of each step."""
SMALLEST = 1e-12
"""Stands for a score of 0 in `rm_scores`, where 0 means that no step ends at a token."""

log = logging.getLogger(__name__)


class PrismRewardManager(RewardManagerBase):  # type: ignore[misc]
    """A PRM as verl's reward manager. Options of the reward are `reward.reward_kwargs`, or else PRISM_RL_PRM, …."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        self.estimator = str(config.algorithm.adv_estimator)
        self.error: Exception | None = None
        if self.estimator not in ADV_ESTIMATOR_REGISTRY or not self.estimator.startswith("prism_"):
            known = sorted(str(name) for name in ADV_ESTIMATOR_REGISTRY if str(name).startswith("prism_"))
            raise ConfigError(
                f"algorithm.adv_estimator={self.estimator}: verl would drop rollouts that could not be scored, and "
                f"train on. Set one that stops instead: {', '.join(known)}."
            )
        try:
            self._open(config)
        except Exception as error:
            if not _is_in_actor():
                raise
            # verl would take a dead worker for failed rollouts, and go on; the estimator stops instead
            log.critical("The reward cannot be opened; the run stops at the first advantages.", exc_info=True)
            self.error = error

    def _open(self, config: Any) -> None:
        self.calls = configured_batcher(dict(config.reward.get("reward_kwargs") or {}))
        self.spans = TokenSpans(self.tokenizer)
        self.ends = {self.tokenizer.eos_token_id, *_end_ids(config, self.tokenizer)} - {None}
        if self.estimator not in STEP_ESTIMATORS:
            return
        reward = self.calls.reward
        agent = config.actor_rollout_ref.rollout.agent
        if agent.default_agent_loop not in AGENTS or not agent.agent_loop_config_path:
            raise ConfigError(
                f"algorithm.adv_estimator={self.estimator} needs step scores: set actor_rollout_ref.rollout.agent."
                f"default_agent_loop={AGENTS[0]} and agent_loop_config_path to verl_agents.yaml, which is beside "
                f"{__file__}."
            )
        if reward.verifiable or reward.clip is not None or config.algorithm.use_kl_in_reward:
            raise ConfigError(
                f"algorithm.adv_estimator={self.estimator} reads step scores only: leave out verifiable and clip, and "
                "set algorithm.use_kl_in_reward=False (actor_rollout_ref.actor.use_kl_loss works)."
            )

    async def run_single(self, data: Any) -> dict[str, Any]:
        """The reward of one rollout, and its parts. NaN if it could not be scored: the estimator then stops the run."""
        try:
            if self.error is not None:
                raise self.error
            return await self._run(data)
        except Exception:
            log.critical("A rollout could not be scored; the run stops at the next advantages.", exc_info=True)
            failed = dict.fromkeys(("score", "prm", "bonus", "gated", "cut", "steps", "unreadable_steps"), math.nan)
            return {"reward_score": math.nan, "reward_extra_info": failed}

    async def _run(self, data: Any) -> dict[str, Any]:
        item = data[-1:][0]  # of several sequences the last one, as in verl's own managers
        rows = item.non_tensor_batch
        ids_T = item.batch["responses"]
        length = int(item.batch["attention_mask"][-ids_T.shape[-1] :].sum())
        ids: list[int] = ids_T[:length].tolist()
        mask = (rows.get("tool_extra_fields") or {}).get(MASK)
        if mask is None and int(rows.get("__num_turns__") or 2) > 2:
            raise DataError(
                "a rollout of several turns: its tokens include those of tools, which are not the policy's. Set "
                f"actor_rollout_ref.rollout.agent.default_agent_loop={AGENTS[1]}.", reason="wrong-value",
            )  # fmt: skip
        own = [i for i in range(length) if mask is None or mask[i]]
        text = STOP.join(
            self.tokenizer.decode([ids[i] for i in turn], skip_special_tokens=True) for turn in _turns(own)
        )
        reference = (rows.get("reward_model") or {}).get("ground_truth")
        outcome = await self.calls.judge(
            _problem(rows), text, cut=not own or ids[own[-1]] not in self.ends, reference=reference
        )
        info: dict[str, Any] = {"score": outcome.reward, **logged(outcome)}
        if self.estimator not in STEP_ESTIMATORS:
            return {"reward_score": outcome.reward, "reward_extra_info": info}
        return {"reward_score": math.nan, "reward_extra_info": {**info, STEPS: self._step_ends(ids, own, outcome)}}

    def _step_ends(self, ids: Sequence[int], own: Sequence[int], outcome: Judged) -> list[tuple[int, float]]:
        """(index of the last token, score) of each step that has a token."""
        owners = self.spans.owners([ids[i] for i in own], outcome.steps)
        last = dict(zip(owners, own, strict=True))
        return [(last[step], outcome.scores[step]) for step in sorted(last)]


def _is_in_actor() -> bool:
    """Whether this process is a Ray actor, as verl's reward workers are."""
    return bool(ray.is_initialized() and ray.get_runtime_context().get_actor_id())


def _turns(own: Sequence[int]) -> list[list[int]]:
    """The policy's tokens, turn by turn: runs of adjacent indices."""
    turns: list[list[int]] = []
    for i in own:
        if turns and turns[-1][-1] == i - 1:
            turns[-1].append(i)
        else:
            turns.append([i])
    return turns


def _problem(rows: Any) -> str:
    extra = rows.get("extra_info") or {}
    given = next((extra[field] for field in PROBLEM_FIELDS if extra.get(field)), None)
    if given is None and rows.get("raw_prompt") is not None:
        given = list(rows["raw_prompt"])
    problem = "" if given is None else problem_text(given)
    if not problem:
        raise DataError(
            f"no problem for the PRM to read: neither raw_prompt nor extra_info with {' or '.join(PROBLEM_FIELDS)}",
            reason="missing-field",
        )
    return problem


def _end_ids(config: Any, tokenizer: Any) -> set[int]:
    """The token ids that end a completion: those of the policy's generation config, and the strings of PRISM_RL_EOS."""
    from transformers import GenerationConfig

    named = [tokenizer.convert_tokens_to_ids(name) for name in os.environ.get(END, "").split()]
    try:
        ids = GenerationConfig.from_pretrained(config.actor_rollout_ref.model.path).eos_token_id
    except OSError:  # a policy without one
        ids = None
    return {*named, *([ids] if isinstance(ids, int) else ids or [])}


class StepOutput(AgentLoopOutput):  # type: ignore[misc]
    """A rollout whose `rm_scores` have the score of each step on its last token."""

    def as_dict(self) -> dict[str, Any]:
        """As verl's, with one score per step."""
        self.extra_fields.pop(MASK, None)
        steps = (self.extra_fields.get("reward_extra_info") or {}).pop(STEPS, None)
        output: dict[str, Any] = super().as_dict()
        if steps is not None:
            scores_T = torch.zeros(len(self.response_ids), dtype=torch.float32)
            for i, score in steps:
                scores_T[i] = score or SMALLEST
            output["rm_scores"] = scores_T
        return output


class _StepLoop:
    async def run(self, *args: Any, **kwargs: Any) -> StepOutput:
        output = await super().run(*args, **kwargs)  # type: ignore[misc]
        fields = {name: getattr(output, name) for name in output.model_fields_set}
        return StepOutput(**fields | {"extra_fields": {**output.extra_fields, MASK: list(output.response_mask)}})


class PrismAgentLoop(_StepLoop, SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's single-turn loop, with step scores."""


class PrismToolAgentLoop(_StepLoop, ToolAgentLoop):  # type: ignore[misc]
    """verl's loop of turns and tools; only the policy's own tokens are scored."""


def check_scored(rewards_BT: Tensor) -> None:
    """Raise if a rollout has no reward."""
    missing = int(rewards_BT.isnan().any(dim=1).sum())
    if missing:
        raise DataError(
            f"{missing} of {len(rewards_BT)} rollouts have no PRM score, so the run stops. The reason is in the log of "
            "the reward workers; without one there, the rollouts came from an agent loop that drops step scores.",
            reason="missing-field",
        )


def step_advantages(rewards_BT: Tensor, mask_BT: Tensor, groups: Sequence[Any], credit: str) -> Tensor:
    """The advantage of each token, by a credit of `prism_prm.rl.credit` over the rollouts of each group."""
    check_scored(rewards_BT)
    advantages_BT = torch.zeros_like(rewards_BT, dtype=torch.float32)
    members: dict[Any, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        if mask_BT[row].any():  # verl pads batches with empty rows
            members[group].append(row)
    for rows in members.values():
        ends = [rewards_BT[row].nonzero().flatten().tolist() for row in rows]
        graded = []
        for row, own in zip(rows, ends, strict=True):
            if not own:
                raise DataError(f"rollout {row} has tokens, but no step score", reason="missing-field")
            scores = [0.0 if value <= SMALLEST else value for value in rewards_BT[row, own].tolist()]
            counts = [int(mask_BT[row, a:b].sum()) for a, b in _spans(own)]
            graded.append(Graded(scores, scores, counts, 0.0))
        for row, own, advantages in zip(rows, ends, find_credit(credit)(graded), strict=True):
            for (a, b), advantage in zip(_spans(own), advantages, strict=True):
                advantages_BT[row, a:b] = float(advantage)
    return advantages_BT * mask_BT


def _spans(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(first token, token after the last) of each step."""
    return list(zip([0, *(end + 1 for end in ends[:-1])], (end + 1 for end in ends), strict=True))


def _checked(estimator: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(estimator)
    def estimate(token_level_rewards: Tensor, *args: Any, **kwargs: Any) -> Any:
        check_scored(token_level_rewards)
        return estimator(token_level_rewards, *args, **kwargs)

    return estimate


def _with_credit(credit: str) -> Callable[..., Any]:
    def estimate(token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: Any) -> tuple[Tensor, Tensor]:
        advantages_BT = step_advantages(token_level_rewards, response_mask, list(index), credit)
        return advantages_BT, advantages_BT

    return estimate


def _register() -> None:
    for name, estimator in list(ADV_ESTIMATOR_REGISTRY.items()):
        if f"prism_{name}" not in ADV_ESTIMATOR_REGISTRY and not str(name).startswith("prism_"):
            register_adv_est(f"prism_{name}")(_checked(estimator))
    for name, credit in STEP_ESTIMATORS.items():
        if name not in ADV_ESTIMATOR_REGISTRY:
            register_adv_est(name)(_with_credit(credit))


_register()

"""OpenRLHF: an agent executor, and a reward function. docs/guides/integrations.md has the commands.

`--train.agent_func_path THIS_FILE` takes `AgentExecutor`, which knows whether a completion was cut off. OpenRLHF also
takes this file as `--reward.remote_url THIS_FILE`, for `reward_func`, which sees only text: there, set PRISM_RL_EOS to
the strings that end a completion, or nothing counts as cut off. Options are environment variables: PRISM_RL_PRM, ….
OpenRLHF swallows every `Exception` of a reward function and trains on, so errors are raised as `RewardFailure` there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor

from prism_prm.rl.connectors.batcher import RewardFailure, configured_batcher, logged
from prism_prm.rl.prompts import completion_in, problem_in
from prism_prm.rl.reward import END, Judged, without_end
from prism_prm.steps import STOP

log = logging.getLogger(__name__)
_warned: list[bool] = []


class PrismRewards:
    """Adds the PRM's reward to the results of an executor: `class AgentExecutor(PrismRewards, MultiTurn…)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls = configured_batcher()  # a wrong PRM raises here, before any rollout

    async def execute(
        self,
        prompt: str,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Run the executor, and score all that the policy wrote."""
        output: dict[str, Any] = await super().execute(  # type: ignore[misc]
            prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images
        )
        tokens = output["observation_tokens"]
        turns = [hf_tokenizer.decode(tokens[a:b], skip_special_tokens=True) for a, b in output["action_ranges"]]
        outcome = await self.calls.judge(
            problem_in(prompt), STOP.join(turns), cut=bool(output["truncated"]), reference=label
        )
        reward = outcome.reward + (output["reward"] or 0.0)  # with that of the environment, if it gives one
        return output | {
            "reward": reward, "scores": _clamped(reward), "extra_logs": {**output["extra_logs"], **logged(outcome)}
        }  # fmt: skip


class AgentExecutor(PrismRewards, SingleTurnAgentExecutor):  # type: ignore[misc]
    """OpenRLHF's single-turn executor with a PRM as its reward."""


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None = None, **_: Any
) -> dict[str, Any]:
    """The reward of a query (a prompt and its completion). `scores` is clamped to [0, 1], for filtering."""
    try:
        return _reward(queries, prompts, labels)
    except Exception as error:
        log.critical("The reward failed.", exc_info=True)
        raise RewardFailure(f"{type(error).__name__}: {error}") from error


def _reward(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None) -> dict[str, Any]:
    if not os.environ.get(END) and not _warned:
        log.warning("completions that were cut off cannot be detected: set %s, e.g. to '<|im_end|>'", END)
        _warned.append(True)
    calls = configured_batcher()
    asked = []
    for i, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
        text, cut = without_end(completion_in(query, prompt, i))
        asked.append(calls.submit(problem_in(prompt), text, cut=cut, reference=labels[i] if labels else None))
    judged: list[Judged] = [one.result() for one in asked]
    rewards = [outcome.reward for outcome in judged]
    logs = [logged(outcome) for outcome in judged]
    if len(judged) == 1:  # as OpenRLHF calls it; it wants numbers then
        return {"rewards": rewards[0], "scores": _clamped(rewards[0]), "extra_logs": logs[0]}
    return {
        "rewards": rewards, "scores": list(map(_clamped, rewards)),
        "extra_logs": {name: [one[name] for one in logs] for name in logs[0]} if logs else {},
    }  # fmt: skip


def _clamped(reward: float) -> float:
    return min(1.0, max(0.0, reward))

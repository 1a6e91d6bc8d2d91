"""Inspect: `prm_scorer` scores solutions, and `best_of_n` lets the PRM choose one.

The arguments of both override environment variables (PRISM_RL_PRM, …). Gated solutions, cut off or without an answer,
score 0 unless `gate=False`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from inspect_ai.model import ChatMessageAssistant, ModelOutput, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from prism_prm.errors import ConfigError
from prism_prm.rl.connectors.batcher import MicroBatcher, configured_batcher
from prism_prm.rl.reward import Judged
from prism_prm.steps import STOP

CUT = ("max_tokens", "model_length")
"""Inspect's stop reasons of an output that was cut off."""


@scorer(metrics={"prm": [mean(), stderr()], "gated": [mean()]})  # type: ignore[untyped-decorator]
def prm_scorer(prm: str | None = None, aggregator: str | None = None, gate: bool | None = None) -> Scorer:
    """The PRM's score of all that the model wrote; steps and their P(right) are in the score's metadata."""
    calls = configured_batcher({"prm": prm, "aggregator": aggregator, "gate": gate, "verifiable": 0.0})

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001
        text = STOP.join(message.text for message in state.messages if _is_sampled(message))
        outcome = await calls.judge(state.input_text, text, cut=state.output.stop_reason in CUT)
        return Score(
            value={"prm": outcome.prm_reward, "gated": float(outcome.gated)}, answer=outcome.answer,
            metadata=_details(outcome),
        )  # fmt: skip

    return score


@solver  # type: ignore[untyped-decorator]
def best_of_n(n: int = 4, prm: str | None = None, aggregator: str | None = None, gate: bool | None = None) -> Solver:
    """Sample n solutions, and keep the one that the PRM scores highest; of equals, the first.

    Set a temperature above 0. All scores are in the sample's metadata, as `prm_scores`.
    """
    if n < 1:
        raise ConfigError(f"n = {n} must be 1 or more")
    calls = configured_batcher({"prm": prm, "aggregator": aggregator, "gate": gate, "verifiable": 0.0})

    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001
        outputs = await asyncio.gather(*(get_model().generate(state.messages, tools=state.tools) for _ in range(n)))
        scores = [one.prm_reward for one in await _judge_all(calls, state.input_text, outputs)]
        best = max(range(n), key=lambda i: scores[i])
        state.output = outputs[best]
        state.messages.append(state.output.message)
        state.metadata["prm_scores"] = scores
        return state

    return solve


async def _judge_all(calls: MicroBatcher, problem: str, outputs: list[ModelOutput]) -> list[Judged]:
    return await asyncio.gather(
        *(calls.judge(problem, output.completion, cut=output.stop_reason in CUT) for output in outputs)
    )


def _is_sampled(message: Any) -> bool:
    """Whether a model wrote a message; assistant turns of the input are part of the problem."""
    return isinstance(message, ChatMessageAssistant) and message.source != "input"


def _details(outcome: Judged) -> dict[str, Any]:
    return {
        "steps": list(outcome.steps), "probabilities": [None if p != p else p for p in outcome.probabilities],
        "gated": outcome.gated, "cut": outcome.cut,
    }  # fmt: skip

"""Inspect: `prm_scorer` scores solutions, and `best_of_n` lets the PRM choose one.

The arguments of both override environment variables (PRISM_RL_PRM, …). Gated solutions, cut off or without an answer,
score 0 unless `gate=False`.
"""

from __future__ import annotations

import asyncio

from inspect_ai.model import ChatMessageAssistant, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from prism_prm.errors import ConfigError
from prism_prm.rl.connectors.batcher import configured_batcher, step_scores
from prism_prm.steps import STOP

CUT = ("max_tokens", "model_length")
"""Inspect's stop reasons of an output that was cut off."""


@scorer(metrics={"prm": [mean(), stderr()], "gated": [mean()]})  # type: ignore[untyped-decorator]
def prm_scorer(prm: str | None = None, aggregator: str | None = None, gate: bool | None = None) -> Scorer:
    """The PRM's score of all that the model wrote; steps and their P(right) are in the score's metadata."""
    calls = configured_batcher({"prm": prm, "aggregator": aggregator, "gate": gate, "verifiable": 0.0})

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001
        # Assistant turns of the input are part of the problem.
        written = (one for one in state.messages if isinstance(one, ChatMessageAssistant) and one.source != "input")
        text = STOP.join(message.text for message in written)
        outcome = await calls.judge(state.input_text, text, cut=state.output.stop_reason in CUT)
        return Score(
            value={"prm": outcome.prm_reward, "gated": float(outcome.gated)}, answer=outcome.answer,
            metadata={**step_scores(outcome), "gated": outcome.gated, "cut": outcome.cut},
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
        judged = await asyncio.gather(
            *(calls.judge(state.input_text, one.completion, cut=one.stop_reason in CUT) for one in outputs)
        )
        scores = [outcome.prm_reward for outcome in judged]
        best = max(range(n), key=lambda i: scores[i])
        state.output = outputs[best]
        state.messages.append(state.output.message)
        state.metadata["prm_scores"] = scores
        return state

    return solve

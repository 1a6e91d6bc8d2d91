"""verifiers, and so prime-rl: `prm_reward`, plugged into any taskset. docs/guides/integrations.md has the commands.

Options are environment variables: PRISM_RL_PRM, PRISM_RL_VERIFIABLE, …. verifiers records every `Exception` of a reward
on its trace and goes on, so errors are raised as `RewardFailure`, which stops the run.
"""

from __future__ import annotations

from typing import Any

from prism_prm.rl.connectors.batcher import RewardFailure, configured_batcher, logged, step_scores
from prism_prm.rl.reward import problem_text
from prism_prm.steps import STOP


async def prm_reward(task: Any, trace: Any) -> float:
    """The reward of all that the policy wrote. `trace.info["prm"]` gets its steps, and P(right) of each.

    The problem is the task's `problem` or `question` if it has one, else the last user turn of its prompt; the right
    answer is the task's `answer`.
    """
    try:
        outcome = await configured_batcher().judge(
            _problem(task), STOP.join(message.content or "" for message in trace.assistant_messages),
            cut=bool(trace.is_truncated), reference=getattr(task, "answer", None),
        )  # fmt: skip
    except Exception as error:
        raise RewardFailure(f"{type(error).__name__}: {error}") from error
    trace.info["prm"] = {**step_scores(outcome), "answer": outcome.answer}
    trace.record_metrics({f"prm/{name}": value for name, value in logged(outcome).items()})
    return outcome.reward


def _problem(task: Any) -> str:
    given = getattr(task, "problem", None) or getattr(task, "question", None) or task.prompt
    if isinstance(given, str):
        return given.strip()
    return problem_text([message.model_dump() for message in given or []])

"""verifiers' own tasks score their traces with our reward, plugged in by its config."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from samples import OTHER, PROBLEM, REFERENCE, RIGHT, STEPS, TEXTS, TOLERANCE, UNANSWERED, expected
from verifiers.v1.configs.task import RewardFunctionConfig, TaskConfig
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, UserMessage

from prism_prm.rl.connectors.batcher import RewardFailure, configured_batcher


class Sum(vf.TaskData):  # type: ignore[misc]
    answer: str | None = REFERENCE


def task(prompt: Any = PROBLEM) -> Any:
    plugged = {"prm": RewardFunctionConfig(fn="prism_prm.rl.connectors.verifiers_reward:prm_reward")}
    return vf.Task(Sum(prompt=prompt), TaskConfig(rewards=plugged))


def trace(owner: Any, *turns: str, finish: str = "stop") -> Any:
    """The trace of a rollout in which the model wrote these turns."""
    nodes = [MessageNode(message=UserMessage(content=PROBLEM))]
    for turn in turns:
        nodes.append(MessageNode(parent=len(nodes) - 1, message=AssistantMessage(content=turn), sampled=True))
    info = AgentInfo.model_construct()
    seeded = TraceTask.model_construct(data=owner.data)
    return Trace.model_construct(task=seeded, agent=info, nodes=nodes, calls=[ModelCall(finish_reason=finish)])


async def score_all(texts: list[str], **options: Any) -> list[Any]:
    owner = task()
    traces = [trace(owner, text, **options) for text in texts]
    await asyncio.gather(*(owner.score(one) for one in traces))
    return traces


def rewards(texts: list[str], **options: Any) -> list[float]:
    return [one.rewards["prm"].score for one in asyncio.run(score_all(texts, **options))]


def test_a_wrong_prm_stops_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dead_server: str) -> None:
    with pytest.raises(RewardFailure, match="set PRISM_RL_PRM"):
        rewards([TEXTS[0]])
    for place, why in ((str(tmp_path / "missing"), "missing|torch"), (dead_server, "no connection")):
        monkeypatch.setenv("PRISM_RL_PRM", place)
        with pytest.raises(RewardFailure, match=why):
            rewards([TEXTS[0]])


def test_rewards(prm: str, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    traces = asyncio.run(score_all(list(TEXTS)))
    assert [one.rewards["prm"].score for one in traces] == pytest.approx(scores[:4], abs=TOLERANCE)
    assert traces[1].info["prm"]["steps"] == list(STEPS[1])
    assert traces[1].info["prm"]["probabilities"] == pytest.approx(expected()["probabilities"][1], abs=TOLERANCE)
    assert traces[1].metrics["prm/gated"] == 0.0
    assert rewards([TEXTS[0]], finish="length") == [0.0]
    assert rewards([UNANSWERED]) == [0.0]


def test_several_turns(prm: str, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    problem, steps = OTHER
    history = [UserMessage(content="9"), AssistantMessage(content="#### 9"), UserMessage(content=problem)]
    for owner, solution, score in ((task(), STEPS[0], scores[0]), (task(history), steps, scores[4])):
        one = trace(owner, "\n\n".join(solution[:2]), "\n\n".join(solution[2:]))
        asyncio.run(owner.score(one))
        assert one.rewards["prm"].score == pytest.approx(score, abs=TOLERANCE)


def test_many_at_once_with_a_bonus(prm: str, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    monkeypatch.setenv("PRISM_RL_VERIFIABLE", "1")
    right = [score + is_right for score, is_right in zip(scores[:4], RIGHT, strict=True)]
    assert rewards(list(TEXTS) * 24) == pytest.approx(right * 24, abs=TOLERANCE)
    assert max(configured_batcher().sizes) > 8


def test_an_error_while_scoring_stops_the_run(prm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the PRM is broken")

    monkeypatch.setattr(configured_batcher().reward, "judge", broken)
    with pytest.raises(RewardFailure, match="RuntimeError: the PRM is broken"):
        rewards([TEXTS[0]])

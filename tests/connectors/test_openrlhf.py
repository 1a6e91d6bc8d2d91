"""OpenRLHF's own rollout actor and executors, with a fake vLLM engine, on our agent, reward file and server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor, _load_agent_executor
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from samples import OTHER, PROBLEM, REFERENCE, RIGHT, STEPS, TEXTS, TOLERANCE, UNANSWERED
from transformers import AutoTokenizer

from conftest import folder
from prism_prm.rl.connectors import openrlhf_agent
from prism_prm.rl.connectors.batcher import RewardFailure

AGENT = str(Path(openrlhf_agent.__file__))
PROMPT = f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"


class Engine:
    """vLLM's engine as an executor sees it: writes the given texts, one after the other."""

    def __init__(self, tokenizer: Any, texts: list[str], *, cut: bool = False) -> None:
        self.tokenizer, self.texts, self.cut = tokenizer, iter(texts), cut

    async def generate(self, *_: Any, **__: Any) -> Any:
        text = next(self.texts)
        ids = self.tokenizer.encode(text, add_special_tokens=False) + [self.tokenizer.eos_token_id] * (not self.cut)
        finish = "length" if self.cut else "stop"
        output = SimpleNamespace(token_ids=ids, text=text, finish_reason=finish, logprobs=None)
        return SimpleNamespace(outputs=[output])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(folder())


@pytest.fixture
def chosen(prm: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    return prm


async def roll_out(executor: Any, tokenizer: Any, texts: list[str], cut: bool) -> list[dict[str, Any]]:
    """What the rollout actor's own `generate_responses` returns, for one prompt and as many samples as texts."""
    actor = SimpleNamespace(executor=executor, generate=Engine(tokenizer, texts, cut=cut).generate)
    generate = RolloutRayActor.__ray_metadata__.modified_class.generate_responses
    params = SimpleNamespace(max_tokens=50, logprobs=None)
    found: list[dict[str, Any]] = await generate(actor, PROMPT, REFERENCE, params, 200, tokenizer, len(texts))
    return found


def rewards(executor: Any, tokenizer: Any, texts: list[str], *, cut: bool = False) -> list[float]:
    """The rewards in the experiences that OpenRLHF's own generator makes of the responses."""
    responses = asyncio.run(roll_out(executor, tokenizer, texts, cut))
    made = [SamplesGenerator._process_response_into_experience(None, one, max_len=200) for one in responses]
    assert all(one.rewards.numel() == 1 for one in made)
    return [one.rewards.flatten().item() for one in made]


def test_a_wrong_prm_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dead_server: str, tokenizer: Any
) -> None:
    with pytest.raises(Exception, match="set PRISM_RL_PRM"):
        _load_agent_executor(AGENT)
    for place, why in ((str(tmp_path / "missing"), "missing"), (dead_server, "no connection")):
        monkeypatch.setenv("PRISM_RL_PRM", place)
        with pytest.raises(Exception, match=why):
            _load_agent_executor(AGENT)
        with pytest.raises(RewardFailure, match=why):
            rewards(SingleTurnAgentExecutor(AGENT), tokenizer, [TEXTS[0]])


@pytest.mark.usefixtures("chosen")
def test_an_error_while_scoring_stops_the_run(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    executor = _load_agent_executor(AGENT)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the PRM is broken")

    monkeypatch.setattr(executor.calls.reward, "judge", broken)
    with pytest.raises(RuntimeError, match="the PRM is broken"):
        rewards(executor, tokenizer, [TEXTS[0]])
    with pytest.raises(RewardFailure, match="RuntimeError: the PRM is broken"):
        rewards(SingleTurnAgentExecutor(AGENT), tokenizer, [TEXTS[0]])


@pytest.mark.usefixtures("chosen")
def test_the_agent(tokenizer: Any, scores: list[float]) -> None:
    executor = _load_agent_executor(AGENT)
    assert rewards(executor, tokenizer, list(TEXTS)) == pytest.approx(scores[:4], abs=TOLERANCE)
    assert rewards(executor, tokenizer, [TEXTS[0]], cut=True) == [0.0]
    assert rewards(executor, tokenizer, [UNANSWERED]) == [0.0]


@pytest.mark.usefixtures("chosen")
def test_many_at_once_with_a_bonus(monkeypatch: pytest.MonkeyPatch, tokenizer: Any, scores: list[float]) -> None:
    monkeypatch.setenv("PRISM_RL_VERIFIABLE", "1")
    right = [score + is_right for score, is_right in zip(scores[:4], RIGHT, strict=True)]
    executor = _load_agent_executor(AGENT)
    assert rewards(executor, tokenizer, list(TEXTS) * 24) == pytest.approx(right * 24, abs=TOLERANCE)
    assert max(executor.calls.sizes) > 8
    assert rewards(SingleTurnAgentExecutor(AGENT), tokenizer, list(TEXTS) * 6) == pytest.approx(
        right * 6, abs=TOLERANCE
    ), "the reward file: the end mark is not part of the answer"


@pytest.mark.usefixtures("chosen")
def test_several_turns(tokenizer: Any, scores: list[float]) -> None:
    class Steps(AgentInstanceBase):  # type: ignore[misc]
        def __init__(self) -> None:
            self.turns = 0

        async def step(self, *_: Any, **__: Any) -> dict[str, Any]:
            self.turns += 1
            is_done = self.turns == 2
            feedback = "" if is_done else "\n9+9=9\n"
            return {"rewards": torch.tensor(0.0), "environment_feedback": feedback, "done": is_done}

    class Executor(openrlhf_agent.PrismRewards, MultiTurnAgentExecutor):  # type: ignore[misc]
        pass

    turns = ["\n\n".join(STEPS[0][:2]), "\n\n".join(STEPS[0][2:])]
    found = asyncio.run(
        Executor(Steps).execute(
            PROMPT, REFERENCE, SimpleNamespace(max_tokens=50, logprobs=None), 200, tokenizer, Engine(tokenizer, turns)
        )
    )
    assert len(found["action_ranges"]) == 2
    assert found["reward"] == pytest.approx(scores[0], abs=TOLERANCE)


@pytest.mark.usefixtures("chosen")
def test_the_reward_file_and_its_end_marks(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Any, scores: list[float]
) -> None:
    executor = SingleTurnAgentExecutor(AGENT)
    assert rewards(executor, tokenizer, list(TEXTS)) == pytest.approx(scores[:4], abs=TOLERANCE)
    monkeypatch.setenv("PRISM_RL_EOS", "<|im_end|> <stop>")
    assert rewards(executor, tokenizer, [TEXTS[0]], cut=True) == [0.0]
    for mark in ("<|im_end|>", "<stop>", "<|endoftext|>\n", "<stop></s>"):
        found = openrlhf_agent.reward_func([PROMPT + TEXTS[0] + mark], [PROMPT], [None])
        assert found["rewards"] == pytest.approx(scores[0], abs=TOLERANCE), mark
    problem, steps = OTHER
    both = openrlhf_agent.reward_func([f"{problem}\n" + "\n\n".join(steps) + "</s>"] * 2, [f"{problem}\n"] * 2)
    assert both["rewards"] == pytest.approx([scores[4]] * 2, abs=TOLERANCE)


def test_the_server(tokenizer: Any, scores: list[float]) -> None:
    """OpenRLHF's own HTTP client; without the gate, which needs more than the route gets."""
    executor = SingleTurnAgentExecutor(f"{os.environ['PRISM_SERVER']}/get_reward")
    assert rewards(executor, tokenizer, list(TEXTS) * 24) == pytest.approx(scores[:4] * 24, abs=TOLERANCE)

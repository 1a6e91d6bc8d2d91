"""verl's own reward worker, built from its own Hydra config, on our manager; its advantages with our estimators."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from hydra import compose, initialize_config_module
from samples import OTHER, PROBLEM, REFERENCE, RIGHT, STEPS, TEXTS, TOLERANCE, UNANSWERED, expected
from tensordict import TensorDict
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
from verl.experimental.reward_loop.reward_loop import RewardLoopManager, RewardLoopWorker, migrate_legacy_reward_impl
from verl.trainer.ppo.ray_trainer import compute_advantage

from conftest import folder
from prism_prm.errors import ConfigError, DataError
from prism_prm.rl.connectors import verl_reward
from prism_prm.rl.credit import CREDITS, Graded

AGENTS = str(Path(verl_reward.__file__).with_name("verl_agents.yaml"))
COMMAND = (
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=PrismRewardManager",
    "reward.reward_manager.module.path=pkg://prism_prm.rl.connectors.verl_reward",
)
"""The documented options, beside the PRM and the estimator."""
STEPWISE = (
    "actor_rollout_ref.rollout.agent.default_agent_loop=prism_agent",
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={AGENTS}",
)


def config(prm: str, *options: str, estimator: str = "prism_grpo") -> Any:
    given = [
        *COMMAND, f"actor_rollout_ref.model.path={folder()}", f"+reward.reward_kwargs.prm={prm}",
        f"algorithm.adv_estimator={estimator}", *options,
    ]  # fmt: skip
    with initialize_config_module("verl.trainer.config", version_base=None):
        return migrate_legacy_reward_impl(compose("ppo_trainer", overrides=given))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(folder())


Make = Callable[..., DataProto]


@pytest.fixture(scope="module")
def rollouts(tokenizer: Any) -> Make:
    def make(texts: list[str], *, ended: bool = True, problem: str = PROBLEM, turns: Any = None) -> DataProto:
        """Rollouts as verl's agent loop hands them to a reward worker: padded on the right."""
        end = [tokenizer.eos_token_id] if ended else []
        ids = [tokenizer.encode(text, add_special_tokens=False) + end for text in texts]
        longest = max(map(len, ids))
        prompts = torch.ones(len(ids), 3, dtype=torch.int64)
        mask = torch.tensor([[1] * (3 + len(own)) + [0] * (longest - len(own)) for own in ids])
        responses = torch.tensor([own + [tokenizer.pad_token_id] * (longest - len(own)) for own in ids])
        raw = np.empty(len(ids), dtype=object)
        raw[:] = [turns or [{"role": "user", "content": problem}]] * len(ids)
        return DataProto(
            batch=TensorDict({"prompts": prompts, "responses": responses, "attention_mask": mask}, batch_size=len(ids)),
            non_tensor_batch={
                "raw_prompt": raw, "data_source": np.array(["sums"] * len(ids), dtype=object),
                "reward_model": np.array([{"ground_truth": REFERENCE}] * len(ids), dtype=object),
                "extra_info": np.array([{}] * len(ids), dtype=object),
            },
        )  # fmt: skip

    return make


def scored(worker: RewardLoopWorker, data: DataProto) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = worker.loop.run_until_complete(worker.compute_score_batch(data))
    return found


def rewards(worker: RewardLoopWorker, data: DataProto) -> list[float]:
    return [one["reward_score"] for one in scored(worker, data)]


def test_a_wrong_prm_stops_the_run(tmp_path: Path, dead_server: str) -> None:
    with pytest.raises(Exception, match="missing"):
        RewardLoopWorker(config(str(tmp_path / "missing")))
    with pytest.raises(Exception, match="no connection"):
        RewardLoopWorker(config(dead_server))
    with pytest.raises(ConfigError, match=r"algorithm\.adv_estimator=grpo: verl would drop rollouts"):
        RewardLoopWorker(config(folder(), estimator="grpo"))


def test_an_error_while_scoring_stops_the_run(rollouts: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = RewardLoopWorker(config(folder()))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the PRM is broken")

    monkeypatch.setattr(worker.reward_manager.calls.reward, "judge", broken)
    found = rewards(worker, rollouts(list(TEXTS)))
    assert all(map(math.isnan, found))
    with pytest.raises(DataError, match="4 of 4 rollouts have no PRM score"):
        advantages(torch.tensor(found)[:, None], "prism_grpo")


def advantages(rewards_BT: torch.Tensor, estimator: str, mask_BT: torch.Tensor | None = None) -> torch.Tensor:
    """What verl's trainer computes from token-level rewards of one group."""
    count = len(rewards_BT)
    mask_BT = torch.ones_like(rewards_BT) if mask_BT is None else mask_BT
    data = DataProto(
        batch=TensorDict({"token_level_rewards": rewards_BT, "response_mask": mask_BT}, batch_size=count),
        non_tensor_batch={"uid": np.array(["a"] * count, dtype=object)},
    )
    found: torch.Tensor = compute_advantage(data, estimator).batch["advantages"]
    return found


def test_the_documented_command(prm: str, rollouts: Make, scores: list[float]) -> None:
    worker = RewardLoopWorker(config(prm))
    assert type(worker.reward_manager).__name__ == "PrismRewardManager"
    assert rewards(worker, rollouts(list(TEXTS))) == pytest.approx(scores[:4], abs=TOLERANCE)
    problem, steps = OTHER
    assert rewards(worker, rollouts(["\n\n".join(steps)], problem=problem)) == pytest.approx([scores[4]], abs=TOLERANCE)
    assert rewards(worker, rollouts([TEXTS[0]], ended=False)) == [0.0], "cut off"
    assert rewards(worker, rollouts([UNANSWERED])) == [0.0]
    history = [
        {"role": "user", "content": "2+2"}, {"role": "assistant", "content": "#### 4"},
        {"role": "user", "content": PROBLEM},
    ]  # fmt: skip
    assert rewards(worker, rollouts([TEXTS[0]], turns=history)) == pytest.approx([scores[0]], abs=TOLERANCE)


def test_many_at_once_with_a_bonus(prm: str, rollouts: Make, scores: list[float]) -> None:
    worker = RewardLoopWorker(config(prm, "+reward.reward_kwargs.verifiable=1.0"))
    found = scored(worker, rollouts(list(TEXTS) * 24))
    right = [score + is_right for score, is_right in zip(scores[:4], RIGHT, strict=True)] * 24
    assert [one["reward_score"] for one in found] == pytest.approx(right, abs=TOLERANCE)
    assert [one["reward_extra_info"]["bonus"] for one in found] == [float(is_right) for is_right in RIGHT] * 24
    assert max(worker.reward_manager.calls.sizes) > 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=True)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_ray_workers(prm: str, rollouts: Make, scores: list[float]) -> None:
    """verl's manager of Ray workers, as its trainer calls it."""
    manager = RewardLoopManager(config(prm, "reward.num_workers=2"))
    try:
        found = manager.compute_rm_score(rollouts([*TEXTS, TEXTS[0]]))
        assert found.batch["rm_scores"].sum(dim=1).tolist() == pytest.approx([*scores[:4], scores[0]], abs=TOLERANCE)
        assert found.meta_info["reward_extra_keys"][:2] == ["score", "prm"]
    finally:
        for worker in manager.reward_loop_workers:
            ray.kill(worker)


@pytest.mark.usefixtures("cluster")
def test_a_wrong_prm_in_ray_workers(tmp_path: Path, rollouts: Make) -> None:
    """verl would take dead workers for failed rollouts, and go on."""
    manager = RewardLoopManager(config(str(tmp_path / "missing"), "reward.num_workers=1"))
    found = manager.compute_rm_score(rollouts(list(TEXTS))).batch["rm_scores"]
    with pytest.raises(DataError, match="4 of 4 rollouts have no PRM score, so the run stops"):
        advantages(found, "prism_grpo")
    for worker in manager.reward_loop_workers:
        ray.kill(worker)


class _Handle:
    """Stands for a Ray handle of a reward worker in this process."""

    def __init__(self, worker: RewardLoopWorker) -> None:
        self.compute_score = self
        self.worker = worker

    def remote(self, data: DataProto) -> Any:
        return self.worker.compute_score(data)


class _Rollout:
    """What AgentLoopWorker's own `_compute_score` needs of its object."""

    def __init__(self, worker: RewardLoopWorker) -> None:
        self.reward_loop_worker_handles = [_Handle(worker)]

    def _compute_multi_modal_inputs(self, *_: Any) -> dict[str, Any]:
        return {}

    def _get_mm_processor_kwargs(self, *_: Any) -> dict[str, Any]:
        return {}

    def _compute_position_ids(self, input_ids: torch.Tensor, *_: Any) -> torch.Tensor:
        return torch.arange(input_ids.shape[1])[None]


def run_loop(kind: type, ids: list[int], mask: list[int], num_turns: int = 2) -> AgentLoopOutput:
    """The output of one of our agent loops, whose verl part returns these tokens."""

    class Loop(kind):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

    async def generated(*_: Any, **__: Any) -> AgentLoopOutput:
        return AgentLoopOutput(
            prompt_ids=[1, 2], response_ids=ids, response_mask=mask, num_turns=num_turns, metrics=AgentLoopMetrics(),
            extra_fields={"turn_scores": [], "tool_rewards": []},
        )  # fmt: skip

    base = kind.__mro__[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "run", generated)
        found: AgentLoopOutput = asyncio.run(Loop().run({}))
    return found


def field_of(worker: RewardLoopWorker, output: AgentLoopOutput) -> dict[str, Any]:
    """The fields that verl's agent worker stores for a rollout, after its own `_compute_score`."""
    kwargs = {
        "raw_prompt": [{"role": "user", "content": PROBLEM}], "reward_model": {"ground_truth": None}, "extra_info": {},
    }  # fmt: skip
    worker.loop.run_until_complete(AgentLoopWorker._compute_score(_Rollout(worker), [output], kwargs))
    found: dict[str, Any] = output.as_dict()
    return found


@pytest.mark.parametrize("estimator", ["prism_process", "prism_pure"])
def test_step_scores_and_credit(prm: str, tokenizer: Any, estimator: str) -> None:
    worker = RewardLoopWorker(config(prm, *STEPWISE, estimator=estimator))
    fields, graded, owners = [], [], []
    for text, cut, p in zip((*TEXTS, TEXTS[0]), (0, 0, 0, 0, 1), [*expected()["probabilities"][:4], None], strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False) + [] * cut + [tokenizer.eos_token_id] * (not cut)
        fields.append(field_of(worker, run_loop(verl_reward.PrismAgentLoop, ids, [1] * len(ids))))
        steps = text.split("\n\n")
        owners.append(worker.reward_manager.spans.owners(ids, steps))
        tokens = [owners[-1].count(step) for step in range(4)]
        graded.append(Graded(p or [0.0] * 4, p or [0.0] * 4, tokens, 0.0))
        last = [sum(tokens[: step + 1]) - 1 for step in range(4)]
        assert fields[-1]["rm_scores"][last].tolist() == pytest.approx(p or [0.0] * 4, abs=TOLERANCE)
        assert fields[-1]["rm_scores"].count_nonzero() == 4
        assert "prism_steps" not in fields[-1]["extra_fields"]["reward_extra_info"]
        assert "prism_mask" not in fields[-1]["extra_fields"]
    padded = torch.nn.utils.rnn.pad_sequence([one["rm_scores"] for one in fields], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([one["response_mask"] for one in fields], batch_first=True)
    found = advantages(padded, estimator, mask)
    for row, own, credit in zip(found, owners, CREDITS[estimator.removeprefix("prism_")](graded), strict=True):
        assert row[: len(own)].tolist() == pytest.approx([credit[step] for step in own], abs=1e-5)
        assert not row[len(own) :].any()


def test_turns_with_tools(prm: str, tokenizer: Any, scores: list[float]) -> None:
    """Only the policy's own tokens are scored; without our loop, which knows them, the run stops."""
    worker = RewardLoopWorker(config(prm))
    first, second = ("\n\n".join(steps) for steps in (STEPS[0][:2], STEPS[0][2:]))
    parts = [(first, 1), ("9+9=9", 0), (second, 1)]
    ids, mask = [], []
    for text, is_own in parts:
        own = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        ids += own
        mask += [is_own] * len(own)
    output = run_loop(verl_reward.PrismToolAgentLoop, ids, mask, num_turns=4)
    assert field_of(worker, output)["rm_scores"].sum().item() == pytest.approx(scores[0], abs=TOLERANCE)
    plain = AgentLoopOutput(
        prompt_ids=[1], response_ids=ids, response_mask=mask, num_turns=4, metrics=AgentLoopMetrics()
    )
    assert field_of(worker, plain)["rm_scores"].isnan().any()


def test_options_that_would_be_ignored(prm: str) -> None:
    with pytest.raises(ConfigError, match=r"needs step scores: set actor_rollout_ref\.rollout\.agent"):
        RewardLoopWorker(config(prm, estimator="prism_process"))
    with pytest.raises(ConfigError, match="leave out verifiable"):
        RewardLoopWorker(config(prm, *STEPWISE, "+reward.reward_kwargs.verifiable=1.0", estimator="prism_pure"))
    with pytest.raises(ConfigError, match="Unknown options"):
        RewardLoopWorker(config(prm, "+reward.reward_kwargs.verifyable=1.0"))


def test_a_rollout_without_step_scores_stops_the_run() -> None:
    with pytest.raises(DataError, match="rollout 1 has tokens, but no step score"):
        advantages(torch.tensor([[0.5, 0.0], [0.0, 0.0]]), "prism_process")
    with pytest.raises(DataError, match="1 of 2 rollouts have no PRM score"):
        advantages(torch.tensor([[0.5, 0.0], [0.0, math.nan]]), "prism_pure")
    padded = advantages(torch.tensor([[0.5, 0.4], [0.3, 0.2], [0.0, 0.0]]), "prism_process", torch.tensor(
        [[1, 1], [1, 1], [0, 0]]))  # fmt: skip
    assert not padded[2].any()
    assert padded[0, 0] > 0

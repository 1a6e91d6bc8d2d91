"""ms-swift loads our plugin by its own loader, and its own GRPO code computes the rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from samples import OTHER, PROBLEM, REFERENCE, RIGHT, STEPS, TEXTS, TOLERANCE, UNANSWERED
from swift.rewards import orms
from swift.rl_core.data import GRPOSample
from swift.rl_core.grpo_algorithm import score_completions
from swift.utils import import_external_file

import prism_prm.rl.connectors

PLUGIN = str(Path(prism_prm.rl.connectors.__path__[0]) / "swift_plugin.py")


@pytest.fixture(scope="module", autouse=True)
def plugin() -> None:
    import_external_file(PLUGIN)


def sample(*turns: str, problem: str = PROBLEM, finish: str = "stop", before: Any = ()) -> GRPOSample:
    messages = [*before, {"role": "user", "content": problem}]
    for i, turn in enumerate(turns):
        messages += [{"role": "tool", "content": "9+9=9"}] if i else []
        messages.append({"role": "assistant", "content": turn})
    return GRPOSample(
        messages=messages, finish_reason=finish, response_token_ids=[[1]] * len(turns), extra={"solution": REFERENCE}
    )


def rewards(*samples: GRPOSample) -> list[float]:
    """What ms-swift's trainer computes, which builds the reward by its name."""
    found = score_completions(
        list(samples), reward_funcs=[orms["prism_prm"](args=None)], reward_model_plugins=[None], use_gym_env=False,
        device=torch.device("cpu"),
    )  # fmt: skip
    return [float(reward) for reward in found[:, 0]]


def test_a_wrong_prm_stops_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dead_server: str) -> None:
    with pytest.raises(Exception, match="set PRISM_RL_PRM"):
        orms["prism_prm"](args=None)
    for place, why in ((str(tmp_path / "missing"), "missing"), (dead_server, "no connection")):
        monkeypatch.setenv("PRISM_RL_PRM", place)
        with pytest.raises(Exception, match=why):
            orms["prism_prm"](args=None)


def test_rewards(prm: str, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    assert rewards(*map(sample, TEXTS)) == pytest.approx(scores[:4], abs=TOLERANCE)
    assert rewards(sample(TEXTS[0], finish="length"), sample(UNANSWERED)) == [0.0, 0.0]


def test_several_turns(prm: str, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    problem, steps = OTHER
    history = [{"role": "user", "content": "9"}, {"role": "assistant", "content": "#### 9"}]
    two = sample("\n\n".join(STEPS[0][:2]), "\n\n".join(STEPS[0][2:]))
    after = sample("\n\n".join(steps), problem=problem, before=history)
    assert rewards(two, after) == pytest.approx([scores[0], scores[4]], abs=TOLERANCE)


def test_many_at_once_with_a_bonus(prm: str, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    monkeypatch.setenv("PRISM_RL_VERIFIABLE", "1")
    right = [score + is_right for score, is_right in zip(scores[:4], RIGHT, strict=True)]
    assert rewards(*map(sample, TEXTS * 24)) == pytest.approx(right * 24, abs=TOLERANCE)


def test_an_error_while_scoring_stops_the_run(prm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", prm)
    reward = orms["prism_prm"](args=None)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the PRM is broken")

    monkeypatch.setattr(reward.calls.reward, "judge", broken)
    with pytest.raises(RuntimeError, match="the PRM is broken"):
        rewards(sample(TEXTS[0]))

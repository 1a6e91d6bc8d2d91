"""What all connectors share: options from the environment, prompts, and end marks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prism_prm import ConfigError, DataError
from prism_prm.rl import reward
from prism_prm.rl.prompts import completion_in, problem_in
from prism_prm.rl.reward import ENDS, split_end, without_end


@pytest.fixture
def prm(tiny_prm: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reward, "_REWARDS", {})
    tiny_prm("qwen", "qwen2").save(tmp_path / "prm")
    return tmp_path / "prm"


def test_options_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRISM_RL_PRM", raising=False)
    with pytest.raises(ConfigError, match="set PRISM_RL_PRM"):
        reward.configured_reward()
    with pytest.raises(ConfigError, match=r"Unknown options \['agregator'\]"):
        reward.configured_reward({"prm": "x", "agregator": "min"})
    monkeypatch.setenv("PRISM_RL_GATE", "perhaps")
    with pytest.raises(ConfigError, match="PRISM_RL_GATE: 'perhaps' is not 1 or 0"):
        reward.configured_reward({"prm": "x"})


def test_the_same_options_load_one_prm(prm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reward.configured_reward({"prm": str(prm)}) is reward.configured_reward({"prm": str(prm)})
    assert reward.configured_reward({"prm": str(prm), "gate": "0"}).gate is False
    monkeypatch.setenv("PRISM_RL_AGGREGATOR", "mean")
    assert reward.configured_reward({"prm": str(prm)}).aggregator == "mean"


def test_end_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any mark ends a completion; only if the framework keeps marks does a missing one mean that it was cut off."""
    monkeypatch.delenv("PRISM_RL_EOS", raising=False)
    for mark in ENDS:
        assert split_end(f"#### 3{mark}\n") == ("#### 3", True)
        assert without_end(f"#### 3{mark}") == ("#### 3", False)
    assert without_end("#### 3") == ("#### 3", False)
    monkeypatch.setenv("PRISM_RL_EOS", "<|im_end|> <stop>")
    for end in ("<|im_end|>", "<stop>", "<|endoftext|>", "<stop></s>\n"):
        assert without_end(f"#### 3{end}") == ("#### 3", False)
    assert without_end("#### 3") == ("#### 3", True)
    assert without_end("<stop>#### 3") == ("<stop>#### 3", True)


def test_the_completion_in_a_query() -> None:
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    assert problem_in(prompt) == "1 + 2?"
    assert completion_in(f"<s> {prompt}#### 3", prompt, 0) == "#### 3"
    with pytest.raises(DataError, match="query 1 does not begin with its prompt"):
        completion_in(f"#{prompt}", prompt, 1)

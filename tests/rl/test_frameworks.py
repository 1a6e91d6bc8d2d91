"""The files for verl and OpenRLHF, loaded and called as those frameworks do."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prism_prm import ConfigError, DataError, load_prm
from prism_prm.rl import openrlhf, reward, verl

STEPS = ["1 + 2 = 3", "#### 3"]
TEXT = "\n\n".join(STEPS)


@pytest.fixture
def prm(tiny_prm: Callable[..., Any], tmp_path: Path) -> Iterator[Path]:
    tiny_prm("qwen", "qwen2").save(tmp_path / "prm")
    yield tmp_path / "prm"
    reward._make_reward.cache_clear()


def from_file(module: Any, name: str) -> Any:
    """A function of a file, as frameworks load it that are given a path."""
    spec = importlib.util.spec_from_file_location("custom_module", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def test_verl_one_at_a_time(prm: Path) -> None:
    compute = from_file(verl, "compute_score")
    score = load_prm(prm).solution_score("1 + 2?", STEPS)
    told = compute(
        data_source="sums", solution_str=TEXT, ground_truth="3", extra_info={"question": "1 + 2?", "index": 0},
        prm=str(prm), verifiable=1.0,
    )  # fmt: skip
    assert told["score"] == pytest.approx(1 + score)
    assert told == {
        "score": pytest.approx(1 + score), "prm": pytest.approx(score), "bonus": 1.0, "gated": 0.0, "steps": 2.0,
        "unreadable_steps": 0.0,
    }  # fmt: skip


def test_verl_in_batches(prm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl hands over arrays of objects, and the options as keywords."""
    compute = from_file(verl, "compute_score_batch")
    monkeypatch.setenv("PRISM_RL_AGGREGATOR", "mean")
    found = compute(
        data_sources=np.array(["sums", "sums", "sums"], dtype=object), solution_strs=[TEXT, "I give up.", ""],
        ground_truths=["3", "3", None], extra_infos=np.array([{"problem": "1 + 2?"}] * 3, dtype=object), prm=str(prm),
    )  # fmt: skip
    assert [one["score"] for one in found] == [pytest.approx(np.mean(load_prm(prm).score("1 + 2?", STEPS))), 0.0, 0.0]
    assert [one["gated"] for one in found] == [0.0, 1.0, 1.0]
    with pytest.raises(DataError, match="sums: extra_info has no problem"):
        compute(data_sources=["sums"], solution_strs=[""], ground_truths=[""], extra_infos=[None], prm=str(prm))


def test_openrlhf(prm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_RL_PRM", str(prm))
    monkeypatch.setenv("PRISM_RL_VERIFIABLE", "0.5")
    monkeypatch.setenv("PRISM_RL_EOS", "<|im_end|>")
    reward_func = from_file(openrlhf, "reward_func")
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    replies = [f"{TEXT}<|im_end|>", TEXT, "Nothing.<|im_end|>"]
    found = reward_func([prompt + reply for reply in replies], [prompt] * 3, ["3", "3", "3"])
    score = load_prm(prm).solution_score("1 + 2?", STEPS)
    assert found["rewards"].tolist() == pytest.approx([0.5 + score, 0.0, 0.0])
    assert found["scores"].tolist() == pytest.approx([0.5 + score, 0.0, 0.0])
    assert found["extra_logs"]["cut"].tolist() == [0.0, 1.0, 0.0]
    assert found["extra_logs"]["gated"].tolist() == [0.0, 1.0, 1.0]
    assert isinstance(found["rewards"], torch.Tensor)
    assert reward_func([f"1 + 2?\n{TEXT}<|im_end|>"], ["1 + 2?\n"], ["4"])["rewards"].tolist() == pytest.approx([score])
    with pytest.raises(DataError, match="query 1 does not begin with its prompt"):
        reward_func([prompt, f"#{prompt}{TEXT}"], [prompt] * 2, ["3", "3"])


def test_options_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRISM_RL_PRM", raising=False)
    with pytest.raises(ConfigError, match="set PRISM_RL_PRM"):
        reward.configured_reward()
    with pytest.raises(ConfigError, match=r"Unknown options \['agregator'\]"):
        reward.configured_reward({"prm": "x", "agregator": "min"})
    monkeypatch.setenv("PRISM_RL_GATE", "perhaps")
    with pytest.raises(ConfigError, match="PRISM_RL_GATE: 'perhaps' is not 1 or 0"):
        reward.configured_reward({"prm": "x"})


def test_the_same_options_load_one_prm(prm: Path) -> None:
    assert reward.configured_reward({"prm": str(prm)}) is reward.configured_reward({"prm": str(prm)})
    assert reward.configured_reward({"prm": str(prm), "gate": "0"}).gate is False

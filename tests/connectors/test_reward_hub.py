"""reward_hub's own HTTP client of vLLM, on `prism serve`."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from reward_hub.openai import reward as module
from samples import PROBLEM, TEXTS, TOLERANCE, expected

NAME = "Qwen/Qwen2.5-Math-PRM-7B"
"""The only PRM that it supports: the server serves another one under this name, too."""


def scored(texts: list[str], monkeypatch: pytest.MonkeyPatch, port: int | None = None) -> list[Any]:
    monkeypatch.setattr(module.AutoTokenizer, "from_pretrained", lambda _: SimpleNamespace())  # unused over HTTP
    model = module.OpenAIProcessRewardModel(NAME, port or int(os.environ["PRISM_SERVER"].rpartition(":")[2]))
    talks = [[{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": text}] for text in texts]
    found: list[Any] = model.score(talks, return_full_prm_result=True)
    return found


def test_a_dead_server_stops_the_run(dead_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match=r"refused|connect|Max retries"):
        scored([TEXTS[0]], monkeypatch, int(dead_server.rpartition(":")[2]))


def test_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own system turn is ignored, because the card of the PRM has none."""
    found = scored(list(TEXTS) * 6, monkeypatch)
    assert [one.step_scores for one in found] == [
        pytest.approx(own, abs=TOLERANCE) for own in expected()["probabilities"][:4] * 6
    ]

"""Whether an architecture can be decoded is tried out on a miniature before it writes anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, MistralConfig, Qwen2MoeConfig

from prism_prm import PrismError
from prism_prm.backends import decode as trial
from prism_prm.backends.decode import Decoder, check_decoding
from prism_prm.backends.hf import load_hf
from prism_prm.models.check_packing import small_config
from tiny import qwen_tokenizer


@pytest.fixture(autouse=True)
def no_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_FAULTS", {})


def unread(config: Any) -> Any:
    """A model of full size without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    "config", [MistralConfig(), Qwen2MoeConfig(use_sliding_window=True)], ids=lambda config: config.model_type
)
def test_large_models_with_windows_are_tried(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_decoding(unread(config))
    monkeypatch.setattr(trial, "_FAULTS", {})
    make = Decoder.__init__
    monkeypatch.setattr(
        Decoder, "__init__", lambda self, model, windows: make(self, model, dict.fromkeys(windows, None))
    )
    with pytest.raises(
        PrismError, match=r"another log-likelihood than in a plain sequence, by .* use openai:<base url>"
    ):
        check_decoding(unread(config))


def test_a_config_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(trial, "_find_fault", lambda model: (tried.append(model), "")[1])
    for _ in range(3):
        check_decoding(unread(MistralConfig()))
    assert len(tried) == 1


def test_what_cannot_be_decoded_is_refused_when_it_is_loaded(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(PrismError, match="stablelm: this architecture cannot be decoded here: it fails"):
        load_hf(tiny_lm("stablelm"))
    config = small_config(DeepseekV3Config())
    config.vocab_size = 512
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path)
    qwen_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(PrismError, match="deepseek_v3: this architecture cannot be decoded here: it fails"):
        load_hf(tmp_path)

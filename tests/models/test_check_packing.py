"""Whether an architecture can be packed is tried out on a miniature: whatever its size, its windows and its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    DeepseekV3Config,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    StableLmConfig,
)

from prism_prm import PrismError, init_prm
from prism_prm.models import attention, session
from prism_prm.models import check_packing as trial
from prism_prm.models.check_packing import check_packing, check_session, miniature, small_config
from prism_prm.models.module import PrmModule
from tiny import qwen_tokenizer

VOCABULARY = 512
WINDOWS = {"use_sliding_window": True, "max_window_layers": 20}
PUBLISHED = [
    Qwen2Config(hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_key_value_heads=4, **WINDOWS),
    Qwen2MoeConfig(**WINDOWS),
    LlamaConfig(num_key_value_heads=8),
    MistralConfig(),
    Gemma3TextConfig(),
    DeepseekV3Config(),
]
"""Configs of billions of parameters, with windows of thousands of tokens."""


@pytest.fixture(autouse=True)
def no_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_CHECKED", {})


def unread(config: Any, attn: str = "sdpa") -> PrmModule:
    """A module of full size without memory for its weights."""
    with torch.device("meta"):
        backbone = AutoModel.from_config(config, attn_implementation=attn)
    family: Any = SimpleNamespace(head_name="score", log_odds=lambda logits: logits)
    return PrmModule(backbone, nn.Identity(), family)


def kind(config: Any) -> str:
    return str(config.model_type)


@pytest.mark.parametrize("config", PUBLISHED, ids=kind)
def test_large_models_are_tried_in_miniature(config: Any) -> None:
    module = unread(config)
    check_packing(module)
    check_session(module)
    assert sum(p.numel() for p in miniature(module.backbone, "eager").parameters()) < 500_000


@pytest.mark.parametrize("config", [LlamaConfig, GPT2Config], ids=["llama", "gpt2"])
def test_models_with_few_words_or_positions_are_tried_as_well(config: Any) -> None:
    module = unread(config(vocab_size=20, max_position_embeddings=32))
    check_packing(module)
    check_session(module)


@pytest.mark.parametrize(("hidden", "heads", "groups"), [(192, 3, 3), (48, 3, 1), (36, 6, 2), (24, 2, 2), (16, 1, 1)])
def test_any_number_of_heads_is_tried(hidden: int, heads: int, groups: int) -> None:
    """Three heads, say, do not divide a miniature's hidden size."""
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": groups}
    module = unread(Qwen2Config(**sizes, intermediate_size=48, num_hidden_layers=2, vocab_size=50))
    check_packing(module)
    check_session(module)


def test_a_miniature_has_every_kind_of_layer_and_small_windows() -> None:
    small = small_config(Gemma3TextConfig())
    assert small.layer_types == [*["sliding_attention"] * 3, "full_attention"]
    assert small.sliding_window == 8
    assert small_config(small).to_dict() == small.to_dict()
    mixed = Qwen2Config(use_sliding_window=True, max_window_layers=1, num_hidden_layers=3, sliding_window=4096)
    small = small_config(mixed)
    assert small.layer_types == mixed.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]
    assert (small.hidden_size, small.num_attention_heads, small.num_key_value_heads) == (64, 4, 4)


@pytest.mark.parametrize("config", PUBLISHED[:2], ids=kind)
def test_attention_that_misses_its_window_is_found(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers take the blocks of the first kind, full attention: short texts would not show it."""
    monkeypatch.setattr(attention, "ticket", lambda _, dtype: torch.full((1, 1, 1, 1), torch.nan, dtype=dtype))
    with pytest.raises(
        PrismError, match=r"qwen2\w*: this architecture cannot be packed.*18 of 18 steps have other hidden"
    ):
        check_packing(unread(config))


@pytest.mark.parametrize("config", [PUBLISHED[0], PUBLISHED[3]], ids=kind)
def test_a_session_that_misses_windows_is_found(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_windows(*arguments: Any) -> Any:
        module = arguments[0]
        monkeypatch.setattr(module, "windows", dict.fromkeys(module.windows, None))
        return grow(*arguments)

    grow = session.run_growth
    monkeypatch.setattr(trial, "run_growth", without_windows)
    module = unread(config)
    check_packing(module)
    with pytest.raises(
        PrismError, match=r"cannot be scored in sessions: \d+ of 18 steps.*Whole solutions and trees can"
    ):
        check_session(module)


def test_positions_that_are_not_heeded_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    call = PrmModule._call
    monkeypatch.setattr(
        PrmModule, "_call", lambda self, b, positions, *a, **k: call(self, b, torch.zeros_like(positions), *a, **k)
    )
    with pytest.raises(PrismError, match="llama: this architecture cannot be packed"):
        check_packing(unread(LlamaConfig()))


def test_trying_out_draws_no_numbers() -> None:
    torch.manual_seed(0)
    check_packing(unread(LlamaConfig()))
    found = torch.rand(())
    torch.manual_seed(0)
    assert found == torch.rand(())


def test_a_config_that_cannot_be_cut_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(*_: Any, **options: Any) -> None:
        if options.get("hidden_size") == 64:
            raise ValueError("hidden_size must be a multiple of 100. More about it elsewhere.")

    module = unread(LlamaConfig())
    monkeypatch.setattr(LlamaConfig, "__init__", strict)
    with pytest.raises(PrismError, match=r"llama: .*it cannot be tested \(ValueError: hidden_size must be a multiple"):
        check_packing(module)


def test_a_config_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    make = trial.miniature
    monkeypatch.setattr(
        trial, "miniature", lambda model, *a: (tried.append(model.config.model_type), make(model, *a))[1]
    )
    for _ in range(3):
        check_packing(unread(LlamaConfig()))
        check_session(unread(LlamaConfig()))
    assert tried == ["llama"] * 2, "packed and in a session"
    check_packing(unread(LlamaConfig(hidden_act="gelu")))
    assert tried == ["llama"] * 4


def test_refusals_say_what_differs_and_the_way_out(tiny_lm: Callable[..., Path]) -> None:
    # This one computes attention by itself and does not heed what each token may see.
    with pytest.raises(
        PrismError,
        match=r"stablelm: this architecture cannot be packed with attn='sdpa', .*: 18 of 18 steps have other "
        r"hidden states than in plain sequences; the shortest path has 14 tokens .*Use a model of another architecture",
    ):
        check_packing(unread(StableLmConfig()))
    with pytest.raises(PrismError, match="stablelm: this architecture cannot be packed"):
        init_prm(tiny_lm("stablelm"), family="qwen")


def test_what_only_flex_attention_can_is_said() -> None:
    """Gemma 2 caps its attention scores, which SDPA cannot, so sessions cannot either."""
    module = unread(Gemma2Config(), "flex_attention")
    check_packing(module)
    with pytest.raises(PrismError, match=r"gemma2: this architecture cannot be scored in sessions: .*does not support"):
        check_session(module)
    module = unread(Gemma2Config(), "eager")  # becomes SDPA
    with pytest.raises(PrismError, match=r"attn='sdpa', .*Gemma2Model does not support.*\. It works with attn='flex'"):
        check_packing(module)


def test_an_architecture_without_sdpa_is_sent_to_flex(tmp_path: Path) -> None:
    config = small_config(Gemma2Config())
    config.vocab_size = VOCABULARY
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    qwen_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(PrismError, match=r"Gemma2Model does not support .* A PRM may work with attn='flex'"):
        init_prm(tmp_path)
    prm = init_prm(tmp_path, attn="flex")
    with pytest.raises(PrismError, match="cannot be scored in sessions"):
        prm.session(["What?"])

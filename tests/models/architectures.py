"""Tiny random PRMs of many architectures, in memory: what packing and sessions are attacked with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModel

from prism_prm.models.attention import ATTENTION
from prism_prm.models.card import Card
from prism_prm.models.check_packing import randomize, small_config
from prism_prm.models.families import FAMILIES
from prism_prm.models.module import PrmModule
from prism_prm.models.prm import PRM
from tiny import llama_tokenizer, mistral_tokenizer, qwen_tokenizer

VOCABULARY = 512
_MIXED = {"use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 4}
WINDOWED: dict[str, dict[str, Any]] = {
    "cohere2": {},
    "exaone4": {},
    "gemma3_text": {},
    "ministral3": {"sliding_window": 16},
    "mistral": {},
    "mixtral": {"sliding_window": 16},
    "olmo3": {},
    "phi3": {"sliding_window": 16},
    "phimoe": {"sliding_window": 16},
    "qwen2": _MIXED,
    "qwen2_moe": _MIXED,
    "qwen3": _MIXED,
    "qwen3_moe": {"use_sliding_window": True, "sliding_window": 16},
    "smollm3": {**_MIXED, "no_rope_layer_interval": 2},
    "starcoder2": {"sliding_window": 16},
}
"""Architectures with sliding windows, most of them mixed with full attention → what must be set for it."""
OTHERS: dict[str, dict[str, Any]] = {
    "cohere": {},
    "deepseek_v3": {},
    "gemma": {},
    "glm4": {},
    "gpt2": {},
    "gpt_neox": {},
    "granite": {},
    "llama": {},
    "olmo2": {},
    "olmoe": {},
    "opt": {"word_embed_proj_dim": 64},
    "phi": {},
}
"""Without windows: latent key/values, learned positions, parallel and partial layers, experts."""
_TOKENIZERS = {
    "qwen": qwen_tokenizer,
    "token-classification": llama_tokenizer,
    "math-shepherd": mistral_tokenizer,
    "rlhflow": llama_tokenizer,
    "skywork": qwen_tokenizer,
    "reasoneval": mistral_tokenizer,
    "verdict": llama_tokenizer,
}


@lru_cache
def backbone(kind: str) -> Any:
    """A random model of an architecture, in 64 bits, whose windows are 8 tokens wide."""
    config = small_config(CONFIG_MAPPING[kind](**{**WINDOWED, **OTHERS}[kind]))
    config.vocab_size = VOCABULARY
    model = AutoModel.from_config(config, attn_implementation="sdpa").double().eval()
    randomize(model)
    return model


@lru_cache
def layout(family: str) -> Any:
    # A window of 8 tokens must reach from where a step is read back to the step, so no question stands in between.
    settings = {"question": "", "template": "none"} if family == "verdict" else None
    return FAMILIES[family](_TOKENIZERS[family](), settings=settings)


def random_prm(family: str, kind: str) -> PRM:
    """A PRM of any family on any architecture; models are shared, so do not change them."""
    model, laid_out = backbone(kind), layout(family)
    head = laid_out.make_head(model.config.hidden_size, model.config).double()
    randomize(head)
    return PRM(PrmModule(model, head, laid_out).eval(), laid_out, Card(family, laid_out.chosen))


@contextmanager
def exact() -> Iterator[None]:
    """Everything in 64 bits, also what transformers computes in 32: norms, softmaxes, routers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


@contextmanager
def own_attention(prm: PRM) -> Iterator[None]:
    """The architecture's own attention, with nothing of ours in it."""
    prm.module.config._attn_implementation = "eager"
    try:
        yield
    finally:
        prm.module.config._attn_implementation = ATTENTION["sdpa"]

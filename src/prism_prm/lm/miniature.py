"""A random model in miniature: of the same class and config as a given one, but narrow, short, and with tiny windows.

What an architecture does with masks, positions and kept key/values is a matter of its code and config, not of its
weights or widths. So it can be checked on a miniature, in milliseconds even for models with billions of parameters.
"""

from __future__ import annotations

import json
import re
from typing import Any

import torch

from prism_prm.lm.attention import kernel_of, set_kernel
from prism_prm.lm.load import hash_tensors, plain_config

WINDOW = 8
"""What every sliding window is cut to, so that short texts leave it."""
VOCABULARY = 64
CONTEXT = 128
"""Positions that it has at least."""
_MOST_LAYERS = 4
_RENAMED = (
    "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings", "num_hidden_layers",
    "num_key_value_heads",
)  # fmt: skip
_SIZES: dict[str, int] = {
    "intermediate_size": 96, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 48,
    "head_dim": 16, "rotary_dim": 8,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 28, "kv_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 16, "qk_head_dim": 24,
    "v_head_dim": 12,
}  # fmt: skip
"""What a config's sizes are cut to, where it has them and they are larger; different ones stay different."""
_HIDDEN_SIZE, _MOST_HEADS = 64, 4
"""The sizes of every miniature, even of a smaller model: heads must have an even size, whatever their number."""
_IS_WINDOW = re.compile(r"(^|_)window(_size)?$")
_DROPPED = ("quantization_config", "dtype", "torch_dtype", "transformers_version", "_name_or_path")


def small_config(config: Any) -> Any:
    """The config of a miniature: the kinds of layers in their order, sizes and windows cut."""
    given = {key: value for key, value in config.to_dict().items() if key not in _DROPPED}
    names = {key: config.attribute_map.get(key, key) for key in (*_SIZES, *_RENAMED)}
    for key, size in _SIZES.items():
        if isinstance(given.get(names[key]), int):
            given[names[key]] = min(size, given[names[key]])
    given[names["hidden_size"]] = _HIDDEN_SIZE
    heads = config.num_attention_heads
    small_heads = _MOST_HEADS if heads >= _MOST_HEADS else 2 if heads > 1 else 1  # it divides the hidden size
    given[names["num_attention_heads"]] = small_heads
    if isinstance(groups := given.get(names["num_key_value_heads"]), int):
        # One, some or all of the heads, as in the model.
        is_one = groups == 1 or (small_heads < _MOST_HEADS and groups < heads)
        small_groups = 1 if is_one else small_heads if groups == heads else small_heads // 2
        given[names["num_key_value_heads"]] = small_groups
    given[names["vocab_size"]] = VOCABULARY
    if isinstance(positions := given.get(names["max_position_embeddings"]), int):
        given[names["max_position_embeddings"]] = max(CONTEXT, positions)
    # One layer of each kind, and as many of the lowest as there is room for.
    kinds = list(getattr(config, "layer_types", None) or [""] * config.num_hidden_layers)
    firsts = sorted({kinds.index(kind) for kind in kinds})
    others = [layer for layer in range(config.num_hidden_layers) if layer not in firsts]
    layers = sorted([*firsts, *others][:_MOST_LAYERS])
    for key, value in given.items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            given[key] = [value[i] for i in layers]
        elif _IS_WINDOW.search(key) and isinstance(value, int) and value > WINDOW:
            given[key] = WINDOW
    given[names["num_hidden_layers"]] = len(layers)
    given |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # within the vocabulary
    made = type(config)(**given)
    set_kernel(made, kernel_of(config))
    made._experts_implementation = "eager"  # the others have no 64 bits
    return made


def miniature(model: Any, kernel: str) -> Any:
    """A random model of a model's class, in 64 bits on the CPU; an error if the class does not take that attention."""
    config = small_config(model.config)
    set_kernel(config, kernel)
    with torch.random.fork_rng(devices=[]):  # nobody else's numbers change because something was tried out
        made = type(model)(config).double().eval()
    randomize(made)
    return made


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Give all weights random values that are large enough for every part of a model to count."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() > 1:
            parameter.copy_(noise * 0.2)
        else:
            parameter.add_(noise * 0.1)


def config_key(model: Any) -> str:
    """Models with the same key have the same miniature."""
    facts = type(model).__name__, plain_config(model.config), kernel_of(model.config)
    return hash_tensors([json.dumps(facts, sort_keys=True, default=str)], ())

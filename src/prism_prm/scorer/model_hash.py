"""A hash of what decides a PRM's scores, taken from memory: it is right also after training or merging an adapter.

It covers every parameter as loaded (so the same folder in another dtype is another model), the backbone's config, the
tokenizer, and the family with its settings. It leaves out what changes no score: threshold, aggregator, versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
import xxhash
from torch import Tensor

from prism_prm.prms.base import Family
from prism_prm.prms.module import PrmModule

_CHANGES_NO_SCORE = (
    "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id", "num_labels", "problem_type",
    "return_dict", "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip


def hash_model(module: PrmModule, family: Family) -> str:
    """32 hexadecimal digits; a few seconds for billions of parameters."""
    config = plain_config(module.config)
    config |= dict.fromkeys(family.config_extras)  # written with the head, which the weights below show
    facts = {"family": family.name, "settings": family.chosen, "compat": family.compat, "config": config}
    texts = json.dumps(facts, sort_keys=True, default=str), tokenizer_text(family.text.tokenizer)
    return hash_tensors(texts, module.state_dict().items())


def hash_lower(module: PrmModule, layers: int) -> str:
    """The same for the embedding and the lowest layers alone: what decides the hidden states behind them."""
    backbone = module.backbone
    upper = {f"layers.{i}." for i in range(layers, len(backbone.layers))}
    config = plain_config(module.config)
    for later in ("num_hidden_layers", "max_window_layers", "tie_word_embeddings"):
        config.pop(later, None)
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:layers]
    lower = [item for item in backbone.state_dict().items() if not item[0].startswith((*upper, "norm."))]
    return hash_tensors([json.dumps([config, layers], sort_keys=True, default=str)], lower)


def plain_config(config: Any) -> dict[str, Any]:
    """What of a model's config decides its output."""
    return {key: value for key, value in config.to_dict().items() if key not in _CHANGES_NO_SCORE}


def hash_tensors(texts: Iterable[str], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Of named tensors with their types and shapes, whatever their order, and of texts."""
    digest = xxhash.xxh3_128()
    for text in texts:
        digest.update(text.encode())
    for name, tensor in sorted(tensors):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()


def tokenizer_text(tokenizer: Any) -> str:
    """The tokenizer's whole definition, or for a slow one its vocabulary; and its chat template."""
    template = getattr(tokenizer, "chat_template", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps([sorted(tokenizer.get_vocab().items()), template])
    # Truncation and padding are call options that tokenizers remember; they are not part of what a text means.
    definition = json.loads(backend.to_str())
    return json.dumps([{**definition, "truncation": None, "padding": None}, template], sort_keys=True)

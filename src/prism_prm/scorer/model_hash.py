"""A hash of what decides a PRM's scores, taken from memory: it is right also after training or merging an adapter.

It covers every parameter as loaded (so the same folder in another dtype is another model), the backbone's config, the
tokenizer, and the family with its settings. It leaves out what changes no score: threshold, aggregator, versions.
"""

from __future__ import annotations

import json

from prism_prm.lm.hash import hash_tensors, plain_config, tokenizer_text
from prism_prm.prms.base import Family
from prism_prm.prms.module import PrmModule


def hash_model(module: PrmModule, family: Family) -> str:
    """32 hexadecimal digits; a few seconds for billions of parameters."""
    config = plain_config(module.config)
    config |= dict.fromkeys(family.config_extras)  # written with the head, which the weights below show
    facts = {"family": family.name, "settings": family.chosen, "compat": family.compat, "config": config}
    if family.sha256:
        facts["code"] = family.sha256
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

"""A backbone in two parts that share its weights: the lower layers, which stay frozen, and the rest, which is trained.

The lower part's activations never change, so they can be cached; training and scoring then run the upper part alone.
Both parts are the architecture's own model class with a part of its layers, so every architecture's forward pass is its
own.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prism_prm.errors import ConfigError, ModelError


@dataclass(frozen=True)
class Halves:
    """Views of one backbone; neither holds weights of its own."""

    lower: Any
    """Embedding and the lowest layers; takes token ids."""
    upper: Any
    """The other layers and the last norm; takes the lower half's output as `inputs_embeds`."""
    layers: int
    """How many layers are in the lower half."""


def divide(backbone: Any, layers: int) -> Halves:
    """The two halves; an error where they would not be the whole."""
    found = getattr(backbone, "layers", None)
    kind = backbone.config.model_type
    if not isinstance(found, nn.ModuleList) or not isinstance(getattr(backbone, "norm", None), nn.Module):
        raise ModelError(
            f"{kind}: this architecture has no plain stack of layers, so its lower layers cannot be cached"
        )
    if not 0 < layers < len(found):
        raise ConfigError(
            f"{layers} frozen layers: the model has {len(found)} layers, so between 1 and {len(found) - 1} can be "
            f"frozen."
        )
    lower = _part(backbone, slice(None, layers))
    lower.norm = nn.Identity()
    halves = Halves(lower, _part(backbone, slice(layers, None)), layers)
    _check(backbone, halves)
    return halves


def _part(backbone: Any, which: slice) -> Any:
    """The same model with a part of its layers."""
    part = copy.copy(backbone)
    part._modules = dict(backbone._modules)
    part.layers = nn.ModuleList(backbone.layers[which])
    part.config = copy.copy(backbone.config)
    part.config.num_hidden_layers = len(part.layers)
    if getattr(part.config, "layer_types", None):
        part.config.layer_types = list(part.config.layer_types)[which]
    return part


@torch.no_grad()
def _check(backbone: Any, halves: Halves) -> None:
    """Some architectures scale what they take for embeddings, or count layers: then halves are not the whole."""
    device = next(backbone.parameters()).device
    ids = torch.arange(3, 19, device=device)[None] % backbone.config.vocab_size
    hidden = halves.lower(input_ids=ids, use_cache=False).last_hidden_state
    found = halves.upper(inputs_embeds=hidden, use_cache=False).last_hidden_state
    whole = backbone(input_ids=ids, use_cache=False).last_hidden_state
    if not torch.allclose(found, whole, rtol=1e-3, atol=1e-3):
        raise ModelError(f"{backbone.config.model_type}: its layers cannot be run in two parts, so none can be cached")

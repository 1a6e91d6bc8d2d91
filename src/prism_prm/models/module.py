"""The differentiable part of every PRM: a transformer over packed trees and a head at the read positions.

It is an ordinary `torch.nn.Module` without state between calls, so DDP, FSDP and peft can wrap it. Its parameters have
the names of the published checkpoints (`model.…`, `score.…`).

Shapes: B rows, L tokens of a row, Q new tokens, K visible tokens, R reads, H hidden size, C head outputs,
O named log-odds.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prism_prm.errors import ConfigError, ModelError
from prism_prm.models import attention
from prism_prm.models.attention import ATTENTION, FLEX_BLOCK, Attention, kernel_of, set_kernel
from prism_prm.models.families.base import Family
from prism_prm.models.load_lm import hash_tensors, plain_config
from prism_prm.models.model_files import ModelFiles, tokenizer_text
from prism_prm.models.packing import PackedBatch, Row, collate


class LabelRows(nn.Linear):
    """A language model's output layer that computes only the rows of the label tokens.

    It holds the whole matrix, so a checkpoint stays a complete language model, but a read costs two dot products
    instead of one per vocabulary entry.
    """

    rows: tuple[int, ...] = ()
    """Ids of the label tokens; the first one means a right step."""

    def forward(self, hidden_RH: Tensor) -> Tensor:
        rows = torch.tensor(self.rows, device=self.weight.device)
        bias = None if self.bias is None else self.bias[rows]
        return nn.functional.linear(hidden_RH, self.weight[rows], bias)


class ValueHead(nn.Module):
    """One number per read position; the layer is named `summary` as in TRL's value heads."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.summary = nn.Linear(hidden_size, 1)

    def forward(self, hidden_RH: Tensor) -> Tensor:
        value_R1: Tensor = self.summary(hidden_RH)
        return value_R1


@dataclass(frozen=True)
class Halves:
    """A backbone split in two parts that share its weights: the frozen lower layers, and the rest.

    The activations of the lower part never change, so they can be cached; training and scoring then run the upper part
    alone. Both parts are instances of the architecture's own model class, so they keep its forward pass.
    """

    lower: Any
    """The embedding and the lowest layers; takes token ids."""
    upper: Any
    """The other layers and the final norm; takes the output of `lower` as `inputs_embeds`."""


@torch.no_grad()
def divide(backbone: Any, layers: int) -> Halves:
    """Split a backbone after its lowest layers. Raises if the two parts do not reproduce its output."""
    kind, stack = backbone.config.model_type, getattr(backbone, "layers", None)
    if not isinstance(stack, nn.ModuleList) or not isinstance(getattr(backbone, "norm", None), nn.Module):
        raise ModelError(
            f"{kind}: this architecture has no plain stack of layers, so its lower layers cannot be cached"
        )
    if not 0 < layers < len(stack):
        raise ConfigError(
            f"{layers} frozen layers: the model has {len(stack)} layers, so between 1 and {len(stack)} can be frozen."
        )

    def part(which: slice) -> Any:
        half = copy.copy(backbone)
        half._modules = dict(backbone._modules)
        half.layers = nn.ModuleList(stack[which])
        half.config = copy.copy(backbone.config)
        half.config.num_hidden_layers = len(half.layers)
        if getattr(half.config, "layer_types", None):
            half.config.layer_types = list(half.config.layer_types)[which]
        return half

    lower, upper = part(slice(None, layers)), part(slice(layers, None))
    lower.norm = nn.Identity()
    # Some architectures rescale embeddings or depend on the layer index; for them the two parts give another output.
    ids = torch.arange(3, 19, device=next(backbone.parameters()).device)[None] % backbone.config.vocab_size
    hidden = lower(input_ids=ids, use_cache=False).last_hidden_state
    split_output = upper(inputs_embeds=hidden, use_cache=False).last_hidden_state
    full_output = backbone(input_ids=ids, use_cache=False).last_hidden_state
    if not torch.allclose(split_output, full_output, rtol=1e-3, atol=1e-3):
        raise ModelError(f"{kind}: its layers cannot be run in two parts, so none can be cached")
    return Halves(lower, upper)


class PrmModule(nn.Module):
    """Backbone and head; call it with a `PackedBatch` to get the log-odds of its reads."""

    reads_tokens = False
    """Whether a score needs the last states at all tokens of its step, not only at the read position."""
    planned_for: str | None = None
    """The device type to plan for, set on modules without weights; None: the module's own."""

    def __init__(self, backbone: Any, head: nn.Module, family: Family) -> None:
        super().__init__()
        self.config = backbone.config
        if kernel_of(self.config) != ATTENTION["flex"]:
            set_kernel(self.config, ATTENTION["sdpa"])
        self.windows = attention.attention_windows(backbone)
        self.backbone_name: str = backbone.base_model_prefix
        self.head_name = family.head_name
        self.to_log_odds = family.log_odds
        self.add_module(self.backbone_name, backbone)
        self.add_module(self.head_name, head)
        self.name_or_path: str | None = None
        """The folder or hub id it was loaded from; peft writes it into adapters as their base model."""
        self.files: ModelFiles | None = None
        """A snapshot of the files it was loaded from."""
        self._no_split_modules = backbone._no_split_modules  # read by FSDP's and device maps' wrapping policies
        self.halves: Halves | None = None
        """The backbone in two parts, if the output of the lower one is cached."""

    @property
    def backbone(self) -> Any:
        return self.get_submodule(self.backbone_name)

    @property
    def head(self) -> nn.Module:
        return self.get_submodule(self.head_name)

    @property
    def attention(self) -> Attention:
        return "flex" if kernel_of(self.config) == ATTENTION["flex"] else "sdpa"

    @property
    def in_blocks(self) -> bool:
        """Whether attention runs block by block over visible keys (`tree_attention`) instead of with a mask."""
        return self.attention == "sdpa" and (self.planned_for or self.device.type) == "cpu"

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Disable dropout inside the block, also between two updates of training."""
        training = [part for part in self.modules() if part.training]
        self.eval()
        try:
            yield
        finally:
            for part in training:  # one by one: frozen layers stay in eval mode during training
                part.training = True

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Trade time for memory in training."""
        self.backbone.gradient_checkpointing_enable(**options)

    def collate(self, rows: Sequence[Row]) -> PackedBatch:
        """Collate rows for this module's attention: flex needs whole blocks."""
        return collate(rows, multiple=FLEX_BLOCK if self.attention == "flex" else 1)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute the log-odds_RO of the batch's reads."""
        if batch.hidden_RH is not None:
            return self.read(batch.hidden_RH)
        return self.read(self.hidden(batch)[batch.read_row_R, batch.read_col_R])

    def hidden(self, batch: PackedBatch) -> Tensor:
        """Compute the last hidden_BLH of all tokens."""
        if batch.hidden_BLH is None:
            return self._packed(batch, self.backbone, input_ids=batch.input_ids_BL)
        assert self.halves is not None, "hidden states need a divided backbone"
        return self._packed(batch, self.halves.upper, inputs_embeds=batch.hidden_BLH)

    @torch.no_grad()
    def lower(self, batch: PackedBatch) -> Tensor:
        """Compute the hidden_BLH after the frozen lower layers: the last ones, if the backbone is not divided."""
        lower = self.backbone if self.halves is None else self.halves.lower
        return self._packed(batch, lower, input_ids=batch.input_ids_BL)

    def _packed(self, batch: PackedBatch, backbone: Any, **inputs: Tensor) -> Tensor:
        """Compute the last hidden states of a backbone, or a part of it, over packed trees."""
        layout = batch.end_BL, batch.position_ids_BL
        # Rows that fit one block gain nothing from blocks; one dense call for all rows is faster.
        if self.in_blocks and batch.input_ids_BL.shape[1] > attention.BLOCK:
            dtype = self.backbone.dtype
            blocks = [attention.visible_blocks(*layout, window, dtype) for window in self.windows.values()]
            tickets = {kind: attention.ticket(i, dtype) for i, kind in enumerate(self.windows)}
            return self._call(backbone, batch.position_ids_BL, tickets, tree_blocks=blocks, **inputs)
        make = attention.block_mask if self.attention == "flex" else attention.dense_mask
        masks = {kind: make(*layout, window) for kind, window in self.windows.items()}
        return self._call(backbone, batch.position_ids_BL, masks, **inputs)

    def run(self, ids_BQ: Tensor, positions_BQ: Tensor, masks: dict[str, Any], cache: Any) -> Tensor:
        """Compute the last hidden states of new tokens on top of a KV cache."""
        return self._call(self.backbone, positions_BQ, masks, input_ids=ids_BQ, past_key_values=cache, use_cache=True)

    def _call(self, backbone: Any, positions_BQ: Tensor, masks: dict[str, Any], **others: Any) -> Tensor:
        """Run the backbone; `masks` has one mask per kind of attention layer (see `attention_windows`)."""
        additive = {kind: self._additive(mask) for kind, mask in masks.items()}
        mask = additive if len(additive) > 1 else next(iter(additive.values()))
        with (
            attention.eager_flex() if self.attention == "flex" and positions_BQ.device.type == "cpu" else nullcontext()
        ):
            output = backbone(
                attention_mask=mask,
                position_ids=positions_BQ,
                **{"past_key_values": None, "use_cache": False, **others},
            )
        hidden_BQH: Tensor = output.last_hidden_state
        return hidden_BQH

    def _additive(self, mask: Any) -> Any:
        """Convert a boolean mask to an additive one, once instead of in every layer; autocast converts it itself."""
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or torch.is_autocast_enabled(mask.device.type):
            return mask
        zero = torch.zeros((), dtype=self.backbone.dtype, device=mask.device)
        return torch.where(mask, zero, -torch.inf)

    def read(self, hidden_RH: Tensor) -> Tensor:
        """Convert hidden states at read positions to log-odds, in at least 32 bits."""
        logits_RC: Tensor = self.head(hidden_RH)
        return self.to_log_odds(logits_RC if logits_RC.dtype == torch.float64 else logits_RC.float())


def hash_model(module: PrmModule, family: Family) -> str:
    """Hash everything that affects a PRM's scores, as 32 hex digits; takes a few seconds for billions of parameters.

    The hash is computed from memory, so it is correct after training or merging an adapter. It covers every parameter
    as loaded (so the same folder in another dtype is another model), the backbone's config, the tokenizer, and the
    family with its settings. It leaves out what changes no score: threshold, aggregator, versions.
    """
    config = plain_config(module.config)
    config |= dict.fromkeys(family.config_extras)  # they describe the head, whose weights are hashed below
    facts = {"family": family.name, "settings": family.chosen, "compat": family.compat, "config": config}
    if family.sha256:
        facts["code"] = family.sha256
    texts = json.dumps(facts, sort_keys=True, default=str), tokenizer_text(family.text.tokenizer)
    return hash_tensors(texts, module.state_dict().items())

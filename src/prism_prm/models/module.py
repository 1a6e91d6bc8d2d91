"""The differentiable part of every PRM: a transformer over packed trees and a head at the read positions.

It is an ordinary `torch.nn.Module` without state between calls, so that DDP, FSDP and peft can wrap it. Its parameters
are named as in the published checkpoints (`model.…`, `score.…`).

Shapes: B rows, L tokens of a row, Q new tokens, K tokens that can be seen, R reads, H hidden size, C head outputs,
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
    """A language model's output layer of which only the rows of the label tokens are computed.

    It holds the whole matrix, so that a checkpoint stays a complete language model, but a read costs two products
    and not one per word of the vocabulary.
    """

    rows: tuple[int, ...] = ()
    """The label tokens; the first is that of a right step."""

    def forward(self, hidden_RH: Tensor) -> Tensor:
        rows = torch.tensor(self.rows, device=self.weight.device)
        bias = None if self.bias is None else self.bias[rows]
        return nn.functional.linear(hidden_RH, self.weight[rows], bias)


class ValueHead(nn.Module):
    """One number per read position, named `summary` as in TRL's value heads."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.summary = nn.Linear(hidden_size, 1)

    def forward(self, hidden_RH: Tensor) -> Tensor:
        value_R1: Tensor = self.summary(hidden_RH)
        return value_R1


@dataclass(frozen=True)
class Halves:
    """A backbone in two parts that share its weights: the lower layers, which stay frozen, and the rest.

    The lower part's activations never change, so they can be cached; training and scoring then run the upper part
    alone. Both parts are the architecture's own model class with a part of its layers, so its forward pass is its own.
    """

    lower: Any
    """Embedding and the lowest layers; takes token ids."""
    upper: Any
    """The other layers and the last norm; takes the lower half's output as `inputs_embeds`."""


@torch.no_grad()
def divide(backbone: Any, layers: int) -> Halves:
    """The lowest layers and the others; an error where the two would not be the whole."""
    kind, stack = backbone.config.model_type, getattr(backbone, "layers", None)
    if not isinstance(stack, nn.ModuleList) or not isinstance(getattr(backbone, "norm", None), nn.Module):
        raise ModelError(
            f"{kind}: this architecture has no plain stack of layers, so its lower layers cannot be cached"
        )
    if not 0 < layers < len(stack):
        raise ConfigError(
            f"{layers} frozen layers: the model has {len(stack)} layers, so between 1 and {len(stack) - 1} can be "
            f"frozen."
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
    # Some architectures scale what they take for embeddings, or count layers: then halves are not the whole.
    ids = torch.arange(3, 19, device=next(backbone.parameters()).device)[None] % backbone.config.vocab_size
    hidden = lower(input_ids=ids, use_cache=False).last_hidden_state
    found = upper(inputs_embeds=hidden, use_cache=False).last_hidden_state
    whole = backbone(input_ids=ids, use_cache=False).last_hidden_state
    if not torch.allclose(found, whole, rtol=1e-3, atol=1e-3):
        raise ModelError(f"{kind}: its layers cannot be run in two parts, so none can be cached")
    return Halves(lower, upper)


class PrmModule(nn.Module):
    """Backbone and head; call it with a `PackedBatch` to get the log-odds of its reads."""

    planned_for: str | None = None
    """The kind of device that a module without weights stands for; None: its own."""

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
        """Where it was loaded from; peft writes it into adapters as their base model."""
        self.files: ModelFiles | None = None
        """The files it was loaded from, as they were then."""
        self._no_split_modules = backbone._no_split_modules  # read by FSDP's and device maps' wrapping policies
        self.halves: Halves | None = None
        """The backbone in two parts, where the lower one's output is cached."""

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
        """Whether attention is computed block by block over the keys that are seen; else with dense or block masks."""
        return self.attention == "sdpa" and (self.planned_for or self.device.type) == "cpu"

    @property
    def device(self) -> torch.device:
        """Where input goes."""
        return next(self.parameters()).device

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """No dropout while scoring, also between two updates of training."""
        training = [part for part in self.modules() if part.training]
        self.eval()
        try:
            yield
        finally:
            for part in training:  # one by one: frozen layers do not train beside those that do
                part.training = True

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        """Trade time for memory in training."""
        self.backbone.gradient_checkpointing_enable(**options)

    def collate(self, rows: Sequence[Row]) -> PackedBatch:
        """The rows as a batch for its attention: flex works in whole blocks."""
        return collate(rows, multiple=FLEX_BLOCK if self.attention == "flex" else 1)

    def forward(self, batch: PackedBatch) -> Tensor:
        """The log-odds_RO of the batch's reads."""
        if batch.hidden_BLH is None:
            hidden_BLH = self._packed(batch, self.backbone, input_ids=batch.input_ids_BL)
        else:
            assert self.halves is not None, "who gives hidden states has divided the backbone"
            hidden_BLH = self._packed(batch, self.halves.upper, inputs_embeds=batch.hidden_BLH)
        return self.read(hidden_BLH[batch.read_row_R, batch.read_col_R])

    @torch.no_grad()
    def lower(self, batch: PackedBatch) -> Tensor:
        """The hidden_BLH behind the lower half's layers, which are frozen."""
        assert self.halves is not None, "who asks for the lower half has divided the backbone"
        return self._packed(batch, self.halves.lower, input_ids=batch.input_ids_BL)

    def _packed(self, batch: PackedBatch, backbone: Any, **given: Tensor) -> Tensor:
        """The last hidden states of a backbone, or a part of it, over packed trees."""
        layout = batch.end_BL, batch.position_ids_BL
        # Rows of a single block gain nothing from blocks, and one call for all of them is faster than one for each.
        if self.in_blocks and batch.input_ids_BL.shape[1] > attention.BLOCK:
            dtype = self.backbone.dtype
            blocks = [attention.visible_blocks(*layout, window, dtype) for window in self.windows.values()]
            tickets = {kind: attention.ticket(i, dtype) for i, kind in enumerate(self.windows)}
            return self._call(backbone, batch.position_ids_BL, tickets, tree_blocks=blocks, **given)
        make = attention.block_mask if self.attention == "flex" else attention.dense_mask
        masks = {kind: make(*layout, window) for kind, window in self.windows.items()}
        return self._call(backbone, batch.position_ids_BL, masks, **given)

    def run(self, ids_BQ: Tensor, positions_BQ: Tensor, masks: dict[str, Any], cache: Any) -> Tensor:
        """The last hidden states of new tokens over kept ones."""
        return self._call(self.backbone, positions_BQ, masks, input_ids=ids_BQ, past_key_values=cache, use_cache=True)

    def _call(self, backbone: Any, positions_BQ: Tensor, masks: dict[str, Any], **others: Any) -> Tensor:
        """The last hidden states; `masks` has one mask per kind of attention layer (see `attention_windows`)."""
        ready = {kind: self._additive(mask) for kind, mask in masks.items()}
        mask = ready if len(ready) > 1 else next(iter(ready.values()))
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
        """A dense mask as numbers to add, made once and not in every layer again; autocast makes its own."""
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or torch.is_autocast_enabled(mask.device.type):
            return mask
        nothing = torch.zeros((), dtype=self.backbone.dtype, device=mask.device)
        return torch.where(mask, nothing, -torch.inf)

    def read(self, hidden_RH: Tensor) -> Tensor:
        """Hidden states at read positions → log-odds, in 32 bits at least."""
        logits_RC: Tensor = self.head(hidden_RH)
        return self.to_log_odds(logits_RC if logits_RC.dtype == torch.float64 else logits_RC.float())


def hash_model(module: PrmModule, family: Family) -> str:
    """A hash of what decides a PRM's scores, as 32 hexadecimal digits; a few seconds for billions of parameters.

    It is taken from memory, so it is right also after training or merging an adapter. It covers every parameter as
    loaded (so the same folder in another dtype is another model), the backbone's config, the tokenizer, and the family
    with its settings. It leaves out what changes no score: threshold, aggregator, versions.
    """
    config = plain_config(module.config)
    config |= dict.fromkeys(family.config_extras)  # written with the head, which the weights below show
    facts = {"family": family.name, "settings": family.chosen, "compat": family.compat, "config": config}
    if family.sha256:
        facts["code"] = family.sha256
    texts = json.dumps(facts, sort_keys=True, default=str), tokenizer_text(family.text.tokenizer)
    return hash_tensors(texts, module.state_dict().items())

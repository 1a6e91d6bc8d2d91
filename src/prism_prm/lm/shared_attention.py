"""Attention of rows that continue the same texts: a context's key/values are held, and read, once for all its rows.

The softmax over a row's context and its own tokens is computed in two parts, which are joined by their maxima and sums.
For the part over contexts the queries of all rows of a context are one matrix.

Shapes: C contexts, S slots (rows that a context can have), B rows, H heads, N key/value heads, G = H / N, D head size,
K keys, of contexts or of a row's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prism_prm.lm.kv_buffer import Columns
from prism_prm.lm.tree_attention import tree_attention

NAME = "prism_shared"
"""What this attention is called in a model's config."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Which row continues which context."""

    contexts: Columns
    num_slots: int
    context_B: Tensor
    slot_B: Tensor

    def by_context(self, rows_BNGD: Tensor) -> Tensor:
        """Rows → (C, N, S · G, D); zeros where a context has fewer rows."""
        _, heads, groups, size = rows_BNGD.shape
        contexts = self.contexts.num_rows
        grid = rows_BNGD.new_zeros((contexts, heads, self.num_slots, groups, size))
        grid[self.context_B, :, self.slot_B] = rows_BNGD
        return grid.view(contexts, heads, self.num_slots * groups, size)

    def by_row(self, grid: Tensor) -> Tensor:
        """The way back: (C, N, S · G, any) → (B, N, G, any)."""
        contexts, heads, slots_groups, size = grid.shape
        by_slot = grid.view(contexts, heads, self.num_slots, slots_groups // self.num_slots, size)
        return by_slot[self.context_B, :, self.slot_B]


def shared_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    grid: Grid | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (B, H, 1, D) → (B, 1, H, D); without a grid it is plain SDPA.

    With a grid, `key` and `value` are the rows' own, and the mask (C, 1, 1, keys of contexts + own) is added. A model
    that does not hand the grid on fails, because its keys do not match the mask.
    """
    if grid is None:
        return tree_attention(module, query, key, value, attention_mask, dropout, scaling, **others)
    assert attention_mask is not None, "a grid comes with its mask"
    rows, heads, _, size = query.shape
    own_heads = key.shape[1]
    query_BNGD = (query * (size**-0.5 if scaling is None else scaling)).view(rows, own_heads, heads // own_heads, size)
    keys, values = grid.contexts.layer(module.layer_idx)
    num_shared = keys.shape[2]
    parts = _attend(grid.by_context(query_BNGD), keys, values, attention_mask[..., :num_shared])
    context, context_top, context_sum = map(grid.by_row, parts)
    # All rows of a batch have written equally many tokens, so one row's mask is everyone's.
    own, own_top, own_sum = _attend(query_BNGD, key, value, attention_mask[:1, ..., num_shared:])
    top = torch.maximum(context_top, own_top)
    context_weight, own_weight = (context_top - top).exp_(), (own_top - top).exp_()
    total = context_sum * context_weight + own_sum * own_weight
    out = (context * context_weight + own * own_weight) / total
    return out.to(query.dtype).view(rows, 1, heads, size), None


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values weighted by exp(score − maximum), the maxima, and the sums of the weights; in 32 bits at least."""
    scores = (query @ keys.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32)).add_(mask)
    # Where a window shows nothing of a context, the maximum is finite all the same and the weights are 0.
    top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(top).exp_()
    return (weights.to(values.dtype) @ values).to(weights.dtype), top, weights.sum(-1, keepdim=True)

"""Attention over packed trees on CPUs: a block of queries at a time, over the keys that it can see.

In a packed tree a token sees its own path, a small part of the row, but a dense mask pays for the whole row. Here each
block of neighbouring queries gathers the keys that any of them sees and runs ordinary SDPA on those, so the work is
tokens × path and not tokens × row. The numbers are those of the dense mask. GPUs have flex attention for this.

Shapes: B rows, L tokens of a row, Q queries of a block, K keys that they see, N heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from prism_prm.errors import ModelError

NAME = "prism_sdpa"
"""What this attention is called in a model's config."""
BLOCK = 128
"""Queries per block: wider ones see more than they need, narrower ones make small products."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring queries of one row and what they see."""

    start: int
    stop: int
    seen_K: Tensor | None
    """The keys' columns; None: the first `stop` ones."""
    mask_QK: Tensor
    """To be added to the products."""


RowBlocks = list[list[Block]]
"""For each row its blocks, in order."""


def ticket(number: int, dtype: torch.dtype) -> Tensor:
    """What a model gets as the mask of one kind of its layers: its width tells the attention whose blocks to take.

    Masks are what every architecture chooses by layer; not all of them tell their attention the layer's window. A
    model that used it as a mask would get NaN.
    """
    return torch.full((1, 1, 1, 1 + number), torch.nan, dtype=dtype)


def visible_blocks(end_BL: Tensor, positions_BL: Tensor, window: int | None, dtype: torch.dtype) -> RowBlocks:
    """Which keys each block sees: k ≤ q < end[k], and in a sliding window position_q − position_k < window."""
    length = end_BL.shape[1]
    return [
        [
            _block(ends_L, positions_L, start, min(start + BLOCK, length), window, dtype)
            for start in range(0, length, BLOCK)
        ]
        for ends_L, positions_L in zip(end_BL, positions_BL, strict=True)
    ]


def _block(ends_L: Tensor, positions_L: Tensor, start: int, stop: int, window: int | None, dtype: torch.dtype) -> Block:
    at_Q = torch.arange(start, stop)[:, None]
    seen_K = (ends_L[:stop] > start).nonzero()[:, 0]
    sees_QK = (seen_K <= at_Q) & (at_Q < ends_L[seen_K])
    if window is not None:
        sees_QK &= positions_L[start:stop, None] - positions_L[seen_K] < window
        useful_K = sees_QK.any(dim=0)
        seen_K, sees_QK = seen_K[useful_K], sees_QK[:, useful_K]
    mask_QK = torch.zeros(sees_QK.shape, dtype=dtype).masked_fill_(~sees_QK, -torch.inf)
    return Block(start, stop, None if len(seen_K) == stop else seen_K, mask_QK)


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    tree_blocks: Sequence[RowBlocks] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: (B, N, L, D) → (B, L, N, D); without `tree_blocks` it is plain SDPA.

    With them, one for each kind of layer, the mask is a `ticket`.
    """
    if tree_blocks is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )[0]
        return out, None
    if attention_mask is None or attention_mask.numel() > len(tree_blocks):
        raise ModelError(f"{type(module).__name__} does not pass on its attention mask, so it cannot be packed")
    repeats = query.shape[1] // key.shape[1]
    rows = []
    for row, blocks in enumerate(tree_blocks[attention_mask.numel() - 1]):
        pieces = []
        for block in blocks:
            keys, values = (_seen(kept[row : row + 1], block, repeats) for kept in (key, value))
            queries = query[row : row + 1, :, block.start : block.stop]
            mask = block.mask_QK.to(query.dtype)[None, None]
            pieces.append(scaled_dot_product_attention(queries, keys, values, mask, dropout, scale=scaling))
        rows.append(torch.cat(pieces, dim=2))
    return torch.cat(rows).transpose(1, 2).contiguous(), None


def _seen(kept_1NLD: Tensor, block: Block, repeats: int) -> Tensor:
    seen = kept_1NLD[:, :, : block.stop] if block.seen_K is None else kept_1NLD.index_select(2, block.seen_K)
    return seen if repeats == 1 else seen.repeat_interleave(repeats, dim=1)

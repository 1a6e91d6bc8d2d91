"""Attention over shared contexts equals attention where every row has its own copy; columns equal concatenation."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from prism_prm.models.attention import SPARE, Columns, Grid, shared_attention

CONTEXT_B = torch.tensor([2, 0, 2, 0, 0, 1, 2])
"""Rows of three contexts, not in order; the second has one row only."""
SLOT_B = torch.tensor([0, 0, 1, 1, 2, 0, 2])
DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.04)]
HIDDEN = 5
"""Columns of padding before the first context."""


def memory(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 2, rows, 2, columns, 8, dtype=dtype)


@pytest.mark.parametrize("window", [None, 6, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_shared_contexts_equal_copies(window: int | None, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    shared, own = memory(3, 11, dtype), memory(7, 4, dtype)
    query = torch.randn(7, 6, 1, 8, dtype=dtype)
    mask_CK = torch.zeros(3, 15)
    mask_CK[0, :HIDDEN] = -torch.inf
    if window is not None:  # with 3 it shows nothing of any context
        mask_CK[:, : 15 - window] = -torch.inf
    grid = Grid(Columns(2, shared, 11), 3, CONTEXT_B, SLOT_B)
    module = SimpleNamespace(layer_idx=1, num_key_value_groups=3)
    mask = mask_CK[:, None, None]
    found, _ = shared_attention(module, query, own[1, 0], own[1, 1], mask, scaling=0.3, grid=grid)

    copies = torch.cat([shared[1][:, CONTEXT_B], own[1]], dim=-2).repeat_interleave(3, dim=2).double()
    expected = scaled_dot_product_attention(
        query.double(), copies[0], copies[1], attn_mask=mask[CONTEXT_B].double(), scale=0.3
    )
    torch.testing.assert_close(found.double(), expected.transpose(1, 2), atol=tolerance, rtol=tolerance)

    with pytest.raises(RuntimeError):  # a model that loses the grid on the way does not go on without the contexts
        shared_attention(module, query, own[1, 0], own[1, 1], mask, scaling=0.3)


def test_columns_equal_concatenation() -> None:
    torch.manual_seed(0)
    kept = memory(4, 3, torch.float32)
    columns = Columns(2, kept.clone(), 3)
    for width in (2, 1, SPARE, 1, 2 * SPARE):
        new = memory(4, width, torch.float32)[:, :, : kept.shape[2]]
        kept = torch.cat([kept, new], dim=-2)
        for layer in range(2):
            keys, values = columns.update(new[layer, 0], new[layer, 1], layer)
            torch.testing.assert_close(torch.stack([keys, values]), kept[layer], atol=0, rtol=0)
        torch.testing.assert_close(columns.copy(1, 2, 4), kept[:, :, 1, :, 2:4], atol=0, rtol=0)
        if width == 1 and kept.shape[2] > 2:
            rows = torch.tensor([2, 0, 1])[: kept.shape[2] - 1]
            columns.select(rows)
            kept = kept[:, :, rows]
    assert columns.get_seq_length() == kept.shape[-2] == 3 + 2 + 1 + SPARE + 1 + 2 * SPARE
    assert columns.written().shape[2] == 2

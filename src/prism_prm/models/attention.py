"""Attention kernels: select one, build its masks, and two kernels of our own.

`tree_attention` is for packed trees on CPUs. In a packed tree a token sees only its own path, a small part of the row,
but a dense mask costs work for the whole row. This kernel gathers, for each block of neighboring queries, the keys that
any of them sees, and runs ordinary SDPA on those. The work is tokens × path instead of tokens × row; the result is the
same. On GPUs, flex attention does this.

`shared_attention` is for rows that continue the same texts. It stores and reads a context's key/values once for all its
rows. The softmax is computed in two parts, over the context and over the row's own tokens, and combined by their maxima
and sums. For the context part, the queries of all its rows form one matrix.

Shapes: B rows, L tokens of a row, Q queries of a block, K visible keys, N key/value heads, D head size,
C contexts, S slots (rows per context), H heads, G = H / N, T columns of memory.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from prism_prm.errors import ConfigError, ModelError

Attention = Literal["sdpa", "flex"]
ATTENTION: dict[str, str] = {"sdpa": "prism_sdpa", "flex": "flex_attention"}
"""The name of an attention kernel in settings → its name in a config."""
SHARED = "prism_shared"
"""The name of `shared_attention` in a config; policies use it."""
BLOCK = 128
"""Queries per block of `tree_attention`: larger blocks gather unneeded keys, smaller ones make small matrices."""
FLEX_BLOCK = 128
"""The block size of flex attention; rows are padded to whole blocks."""
SPARE = 32
"""`Columns` grows by at least this many columns."""


def check_attention(name: str) -> str:
    """Check the name of an attention kernel and return transformers' name of it."""
    if name not in ATTENTION:
        raise ConfigError(f"attn={name!r} is not one of {sorted(ATTENTION)}")
    return ATTENTION[name]


def kernel_of(config: Any) -> str | None:
    """Return transformers' name of the attention that a config selects."""
    kernel: str | None = config._attn_implementation
    return kernel


def set_kernel(config: Any, kernel: str | None) -> None:
    """Select the attention of a config's model.

    This writes a private attribute of transformers, and only here: the public setter walks through all modules of a
    model, and sessions switch with every pass.
    """
    config._attn_implementation = kernel


@contextmanager
def using_kernel(config: Any, kernel: str) -> Iterator[None]:
    before = kernel_of(config)
    set_kernel(config, kernel)
    try:
        yield
    finally:
        set_kernel(config, before)


def attention_windows(backbone: Any) -> dict[str, int | None]:
    """Map each kind of attention layer to its sliding window (None: full). Raises if the model cannot be packed."""
    config = backbone.config
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        raise ModelError(
            f"{config.model_type}: layers of kind {sorted(kinds)} cannot be packed; only full and sliding attention can"
        )
    if "position_ids" not in inspect.signature(backbone.forward).parameters:
        raise ModelError(f"{config.model_type}: the model takes no position_ids, so its trees cannot be packed")
    rope = getattr(config, "rope_parameters", None) or {}
    by_kind = [value for value in rope.values() if isinstance(value, dict)]
    for kind in (parameters.get("rope_type") for parameters in (rope, *by_kind)):
        if kind in ("dynamic", "longrope"):
            raise ModelError(f"{config.model_type}: rope type {kind!r} makes scores depend on the rest of the batch")
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"sliding_attention": window} if window else {"full_attention": None}
    windows = {"full_attention": None, "sliding_attention": window}
    return {kind: windows[kind] for kind in sorted(kinds)}


def dense_mask(end_BL: Tensor, positions_BL: Tensor, window: int | None) -> Tensor:
    """Build the (B, 1, L, L) mask: q sees k iff k ≤ q < end[k], and with a sliding window pos_q − pos_k < window."""
    at_L = torch.arange(end_BL.shape[1], device=end_BL.device)
    seen_BLL = (at_L[None, None, :] <= at_L[None, :, None]) & (at_L[None, :, None] < end_BL[:, None, :])
    if window is not None:
        seen_BLL &= positions_BL[:, :, None] - positions_BL[:, None, :] < window
    return seen_BLL[:, None]


def block_mask(end_BL: Tensor, positions_BL: Tensor, window: int | None) -> Any:
    """Build the same mask as a block mask for flex attention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        sees = (k <= q) & (q < end_BL[b, k])
        return sees if window is None else sees & (positions_BL[b, q] - positions_BL[b, k] < window)

    rows, length = end_BL.shape
    return create_block_mask(seen, rows, None, length, length, device=end_BL.device, BLOCK_SIZE=FLEX_BLOCK)


@contextmanager
def eager_flex() -> Iterator[None]:
    """Run flex attention without its compiler: on CPUs torch 2.13 generates C++ that does not compile."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield


@dataclass(frozen=True, slots=True)
class Block:
    """Neighboring queries of one row, and the keys that they see."""

    start: int
    stop: int
    seen_K: Tensor | None
    """The columns of the keys; None: the first `stop` columns."""
    mask_QK: Tensor
    """An additive mask."""


RowBlocks = list[list[Block]]
"""The blocks of each row, in order."""


def ticket(number: int, dtype: torch.dtype) -> Tensor:
    """Make a placeholder mask for one kind of layer; its width tells `tree_attention` which blocks to use.

    Every architecture passes the mask of the layer's kind to its attention, but not every one passes the layer's
    window. A model that used the placeholder as a real mask would return NaN.
    """
    return torch.full((1, 1, 1, 1 + number), torch.nan, dtype=dtype)


def visible_blocks(end_BL: Tensor, positions_BL: Tensor, window: int | None, dtype: torch.dtype) -> RowBlocks:
    """Find the keys that each block sees: k ≤ q < end[k], and with a sliding window pos_q − pos_k < window."""
    rows: RowBlocks = []
    for ends_L, positions_L in zip(end_BL, positions_BL, strict=True):
        blocks = []
        for start in range(0, len(ends_L), BLOCK):
            stop = min(start + BLOCK, len(ends_L))
            at_Q = torch.arange(start, stop)[:, None]
            seen_K = (ends_L[:stop] > start).nonzero()[:, 0]
            sees_QK = (seen_K <= at_Q) & (at_Q < ends_L[seen_K])
            if window is not None:
                sees_QK &= positions_L[start:stop, None] - positions_L[seen_K] < window
                useful_K = sees_QK.any(dim=0)
                seen_K, sees_QK = seen_K[useful_K], sees_QK[:, useful_K]
            mask_QK = torch.zeros(sees_QK.shape, dtype=dtype).masked_fill_(~sees_QK, -torch.inf)
            blocks.append(Block(start, stop, None if len(seen_K) == stop else seen_K, mask_QK))
        rows.append(blocks)
    return rows


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
    """Implement transformers' attention interface, (B, N, L, D) → (B, L, N, D); plain SDPA without `tree_blocks`.

    `tree_blocks` has the blocks of each kind of layer; the mask is then a `ticket`.
    """
    if tree_blocks is None:
        options = {"dropout": dropout, "scaling": scaling, **others}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0], None
    if attention_mask is None or attention_mask.numel() > len(tree_blocks):
        raise ModelError(f"{type(module).__name__} does not pass on its attention mask, so it cannot be packed")
    repeats = query.shape[1] // key.shape[1]

    def gather(states_1NLD: Tensor, block: Block) -> Tensor:
        seen = states_1NLD[:, :, : block.stop] if block.seen_K is None else states_1NLD.index_select(2, block.seen_K)
        return seen if repeats == 1 else seen.repeat_interleave(repeats, dim=1)

    rows = []
    for row, blocks in enumerate(tree_blocks[attention_mask.numel() - 1]):
        pieces = []
        for block in blocks:
            keys, values = (gather(states[row : row + 1], block) for states in (key, value))
            queries = query[row : row + 1, :, block.start : block.stop]
            mask = block.mask_QK.to(query.dtype)[None, None]
            pieces.append(scaled_dot_product_attention(queries, keys, values, mask, dropout, scale=scaling))
        rows.append(torch.cat(pieces, dim=2))
    return torch.cat(rows).transpose(1, 2).contiguous(), None


class Columns(Cache):  # type: ignore[misc]
    """A KV cache of a batch in one preallocated tensor; new tokens are written in place.

    All rows have the same number of columns, `length`. transformers' own cache is copied for every token.
    """

    def __init__(self, num_layers: int, memory: Tensor | None = None, length: int = 0) -> None:
        super().__init__(layers=[])
        self.num_layers = num_layers
        self.memory = memory
        """(layers, 2, B, N, T, D); None until the first write."""
        self.length = length
        """The number of columns in use."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object) -> tuple[Tensor, Tensor]:
        """Write new columns into a layer and return all its columns. `length` grows with the last layer."""
        rows, heads, width, size = key_states.shape
        end = self.length + width
        memory = self.memory
        if memory is None or end > memory.shape[-2]:
            # Double the size each time, so a column is copied at most twice on average.
            grown = key_states.new_empty((self.num_layers, 2, rows, heads, end + max(SPARE, self.length), size))
            if memory is not None:
                grown[..., : self.length, :] = memory[..., : self.length, :]
            self.memory = memory = grown
        memory[layer_idx, 0, :, :, self.length : end] = key_states
        memory[layer_idx, 1, :, :, self.length : end] = value_states
        if layer_idx == self.num_layers - 1:
            self.length = end
        return memory[layer_idx, 0, :, :, :end], memory[layer_idx, 1, :, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        return self.length

    def written(self) -> Tensor:
        """Return the memory; something must have been written."""
        assert self.memory is not None, "nothing was written yet"
        return self.memory

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values (B, N, length, D) of a layer."""
        keys, values = self.written()[index, :, :, :, : self.length]
        return keys, values

    def select(self, rows: Tensor) -> None:
        """Keep only the given rows."""
        if self.memory is not None:
            self.memory = self.memory.index_select(2, rows)

    def copy(self, row: int, start: int, end: int) -> Tensor:
        """Copy columns of one row: (layers, 2, N, columns, D)."""
        return self.written()[:, :, row, :, start:end].clone()


@dataclass(frozen=True, slots=True)
class Grid:
    """Assigns each row to the context that it continues."""

    contexts: Columns
    num_slots: int
    context_B: Tensor
    slot_B: Tensor

    def by_context(self, rows_BNGD: Tensor) -> Tensor:
        """Convert rows to (C, N, S · G, D), with zeros where a context has fewer rows."""
        _, heads, groups, size = rows_BNGD.shape
        contexts = self.contexts.written().shape[2]
        grid = rows_BNGD.new_zeros((contexts, heads, self.num_slots, groups, size))
        grid[self.context_B, :, self.slot_B] = rows_BNGD
        return grid.view(contexts, heads, self.num_slots * groups, size)

    def by_row(self, grid: Tensor) -> Tensor:
        """Invert `by_context`: (C, N, S · G, any) → (B, N, G, any)."""
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
    """Implement transformers' attention interface, (B, H, 1, D) → (B, 1, H, D); `tree_attention` without a grid.

    With a grid, `key` and `value` are the rows' own, and the mask (C, 1, 1, context keys + own keys) is additive. A
    model that does not pass the grid on fails, because its keys do not match the mask.
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
    # All rows of a batch have the same number of own tokens, so they share one mask.
    own, own_top, own_sum = _attend(query_BNGD, key, value, attention_mask[:1, ..., num_shared:])
    top = torch.maximum(context_top, own_top)
    context_weight, own_weight = (context_top - top).exp_(), (own_top - top).exp_()
    total = context_sum * context_weight + own_sum * own_weight
    out = (context * context_weight + own * own_weight) / total
    return out.to(query.dtype).view(rows, 1, heads, size), None


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return values weighted by exp(score − maximum), the maxima, and the sums of the weights; in at least 32 bits."""
    scores = (query @ keys.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32)).add_(mask)
    # Clamped: if a window hides the whole context, the maximum must stay finite so that the weights are 0.
    top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(top).exp_()
    return (weights.to(values.dtype) @ values).to(weights.dtype), top, weights.sum(-1, keepdim=True)


for _name, _kernel in ((ATTENTION["sdpa"], tree_attention), (SHARED, shared_attention)):
    AttentionInterface.register(_name, _kernel)
    AttentionMaskInterface.register(_name, sdpa_mask)  # called without our arguments, both kernels are plain SDPA

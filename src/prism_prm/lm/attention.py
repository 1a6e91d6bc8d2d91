"""Which attention a model runs, and what its layers may see: our kernels made known to transformers, and masks.

Shapes: B rows, L tokens of a row.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from prism_prm.errors import ConfigError, ModelError
from prism_prm.lm import shared_attention, tree_attention

Attention = Literal["sdpa", "flex"]
ATTENTION: dict[str, str] = {"sdpa": tree_attention.NAME, "flex": "flex_attention"}
"""Our name of an attention kernel → its name in a config."""
FLEX_BLOCK = 128
"""Flex attention works in blocks of this many tokens; rows are padded to whole blocks."""
SHARED = shared_attention.NAME
"""The attention of policies, which rows that continue one text share."""


def _register(name: str, attention: Callable[..., tuple[Tensor, None]]) -> None:
    """Make an attention known to transformers, one that behaves as SDPA where nothing of ours is handed to it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)


_register(tree_attention.NAME, tree_attention.tree_attention)
_register(shared_attention.NAME, shared_attention.shared_attention)


def check_attention(name: str) -> str:
    """transformers' name of an attention kernel."""
    if name not in ATTENTION:
        raise ConfigError(f"attn={name!r} is not one of {sorted(ATTENTION)}")
    return ATTENTION[name]


def attention_windows(backbone: Any) -> dict[str, int | None]:
    """Kind of attention layer → its sliding window (None: sees everything); an error where masks cannot be ours."""
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
    for kind in (some.get("rope_type") for some in (rope, *by_kind)):
        if kind in ("dynamic", "longrope"):
            raise ModelError(f"{config.model_type}: rope type {kind!r} makes scores depend on the rest of the batch")
    window = getattr(config, "sliding_window", None)
    if not kinds:
        return {"sliding_attention": window} if window else {"full_attention": None}
    windows = {"full_attention": None, "sliding_attention": window}
    return {kind: windows[kind] for kind in sorted(kinds)}


def dense_mask(end_BL: Tensor, positions_BL: Tensor, window: int | None) -> Tensor:
    """The (B, 1, L, L) mask: q sees k iff k ≤ q < end[k], and in a sliding window iff pos_q − pos_k < window."""
    at_L = torch.arange(end_BL.shape[1], device=end_BL.device)
    seen_BLL = (at_L[None, None, :] <= at_L[None, :, None]) & (at_L[None, :, None] < end_BL[:, None, :])
    if window is not None:
        seen_BLL &= positions_BL[:, :, None] - positions_BL[:, None, :] < window
    return seen_BLL[:, None]


def block_mask(end_BL: Tensor, positions_BL: Tensor, window: int | None) -> Any:
    """The same rule as a block mask for flex attention."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        sees = (k <= q) & (q < end_BL[b, k])
        return sees if window is None else sees & (positions_BL[b, q] - positions_BL[b, k] < window)

    rows, length = end_BL.shape
    return create_block_mask(seen, rows, None, length, length, device=end_BL.device, BLOCK_SIZE=FLEX_BLOCK)


@contextmanager
def eager_flex() -> Iterator[None]:
    """Flex attention without its compiler: on CPUs torch 2.13 writes C++ for it that does not compile."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        yield

"""One forward pass of a session: new nodes of several problems over the key/values that are kept.

A row is a problem. Its kept nodes are laid out depth first, and each new token has an anchor: the last kept token of
its parent. The rule of packed trees, applied to the anchor, says what it sees: kept token k iff k ≤ anchor < end[k].

Shapes: B rows, K kept tokens, Q new tokens, R reads, O named log-odds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from prism_prm.prms.module import PrmModule

if TYPE_CHECKING:
    from prism_prm.scorer.session import SessionNode


class Growth:
    """New nodes of one problem, and the kept nodes that they stand on. New nodes on new ones come depth first."""

    def __init__(self, new: Sequence[SessionNode]) -> None:
        self.new = list(new)
        among = set(new)
        self.is_nested = any(node.parent in among for node in new)
        ancestors: set[SessionNode] = set()
        for node in new:
            above = node.parent
            while above is not None and above not in ancestors and above not in among:
                ancestors.add(above)
                above = above.parent
        self.kept = [node for node in _depth_first(ancestors) if node.ids]
        self.num_kept = sum(len(node.ids) for node in self.kept)
        self.num_new = sum(len(node.ids) for node in new)

    def parts(self, token_budget: int) -> Iterator[Growth]:
        """The same in parts, if new and kept tokens exceed the budget; at least one new node each.

        Nested nodes stay together: whoever nests them keeps them few.
        """
        if self.num_kept + self.num_new <= token_budget or len(self.new) == 1 or self.is_nested:
            yield self
            return
        half = len(self.new) // 2
        yield from Growth(self.new[:half]).parts(token_budget)
        yield from Growth(self.new[half:]).parts(token_budget)


PASS = 256
"""What a pass costs beside its tokens, in tokens: the weights are read, and many small operations started."""


def in_batches(growths: Sequence[Growth], token_budget: int) -> list[list[Growth]]:
    """Batches whose tokens (kept and new, with padding) fit the budget, such that passes and padding cost least."""
    order = sorted((part for growth in growths for part in growth.parts(token_budget)), key=lambda part: -part.num_new)
    least: list[tuple[int, int]] = [(0, 0)]
    """For the first 0, 1, 2, … of them: the least cost, and where the last batch starts."""
    for end in range(1, len(order) + 1):
        options: list[tuple[int, int]] = []
        num_kept = 0
        for start in reversed(range(end)):
            num_kept, num_new = max(num_kept, order[start].num_kept), order[start].num_new
            if options and (end - start) * (num_kept + num_new) > token_budget:
                break
            options.append((least[start][0] + (end - start) * num_new + PASS, start))
        least.append(min(options))
    batches: list[list[Growth]] = []
    end = len(order)
    while end:
        start = least[end][1]
        batches.append(order[start:end])
        end = start
    return batches


def _depth_first(nodes: set[SessionNode]) -> list[SessionNode]:
    children: dict[SessionNode | None, list[SessionNode]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    order: list[SessionNode] = []
    stack = list(children.get(None, ()))
    while stack:
        node = stack.pop()
        order.append(node)
        stack += children.get(node, ())
    return order


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the tokens of one row stand."""

    kept_end_K: np.ndarray
    kept_position_K: np.ndarray
    ids_Q: np.ndarray
    anchor_Q: np.ndarray
    end_Q: np.ndarray
    position_Q: np.ndarray
    starts: list[int]
    """Column of each new node's first token."""


def _lay_out(growth: Growth) -> _Layout:
    starts: dict[SessionNode, int] = {}
    ends: dict[SessionNode, int] = {}
    at = 0
    for node in growth.kept:
        starts[node], at = at, at + len(node.ids)
        ends[node] = at
    ends_at: dict[SessionNode | None, int] = dict(ends.items())
    for node in reversed(growth.kept):  # a node ends where its last descendant ends
        if node.parent in ends:
            ends[node.parent] = max(ends[node.parent], ends[node])
    lengths = [len(node.ids) for node in growth.new]
    columns = [0, *np.cumsum(lengths).tolist()]
    anchors: dict[SessionNode, int] = {}
    new_ends = dict(zip(growth.new, columns[1:], strict=True))
    for node in growth.new:  # a node on a new one sees the kept tokens that this one sees
        anchors[node] = anchors[node.parent] if node.parent in anchors else ends_at.get(node.parent, 0) - 1
    for node in reversed(growth.new):
        if node.parent in new_ends:
            new_ends[node.parent] = max(new_ends[node.parent], new_ends[node])
    return _Layout(
        np.concatenate([np.full(len(node.ids), ends[node]) for node in growth.kept] or [np.empty(0, np.int64)]),
        np.concatenate([_positions(node) for node in growth.kept] or [np.empty(0, np.int64)]),
        np.concatenate([np.array(node.ids, np.int64) for node in growth.new]),
        np.repeat(list(anchors.values()), lengths),
        np.repeat(list(new_ends.values()), lengths),
        np.concatenate([_positions(node) for node in growth.new]),
        columns[:-1],
    )


def _positions(node: SessionNode) -> np.ndarray:
    return np.arange(node.start, node.start + len(node.ids))


def run_growth(module: PrmModule, batch: Sequence[Growth]) -> Tensor:
    """Compute the new nodes of a batch: their log-odds_RO (in order), and their key/values, which they keep."""
    rows = [_lay_out(growth) for growth in batch]
    device = module.device

    def padded(vectors: Sequence[np.ndarray], fill: int) -> Tensor:
        """(rows, longest), padded on the right."""
        table = np.full((len(vectors), max(map(len, vectors))), fill, np.int64)
        for i, vector in enumerate(vectors):
            table[i, : len(vector)] = vector
        return torch.from_numpy(table).to(device)

    ids_BQ = padded([row.ids_Q for row in rows], 0)
    end_BQ = padded([row.end_Q for row in rows], 0)
    at_Q = torch.arange(ids_BQ.shape[1], device=device)
    end_BQ = torch.maximum(end_BQ, at_Q + 1)  # padding sees itself, or its softmax would be of nothing
    position_BQ = padded([row.position_Q for row in rows], 0)
    anchor_BQ = padded([row.anchor_Q for row in rows], -1)
    kept_end_BK = padded([row.kept_end_K for row in rows], 0)
    kept_position_BK = padded([row.kept_position_K for row in rows], 0)

    at_K = torch.arange(kept_end_BK.shape[1], device=device)
    sees_kept_BQK = (at_K <= anchor_BQ[:, :, None]) & (anchor_BQ[:, :, None] < kept_end_BK[:, None, :])
    sees_new_BQQ = (at_Q[None, None, :] <= at_Q[None, :, None]) & (at_Q[None, :, None] < end_BQ[:, None, :])
    sees = torch.cat([sees_kept_BQK, sees_new_BQQ], dim=2)[:, None]
    positions = torch.cat([kept_position_BK, position_BQ], dim=1)
    distance = (position_BQ[:, :, None] - positions[:, None, :])[:, None]
    masks = {kind: sees if window is None else sees & (distance < window) for kind, window in module.windows.items()}

    with torch.inference_mode(), module.dense_attention():
        cache = _kept_cache(module, batch, kept_end_BK.shape[1])
        hidden_BQH = module.run(ids_BQ, position_BQ, masks, cache)
        _keep(cache, batch, rows, kept_end_BK.shape[1], device)
        read_row = [i for i, growth in enumerate(batch) for _ in growth.new]
        read_col = [
            start + node.read
            for growth, row in zip(batch, rows, strict=True)
            for node, start in zip(growth.new, row.starts, strict=True)
        ]
        return module.read(hidden_BQH[read_row, read_col]).double().cpu()


def _kept_cache(module: PrmModule, batch: Sequence[Growth], width: int) -> Any:
    """A cache that holds the kept nodes of each row, padded on the right."""
    from transformers import DynamicCache

    # Without a config: the model's own would cut sliding layers to their window, by place and not by position.
    cache = DynamicCache()
    if not width:
        return cache
    keys, values = (_side_by_side(batch, width, which) for which in (0, 1))
    spread = getattr(module.backbone, "hf_device_map", None) is not None
    for i, (keys_BNKD, values_BNKD) in enumerate(zip(keys, values, strict=True)):
        device = next(module.backbone.layers[i].parameters()).device if spread else keys.device
        cache.update(keys_BNKD.to(device), values_BNKD.to(device), i)
    return cache


def _side_by_side(batch: Sequence[Growth], width: int, which: int) -> Tensor:
    """The keys (0) or values (1) of the kept nodes, (layers, rows, heads, width, size)."""
    pieces = [[node.keys_values[which] for node in growth.kept if node.keys_values is not None] for growth in batch]
    first = next(some[0] for some in pieces if some)
    layers, heads, _, size = first.shape
    past = first.new_zeros((layers, len(batch), heads, width, size))
    for i, (growth, some) in enumerate(zip(batch, pieces, strict=True)):
        assert len(some) == len(growth.kept), "an ancestor of a live node has its key/values"
        if some:
            torch.cat(some, dim=-2, out=past[:, i, :, : growth.num_kept])
    return past


def _keep(cache: Any, batch: Sequence[Growth], rows: Sequence[_Layout], width: int, device: torch.device) -> None:
    """Give each new node the key/values of its tokens, as its own memory so that dropping it frees them."""
    keys = torch.stack([layer.keys[:, :, width:].to(device) for layer in cache.layers])
    values = torch.stack([layer.values[:, :, width:].to(device) for layer in cache.layers])
    for i, (growth, row) in enumerate(zip(batch, rows, strict=True)):
        for node, start in zip(growth.new, row.starts, strict=True):
            own = slice(start, start + len(node.ids))
            node.keys_values = keys[:, i, :, own].clone(), values[:, i, :, own].clone()

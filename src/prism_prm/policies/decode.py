"""Decode many rows together over kept key/values, until each row's step is over.

Every row is padded on the left, so that all rows write into the same column, and sees its own tokens only. Contexts
that several rows share go through the model once. Rows that are done leave the batch.

Shapes: C contexts, B rows, Q new tokens, K tokens that can be seen, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from prism_prm.policies.choose import choose, noise
from prism_prm.policies.kept import Kept

SHRINK_AT = 0.75
"""Rows that are done are taken out once at most this share is still writing: doing so copies all key/values."""


@dataclass(eq=False, slots=True)
class Context:
    """A text to continue: its tokens, and how many of them have key/values already."""

    ids: tuple[int, ...]
    known: Kept | None
    shared: int
    kept: Kept | None = None
    """All of it, once it went through the model."""


@dataclass(eq=False, slots=True)
class Row:
    """One continuation of a context."""

    context: Context
    key: int | None
    """None is greedy."""
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    log_likelihood: float = 0.0
    kept: Kept | None = None
    """Key/values of the context and of all tokens written but the last."""


IsOver = Callable[[Row], bool]
"""Whether a row's step is over, asked after each token."""


class Decoder:
    """Runs a causal language model over rows of different lengths."""

    def __init__(self, model: Any, windows: dict[str, int | None]) -> None:
        self.model = model
        self.windows = windows
        self.cache = DynamicCache()  # without a config: the model's own would cut sliding layers by place
        self.seen_BK = torch.zeros(0)
        self.position_BK = torch.zeros(0)

    @torch.inference_mode()
    def run(self, contexts: Sequence[Context], rows: Sequence[Row], is_over: IsOver, **sampling: float) -> None:
        """Write the rows to their ends; contexts and rows keep their key/values."""
        logits_CV = self._read_contexts(contexts)
        number = {context: i for i, context in enumerate(contexts)}
        which_B = torch.tensor([number[row.context] for row in rows], device=logits_CV.device)
        logits_BV = logits_CV[which_B]
        self._select(which_B)
        start = self.seen_BK.shape[1]
        active = list(rows)
        draws = [None if row.key is None else noise(row.key) for row in rows]
        while active:
            numbers = [None if draw is None else float(draw.random()) for draw in draws]
            tokens, log_likelihoods = choose(logits_BV, numbers, **sampling)
            on = []
            for i, (row, token) in enumerate(zip(active, tokens, strict=True)):
                if row.kept is not None:
                    continue
                row.tokens.append(token)
                row.log_likelihood += log_likelihoods[i]
                if is_over(row) or len(row.tokens) >= row.max_tokens:
                    row.kept = self._kept(i, start, row)
                else:
                    on.append(i)
            if not on:
                return
            if len(on) <= SHRINK_AT * len(active):
                active, draws, tokens = [active[i] for i in on], [draws[i] for i in on], [tokens[i] for i in on]
                self._select(torch.tensor(on, device=logits_BV.device))
            logits_BV = self._write(tokens)

    def _read_contexts(self, contexts: Sequence[Context]) -> Tensor:
        """Run what is new in each context; the logits behind each."""
        device = self.model.device
        new = [context.ids[context.shared :] for context in contexts]
        past, width = max(context.shared for context in contexts), max(map(len, new))
        ids_CQ = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in new], device=device)
        shared_C1 = torch.tensor([[context.shared] for context in contexts], device=device)
        length_C1 = torch.tensor([[len(context.ids)] for context in contexts], device=device)
        at_past, at_new = torch.arange(past, device=device), torch.arange(width, device=device)
        position_CK = torch.cat([at_past + shared_C1 - past, at_new + length_C1 - width], dim=1)
        seen_CK = torch.cat([at_past >= past - shared_C1, at_new >= width - (length_C1 - shared_C1)], dim=1)
        self.position_BK, self.seen_BK = position_CK.clamp(min=0), seen_CK
        self._load(contexts, past)
        logits_CV = self._forward(ids_CQ)
        for i, context in enumerate(contexts):
            context.kept = Kept(context.ids, context.known, context.shared, self._columns(i, -len(new[i]), None))
        return logits_CV

    def _load(self, contexts: Sequence[Context], width: int) -> None:
        """Put the key/values that are known into the cache, padded on the left."""
        if not width:
            return
        known = [context.known.pieces(context.shared) if context.known is not None else [] for context in contexts]
        first = next(pieces[0] for pieces in known if pieces)
        layers, two, heads, _, size = first.shape
        past = first.new_zeros((layers, two, len(contexts), heads, width, size))
        for i, (context, pieces) in enumerate(zip(contexts, known, strict=True)):
            if pieces:
                torch.cat(pieces, dim=-2, out=past[:, :, i, :, width - context.shared :])
        for layer in range(layers):
            self.cache.update(past[layer, 0], past[layer, 1], layer)

    def _forward(self, ids_BQ: Tensor) -> Tensor:
        """The logits behind the last column."""
        width = ids_BQ.shape[1]
        at_K = torch.arange(self.seen_BK.shape[1], device=ids_BQ.device)
        at_Q = at_K[-width:]
        position_BQ = self.position_BK[:, -width:]
        # A padding token sees itself, or its softmax would be of nothing.
        sees_BQK = (self.seen_BK[:, None, :] & (at_K <= at_Q[:, None])) | (at_K == at_Q[:, None])
        distance_BQK = position_BQ[:, :, None] - self.position_BK[:, None, :]
        masks = {
            kind: (sees_BQK if window is None else sees_BQK & (distance_BQK < window))[:, None]
            for kind, window in self.windows.items()
        }
        output = self.model(
            input_ids=ids_BQ,
            attention_mask=next(iter(masks.values())) if len(masks) == 1 else masks,
            position_ids=position_BQ,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV

    def _write(self, tokens: Sequence[int]) -> Tensor:
        """Add one token to every row; the logits behind it."""
        ids_B1 = torch.tensor(tokens, device=self.seen_BK.device)[:, None]
        self.position_BK = torch.cat([self.position_BK, self.position_BK[:, -1:] + 1], dim=1)
        self.seen_BK = torch.cat([self.seen_BK, torch.ones_like(ids_B1, dtype=torch.bool)], dim=1)
        return self._forward(ids_B1)

    def _select(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.seen_BK, self.position_BK = self.seen_BK[rows], self.position_BK[rows]

    def _columns(self, row: int, start: int, end: int | None) -> Tensor:
        """The key/values of some columns of a row, as memory of their own."""
        return torch.stack(
            [
                torch.stack([layer.keys[row, :, start:end], layer.values[row, :, start:end]])
                for layer in self.cache.layers
            ]
        )

    def _kept(self, i: int, start: int, row: Row) -> Kept:
        written = row.tokens[:-1]  # the last one has not gone through the model
        ids = (*row.context.ids, *written)
        end = start + len(written)
        return Kept(ids, row.context.kept, len(row.context.ids), self._columns(i, start, end))

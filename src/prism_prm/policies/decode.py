"""Decode many rows together over kept key/values, until each row's step is over.

Contexts are padded on the left and go through the model once, however many rows continue them; their key/values are not
copied for rows (see `shared_attention`). A row holds its own tokens only. Rows that are done leave the batch.

Shapes: C contexts, B rows, Q new tokens, K tokens that can be seen, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from prism_prm.errors import ModelError
from prism_prm.lm.kv_buffer import Columns
from prism_prm.lm.shared_attention import Grid
from prism_prm.policies.kv_cache import Kept
from prism_prm.policies.next_token import choose, noise

SHRINK_AT = 0.75
"""What is done is taken out once at most this share is still of use: doing so copies the key/values of the rest."""


@dataclass(eq=False, slots=True)
class Context:
    """A text to continue: its tokens, and how many of them have key/values already."""

    ids: tuple[int, ...]
    known: Kept | None
    shared: int
    kept: Kept | None = None
    """All of it, once it went through the model."""


@dataclass(eq=False, slots=True)
class DecodeRow:
    """One continuation of a context."""

    context: Context
    key: int | None
    """None is greedy."""
    max_tokens: int
    keeps: bool = True
    """Whether its key/values are kept."""
    tokens: list[int] = field(default_factory=list)
    log_likelihood: float = 0.0
    is_done: bool = False
    kept: Kept | None = None
    """Key/values of the context and of all tokens written but the last."""


IsOver = Callable[[DecodeRow], bool]
"""Whether a row's step is over, asked after each token."""


class Decoder:
    """Runs a causal language model over rows of different lengths."""

    def __init__(self, model: Any, windows: dict[str, int | None]) -> None:
        self.model = model
        self.windows = windows
        layers = model.config.num_hidden_layers
        self.shared, self.own = Columns(layers), Columns(layers)
        """Key/values of contexts, and of what rows have written."""
        self.hidden_CK = self.position_CK = self.length_C = torch.zeros(0)
        """For contexts: -inf where a column is padding, else 0; the columns' positions; how long each is."""

    @torch.inference_mode()
    def run(self, contexts: Sequence[Context], rows: Sequence[DecodeRow], is_over: IsOver, **sampling: Any) -> None:
        """Write the rows to their ends; contexts and rows keep their key/values."""
        logits_CV = self._read_contexts(contexts)
        active, present = list(rows), list(contexts)
        grid = self._lay_out(active, present)
        logits_BV = logits_CV[grid.context_B]
        draws = [None if row.key is None else noise(row.key) for row in rows]
        while active:
            numbers = [None if draw is None else float(draw.random()) for draw in draws]
            tokens, log_likelihoods = choose(logits_BV, numbers, **sampling)
            on = []
            for i, (row, token) in enumerate(zip(active, tokens, strict=True)):
                if row.is_done:
                    continue
                row.tokens.append(token)
                row.log_likelihood += log_likelihoods[i]
                if is_over(row) or len(row.tokens) >= row.max_tokens:
                    row.is_done, row.kept = True, self._kept(i, row) if row.keeps else None
                else:
                    on.append(i)
            if not on:
                return
            if len(on) <= SHRINK_AT * len(active):
                active, draws, tokens = [active[i] for i in on], [draws[i] for i in on], [tokens[i] for i in on]
                self.own.select(torch.tensor(on, device=logits_BV.device))
                present = self._shrink_contexts(active, present)
                grid = self._lay_out(active, present)
            logits_BV = self._write(tokens, grid)

    def _read_contexts(self, contexts: Sequence[Context]) -> Tensor:
        """Run what is new in each context; the logits behind each."""
        device = self.model.device
        new = [context.ids[context.shared :] for context in contexts]
        past, width = max(context.shared for context in contexts), max(map(len, new))
        ids_CQ = torch.tensor([[0] * (width - len(ids)) + list(ids) for ids in new], device=device)
        shared_C1 = torch.tensor([[context.shared] for context in contexts], device=device)
        length_C1 = torch.tensor([[len(context.ids)] for context in contexts], device=device)
        at_past, at_new = torch.arange(past, device=device), torch.arange(width, device=device)
        position_CK = torch.cat([at_past + shared_C1 - past, at_new + length_C1 - width], dim=1).clamp_(min=0)
        seen_CK = torch.cat([at_past >= past - shared_C1, at_new >= width - (length_C1 - shared_C1)], dim=1)
        self.hidden_CK = torch.where(seen_CK, 0.0, -torch.inf)
        self.position_CK, self.length_C = position_CK, length_C1[:, 0]
        self._load(contexts, past, width)
        at_K = torch.arange(past + width, device=device)
        at_Q1, position_CQ = at_K[past:, None], position_CK[:, past:]
        # A padding token sees itself, or its softmax would be of nothing.
        sees_CQK = (seen_CK[:, None, :] & (at_K <= at_Q1)) | (at_K == at_Q1)
        distance_CQK = position_CQ[:, :, None] - position_CK[:, None, :]
        masks = {
            kind: (sees_CQK if window is None else sees_CQK & (distance_CQK < window))[:, None]
            for kind, window in self.windows.items()
        }
        logits_CV = self._forward(ids_CQ, position_CQ, masks, self.shared)
        for i, (context, ids) in enumerate(zip(contexts, new, strict=True)):
            keys_values = self.shared.copy(i, past + width - len(ids), past + width)
            context.kept = Kept(context.ids, context.known, context.shared, keys_values)
        return logits_CV

    def _load(self, contexts: Sequence[Context], past: int, width: int) -> None:
        """Put the key/values that are known before the new columns, padded on the left."""
        if not past:
            return
        known = [context.known.pieces(context.shared) if context.known is not None else [] for context in contexts]
        first = next(pieces[0] for pieces in known if pieces)
        layers, two, heads, _, size = first.shape
        memory = first.new_zeros((layers, two, len(contexts), heads, past + width, size))
        for i, (context, pieces) in enumerate(zip(contexts, known, strict=True)):
            if pieces:
                torch.cat(pieces, dim=-2, out=memory[:, :, i, :, past - context.shared : past])
        self.shared = Columns(layers, memory, past)

    def _forward(
        self, ids_BQ: Tensor, position_BQ: Tensor, masks: dict[str, Tensor], cache: Columns, **others: Any
    ) -> Tensor:
        """The logits behind the last column."""
        end = cache.length + ids_BQ.shape[1]
        output = self.model(
            input_ids=ids_BQ,
            attention_mask=next(iter(masks.values())) if len(masks) == 1 else masks,
            position_ids=position_BQ,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            **others,
        )
        if cache.length != end:
            raise ModelError(
                f"{self.model.config.model_type}: not every layer keeps key/values of its own, so it cannot be decoded "
                "here; serve the model and use openai:<base url>"
            )
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV

    def _write(self, tokens: Sequence[int], grid: Grid) -> Tensor:
        """Add one token to every row; the logits behind it."""
        ids_B1 = torch.tensor(tokens, device=self.length_C.device)[:, None]
        num_own = self.own.length + 1
        position_C1 = self.length_C[:, None] + self.own.length
        masks = {}
        for kind, window in self.windows.items():
            mask_CK = pad(self.hidden_CK, (0, num_own))  # a row sees all that it has written
            if window is not None:
                own_CK = position_C1 - torch.arange(num_own, device=ids_B1.device).flip(0)
                far_CK = position_C1 - torch.cat([self.position_CK, own_CK], dim=1) >= window
                mask_CK = mask_CK.masked_fill_(far_CK, -torch.inf)
            masks[kind] = mask_CK[:, None, None]
        position_C1 = position_C1.clamp(max=self.model.config.max_position_embeddings - 1)  # of rows that are done
        return self._forward(ids_B1, position_C1[grid.context_B], masks, self.own, grid=grid)

    def _shrink_contexts(self, active: Sequence[DecodeRow], present: list[Context]) -> list[Context]:
        """Let go of contexts that no row continues any more, if they are many."""
        wanted = {row.context for row in active}
        if len(wanted) > SHRINK_AT * len(present):
            return present
        chosen = [i for i, context in enumerate(present) if context in wanted]
        rows = torch.tensor(chosen, device=self.length_C.device)
        self.shared.select(rows)
        self.hidden_CK, self.position_CK = self.hidden_CK[rows], self.position_CK[rows]
        self.length_C = self.length_C[rows]
        return [present[i] for i in chosen]

    def _lay_out(self, rows: Sequence[DecodeRow], contexts: Sequence[Context]) -> Grid:
        """A slot for every row beside the others of its context."""
        number = {context: i for i, context in enumerate(contexts)}
        taken = [0] * len(contexts)
        places = []
        for row in rows:
            context = number[row.context]
            places.append((context, taken[context]))
            taken[context] += 1
        place_B2 = torch.tensor(places, device=self.length_C.device)
        return Grid(self.shared, max(taken), place_B2[:, 0], place_B2[:, 1])

    def _kept(self, i: int, row: DecodeRow) -> Kept:
        written = len(row.tokens) - 1  # the last one has not gone through the model
        if not written:
            assert row.context.kept is not None, "contexts are read first"
            return row.context.kept
        ids = (*row.context.ids, *row.tokens[:-1])
        return Kept(ids, row.context.kept, len(row.context.ids), self.own.copy(i, 0, written))

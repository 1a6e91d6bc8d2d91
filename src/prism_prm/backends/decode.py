"""Decode many rows together on a KV cache, until each row's step ends.

Contexts are padded on the left and go through the model once, however many rows continue them; rows do not copy their
key/values (see `shared_attention`). A row holds only its own tokens. Rows that are done leave the batch. An
architecture is checked on a miniature before it writes anything.

Shapes: C contexts, B rows, Q new tokens, K visible tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from prism_prm.backends.policy import rng
from prism_prm.errors import ModelError, first_sentence
from prism_prm.models.attention import SHARED, Columns, Grid, attention_windows, using_kernel
from prism_prm.models.check_packing import VOCABULARY, config_key, miniature

SHRINK_AT = 0.75
"""Done rows are removed once at most this share of rows is active; removing copies the key/values of the rest."""
_BOUND = 1e-3
"""The largest difference of a step's log-likelihood that passes; norms and softmaxes in 32 bits cause about 1e-5."""
_CHECKED_TOKENS = 12
_FAULTS: dict[str, str] = {}
"""Config key → what fails ("" if nothing does); a cache of this process."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class CachedPrefix:
    """The key/values of a token sequence, as a tree: each piece holds its own tokens and points to its base.

    Unlike a session's nodes, which end where steps end and are dropped explicitly, pieces may branch anywhere within
    another one, wherever two tokenizations diverge. Callers hold them as opaque states, and they are freed with the
    last reference.
    """

    ids: tuple[int, ...]
    """All token ids from the start."""
    base: CachedPrefix | None
    shared: int
    """The number of tokens of `base` that come first."""
    keys_values: Tensor = field(repr=False)
    """(layers, 2, heads, tokens after the shared ones, head size)."""

    def pieces(self, length: int) -> list[Tensor]:
        """Return the key/values of the first `length` tokens, in order."""
        pieces: list[Tensor] = []
        node: CachedPrefix | None = self
        while node is not None and length > 0:
            if length > node.shared:
                pieces.append(node.keys_values[..., : length - node.shared, :])
                length = node.shared
            node = node.base
        return pieces[::-1]


@dataclass(eq=False, slots=True)
class DecodeContext:
    """A text to continue: its token ids, and how many of them have key/values already."""

    ids: tuple[int, ...]
    known: CachedPrefix | None
    shared: int
    kept: CachedPrefix | None = None
    """The whole text, once it went through the model."""


@dataclass(eq=False, slots=True)
class DecodeRow:
    """One continuation of a context."""

    context: DecodeContext
    key: int | None
    """The random key; None is greedy."""
    max_tokens: int
    keeps: bool = True
    """Whether to keep its key/values."""
    stops: tuple[str, ...] = ()
    """Stop strings."""
    tokens: list[int] = field(default_factory=list)
    log_likelihood: float = 0.0
    is_done: bool = False
    kept: CachedPrefix | None = None
    """Key/values of the context and of all written tokens except the last."""


IsOver = Callable[[DecodeRow], bool]
"""A callback after each token: whether the row's step has ended."""


class Decoder:
    """Runs a causal language model over rows of different lengths."""

    def __init__(self, model: Any, windows: dict[str, int | None]) -> None:
        self.model = model
        self.windows = windows
        layers = model.config.num_hidden_layers
        self.shared, self.own = Columns(layers), Columns(layers)
        """Key/values of contexts, and of the rows' own tokens."""
        self.hidden_CK = self.position_CK = self.length_C = torch.zeros(0)
        """For contexts: -inf where a column is padding, else 0; the columns' positions; the lengths."""

    @torch.inference_mode()
    def run(
        self, contexts: Sequence[DecodeContext], rows: Sequence[DecodeRow], is_over: IsOver, **sampling: Any
    ) -> None:
        """Decode all rows to their ends; contexts and rows keep their key/values."""
        logits_CV = self._read_contexts(contexts)
        active, present = list(rows), list(contexts)
        grid = self._lay_out(active, present)
        logits_BV = logits_CV[grid.context_B]
        draws = [None if row.key is None else rng(row.key) for row in rows]
        while active:
            numbers = [None if draw is None else float(draw.random()) for draw in draws]
            tokens, log_likelihoods = choose(logits_BV, numbers, **sampling)
            going = []
            for i, (row, token) in enumerate(zip(active, tokens, strict=True)):
                if row.is_done:
                    continue
                row.tokens.append(token)
                row.log_likelihood += log_likelihoods[i]
                if is_over(row) or len(row.tokens) >= row.max_tokens:
                    row.is_done, row.kept = True, self._kept(i, row) if row.keeps else None
                else:
                    going.append(i)
            if not going:
                return
            if len(going) <= SHRINK_AT * len(active):
                active, draws = [active[i] for i in going], [draws[i] for i in going]
                tokens = [tokens[i] for i in going]
                self.own.select(torch.tensor(going, device=logits_BV.device))
                wanted = {row.context for row in active}
                if len(wanted) <= SHRINK_AT * len(present):
                    chosen = [i for i, context in enumerate(present) if context in wanted]
                    present = [present[i] for i in chosen]
                    chosen_C = torch.tensor(chosen, device=logits_BV.device)
                    self.shared.select(chosen_C)
                    self.hidden_CK, self.position_CK = self.hidden_CK[chosen_C], self.position_CK[chosen_C]
                    self.length_C = self.length_C[chosen_C]
                grid = self._lay_out(active, present)
            logits_BV = self._write(tokens, grid)

    def _read_contexts(self, contexts: Sequence[DecodeContext]) -> Tensor:
        """Run the new tokens of each context; returns the logits after its last token."""
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
        if past:  # cached key/values go before the new columns, padded on the left
            known = [context.known.pieces(context.shared) if context.known is not None else [] for context in contexts]
            first = next(pieces[0] for pieces in known if pieces)
            layers, two, heads, _, size = first.shape
            memory = first.new_zeros((layers, two, len(contexts), heads, past + width, size))
            for i, (context, pieces) in enumerate(zip(contexts, known, strict=True)):
                if pieces:
                    torch.cat(pieces, dim=-2, out=memory[:, :, i, :, past - context.shared : past])
            self.shared = Columns(layers, memory, past)
        at_K = torch.arange(past + width, device=device)
        at_Q1, position_CQ = at_K[past:, None], position_CK[:, past:]
        # A padding token sees itself, or its softmax would be empty.
        sees_CQK = (seen_CK[:, None, :] & (at_K <= at_Q1)) | (at_K == at_Q1)
        distance_CQK = position_CQ[:, :, None] - position_CK[:, None, :]
        masks = {
            kind: (sees_CQK if window is None else sees_CQK & (distance_CQK < window))[:, None]
            for kind, window in self.windows.items()
        }
        logits_CV = self._forward(ids_CQ, position_CQ, masks, self.shared)
        for i, (context, ids) in enumerate(zip(contexts, new, strict=True)):
            keys_values = self.shared.copy(i, past + width - len(ids), past + width)
            context.kept = CachedPrefix(context.ids, context.known, context.shared, keys_values)
        return logits_CV

    def _forward(
        self, ids_BQ: Tensor, position_BQ: Tensor, masks: dict[str, Tensor], cache: Columns, **others: Any
    ) -> Tensor:
        """Run the model; returns the logits after the last column."""
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
        """Add one token to every row; returns the logits after it."""
        ids_B1 = torch.tensor(tokens, device=self.length_C.device)[:, None]
        num_own = self.own.length + 1
        position_C1 = self.length_C[:, None] + self.own.length
        masks = {}
        for kind, window in self.windows.items():
            mask_CK = pad(self.hidden_CK, (0, num_own))  # a row sees all its own tokens
            if window is not None:
                own_CK = position_C1 - torch.arange(num_own, device=ids_B1.device).flip(0)
                far_CK = position_C1 - torch.cat([self.position_CK, own_CK], dim=1) >= window
                mask_CK = mask_CK.masked_fill_(far_CK, -torch.inf)
            masks[kind] = mask_CK[:, None, None]
        position_C1 = position_C1.clamp(max=self.model.config.max_position_embeddings - 1)  # of rows that are done
        return self._forward(ids_B1, position_C1[grid.context_B], masks, self.own, grid=grid)

    def _lay_out(self, rows: Sequence[DecodeRow], contexts: Sequence[DecodeContext]) -> Grid:
        """Assign every row a slot of its context."""
        number = {context: i for i, context in enumerate(contexts)}
        taken = [0] * len(contexts)
        slots = []
        for row in rows:
            context = number[row.context]
            slots.append((context, taken[context]))
            taken[context] += 1
        slot_B2 = torch.tensor(slots, device=self.length_C.device)
        return Grid(self.shared, max(taken), slot_B2[:, 0], slot_B2[:, 1])

    def _kept(self, i: int, row: DecodeRow) -> CachedPrefix:
        written = len(row.tokens) - 1  # the last one has not gone through the model
        if not written:
            assert row.context.kept is not None, "contexts are read first"
            return row.context.kept
        ids = (*row.context.ids, *row.tokens[:-1])
        return CachedPrefix(ids, row.context.kept, len(row.context.ids), self.own.copy(i, 0, written))


def choose(
    logits_BV: Tensor, uniforms: Sequence[float | None], *, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[list[int], list[float]]:
    """Choose a token per row, and return its log-likelihood at temperature 1; a row without a number is greedy.

    A token is sampled by its place in the cumulative distribution, with one number per row, so that rows are
    independent of each other.
    """
    logits_BV = logits_BV if logits_BV.dtype == torch.float64 else logits_BV.float()
    log_likelihood_BV = torch.log_softmax(logits_BV, dim=-1)
    token_B = logits_BV.argmax(-1)
    drawn = [i for i, number in enumerate(uniforms) if number is not None]
    if drawn and temperature > 0:
        numbers = torch.tensor([number for number in uniforms if number is not None], dtype=torch.float64)
        drawn_BV = logits_BV[drawn]
        if 0 < top_k < drawn_BV.shape[-1]:
            drawn_BV = drawn_BV.masked_fill(drawn_BV < drawn_BV.topk(top_k).values[:, -1:], -torch.inf)
        probability_BV = torch.softmax(drawn_BV / temperature, dim=-1)
        token_B[drawn] = _place(probability_BV, numbers.to(logits_BV.device), top_p)
    return token_B.tolist(), log_likelihood_BV.gather(1, token_B[:, None])[:, 0].tolist()


def _place(probability_BV: Tensor, number_B: Tensor, top_p: float) -> Tensor:
    """Return the first token at which the cumulative distribution exceeds the number."""
    order_BV = None
    if top_p < 1:
        probability_BV, order_BV = probability_BV.sort(dim=-1, descending=True, stable=True)
        before_BV = probability_BV.cumsum(-1, dtype=torch.float64) - probability_BV
        probability_BV = probability_BV.masked_fill(before_BV >= top_p, 0.0)
    # In 64 bits: over 150,000 tokens, rounding errors of the sum would shift the last tokens.
    cumulative_BV = probability_BV.cumsum(-1, dtype=torch.float64)
    target_B1 = (number_B * cumulative_BV[:, -1])[:, None]
    place_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    # Rounding can put the target at the very end, after the last token with a nonzero probability.
    last_B1 = (probability_BV > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    place_B1 = torch.minimum(place_B1, last_B1)
    return (place_B1 if order_BV is None else order_BV.gather(1, place_B1))[:, 0]


def check_decoding(model: Any) -> None:
    """Raise unless a miniature, which decodes a few rows twice, gives tokens the same likelihood as plain sequences."""
    key = config_key(model)
    if key not in _FAULTS:
        _FAULTS[key] = _find_fault(model)
    if _FAULTS[key]:
        raise ModelError(
            f"{model.config.model_type}: this architecture cannot be decoded here: {_FAULTS[key]}. Serve the model and "
            "use openai:<base url>."
        )


def _find_fault(model: Any) -> str:
    # Code that was not written for these masks and caches may raise any error.
    try:
        small = miniature(model, SHARED)
        windows = attention_windows(small.base_model)
        draw = np.random.default_rng(0)
        contexts = [DecodeContext(tuple(draw.integers(3, VOCABULARY, length).tolist()), None, 0) for length in (20, 31)]
        for _ in range(2):
            rows = [DecodeRow(context, key, _CHECKED_TOKENS) for key, context in enumerate((contexts[0], *contexts))]
            Decoder(small, windows).run(contexts, rows, lambda _: False, temperature=1.0)
            off = max(abs(row.log_likelihood - _plain_log_likelihood(small, row)) for row in rows)
            if not off <= _BOUND:
                return (
                    f"a step of {_CHECKED_TOKENS} tokens has another log-likelihood than in a plain sequence, by "
                    f"{off:.2g}"
                )
            # The next contexts end with the written tokens, the last of which has no key/values yet.
            texts = [((*row.context.ids, *row.tokens), row.kept) for row in rows]
            contexts = [DecodeContext(ids, kept, len(ids) - 1) for ids, kept in texts]
    except Exception as error:
        return f"it fails ({first_sentence(error)})"
    return ""


@torch.inference_mode()
def _plain_log_likelihood(model: Any, row: DecodeRow) -> float:
    """Compute the log-likelihood of a row's tokens in a plain sequence, with transformers' own eager attention."""
    ids, tokens = row.context.ids, row.tokens
    with using_kernel(model.config, "eager"):
        logits_LV = model(input_ids=torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    log_likelihood_L = torch.log_softmax(logits_LV.double(), -1).gather(1, torch.tensor(tokens)[:, None])
    return float(log_likelihood_L.sum())

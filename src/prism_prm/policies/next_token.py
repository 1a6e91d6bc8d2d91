"""Choose the next token of every row, with noise that belongs to the row alone.

Shapes: B rows, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def noise(key: int) -> np.random.Generator:
    """The stream of numbers in [0, 1) that a key names; one is used per token."""
    return np.random.Generator(np.random.Philox(key=key))


def choose(
    logits_BV: Tensor, uniforms: Sequence[float | None], *, temperature: float, top_p: float = 1.0, top_k: int = 0
) -> tuple[list[int], list[float]]:
    """A token per row and its log-likelihood at temperature 1; a row without a number takes the likeliest token.

    A token is drawn by its place in the cumulative distribution: one number per row, so that rows know nothing of
    each other.
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
    """The first token at which the cumulative distribution exceeds the number."""
    order_BV = None
    if top_p < 1:
        probability_BV, order_BV = probability_BV.sort(dim=-1, descending=True, stable=True)
        before_BV = probability_BV.cumsum(-1, dtype=torch.float64) - probability_BV
        probability_BV = probability_BV.masked_fill(before_BV >= top_p, 0.0)
    # In 64 bits: over 150,000 tokens the sum's own rounding would move the tokens at its end.
    cumulative_BV = probability_BV.cumsum(-1, dtype=torch.float64)
    target_B1 = (number_B * cumulative_BV[:, -1])[:, None]
    place_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
    # Rounding can put the target at the very end, behind the last token that has any probability.
    last_B1 = (probability_BV > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    place_B1 = torch.minimum(place_B1, last_B1)
    return (place_B1 if order_BV is None else order_BV.gather(1, place_B1))[:, 0]

"""The true value of a prefix: how likely a policy completes it rightly, by enumerating all that it may write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from prism_prm.policies.hf import HfPolicy

BATCH = 4096
"""Texts that go through the policy at a time."""


@dataclass(frozen=True, slots=True)
class TrueValue:
    """A probability, up to what was not followed."""

    reached: float
    """Of completions that were found right."""
    residual: float
    """Of texts so unlikely that they were not followed: the value is at most `reached` + `residual`."""


@torch.inference_mode()
def true_value(
    policy: HfPolicy,
    text: str,
    is_right: Callable[[Sequence[str]], Sequence[bool]],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    least: float = 1e-5,
) -> TrueValue:
    """Follow every continuation of `text` that is at least as likely as `least` to its end.

    `is_right` judges continuations that ended; those that `max_tokens` cuts are wrong.
    """
    start: list[int] = policy.tokenizer(text)["input_ids"]
    growing: list[tuple[list[int], float]] = [([], 1.0)]
    ended: list[tuple[list[int], float]] = []
    residual = 0.0
    for _ in range(max_tokens):
        after: list[tuple[list[int], float]] = []
        for first in range(0, len(growing), BATCH):
            some = growing[first : first + BATCH]
            logits_BV = policy.model(input_ids=torch.tensor([start + ids for ids, _ in some])).logits[:, -1]
            chance_BV = torch.softmax(logits_BV.double() / temperature, -1)
            chance_BV *= torch.tensor([chance for _, chance in some], dtype=torch.float64)[:, None]
            followed_BV = chance_BV >= least
            residual += float(chance_BV[~followed_BV].sum())
            for row, token in followed_BV.nonzero().tolist():
                grown = ([*some[row][0], token], float(chance_BV[row, token]))
                (ended if token in policy.end_ids else after).append(grown)
        growing = after
    texts = [policy.tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in ended]
    verdicts = is_right(texts) if texts else []
    return TrueValue(sum(chance for (_, chance), right in zip(ended, verdicts, strict=True) if right), residual)

"""Sample whole solutions or single next steps from a policy, many prefixes at a time, keeping key/values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from prism_prm.world.tokens import STEP_END, prompt_of

# Shapes: B rows of a batch, S tokens of a row, V tokens of the vocabulary.


@torch.inference_mode()
def sample_tokens(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    stop: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
) -> list[list[int]]:
    """Continue every prompt up to and including a token in `stop`, or for `max_new_tokens`; temperature 0 is greedy."""
    width = max(map(len, prompts))
    pad = model.config.pad_token_id
    ids_BS = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask_BS = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    position_B = mask_BS.sum(1)
    positions_BS = (mask_BS.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    stop_ids = torch.tensor(list(stop))
    running_B = torch.ones(len(prompts), dtype=torch.bool)
    written: list[torch.Tensor] = []
    for _ in range(max_new_tokens):
        logits_BV = model(
            input_ids=ids_BS, attention_mask=mask_BS, position_ids=positions_BS, past_key_values=cache, logits_to_keep=1
        ).logits[:, -1]
        next_B = _draw(logits_BV, temperature, generator).masked_fill(~running_B, pad)
        written.append(next_B)
        running_B &= ~torch.isin(next_B, stop_ids)
        if not running_B.any():
            break
        ids_BS, positions_BS = next_B[:, None], position_B[:, None]
        position_B = position_B + 1
        mask_BS = torch.cat([mask_BS, torch.ones_like(next_B)[:, None]], dim=1)
    rows = torch.stack(written, dim=1).tolist()
    return [_until_stop(row, set(stop)) for row in rows]


def _draw(logits_BV: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    if temperature == 0:
        return logits_BV.argmax(-1)
    return torch.multinomial(torch.softmax(logits_BV.float() / temperature, -1), 1, generator=generator)[:, 0]


def _until_stop(row: list[int], stop: set[int]) -> list[int]:
    for i, token in enumerate(row):
        if token in stop:
            return row[: i + 1]
    return row


def _batches(model: Any, tokenizer: Any, texts: Sequence[str], *, batch: int, **options: Any) -> list[str]:
    """The continuations of texts, longest together so that little is padding, in the order asked."""
    prompts: list[list[int]] = tokenizer(list(texts))["input_ids"]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    found: list[str] = [""] * len(prompts)
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        rows = sample_tokens(model, [prompts[i] for i in chosen], **options)
        for i, text in zip(chosen, tokenizer.batch_decode(rows), strict=True):
            found[i] = text
    return found


def sample_solutions(
    model: Any, tokenizer: Any, problems: Sequence[str], *, temperature: float = 1.0, seed: int = 0, batch: int = 2048
) -> list[tuple[list[str], bool]]:
    """One solution per problem text: its steps, and whether it ended by itself within the model's context."""
    prompts = [prompt_of(problem) for problem in problems]
    limit = model.config.max_position_embeddings // 2
    end = tokenizer.eos_token
    texts = _batches(
        model, tokenizer, prompts, batch=batch, stop=[tokenizer.eos_token_id], max_new_tokens=limit,
        temperature=temperature, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return [(text.removesuffix(end).split(STEP_END), text.endswith(end)) for text in texts]


def sample_next_steps(
    model: Any,
    tokenizer: Any,
    prefixes: Sequence[tuple[str, Sequence[str]]],
    *,
    temperature: float = 1.0,
    seed: int = 0,
    max_step_tokens: int = 8,
    batch: int = 4096,
) -> list[str]:
    """One next step per (problem text, steps so far)."""
    end = tokenizer.eos_token
    texts = _batches(
        model, tokenizer,
        [prompt_of(problem) + "".join(f"{step}{STEP_END}" for step in steps) for problem, steps in prefixes],
        batch=batch, stop=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(STEP_END)],
        max_new_tokens=max_step_tokens, temperature=temperature, generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    return [text.removesuffix(end).removesuffix(STEP_END) for text in texts]

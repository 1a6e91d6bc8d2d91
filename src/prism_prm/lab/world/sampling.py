"""Sample whole solutions, or single steps after every prefix of a solution, reading each text only once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from prism_prm.lab.world.policy import STEP_END, UNDRAWN, prompt_of

# Shapes: B rows of a batch, S tokens of a row, V tokens of the vocabulary.


@dataclass(frozen=True, slots=True)
class TokenSampler:
    """Draws tokens from logits."""

    stop: Sequence[int]
    """A row ends with the first of these."""
    max_new_tokens: int
    temperature: float
    """0 is greedy."""
    generator: torch.Generator
    banned: Sequence[int] = ()
    """Tokens that are never drawn."""

    def draw(self, logits_BV: torch.Tensor) -> torch.Tensor:
        if self.banned:
            logits_BV = logits_BV.index_fill(1, torch.tensor(list(self.banned)), -torch.inf)
        if self.temperature == 0:
            return logits_BV.argmax(-1)
        probabilities_BV = torch.softmax(logits_BV.float() / self.temperature, -1)
        return torch.multinomial(probabilities_BV, 1, generator=self.generator)[:, 0]


@torch.inference_mode()
def sample_tokens(model: Any, prompts: Sequence[Sequence[int]], copies: int, sampler: TokenSampler) -> list[list[int]]:
    """Continue every prompt `copies` times in one batch; each prompt is read once."""
    ends = [[len(prompt)] for prompt in prompts]
    return [row for (rows,) in sample_inside(model, prompts, ends, copies, sampler) for row in rows]


@torch.inference_mode()
def sample_inside(
    model: Any, texts: Sequence[Sequence[int]], ends: Sequence[Sequence[int]], copies: int, sampler: TokenSampler
) -> list[list[list[list[int]]]]:
    """For every text and each of its `ends`, sample `copies` continuations of the text up to there.

    Each text is read once. While a row draws the same tokens as its text, the next probabilities are already known;
    only rows that diverge are continued, with the text's key/values up to that point.
    """
    width = max(map(len, texts)) + 1
    ids_BS = torch.tensor([[*text, *[model.config.pad_token_id] * (width - len(text))] for text in texts])
    stop = torch.tensor(list(sampler.stop))
    cache = DynamicCache(config=model.config)
    logits_BSV = model(input_ids=ids_BS, past_key_values=cache).logits
    lengths_B = torch.tensor([len(text) for text in texts])
    owner_R = torch.tensor([i for i, some in enumerate(ends) for _ in some]).repeat_interleave(copies)
    start_R = torch.tensor([end for some in ends for end in some]).repeat_interleave(copies)
    written: list[list[int]] = [[] for _ in owner_R]
    left: list[int] = []
    """Rows that have diverged from their text and have not stopped."""
    follow_R = torch.arange(len(owner_R))
    for drawn in range(sampler.max_new_tokens):
        at_R = start_R[follow_R] + drawn
        next_R = sampler.draw(logits_BSV[owner_R[follow_R], at_R - 1])
        same_R = (next_R == ids_BS[owner_R[follow_R], at_R]) & (at_R < lengths_B[owner_R[follow_R]])
        ended_R = torch.isin(next_R, stop)
        for row, token in zip(follow_R.tolist(), next_R.tolist(), strict=True):
            written[row].append(token)
        left += follow_R[~same_R & ~ended_R].tolist()
        follow_R = follow_R[same_R & ~ended_R]
        if not len(follow_R):
            break
    if left:
        # These rows continue with the cache of their text; their last token is the first that is not in it.
        rest = [written[row] for row in left]
        cache.batch_select_indices(owner_R[left])
        position_B = start_R[left] + torch.tensor([len(row) - 1 for row in rest])
        mask_BS = (torch.arange(cache.get_seq_length()) < position_B[:, None]).long()
        next_B = torch.tensor([row[-1] for row in rest])
        running_B = torch.tensor([len(row) < sampler.max_new_tokens for row in rest])
        while running_B.any():
            mask_BS = torch.cat([mask_BS, torch.ones_like(next_B)[:, None]], dim=1)
            logits_BV = model(
                input_ids=next_B[:, None],
                attention_mask=mask_BS,
                position_ids=position_B[:, None],
                past_key_values=cache,
            ).logits[:, -1]
            position_B = position_B + 1
            next_B = sampler.draw(logits_BV)
            for row in running_B.nonzero()[:, 0].tolist():
                rest[row].append(int(next_B[row]))
            full_B = torch.tensor([len(row) >= sampler.max_new_tokens for row in rest])
            running_B &= ~torch.isin(next_B, stop) & ~full_B
    found = iter(written)
    return [[[next(found) for _ in range(copies)] for _ in some] for some in ends]


def _chunks(lengths: Sequence[int], rows: Sequence[int], batch: int) -> Iterator[list[int]]:
    """Indices of texts, sorted by length so that little is padding, in chunks of about `batch` rows."""
    chunk: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        chunk.append(i)
        if sum(rows[j] for j in chunk) >= batch:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _sampler(tokenizer: Any, stop: Sequence[int], max_new_tokens: int, temperature: float, seed: int) -> TokenSampler:
    # A step that contains one of these could not be tokenized again: control tokens have no text, and words of the chat
    # template lose their line end when a text is split into steps.
    undrawn = tokenizer.convert_tokens_to_ids(list(UNDRAWN))
    banned = [token for token in (*tokenizer.all_special_ids, *undrawn) if token not in stop]
    return TokenSampler(stop, max_new_tokens, temperature, torch.Generator().manual_seed(seed), banned)


def sample_solutions(
    model: Any,
    tokenizer: Any,
    problems: Sequence[str],
    *,
    copies: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 2048,
) -> list[list[tuple[list[str], bool]]]:
    """`copies` solutions per problem text: each as (steps, whether it ended within the context)."""
    end = tokenizer.eos_token
    max_new_tokens = model.config.max_position_embeddings // 2
    sampler = _sampler(tokenizer, [tokenizer.eos_token_id], max_new_tokens, temperature, seed)
    prompts: list[list[int]] = tokenizer([prompt_of(problem) for problem in problems])["input_ids"]
    found: list[list[tuple[list[str], bool]]] = [[]] * len(prompts)
    for chunk in _chunks([len(prompt) for prompt in prompts], [copies] * len(prompts), batch):
        texts = tokenizer.batch_decode(sample_tokens(model, [prompts[i] for i in chunk], copies, sampler))
        solutions = [(text.removesuffix(end).split(STEP_END), text.endswith(end)) for text in texts]
        for at, i in enumerate(chunk):
            found[i] = solutions[at * copies : (at + 1) * copies]
    return found


def sample_next_steps(
    model: Any,
    tokenizer: Any,
    solutions: Sequence[tuple[str, Sequence[str]]],
    *,
    copies: int = 1,
    temperature: float = 1.0,
    seed: int = 0,
    max_step_tokens: int = 8,
    batch: int = 4096,
) -> list[list[list[str]]]:
    """For each (problem text, steps) and each position in the steps, sample `copies` steps after the same prefix."""
    step_end = tokenizer.convert_tokens_to_ids(STEP_END)
    sampler = _sampler(tokenizer, [tokenizer.eos_token_id, step_end], max_step_tokens, temperature, seed)
    prompts: list[list[int]] = tokenizer([prompt_of(problem) for problem, _ in solutions])["input_ids"]
    bodies: list[list[int]] = tokenizer([STEP_END.join(steps) for _, steps in solutions])["input_ids"]
    texts = [[*prompt, *body] for prompt, body in zip(prompts, bodies, strict=True)]
    ends = [
        [len(prompt), *(len(prompt) + i + 1 for i, token in enumerate(body) if token == step_end)]
        for prompt, body in zip(prompts, bodies, strict=True)
    ]
    found: list[list[list[str]]] = [[]] * len(texts)
    for chunk in _chunks([len(text) for text in texts], [copies * len(some) for some in ends], batch):
        rows = sample_inside(model, [texts[i] for i in chunk], [ends[i] for i in chunk], copies, sampler)
        for i, of_text in zip(chunk, rows, strict=True):
            found[i] = [
                [text.removesuffix(tokenizer.eos_token).removesuffix(STEP_END) for text in tokenizer.batch_decode(some)]
                for some in of_text
            ]
    return found

"""A tiny Qwen2 policy, trained from scratch on right solutions with ordinary causal language modelling.

Stopped early enough, it makes natural errors: it has learned the form of a solution before it has learned all of
the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from prism_prm.world.problems import ProblemSettings, draw_problem
from prism_prm.world.tokens import STEP_END, STEP_SEPARATOR, prompt_of, solution_text

# Shapes: B rows of a batch, S tokens of a row.


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Size and training of a policy; with the problems it learns from they fix its weights."""

    layers: int = 3
    hidden: int = 64
    heads: int = 4
    updates: int = 700
    """Updates of `batch` fresh solutions each; fewer updates, more natural errors."""
    batch: int = 128
    learning_rate: float = 4e-3
    """Peak of a one-cycle schedule."""
    weight_decay: float = 0.01
    seed: int = 0


def make_model(settings: PolicySettings, tokenizer: Any, max_tokens: int) -> Any:
    """A Qwen2 with random weights."""
    torch.manual_seed(settings.seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=2 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def training_batch(
    problems: ProblemSettings, count: int, tokenizer: Any, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fresh problems with their right solutions: ids, attention mask, and labels that ask for the solutions only."""
    drawn = [draw_problem(problems, rng) for _ in range(count)]
    texts = [prompt_of(problem.text) + solution_text(problem.solution()) for problem in drawn]
    encoded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    ids_BS, mask_BS = encoded["input_ids"], encoded["attention_mask"]
    prompts_B1 = torch.tensor([[len(problem.operations) + 3] for problem in drawn])
    asked_BS = (torch.arange(ids_BS.shape[1]) >= prompts_B1) & mask_BS.bool()
    return ids_BS, mask_BS, ids_BS.masked_fill(~asked_BS, -100)


def train_policy(
    settings: PolicySettings,
    problems: ProblemSettings,
    tokenizer: Any,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> Any:
    """A trained policy; `advance` is told of every update."""
    rng = np.random.default_rng([settings.seed, 1])
    longest = 5 * problems.max_operations + 6
    model = make_model(settings, tokenizer, max_tokens=4 * longest).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.learning_rate, total_steps=settings.updates, pct_start=0.1
    )
    for _ in range(settings.updates):
        ids_BS, mask_BS, labels_BS = training_batch(problems, settings.batch, tokenizer, rng)
        loss = model(input_ids=ids_BS, attention_mask=mask_BS, labels=labels_BS).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        advance(1)
    _start_separator(model, tokenizer)
    return model.eval()


def _start_separator(model: Any, tokenizer: Any) -> None:
    """Let the PRM's separator start as what the policy writes between steps: a PRM made of this policy reads there."""
    end, separator = tokenizer.convert_tokens_to_ids([STEP_END, STEP_SEPARATOR])
    with torch.no_grad():
        # Only as it is read: as an output it would be sampled half of the time.
        embeddings = model.get_input_embeddings().weight
        embeddings[separator] = embeddings[end]

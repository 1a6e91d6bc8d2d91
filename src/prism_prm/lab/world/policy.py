"""A tiny Qwen2 policy: its tokenizer, and its training from scratch on right solutions by causal language modeling.

- The tokenizer is a real `Qwen2Tokenizer` with the special tokens of the Qwen2.5-Math-PRM family. A number, an
  operation (`+6`) and a result (`=3`) are one token each, so a step is three tokens and a separator. They are added
  tokens, since Qwen2's rules split digits, and transformers applies these rules to the tokenizer of any Qwen2 model.
- The policy is a snapshot at a given share of right steps: by then it has learned the form of a solution, but not all
  of the arithmetic, so its errors are natural. Training then continues for the backbone of PRMs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from transformers import AddedToken, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from prism_prm.errors import ModelError
from prism_prm.lab.world.problems import ANSWER_MARK, OPERATORS, Problem, ProblemSettings, draw_problem

STEP_END = "\n\n"
"""The separator of steps."""
PAD, UNKNOWN, TURN_START, TURN_END = "<|endoftext|>", "<unk>", "<|im_start|>", "<|im_end|>"
STEP_SEPARATOR = "<extra_0>"
"""The token after each step at which a PRM of the qwen family is read."""
SPECIALS = (PAD, UNKNOWN, TURN_START, TURN_END, STEP_SEPARATOR)
FRAME = ("user\n", "assistant\n", "\n")
"""What the chat template writes around a problem; no solution contains it."""
UNDRAWN = (*FRAME, ANSWER_MARK.strip())
"""Words that a policy never writes. The last is left of an answer mark without a number when a text is split into
steps: a PRM must be able to read it."""
LAYOUT = (*UNDRAWN, STEP_END, ANSWER_MARK)

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Qwen's template without a system turn."""


def make_tokenizer(modulus: int) -> Any:
    """The tokenizer for all problems modulo `modulus`."""
    numbers = range(modulus)
    words = [
        *LAYOUT, *map(str, numbers), *(f"={n}" for n in numbers),
        *(f"{operator}{n}" for operator in OPERATORS for n in numbers),
    ]  # fmt: skip
    vocabulary = {token: i for i, token in enumerate(SPECIALS)}
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=TURN_END,
        extra_special_tokens=[TURN_START, STEP_SEPARATOR],
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    return tokenizer


def prompt_of(problem: str) -> str:
    """The text before the first step: the chat template with the problem as its only turn."""
    return f"{TURN_START}user\n{problem}{TURN_END}\n{TURN_START}assistant\n"


PRM_SETTINGS = {"system": ""}
"""Settings of the qwen family with which a PRM reads the same prompt."""


def solution_text(steps: list[str]) -> str:
    """A whole solution as the policy writes it."""
    return STEP_END.join(steps) + TURN_END


# Shapes: B rows of a batch, S tokens of a row, V tokens of the vocabulary.

CHECK_EVERY = 5
"""Updates between two evaluations of the policy; learning is sudden, so rare evaluations would overshoot."""


@dataclass(frozen=True, slots=True)
class TinyPolicySettings:
    """Size and training of a policy; with its training problems they determine its weights."""

    layers: int = 3
    hidden: int = 64
    heads: int = 4
    target: float = 0.8
    """The policy is a snapshot at this share of right steps, sampled at temperature 1 after right prefixes."""
    backbone_target: float = 0.97
    """Training continues to this share for the backbone of PRMs: a judge should know more than the policy."""
    max_updates: int = 1000
    """ModelError if a target is not reached by then."""
    batch: int = 64
    learning_rate: float = 6e-3
    warmup: int = 30
    """Updates of linear warmup; the learning rate is constant afterwards."""
    weight_decay: float = 0.01
    seed: int = 0

    @property
    def targets(self) -> tuple[float, float]:
        """The shares of right steps for the policy and the backbone."""
        return self.target, max(self.target, self.backbone_target)

    @property
    def percent(self) -> int:
        """The last target in percent: the total of the progress bar, since the number of updates is unknown."""
        return int(100 * self.targets[-1])


def make_model(settings: TinyPolicySettings, tokenizer: Any, max_tokens: int) -> Any:
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
        # About 1/√hidden. With the 0.02 of large models, a model this narrow needs several times as many updates.
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def training_batch(problems: list[Problem], tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Problems with their right solutions: ids, attention mask, and labels for the solutions only."""
    prompts = [prompt_of(problem.text) for problem in problems]
    solutions = [solution_text(problem.solution()) for problem in problems]
    texts = [prompt + solution for prompt, solution in zip(prompts, solutions, strict=True)]
    encoded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    ids_BS, mask_BS = encoded["input_ids"], encoded["attention_mask"]
    lengths_B1 = torch.tensor([[len(ids)] for ids in tokenizer(prompts)["input_ids"]])
    asked_BS = (torch.arange(ids_BS.shape[1]) >= lengths_B1) & mask_BS.bool()
    return ids_BS, mask_BS, ids_BS.masked_fill(~asked_BS, -100)


@torch.no_grad()
def right_step_share(model: Any, tokenizer: Any, problems: list[Problem]) -> float:
    """P(the policy writes the right step) at temperature 1, averaged over all positions of right solutions; exact."""
    ids_BS, mask_BS, labels_BS = training_batch(problems, tokenizer)
    logits_BSV = model(input_ids=ids_BS, attention_mask=mask_BS).logits[:, :-1]
    labels_BS = labels_BS[:, 1:]
    asked_BS = labels_BS != -100
    chosen_BS1 = labels_BS.clamp(min=0)[..., None]
    log_p_BS = torch.log_softmax(logits_BSV.float(), -1).gather(-1, chosen_BS1)[..., 0] * asked_BS
    end = tokenizer.convert_tokens_to_ids(STEP_END)
    # A step's tokens are those since the last separator, including its own separator or end of text.
    ends_BS = (labels_BS == end) & asked_BS
    step_BS = ends_BS.long().cumsum(1) - ends_BS.long()
    count = int(step_BS.max()) + 1
    log_p_BT = torch.zeros(len(problems), count).scatter_add_(1, step_BS, log_p_BS)
    is_step_BT = torch.zeros(len(problems), count).scatter_add_(1, step_BS, asked_BS.float()) > 0
    return float(log_p_BT.exp()[is_step_BT].mean())


HELD_OUT = 200
"""The number of problems on which the share of right steps is measured."""


def pretraining_problems(settings: TinyPolicySettings, problems: ProblemSettings) -> Iterator[Problem]:
    """An endless stream of a policy's problems: first those for evaluation, then batch after batch."""
    rng = np.random.default_rng([settings.seed, 1])
    while True:
        yield draw_problem(problems, rng)


def shown_problems(settings: TinyPolicySettings, problems: ProblemSettings, updates: int) -> Iterator[Problem]:
    """All problems that a training run of this many updates has used."""
    return islice(pretraining_problems(settings, problems), HELD_OUT + updates * settings.batch)


def train_policy(
    settings: TinyPolicySettings,
    problems: ProblemSettings,
    tokenizer: Any,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Any, Any, int]:
    """(policy, backbone, updates): an early and a late snapshot of one training run, and the number of updates.

    `advance` gets every percent of right steps that is reached, up to `settings.percent`.
    """
    drawn = pretraining_problems(settings, problems)
    held_out = list(islice(drawn, HELD_OUT))
    longest = 5 * problems.max_operations + 11
    model = make_model(settings, tokenizer, max_tokens=4 * longest).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.98)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / settings.warmup))
    end, separator = tokenizer.convert_tokens_to_ids([STEP_END, STEP_SEPARATOR])
    share, reached = 0.0, 0
    snapshots: list[Any] = []
    for update in range(1, settings.max_updates + 1):
        ids_BS, mask_BS, labels_BS = training_batch(list(islice(drawn, settings.batch)), tokenizer)
        model(input_ids=ids_BS, attention_mask=mask_BS, labels=labels_BS).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if update % CHECK_EVERY == 0:
            share = right_step_share(model, tokenizer, held_out)
            now = max(reached, min(int(100 * share), settings.percent))
            advance(now - reached)
            reached = now
            while len(snapshots) < 2 and share >= settings.targets[len(snapshots)]:
                snapshots.append(copy.deepcopy(model).eval())
                # The PRM's separator starts with the embedding of the policy's, since a PRM with this backbone is read
                # there. Only the input embedding: with the output embedding too, it would be sampled half of the time.
                embeddings = snapshots[-1].get_input_embeddings().weight.data
                embeddings[separator] = embeddings[end]
            if len(snapshots) == 2:
                return snapshots[0], snapshots[1], update
    raise ModelError(
        f"After {settings.max_updates} updates {share:.0%} of the policy's steps are right; the target is "
        f"{settings.targets[len(snapshots)]:.0%}. Raise max_updates, lower the target, or use easier problems."
    )

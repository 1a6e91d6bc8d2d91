"""A tiny Qwen2 policy: its tokenizer, and its training from scratch on right solutions by causal language modeling.

- The tokenizer is a real `Qwen2Tokenizer` with the special tokens of the Qwen2.5-Math-PRM family. A number, an
  operation (`+6`) and a result (`=3`) are one token each, so a step is three tokens and a separator. They are added
  tokens, since Qwen2's own rules cut every digit off, and transformers applies those rules to any tokenizer that stands
  beside a Qwen2 model.
- The policy is taken as soon as a stated share of its steps is right: by then it has learned the form of a solution,
  and not yet all of the arithmetic, so its errors are natural ones. Training continues for the backbone of PRMs.
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
"""What the policy writes between steps."""
PAD, UNKNOWN, TURN_START, TURN_END = "<|endoftext|>", "<unk>", "<|im_start|>", "<|im_end|>"
STEP_SEPARATOR = "<extra_0>"
"""Where a PRM of the qwen family is read: after each step."""
SPECIALS = (PAD, UNKNOWN, TURN_START, TURN_END, STEP_SEPARATOR)
FRAME = ("user\n", "assistant\n", "\n")
"""What the chat template writes around a problem, and no solution holds."""
LONE_MARK = ANSWER_MARK.strip()
"""What is left of an answer mark without a number when a text is cut into steps: a PRM must be able to read it."""
UNDRAWN = (*FRAME, LONE_MARK)
"""Words that a policy does not write."""
LAYOUT = (*UNDRAWN, STEP_END, ANSWER_MARK)

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Qwen's, without a system turn: it would say the same before every problem."""


def make_tokenizer(modulus: int) -> Any:
    """The tokenizer of all problems modulo `modulus`."""
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
    """What stands before the first step: the chat template with the problem as its only turn."""
    return f"{TURN_START}user\n{problem}{TURN_END}\n{TURN_START}assistant\n"


PRM_SETTINGS = {"system": ""}
"""Settings of the qwen family under which a PRM reads the same prompt."""


def solution_text(steps: list[str]) -> str:
    """A whole solution as the policy writes it."""
    return STEP_END.join(steps) + TURN_END


# Shapes: B rows of a batch, S tokens of a row, V tokens of the vocabulary.

CHECK_EVERY = 5
"""Updates between two looks at how good the policy is; learning is sudden, and a rare look overshoots."""


@dataclass(frozen=True, slots=True)
class TinyPolicySettings:
    """Size and training of a policy; with the problems it learns from they fix its weights."""

    layers: int = 3
    hidden: int = 64
    heads: int = 4
    target: float = 0.8
    """The policy is taken when this share of steps, sampled at temperature 1 under right prefixes, is right."""
    backbone_target: float = 0.97
    """Training continues to this share for the backbone of PRMs: a judge that knows more than the policy it judges."""
    max_updates: int = 1000
    """A policy that has not got there by then is an error."""
    batch: int = 64
    learning_rate: float = 6e-3
    warmup: int = 30
    """Updates over which the learning rate rises; it stays there after."""
    weight_decay: float = 0.01
    seed: int = 0

    @property
    def targets(self) -> tuple[float, float]:
        """The shares of right steps at which the policy and the backbone are taken."""
        return self.target, max(self.target, self.backbone_target)

    @property
    def percent(self) -> int:
        """The last target in whole percent: where progress ends, since nobody knows after how many updates."""
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
        # About 1/√hidden. With the 0.02 of large models a model this narrow needs several times the updates.
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def training_batch(problems: list[Problem], tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Problems with their right solutions: ids, attention mask, and labels that ask for the solutions only."""
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
    # A step's tokens are those since the last separator, its own separator or end of text included.
    ends_BS = (labels_BS == end) & asked_BS
    step_BS = ends_BS.long().cumsum(1) - ends_BS.long()
    count = int(step_BS.max()) + 1
    log_p_BT = torch.zeros(len(problems), count).scatter_add_(1, step_BS, log_p_BS)
    is_step_BT = torch.zeros(len(problems), count).scatter_add_(1, step_BS, asked_BS.float()) > 0
    return float(log_p_BT.exp()[is_step_BT].mean())


HELD_OUT = 200
"""Problems by which the share of right steps is measured."""


def pretraining_problems(settings: TinyPolicySettings, problems: ProblemSettings) -> Iterator[Problem]:
    """What a policy is shown, without end: the problems that it is measured by, then batch after batch."""
    rng = np.random.default_rng([settings.seed, 1])
    while True:
        yield draw_problem(problems, rng)


def shown_problems(settings: TinyPolicySettings, problems: ProblemSettings, updates: int) -> Iterator[Problem]:
    """The problems that a training run of this many updates has seen."""
    return islice(pretraining_problems(settings, problems), HELD_OUT + updates * settings.batch)


def train_policy(
    settings: TinyPolicySettings,
    problems: ProblemSettings,
    tokenizer: Any,
    *,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Any, Any, int]:
    """(policy, backbone, updates): the same training, stopped earlier and later, and how long the later one took.

    `advance` is told of every percent of right steps that is reached, `settings.percent` of them in all.
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
    taken: list[Any] = []
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
            while len(taken) < 2 and share >= settings.targets[len(taken)]:
                taken.append(copy.deepcopy(model).eval())
                # The PRM's separator starts as what the policy writes between steps: a PRM made of this policy reads
                # there. Only as it is read: as an output it would be sampled half of the time.
                embeddings = taken[-1].get_input_embeddings().weight.data
                embeddings[separator] = embeddings[end]
            if len(taken) == 2:
                return taken[0], taken[1], update
    raise ModelError(
        f"The policy takes {share:.0%} of the steps right after {settings.max_updates} updates, not "
        f"the {settings.targets[len(taken)]:.0%} asked for. Raise max_updates, lower the target, or ease the problems."
    )

"""The world's tokenizer: a real `PreTrainedTokenizerFast`, with the special tokens of the Qwen2.5-Math-PRM family.

A number, an operation (`+6`) and a result (`=3`) are one token each, so a step is three tokens and a separator.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from prism_prm.world.problems import ANSWER_MARK, OPERATORS

STEP_END = "\n\n"
"""What the policy writes between steps."""
PAD, UNKNOWN, TURN_START, TURN_END = "<|endoftext|>", "<unk>", "<|im_start|>", "<|im_end|>"
STEP_SEPARATOR = "<extra_0>"
"""Where a PRM of the qwen family is read: after each step."""
SPECIALS = (PAD, UNKNOWN, TURN_START, TURN_END, STEP_SEPARATOR)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|im_start|>{{ message['content'] }}<|im_end|>"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}<|im_end|>{% endif %}"
    "{% endfor %}"
)
"""The problem is the only turn with marks of its own; a system message would say the same to every problem."""


def make_tokenizer(modulus: int) -> Any:
    """The tokenizer of all problems modulo `modulus`."""
    numbers = range(modulus)
    words = [
        *SPECIALS, STEP_END, ANSWER_MARK, *map(str, numbers), *(f"={n}" for n in numbers),
        *(f"{operator}{n}" for operator in OPERATORS for n in numbers),
    ]  # fmt: skip
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[-+*=]?\d+|#### |\n\n"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=TURN_END,
        additional_special_tokens=[TURN_START, STEP_SEPARATOR],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def prompt_of(problem: str) -> str:
    """What stands before the first step: the chat template with the problem as its only turn."""
    return f"{TURN_START}{problem}{TURN_END}"


def solution_text(steps: list[str]) -> str:
    """A whole solution as the policy writes it."""
    return STEP_END.join(steps) + TURN_END

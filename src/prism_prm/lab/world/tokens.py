"""The world's tokenizer: a real `Qwen2Tokenizer`, with the special tokens of the Qwen2.5-Math-PRM family.

A number, an operation (`+6`) and a result (`=3`) are one token each, so a step is three tokens and a separator. They
are added tokens, since Qwen2's own rules cut every digit off, and transformers applies those rules to any tokenizer
that stands beside a Qwen2 model.
"""

from __future__ import annotations

from typing import Any

from transformers import AddedToken, Qwen2Tokenizer

from prism_prm.lab.world.problems import ANSWER_MARK, OPERATORS

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

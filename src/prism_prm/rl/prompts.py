"""Find the problem in a templated prompt, and the completion in a query, which is a prompt with its completion."""

from __future__ import annotations

import re

from prism_prm.errors import DataError

_USER_TURNS = (
    ("<|im_start|>user\n", "<|im_end|>"),
    ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    ("<start_of_turn>user\n", "<end_of_turn>"),
    ("[INST]", "[/INST]"),
)
"""The markers of chat templates before and after the problem."""
_SPECIAL = re.compile(r"<[^<>\s]*>|\[[A-Z]+\]|\s")
"""Tokens that a tokenizer adds before a prompt: `<s>`, `<|begin_of_text|>`, `[CLS]`, padding."""


def problem_in(prompt: str) -> str:
    """The problem in a prompt: the last user turn if it has a chat template, else all of it."""
    starts = [(_last_turn(prompt, before, after), after) for before, after in _USER_TURNS]
    start, after = max(starts)
    return (prompt if start < 0 else prompt[start : prompt.index(after, start)]).strip()


def _last_turn(prompt: str, before: str, after: str) -> int:
    """The index of the text of the last complete turn between these markers; -1 if there is none."""
    start = prompt.rfind(before, 0, max(0, prompt.rfind(after)))
    return start if start < 0 else start + len(before)


def completion_in(query: str, prompt: str, number: int) -> str:
    """The text after the prompt in a query, which may begin with special tokens."""
    start = query.find(prompt)
    if start < 0 or _SPECIAL.sub("", query[:start]):
        raise DataError(
            f"query {number} does not begin with its prompt, so its completion cannot be found; decode both with the "
            "same tokenizer, and keep special tokens in both or in neither",
            reason="wrong-value",
        )
    return query[start + len(prompt) :]

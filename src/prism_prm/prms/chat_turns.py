"""The texts that a tokenizer's chat template puts around turns, for families that are chats."""

from __future__ import annotations

from typing import Any

from prism_prm.errors import ModelError
from prism_prm.lm.chat import render_chat

_MARKS = ("\u2460", "\u2461", "\u2462", "\u2463")
"""Contents by which the turns are found in the rendered chat; no template writes circled digits itself."""
_DATE = "26 Jul 2024"
"""Llama 3.1's template states a date; published scores were made with its default, not with today's."""


def chat_turns(tokenizer: Any, family: str) -> tuple[str, str, str]:
    """The chat template's texts: before the first user's words, from user to assistant, from assistant to user."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"family {family!r} needs a tokenizer with a chat template; this one has none")
    roles = ("user", "assistant", "user", "assistant")
    chat = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    text = render_chat(tokenizer, chat, date_string=_DATE)
    if any(text.count(mark) != 1 for mark in _MARKS):
        raise ModelError(f"family {family!r}: the tokenizer's chat template must contain each turn exactly once")
    before, rest = text.split(_MARKS[0])
    ask, rest = rest.split(_MARKS[1])
    answered, rest = rest.split(_MARKS[2])
    if not rest.startswith(ask + _MARKS[3]):
        raise ModelError(f"family {family!r}: the chat template formats later turns differently from the first")
    return before, ask, answered

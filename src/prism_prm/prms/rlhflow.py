"""RLHFlow's PRMs: a chat with one user turn per step, where the assistant answers `+` or `-`."""

from __future__ import annotations

from typing import Any, ClassVar

from prism_prm.errors import ModelError
from prism_prm.prms.label_tokens import LabelTokens

_MARKS = ("\u2460", "\u2461", "\u2462", "\u2463")
"""Contents by which the turns are found in the rendered chat; no template writes circled digits itself."""
_DATE = "26 Jul 2024"
"""Llama 3.1's template states a date; the published scores were made with its default, not with today's."""


class RLHFlow(LabelTokens):
    """Read at the token before each assistant's `+`; later steps see the `+`."""

    name = "rlhflow"
    known: ClassVar = {"RLHFlow/Llama3.1-8B-PRM-Mistral-Data": {}, "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": {}}
    aggregator = "mean"

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        before, ask, answered = _turns(tokenizer)
        self._before = self.text.layout(before)
        self._ask = self.text.layout(ask)
        self._answered = [self.rows[0], *self.text.layout(answered)]

    def prompt_ids(self, problem: str) -> list[int]:
        return [*self._before, *self.text.plain(problem)]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
        self.text.step(text)
        # The first step shares its turn with the problem: `{question} {step}`.
        asked = [*self.text.step(f" {text}" if index == 0 else text), *self._ask]
        return [*asked, *self._answered], len(asked) - 1


def _turns(tokenizer: Any) -> tuple[str, str, str]:
    """The chat template's texts: before the first user's words, from user to assistant, from assistant to user."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError("family 'rlhflow' needs a tokenizer with a chat template; this one has none")
    roles = ("user", "assistant", "user", "assistant")
    chat = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]
    text = tokenizer.apply_chat_template(chat, tokenize=False, date_string=_DATE)
    if any(text.count(mark) != 1 for mark in _MARKS):
        raise ModelError("family 'rlhflow': the tokenizer's chat template must contain each turn exactly once")
    before, rest = text.split(_MARKS[0])
    ask, rest = rest.split(_MARKS[1])
    answered, rest = rest.split(_MARKS[2])
    if not rest.startswith(ask + _MARKS[3]):
        raise ModelError("family 'rlhflow': the chat template formats later turns differently from the first")
    return before, ask, answered

"""RLHFlow's PRMs: a chat with one user turn per step, to which the assistant answers `+` or `-`."""

from __future__ import annotations

from typing import Any, ClassVar

from prism_prm.models.families.base import LabelTokens, chat_turns


class RLHFlow(LabelTokens):
    """Read at the token before the assistant's `+`; later steps see the `+`."""

    name = "rlhflow"
    known: ClassVar = {"RLHFlow/Llama3.1-8B-PRM-Mistral-Data": {}, "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": {}}
    aggregator = "mean"

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.rows = self.plus_and_minus()
        before, ask, answered = chat_turns(tokenizer, self.name)
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

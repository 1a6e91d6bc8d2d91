"""Skywork-o1-Open-PRM: steps are lines, and a value head reads each at its `\\n`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from prism_prm.models.families.base import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


class Skywork(Family):
    """One number per step, the log-odds that it is right."""

    name = "skywork"
    head_name = "v_head"
    labels = ("right, as log-odds",)
    architectures: ClassVar = {"qwen2": "Qwen2ForPrmModel"}
    known: ClassVar = {"Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B": {}, "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-7B": {}}
    aggregator = "mean"

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self._newline = self.text.layout("\n")[-1]

    def prompt_ids(self, problem: str) -> list[int]:
        return [*self.text.bos(), *self.text.plain(f"{problem}\n")]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:  # noqa: ARG002
        self.text.step(text)
        ids: list[int] = []
        # The model was trained on single lines: a step of several lines is laid out as such and read at the last.
        for line in text.split("\n"):
            ids += [*self.text.plain(line), self._newline]
        return ids, len(ids) - 1

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:  # noqa: ARG002
        from prism_prm.models.module import ValueHead

        return ValueHead(hidden_size)

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        return logits_RC

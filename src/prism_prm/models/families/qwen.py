"""Qwen2.5-Math-PRM: a chat whose assistant turn is the steps, each followed by `<extra_0>`, where it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from prism_prm.models.families.base import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


class Qwen(Family):
    """Two-layer head read at `<extra_0>`; class 1 is right."""

    name = "qwen"
    head_name = "score"
    labels: ClassVar[tuple[str, ...]] = ("wrong", "right")
    config_extras: ClassVar = {"num_labels": 2}
    new_tokens = ("<|im_start|>", "<|im_end|>", "<extra_0>")
    architectures: ClassVar = {"qwen2": "Qwen2ForProcessRewardModel"}
    known: ClassVar = {
        "Qwen/Qwen2.5-Math-PRM-7B": {},
        "Qwen/Qwen2.5-Math-PRM-72B": {},
        "Qwen/Qwen2.5-Math-7B-PRM800K": {},
        "Gen-Verse/ReasonFlux-PRM-7B": {"system": ""},
    }
    aggregator = "product"
    settings: ClassVar = {"system": "Please reason step by step, and put your final answer within \\boxed{}."}
    """An empty `system` leaves out the system turn."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        system = self.chosen["system"]
        turn = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
        self._before = self.text.layout(f"{turn}<|im_start|>user\n")
        self._after = self.text.layout("<|im_end|>\n<|im_start|>assistant\n")
        self._separator = self.text.token("<extra_0>")

    def prompt_ids(self, problem: str) -> list[int]:
        return [*self._before, *self.text.plain(problem), *self._after]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:  # noqa: ARG002
        ids = self.text.step(text)
        return [*ids, self._separator], len(ids)

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:  # noqa: ARG002
        from torch import nn

        return nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, 2))

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        return logits_RC[:, 1:2] - logits_RC[:, 0:1]

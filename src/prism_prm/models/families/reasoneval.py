"""ReasonEval: three classes at the last token of each step; validity and redundancy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from prism_prm.errors import DataError
from prism_prm.models.families.base import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


class ReasonEval(Family):
    """softmax over [negative, neutral, positive]; validity = neutral + positive, redundancy = neutral."""

    name = "reasoneval"
    outputs = ("validity", "redundancy")
    head_name = "score_head"
    labels = ("wrong", "right but redundant", "right")
    config_extras: ClassVar = {"score_dimension": 3, "use_bias": False}
    architectures: ClassVar = {"mistral": "ReasonEval_7B", "llama": "ReasonEval_34B"}
    known: ClassVar = {"GAIR/ReasonEval-7B": {}, "GAIR/ReasonEval-34B": {}}

    def prompt_ids(self, problem: str) -> list[int]:
        return [
            *self.text.bos(),
            *self.text.plain(f"Question:\n{problem}\nAnswer:\nLet's think step by step.\n"),
        ]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:  # noqa: ARG002
        ids = list(self.text.step(text))
        if not self.compat:
            return ids, len(ids) - 1
        # The published 7B code counts positions before it prepends the first token, so it reads one token too early.
        if len(ids) == 1:
            raise DataError(
                f"the step {text!r} is one token, but 'reasoneval' with compat=True needs two; use compat=False",
                reason="short-step",
            )
        return ids, len(ids) - 2

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        from torch import nn

        return nn.Linear(hidden_size, 3, bias=getattr(config, "use_bias", False))

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        import torch

        negative, neutral, positive = logits_RC.unbind(1)
        validity = torch.logaddexp(neutral, positive) - negative
        redundancy = neutral - torch.logaddexp(negative, positive)
        return torch.stack([validity, redundancy], dim=1)

"""A ReasonEval head for PRMs of the embedded world, whose tokenizer cannot read ReasonEval's own prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from prism_prm.models.families.qwen import Qwen
from prism_prm.models.families.reasoneval import ReasonEval

if TYPE_CHECKING:
    from torch import Tensor, nn


class ValidityHead(Qwen):
    """Qwen's layout; softmax over [negative, neutral, positive], validity and redundancy as in ReasonEval."""

    outputs = ReasonEval.outputs
    labels = ReasonEval.labels
    config_extras: ClassVar = ReasonEval.config_extras
    aggregator = "min"

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:  # noqa: ARG002
        from torch import nn

        return nn.Linear(hidden_size, 3, bias=False)

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        return ReasonEval.log_odds(logits_RC)


VALIDITY = f"{__file__}:ValidityHead"
"""The family's name for `init_prm`, `load_prm` and recipes."""

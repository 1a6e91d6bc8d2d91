"""Generic two-label token classification: problem, then each step with a separator, read at the separator's last token.

It needs no special token, so it fits every backbone; its checkpoints load as `…ForTokenClassification`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from prism_prm.prms.base import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


class TokenClassification(Family):
    """One linear layer to two labels; class 1 is right."""

    name = "token-classification"
    head_name = "score"
    config_extras: ClassVar = {"num_labels": 2}
    settings: ClassVar = {"separator": "\n"}

    def prompt_ids(self, problem: str) -> list[int]:
        return [*self.text.bos(), *self.text.plain(problem)]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:  # noqa: ARG002
        ids = [*self.text.step(text), *self.text.layout(self.chosen["separator"])]
        return ids, len(ids) - 1

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        from torch import nn

        return nn.Linear(hidden_size, 2, bias=getattr(config, "token_classification_bias", True))

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        from prism_prm.prms.heads import two_label_log_odds

        return two_label_log_odds(logits_RC)

    def architecture(self, config: Any) -> str:
        from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

        return str(MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.get(config.model_type, super().architecture(config)))

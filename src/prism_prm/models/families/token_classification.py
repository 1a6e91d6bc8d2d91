"""Generic two-label token classification: problem, then each step with a separator, read at the separator's last token.

It needs no special token, so it fits every backbone. Its checkpoints load in transformers where that has a token
classifier with the same head (for Llama, Mistral, Qwen and many others).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from prism_prm.models.families.base import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


class TokenClassification(Family):
    """One linear layer to two labels; class 1 is right, unless the folder names them the other way around."""

    name = "token-classification"
    head_name = "score"
    labels = ("wrong", "right")
    names_labels = True
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
        return logits_RC[:, 1:2] - logits_RC[:, 0:1]

    def architecture(self, config: Any) -> str:
        from transformers import AutoModelForTokenClassification
        from transformers.modeling_layers import GenericForTokenClassification

        # Older classes (GPT-2, Falcon) name their head differently, and would load a random one.
        known = AutoModelForTokenClassification._model_mapping.get(type(config), None)
        if known is None or not issubclass(known, GenericForTokenClassification):
            return super().architecture(config)
        return str(known.__name__)

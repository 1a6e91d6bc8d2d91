"""Families that are plain language models: a step is as right as one label is likelier than the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prism_prm.prms.base import Family

if TYPE_CHECKING:
    from torch import Tensor, nn


class LabelTokens(Family):
    """Reads the language model's own output layer at the rows of two labels: `+` and `-`, unless a family differs."""

    head_name = "lm_head"
    labels = ("right: the token `+`", "wrong: the token `-`")
    uses_lm_head = True

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.rows = self.label_rows()

    def label_rows(self) -> tuple[int, int]:
        """The ids of the labels: that of a right step, that of a wrong one."""
        return self.text.token("+"), self.text.token("-")

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        from prism_prm.prms.heads import LabelRows

        head = LabelRows(hidden_size, config.vocab_size, bias=False)
        head.rows = self.rows
        return head

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        return logits_RC[:, 0:1] - logits_RC[:, 1:2]

    def architecture(self, config: Any) -> str:
        """A complete language model, for others to load as one."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, super().architecture(config)))

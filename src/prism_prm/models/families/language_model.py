"""Layouts of the rivals of PRMs: a language model whose token probabilities are read, and an outcome reward model.

Both read a chat whose user turn is the problem and whose assistant turn is the solution, or plain text if the tokenizer
has no chat template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from prism_prm.errors import ConfigError
from prism_prm.models.families.base import Family, causal_lm, split_chat

if TYPE_CHECKING:
    from torch import Tensor, nn

    from prism_prm.models.module import PrmModule


class _Chat(Family):
    """The problem as the user's turn, the steps as the assistant's."""

    aggregator = "last"
    settings: ClassVar = {"system": "", "separator": "\n\n"}

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        system = self.chosen["system"]
        if getattr(tokenizer, "chat_template", None):
            before, ask, end = split_chat(tokenizer, self.name, ["user", "assistant"], system)
            self._before = self.text.layout(before)
        else:
            ask, end = "\n\n", tokenizer.eos_token or "\n"
            self._before = [*self.text.bos(), *(self.text.plain(f"{system}\n\n") if system else ())]
        self._ask = self.text.layout(ask)
        self._end = self.text.layout(end)

    def prompt_ids(self, problem: str) -> list[int]:
        return [*self._before, *self.text.plain(problem), *self._ask]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:  # noqa: ARG002
        self.text.step(text)
        # With its separator, because a period and line breaks may be one token.
        ids = list(self.text.plain(text + self.chosen["separator"]))
        return ids, len(ids) - 1

    def last_step_ids(self, text: str) -> list[int]:
        """Return the ids of a step that ends its solution, with the end of the turn."""
        return [*self.text.step(text), *self._end]


class LanguageModel(_Chat):
    """A causal language model; a step's output is the log-likelihood of its tokens, the separator included."""

    name = "implicit"
    settings: ClassVar = {**_Chat.settings, "beta": "0.05"}
    """`beta` is the factor of an implicit PRM's log-odds."""
    outputs = ("log_likelihood",)
    head_name = "lm_head"
    uses_lm_head = True

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        from torch import nn

        return nn.Linear(hidden_size, config.vocab_size, bias=False)

    def make_module(self, backbone: Any, head: nn.Module) -> PrmModule:
        from prism_prm.models.language_module import LanguageModule

        return LanguageModule(backbone, head, self)

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        return logits_RC

    def architecture(self, config: Any) -> str:
        return causal_lm(config) or super().architecture(config)


class OutcomeReward(_Chat):
    """A sequence classifier, read after the end of the solution: one logit, or two classes of which 1 is right."""

    name = "orm"
    head_name = "score"
    labels = ("wrong", "right")
    names_labels = True

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        from torch import nn

        if config.num_labels > 2:
            raise ConfigError(
                f"an outcome reward model has one output, or two (wrong, right), but this sequence classifier has "
                f"{config.num_labels}; use another model"
            )
        return nn.Linear(hidden_size, config.num_labels, bias=False)

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        return logits_RC if logits_RC.shape[1] == 1 else logits_RC[:, 1:2] - logits_RC[:, 0:1]

    def architecture(self, config: Any) -> str:
        from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

        names = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        return str(names.get(config.model_type) or super().architecture(config))

"""The heads of the families; parameter names are those of the published checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LabelRows(nn.Linear):
    """A language model's output layer of which only the rows of the label tokens are computed.

    It holds the whole matrix, so that a checkpoint stays a complete language model, but a read costs two products
    and not one per word of the vocabulary.
    """

    rows: tuple[int, ...] = ()
    """The label tokens; the first is that of a right step."""

    def forward(self, hidden_RH: Tensor) -> Tensor:
        rows = torch.tensor(self.rows, device=self.weight.device)
        bias = None if self.bias is None else self.bias[rows]
        return nn.functional.linear(hidden_RH, self.weight[rows], bias)


class ValueHead(nn.Module):
    """One number per read position, named `summary` as in TRL's value heads."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.summary = nn.Linear(hidden_size, 1)

    def forward(self, hidden_RH: Tensor) -> Tensor:
        value_R1: Tensor = self.summary(hidden_RH)
        return value_R1


def two_layers(hidden_size: int, num_labels: int) -> nn.Sequential:
    """Linear, ReLU, Linear: the head of Qwen2.5-Math-PRM (`score.0`, `score.2`)."""
    return nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_labels))


def two_label_log_odds(logits_R2: Tensor) -> Tensor:
    """Class 1 means right: log p(1) / p(0), which needs no softmax."""
    return logits_R2[:, 1:2] - logits_R2[:, 0:1]

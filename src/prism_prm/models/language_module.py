"""`LanguageModule`: a language model over packed trees, whose output is about every token of a step.

The token before the first of a step is the last of its parent, which is not beside it in a packed row. So each token
is predicted from the token before it on its PATH.

Shapes: B rows, L tokens of a row, R reads (steps), T tokens of these steps, V vocabulary, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from prism_prm.arrays import Floats, Ints
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import EncodedTree, PackedBatch, pack
from prism_prm.models.prm import PRM, batches_of, pair_cost

AT_ONCE = 1024
"""The number of tokens whose probabilities over the vocabulary are in memory at a time."""
TOP = 20
"""The number of most likely tokens that `top_confidence` averages over, as DeepConf does."""

Measure = Callable[[Tensor, Tensor], Tensor]
"""Log-probabilities over the vocabulary of T tokens (T, V), and the ids of those tokens → one value per token."""


def log_probability(log_p_TV: Tensor, ids_T: Tensor) -> Tensor:
    """log p of each token."""
    return log_p_TV.gather(1, ids_T[:, None])[:, 0]


def self_certainty(log_p_TV: Tensor, ids_T: Tensor) -> Tensor:  # noqa: ARG001
    """The divergence of the uniform distribution from p: −mean over the vocabulary of log(V · p)."""
    return -(log_p_TV.mean(1) + math.log(log_p_TV.shape[1]))


def top_confidence(log_p_TV: Tensor, ids_T: Tensor) -> Tensor:  # noqa: ARG001
    """−mean of log p over the TOP most likely tokens: high if p is peaked."""
    return -log_p_TV.topk(min(TOP, log_p_TV.shape[1])).values.mean(1)


def columns_before(end_L: Ints) -> Ints:
    """For each column of a packed row, the column before it on its path; -1 for the first of a path."""
    before_L = np.full(len(end_L), -1)
    path: list[int] = []
    for column, end in enumerate(end_L.tolist()):
        while path and end_L[path[-1]] <= column:
            path.pop()
        before_L[column] = path[-1] if path else -1
        if end > column:
            path.append(column)
    return before_L


class LanguageModule(PrmModule):
    """Call it with a `PackedBatch` to get the log-likelihoods of the steps that it reads."""

    reads_tokens = True

    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute the log-likelihood of each read's step, as (R, 1)."""
        value_T, read_T = self.of_tokens(batch, log_probability)
        return value_T.new_zeros(len(batch.read_col_R)).index_add(0, read_T, value_T)[:, None]

    def of_tokens(self, batch: PackedBatch, measure: Measure) -> tuple[Tensor, Tensor]:
        """Compute the measure of each token of the reads' steps, and the index of its read; read by read, in order."""
        device = batch.input_ids_BL.device
        before_BL = torch.from_numpy(np.stack([columns_before(end_L) for end_L in batch.end_BL.cpu().numpy()]))
        sizes_R = (batch.read_col_R - batch.read_start_R + 1).cpu()
        read_T = torch.repeat_interleave(torch.arange(len(sizes_R)), sizes_R)
        row_T = batch.read_row_R.cpu()[read_T]
        column_T = torch.arange(len(read_T)) - (sizes_R.cumsum(0) - sizes_R)[read_T] + batch.read_start_R.cpu()[read_T]
        before_T = before_BL[row_T, column_T]
        assert bool((before_T >= 0).all()), "a prompt precedes the first step"
        ids_T = batch.input_ids_BL[row_T.to(device), column_T.to(device)]
        hidden_TH = self.hidden(batch)[row_T.to(device), before_T.to(device)]

        def of_some(hidden: Tensor, ids: Tensor) -> Tensor:
            logits_TV: Tensor = self.head(hidden)
            wide = logits_TV if logits_TV.dtype == torch.float64 else logits_TV.float()
            return measure(wide.log_softmax(1), ids)

        parts = zip(torch.split(hidden_TH, AT_ONCE), torch.split(ids_T, AT_ONCE), strict=True)
        if torch.is_grad_enabled():  # probabilities over the vocabulary are computed again in the backward pass
            values = [checkpoint(of_some, *part, use_reentrant=False) for part in parts]
        else:
            values = [of_some(*part) for part in parts]
        return torch.cat(values), read_T.to(device)


def token_values(
    prm: PRM, trees: Sequence[EncodedTree], nodes: Sequence[Sequence[int]], measure: Measure
) -> list[dict[int, Floats]]:
    """Compute the measure of every token of some nodes of each tree, by node."""
    module = prm.module
    assert isinstance(module, LanguageModule), "only a language model has probabilities of tokens"
    groups = [[(node,) for node in wanted] for wanted in nodes]
    rows = pack(trees, prm.token_budget, groups, pair_cost=pair_cost(module))
    found: list[dict[int, Floats]] = [{} for _ in trees]
    with module.scoring(), torch.inference_mode():
        for some in batches_of(module, rows, prm.token_budget):
            batch = module.collate(some)
            value_T, read_T = module.of_tokens(batch.to(module.device), measure)
            sizes = torch.bincount(read_T, minlength=len(batch.owners)).tolist()
            for (tree, node), values in zip(batch.owners, torch.split(value_T.double().cpu(), sizes), strict=True):
                found[tree][node] = values.numpy()
    return found

"""Run packed rows through a PRM: batches by token budget, halved when memory runs out, every score checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from prism_prm.errors import ModelError
from prism_prm.lm.memory import halving
from prism_prm.packing import Row, batch_rows, merge_rows
from prism_prm.prms.module import PrmModule
from prism_prm.scorer.lower_cache import LowerCache

Named = Callable[[int, int], str]
"""(tree, node) of a read → how to name it in a message."""

DENSE_FACTOR = 1.0
"""How much dearer a multiplication is inside masked attention than in the rest of the model, which has elementwise work
beside its matrix products: measured 0.8 on a CPU with a narrow model."""


def pair_cost(module: PrmModule) -> float:
    """Attention's work per (token, token) of a row, in units of the rest of the work per token.

    It is 0 where only tokens that are seen are paid for: long rows are then not dearer.
    """
    if module.in_blocks or module.attention == "flex":
        return 0.0
    config = module.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pair = 4 * config.num_hidden_layers * config.num_attention_heads * head_dim
    embedding = module.backbone.get_input_embeddings().weight.numel()
    token = 2 * (sum(parameter.numel() for parameter in module.backbone.parameters()) - embedding)
    return float(DENSE_FACTOR * pair / token)


def run_rows(
    module: PrmModule, rows: Sequence[Row], token_budget: int, named: Named, cache: LowerCache | None = None
) -> Iterator[tuple[tuple[tuple[int, int], ...], Tensor]]:
    """(owners, log-odds_RO on the CPU in 64 bits) of each batch."""
    if module.attention == "flex":
        rows = merge_rows(rows, token_budget)

    def forward(some: Sequence[Row]) -> Tensor:
        with torch.inference_mode():
            batch = module.collate(some)
            batch = batch if cache is None else cache.attach(batch, some)
            log_odds_RO: Tensor = module(batch.to(module.device))
            return log_odds_RO.double().cpu()

    def name_row(row: Row) -> str:
        return f"a row of {len(row)} tokens with {named(*row.owners[0])}"

    for batch in batch_rows(rows, token_budget):
        for part, log_odds_RO in halving(batch, forward, name_row):
            owners = tuple(owner for row in part for owner in row.owners)
            check_finite(log_odds_RO, owners, named)
            yield owners, log_odds_RO
    if cache is not None:
        cache.flush()


def check_finite(log_odds_RO: Tensor, owners: Sequence[tuple[int, int]], named: Named) -> None:
    """A score that is not a number is an error that says whose it is."""
    bad_R = ~torch.isfinite(log_odds_RO).all(dim=1)
    if bool(bad_R.any()):
        first = int(bad_R.nonzero()[0, 0])
        raise ModelError(
            f"{named(*owners[first])}: the model's score is {log_odds_RO[first].tolist()}, not a finite number "
            "(broken weights, or an overflow of a 16-bit dtype: try bfloat16 or float32)"
        )

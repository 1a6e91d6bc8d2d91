"""Check on a miniature whether an architecture can be decoded with shared contexts and kept key/values.

A few rows are decoded twice in a row; their token probabilities must equal those of plain sequences through the
architecture's own attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from prism_prm.errors import ModelError, first_sentence
from prism_prm.lm.attention import SHARED, attention_windows
from prism_prm.lm.miniature import VOCABULARY, config_key, miniature
from prism_prm.policies.decode import Context, Decoder, DecodeRow

BOUND = 1e-3
"""Largest difference of a step's log-likelihood: norms and softmaxes in 32 bits make about 1e-5."""
TOKENS = 12

_FAULTS: dict[str, str] = {}
"""What was found out in this process, by the miniature's config; "" is nothing wrong."""


def check_decoding(model: Any) -> None:
    """An error unless tokens are as likely as in plain sequences."""
    key = config_key(model)
    if key not in _FAULTS:
        _FAULTS[key] = _fault(model)
    if _FAULTS[key]:
        raise ModelError(
            f"{model.config.model_type}: this architecture cannot be decoded here: {_FAULTS[key]}. Serve the model and "
            "use openai:<base url>."
        )


def _fault(model: Any) -> str:
    # Code that was not written for our masks and caches may end in any error.
    try:
        small = miniature(model, SHARED)
        windows = attention_windows(small.base_model)
        draw = np.random.default_rng(0)
        contexts = [Context(tuple(draw.integers(3, VOCABULARY, length).tolist()), None, 0) for length in (20, 31)]
        rows = [DecodeRow(context, key, TOKENS) for key, context in enumerate((contexts[0], *contexts))]
        for _ in range(2):
            Decoder(small, windows).run(contexts, rows, lambda _: False, temperature=1.0)
            off = max(abs(row.log_likelihood - _plain(small, row.context.ids, row.tokens)) for row in rows)
            if not off <= BOUND:
                return f"a step of {TOKENS} tokens has another log-likelihood than in a plain sequence, by {off:.2g}"
            contexts = [_continued(row) for row in rows]
            rows = [DecodeRow(context, key, TOKENS) for key, context in enumerate((contexts[0], *contexts))]
    except Exception as error:
        return f"it fails ({first_sentence(error)})"
    return ""


def _continued(row: DecodeRow) -> Context:
    """The text with what was written; the last token has no key/values yet."""
    ids = (*row.context.ids, *row.tokens)
    return Context(ids, row.kept, len(ids) - 1)


@torch.inference_mode()
def _plain(model: Any, ids: Sequence[int], tokens: Sequence[int]) -> float:
    """The tokens' log-likelihood in one sequence, with nothing of ours in it."""
    model.config._attn_implementation = "eager"
    logits_LV = model(input_ids=torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    model.config._attn_implementation = SHARED
    log_likelihood_L = torch.log_softmax(logits_LV.double(), -1).gather(1, torch.tensor(tokens)[:, None])
    return float(log_likelihood_L.sum())

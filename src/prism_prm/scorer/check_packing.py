"""Try out whether an architecture can be packed, where the tests do not say so already."""

from __future__ import annotations

import torch

from prism_prm.errors import ModelError
from prism_prm.packing import EncodedTree, collate, pack
from prism_prm.prms.module import FLEX_BLOCK, PrmModule

TESTED = ("llama", "mistral", "qwen2")
"""Architectures that the tests cover."""


def check_packing(module: PrmModule) -> None:
    """A packed tree must give what a plain sequence gives: an architecture may not heed positions or masks."""
    kind = module.config.model_type
    if kind in TESTED:
        return
    prompt, other, right, last = (tuple(range(start, start + 12)) for start in (3, 15, 27, 39))
    tree = EncodedTree(prompt, (other, right, last), (11, 11, 11), (-1, -1, 1), (12, 12, 24))
    # Longer than a block, so that attention in blocks is what is tried.
    batch = collate(pack([tree], 100, [[(0,), (2,)]]), multiple=2 * FLEX_BLOCK).to(module.device)
    sequence = torch.tensor([[*prompt, *right, *last]], device=module.device)
    try:
        with torch.inference_mode():
            found = module(batch)[batch.owners.index((0, 2))]
            expected = module.read(module.backbone(input_ids=sequence).last_hidden_state[0, -1:])[0]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{kind}: this architecture does not take our attention masks ({error!r})") from error
    bound = 1e-3 if module.backbone.dtype in (torch.float32, torch.float64) else 0.1
    if not bool((found - expected).abs().max() <= bound * (1 + expected.abs().max())):
        raise ModelError(
            f"{kind}: in a packed tree this architecture gives log-odds {found.tolist()} where a plain sequence gives "
            f"{expected.tolist()}, so it cannot be a PRM here"
        )

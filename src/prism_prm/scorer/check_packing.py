"""Check on a miniature whether an architecture handles packed trees and sessions, before it scores anything.

An architecture may ignore positions or masks, or compute attention in its own way. Its miniature has every window cut
to a few tokens, and the test paths are several windows long. They must give the hidden states that plain sequences give
through the architecture's own ("eager") attention.

Shapes: N nodes of all trees, L tokens of a path, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prism_prm.errors import ModelError, first_sentence
from prism_prm.lm.attention import ATTENTION, FLEX_BLOCK, using_kernel
from prism_prm.lm.miniature import VOCABULARY, config_key, miniature
from prism_prm.packing import EncodedTree, collate, pack, read_index
from prism_prm.prms.module import PrmModule
from prism_prm.scorer.session import Growth, SessionNode, run_growth

BOUND = 1e-4
"""Largest relative difference: norms and softmaxes that a model computes in 32 bits make about 1e-6."""
_PARENTS = (-1, -1, 0, 0, 2, 3, 4, 4, 6)
"""The parents in both test trees: two first steps, and paths of up to five steps."""
_FAITHFUL = "such as Qwen2, Qwen3, Llama, Mistral or Gemma 3"


_VERDICTS: dict[str, tuple[str, str]] = {}
"""How packed trees and how sessions fail ("" if they do not), as found in this process, by the miniature's config."""


def check_packing(module: PrmModule) -> None:
    """An error unless packed trees give what plain sequences give."""
    if fault := _verdict(module)[0]:
        remedy = f"Take a model of another architecture, {_FAITHFUL}."
        if module.attention == "sdpa" and not _fault(module, ATTENTION["flex"], _packed_states):
            remedy = "With attn='flex' it can."
        raise ModelError(
            f"{module.config.model_type}: this architecture cannot be packed with attn={module.attention!r}, so it "
            f"cannot be a PRM: {fault}. {remedy}"
        )


def check_session(module: PrmModule) -> None:
    """An error unless trees that grow over kept key/values give what plain sequences give."""
    if fault := _verdict(module)[1]:
        raise ModelError(
            f"{module.config.model_type}: this architecture cannot be scored in sessions: {fault}. Whole solutions and "
            f"trees can be scored; for search use a PRM of another architecture, {_FAITHFUL}."
        )


def _verdict(module: PrmModule) -> tuple[str, str]:
    key = config_key(module.backbone)
    if key not in _VERDICTS:
        packed = _fault(module, ATTENTION[module.attention], _packed_states)
        _VERDICTS[key] = packed, packed or _fault(module, ATTENTION["sdpa"], _grown_states)
    return _VERDICTS[key]


def _fault(module: PrmModule, kernel: str, states: Callable[[PrmModule, list[EncodedTree]], list[Tensor]]) -> str:
    """What goes wrong with the hidden states at the ends of all steps."""
    trees = [_tree(0, 9), _tree(1, 14)]
    # Code that was not written for our masks and caches may end in any error.
    try:
        backbone = miniature(module.backbone, kernel)
        expected_NH = _plain_states(backbone, trees)
    except Exception as error:
        return f"it cannot be tried out ({first_sentence(error)})"
    reader: Any = SimpleNamespace(head_name="states", log_odds=lambda states_RH: states_RH)
    try:
        found = states(PrmModule(backbone, nn.Identity(), reader), trees)
    except Exception as error:
        return f"it fails ({first_sentence(error)})"
    length_N = [tree.path_tokens(node) for tree in trees for node in range(len(tree.ids))]
    size = float(expected_NH.abs().max())
    for found_NH in found:
        off_N = (found_NH - expected_NH).abs().amax(dim=1)
        wrong = [i for i in range(len(off_N)) if not off_N[i] <= BOUND * size]
        if wrong:
            first = min(wrong, key=lambda i: length_N[i])
            return (
                f"{len(wrong)} of {len(off_N)} steps have other hidden states than in plain sequences; the first, "
                f"{length_N[first]} tokens long with what comes before it, is off by {off_N[first]:.2g} where the "
                f"largest are {size:.2g}"
            )
    return ""


def _tree(seed: int, prompt: int) -> EncodedTree:
    """Random tokens; paths are up to about 50 tokens long."""
    draw = np.random.default_rng(seed)
    ids = [tuple(draw.integers(3, VOCABULARY, 5 + node % 5).tolist()) for node in range(len(_PARENTS))]
    starts: list[int] = []
    for parent in _PARENTS:
        starts.append(prompt if parent < 0 else starts[parent] + len(ids[parent]))
    before = tuple(draw.integers(3, VOCABULARY, prompt).tolist())
    return EncodedTree(before, tuple(ids), tuple(len(step) - 1 for step in ids), _PARENTS, tuple(starts))


@torch.inference_mode()
def _plain_states(backbone: Any, trees: list[EncodedTree]) -> Tensor:
    """Whole paths, each a sequence of its own, with nothing of ours in it."""
    states: dict[tuple[int, int], Tensor] = {}
    for i, tree in enumerate(trees):
        for leaf in set(range(len(tree.ids))) - set(tree.parents):
            path = [leaf]
            while tree.parents[path[0]] >= 0:
                path.insert(0, tree.parents[path[0]])
            ids = [*tree.prompt, *(token for node in path for token in tree.ids[node])]
            with using_kernel(backbone.config, "eager"):
                states_LH = backbone(input_ids=torch.tensor([ids])).last_hidden_state[0]
            states |= {(i, node): states_LH[tree.path_tokens(node) - 1] for node in path}
    return torch.stack([states[key] for key in sorted(states)])


@torch.inference_mode()
def _packed_states(module: PrmModule, trees: list[EncodedTree]) -> list[Tensor]:
    """The trees in rows of their own, and split; with rows short enough for dense masks, and long enough for blocks."""
    found = []
    for row_tokens in (10**6, 60):
        rows = pack(trees, row_tokens)
        for multiple in (FLEX_BLOCK, 2 * FLEX_BLOCK) if module.attention == "flex" else (1, 2 * FLEX_BLOCK):
            batch = collate(rows, multiple=multiple)
            states_RH, at = module(batch), read_index(batch)
            found.append(
                torch.stack([states_RH[at[i, n]] for i, tree in enumerate(trees) for n in range(len(tree.ids))])
            )
    return found


def _grown_states(module: PrmModule, trees: list[EncodedTree]) -> list[Tensor]:
    """The trees grown together, level by level."""
    grown: list[list[SessionNode]] = []
    for i, tree in enumerate(trees):
        nodes = [SessionNode(i, None, "", tree.prompt, 0, len(tree.prompt) - 1, -1)]
        for n, parent in enumerate(tree.parents):
            above = nodes[parent + 1]
            nodes.append(SessionNode(i, above, "", tree.ids[n], tree.starts[n], tree.reads[n], above.depth + 1))
        grown.append(nodes)
    states: dict[SessionNode, Tensor] = {}
    for depth in sorted({node.depth for node in grown[0]}):
        batch = [Growth([node for node in nodes if node.depth == depth]) for nodes in grown]
        states |= zip((node for growth in batch for node in growth.new), run_growth(module, batch), strict=True)
    return [torch.stack([states[node] for nodes in grown for node in nodes[1:]])]

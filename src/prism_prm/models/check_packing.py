"""Check on a miniature model that an architecture can be packed and scored in sessions.

A miniature is a random model of the same class and config, but narrow, short, and with tiny windows. How an
architecture treats masks, positions and cached key/values depends on its code and config, not on its weights or widths.
So a miniature shows it in milliseconds, even for models with billions of parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prism_prm.errors import ModelError, first_sentence
from prism_prm.models.attention import ATTENTION, FLEX_BLOCK, kernel_of, set_kernel, using_kernel
from prism_prm.models.load_lm import hash_tensors, plain_config
from prism_prm.models.module import PrmModule
from prism_prm.models.packing import EncodedTree, collate, pack, read_index
from prism_prm.models.session import Growth, SessionNode, run_growth

WINDOW = 8
"""Sliding windows are cut to this size, so that short texts exceed them."""
VOCABULARY = 64
CONTEXT = 128
"""A miniature has at least this many positions."""
_MOST_LAYERS = 4
_RENAMED = (
    "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings", "num_hidden_layers",
    "num_key_value_heads",
)  # fmt: skip
_SIZES: dict[str, int] = {
    "intermediate_size": 96, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 48,
    "head_dim": 16, "rotary_dim": 8,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 28, "kv_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 16, "qk_head_dim": 24,
    "v_head_dim": 12,
}  # fmt: skip
"""Upper limits for the sizes of a config; all different, so that a mixed-up size is noticed."""
_HIDDEN_SIZE, _MOST_HEADS = 64, 4
"""Fixed for every miniature, also of smaller models, so that heads always have an even size."""
_IS_WINDOW = re.compile(r"(^|_)window(_size)?$")
_DROPPED = ("quantization_config", "dtype", "torch_dtype", "transformers_version", "_name_or_path")


def small_config(config: Any) -> Any:
    """Return the config of a miniature: all kinds of layers in their order, with sizes and windows cut."""
    values = {key: value for key, value in config.to_dict().items() if key not in _DROPPED}
    names = {key: config.attribute_map.get(key, key) for key in (*_SIZES, *_RENAMED)}
    for key, size in _SIZES.items():
        if isinstance(values.get(names[key]), int):
            values[names[key]] = min(size, values[names[key]])
    values[names["hidden_size"]] = _HIDDEN_SIZE
    heads = config.num_attention_heads
    small_heads = _MOST_HEADS if heads >= _MOST_HEADS else 2 if heads > 1 else 1  # it divides the hidden size
    values[names["num_attention_heads"]] = small_heads
    if isinstance(groups := values.get(names["num_key_value_heads"]), int):
        # One, some or all of the heads, as in the model.
        is_one = groups == 1 or (small_heads < _MOST_HEADS and groups < heads)
        small_groups = 1 if is_one else small_heads if groups == heads else small_heads // 2
        values[names["num_key_value_heads"]] = small_groups
    values[names["vocab_size"]] = VOCABULARY
    if isinstance(positions := values.get(names["max_position_embeddings"]), int):
        values[names["max_position_embeddings"]] = max(CONTEXT, positions)
    # One layer of each kind, and as many of the lowest as there is room for.
    kinds = list(getattr(config, "layer_types", None) or [""] * config.num_hidden_layers)
    firsts = sorted({kinds.index(kind) for kind in kinds})
    others = [layer for layer in range(config.num_hidden_layers) if layer not in firsts]
    layers = sorted([*firsts, *others][:_MOST_LAYERS])
    for key, value in values.items():
        if isinstance(value, list) and len(value) == config.num_hidden_layers:
            values[key] = [value[i] for i in layers]
        elif _IS_WINDOW.search(key) and isinstance(value, int) and value > WINDOW:
            values[key] = WINDOW
    values[names["num_hidden_layers"]] = len(layers)
    values |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # within the vocabulary
    made = type(config)(**values)
    set_kernel(made, kernel_of(config))
    made._experts_implementation = "eager"  # the other implementations do not support float64
    return made


def miniature(model: Any, kernel: str) -> Any:
    """Make a random float64 model of the same class on the CPU. Raises if the class does not support the attention."""
    config = small_config(model.config)
    set_kernel(config, kernel)
    with torch.random.fork_rng(devices=[]):  # leave the global random state alone
        made = type(model)(config).double().eval()
    randomize(made)
    return made


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Set all weights to random values that are large enough for every part of the model to matter."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() > 1:
            parameter.copy_(noise * 0.2)
        else:
            parameter.add_(noise * 0.1)


def config_key(model: Any) -> str:
    """Return a cache key: models with the same key have the same miniature."""
    facts = type(model).__name__, plain_config(model.config), kernel_of(model.config)
    return hash_tensors([json.dumps(facts, sort_keys=True, default=str)], ())


BOUND = 1e-4
"""The largest relative difference that passes; norms and softmaxes computed in 32 bits cause about 1e-6."""
_PARENTS = (-1, -1, 0, 0, 2, 3, 4, 4, 6)
"""The parents in both test trees: two first steps, and paths of up to five steps."""
_EXAMPLES = "such as Qwen2, Qwen3, Llama, Mistral or Gemma 3"


_CHECKED: dict[str, tuple[str, str]] = {}
"""Config key → what fails with packed trees and with sessions ("" if nothing does); a cache of this process."""


def check_packing(module: PrmModule) -> None:
    """Raise unless packed trees give the same result as plain sequences."""
    if fault := _check_both(module)[0]:
        remedy = f"Use a model of another architecture, {_EXAMPLES}."
        if module.attention == "sdpa" and not _find_fault(module, ATTENTION["flex"], _packed_states):
            remedy = "It works with attn='flex'."
        raise ModelError(
            f"{module.config.model_type}: this architecture cannot be packed with attn={module.attention!r}, so it "
            f"cannot be a PRM: {fault}. {remedy}"
        )


def check_session(module: PrmModule) -> None:
    """Raise unless trees that grow on cached key/values give the same result as plain sequences."""
    if fault := _check_both(module)[1]:
        raise ModelError(
            f"{module.config.model_type}: this architecture cannot be scored in sessions: {fault}. Whole solutions and "
            f"trees can be scored; for search use a PRM of another architecture, {_EXAMPLES}."
        )


def _check_both(module: PrmModule) -> tuple[str, str]:
    key = config_key(module.backbone)
    if key not in _CHECKED:
        packed = _find_fault(module, ATTENTION[module.attention], _packed_states)
        _CHECKED[key] = packed, packed or _find_fault(module, ATTENTION["sdpa"], _grown_states)
    return _CHECKED[key]


def _find_fault(module: PrmModule, kernel: str, states: Callable[[PrmModule, list[EncodedTree]], list[Tensor]]) -> str:
    """Compare the hidden states at the ends of all steps with plain sequences; "" if they agree."""
    trees = [_random_tree(0, 9), _random_tree(1, 14)]
    # Code that was not written for these masks and caches may raise any error.
    try:
        backbone = miniature(module.backbone, kernel)
        expected_NH = _plain_states(backbone, trees)
    except Exception as error:
        return f"it cannot be tested ({first_sentence(error)})"
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
                f"{len(wrong)} of {len(off_N)} steps have other hidden states than in plain sequences; the shortest "
                f"path has {length_N[first]} tokens and is off by {off_N[first]:.2g}, where the largest hidden state "
                f"is {size:.2g}"
            )
    return ""


def _random_tree(seed: int, prompt: int) -> EncodedTree:
    """Make a tree of random tokens whose paths have up to about 50 tokens."""
    draw = np.random.default_rng(seed)
    ids = [tuple(draw.integers(3, VOCABULARY, 5 + node % 5).tolist()) for node in range(len(_PARENTS))]
    starts: list[int] = []
    for parent in _PARENTS:
        starts.append(prompt if parent < 0 else starts[parent] + len(ids[parent]))
    before = tuple(draw.integers(3, VOCABULARY, prompt).tolist())
    return EncodedTree(before, tuple(ids), tuple(len(step) - 1 for step in ids), _PARENTS, tuple(starts))


@torch.inference_mode()
def _plain_states(backbone: Any, trees: list[EncodedTree]) -> Tensor:
    """Run each path as a plain sequence, with transformers' own eager attention."""
    states: dict[tuple[int, int], Tensor] = {}
    for i, tree in enumerate(trees):
        for leaf in set(range(len(tree.ids))) - set(tree.parents):
            path = tree.path(leaf)
            ids = [*tree.prompt, *(token for node in path for token in tree.ids[node])]
            with using_kernel(backbone.config, "eager"):
                states_LH = backbone(input_ids=torch.tensor([ids])).last_hidden_state[0]
            states |= {(i, node): states_LH[tree.path_tokens(node) - 1] for node in path}
    return torch.stack([states[key] for key in sorted(states)])


@torch.inference_mode()
def _packed_states(module: PrmModule, trees: list[EncodedTree]) -> list[Tensor]:
    """Run the trees whole and split, in rows short enough for dense masks and long enough for blocks."""
    results = []
    for row_tokens in (10**6, 60):
        rows = pack(trees, row_tokens)
        for multiple in (FLEX_BLOCK, 2 * FLEX_BLOCK) if module.attention == "flex" else (1, 2 * FLEX_BLOCK):
            batch = collate(rows, multiple=multiple)
            states_RH, at = module(batch), read_index(batch)
            results.append(
                torch.stack([states_RH[at[i, n]] for i, tree in enumerate(trees) for n in range(len(tree.ids))])
            )
    return results


def _grown_states(module: PrmModule, trees: list[EncodedTree]) -> list[Tensor]:
    """Grow the trees together, level by level."""
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

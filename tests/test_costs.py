"""Operations equal torch's own counter; bytes are those that a person can work out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from prism_prm.backends.load_prm import init_prm
from prism_prm.models.packing import encode_tree, pack
from prism_prm.models.prm import PRM
from prism_prm.plan.costs import (
    Batch,
    Matrix,
    ModelSizes,
    Setup,
    cache_bytes,
    forward_flops,
    held_parameters,
    trained_parameters,
    training_flops,
    training_memory,
)
from prism_prm.plan.skeleton import batch_of, sizes_of
from prism_prm.train.model import count_parameters, prepare
from prism_prm.train.recipe import TARGETS, HardwareSettings, Lora
from prism_prm.tree import Step, StepTree

TREE = StepTree(
    0,
    "What is 2 + 3 * 4? " * 6,
    tuple(Step(f"then {i} + {i + 1} = {2 * i + 1} " * 5) for i in range(6)),
    (-1, 0, 0, 1, 1, 2),
    (0, 1, 3),
)
TINY = ModelSizes(
    layers=2, hidden=4, heads=2, kv_heads=1, head_size=2,
    matrices=(Matrix("q_proj", 4, 4), Matrix("k_proj", 4, 2), Matrix("v_proj", 4, 2), Matrix("o_proj", 4, 4),
              Matrix("gate_proj", 4, 8), Matrix("up_proj", 4, 8), Matrix("down_proj", 8, 4)),
    small=16, embedding=40, rest=4, head=30, head_flops=48,
)  # fmt: skip
"""A layer has 16 + 8 + 8 + 16 + 3 · 32 = 144 numbers in its matrices."""
SETUPS = {
    "full": HardwareSettings(),
    "checkpointing": HardwareSettings(gradient_checkpointing=True),
    "frozen": HardwareSettings(frozen_layers=1),
    "lora": HardwareSettings(lora=Lora(r=3)),
    "lora, some": HardwareSettings(lora=Lora(r=3, targets=("q_proj", "up_proj")), gradient_checkpointing=True),
    "lora, checkpointing": HardwareSettings(lora=Lora(r=3), gradient_checkpointing=True),
}


def setup_of(hardware: HardwareSettings, **more: Any) -> Setup:
    lora = hardware.lora
    return Setup(
        checkpointing=hardware.gradient_checkpointing, frozen=hardware.frozen_layers, rank=lora.r if lora else 0,
        targets=lora.targets if lora else (), **more,
    )  # fmt: skip


def counted(prm: PRM, model: Any, **mapping: Any) -> tuple[Batch, int, int]:
    """What a pass over the packed tree runs, and the operations that torch counts forward, and in all."""
    rows = pack([encode_tree(TREE, prm.family)], 4096)
    batch = prm.module.collate(rows)
    with FlopCounterMode(display=False, **mapping) as counter:
        log_odds = model(batch)
        forward = counter.get_total_flops()
        log_odds.sum().backward()
    return batch_of(prm.module, rows), forward, counter.get_total_flops()


@pytest.mark.parametrize("how", SETUPS)
@pytest.mark.parametrize(("kind", "family"), [("qwen2", "qwen"), ("llama", "rlhflow")])
def test_operations_are_those_that_torch_counts(how: str, kind: str, family: str, tiny_lm: Callable[..., Path]) -> None:
    prm = init_prm(tiny_lm(kind), family=family, dtype="float32", device="cpu")
    sizes, setup = sizes_of(prm.module.backbone, prm.module.head), setup_of(SETUPS[how], kernel="math")
    model = prepare(prm.module, SETUPS[how], 0).train()
    with sdpa_kernel(SDPBackend.MATH):
        batch, forward, everything = counted(prm, model)
    assert batch.tokens > 200, "attention runs in blocks"
    assert batch.pairs < batch.tokens**2
    if not setup.rank:
        assert forward_flops(sizes, batch) == forward
    assert training_flops(sizes, batch, setup) == everything


def test_a_fused_kernel_computes_the_scores_of_attention_again(tiny_lm: Callable[..., Path]) -> None:
    """Torch has no formula for the fused kernel of CPUs: it gets that of the GPUs' kernel."""

    def forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    def backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_backward_flop_count(grad, query, key, value))

    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mapping = {kernel: forward, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: backward}
    prm = init_prm(tiny_lm("qwen2"), dtype="float32", device="cpu")
    batch, passed, everything = counted(prm, prm.module.train(), custom_mapping=mapping)
    sizes = sizes_of(prm.module.backbone, prm.module.head)
    assert forward_flops(sizes, batch) == passed
    assert training_flops(sizes, batch, Setup(kernel="blocks")) == everything


@pytest.mark.parametrize("hardware", [*SETUPS.values(), HardwareSettings(frozen_layers=2)], ids=[*SETUPS, "head"])
@pytest.mark.parametrize(("kind", "family"), [("qwen2", "qwen"), ("llama", "rlhflow")])
def test_parameters_are_those_of_the_model(
    hardware: HardwareSettings, kind: str, family: str, tiny_lm: Callable[..., Path]
) -> None:
    prm = init_prm(tiny_lm(kind), family=family, dtype="float32", device="cpu")
    sizes = sizes_of(prm.module.backbone, prm.module.head)
    assert sizes.parameters == sum(parameter.numel() for parameter in prm.module.parameters())
    trained, held = count_parameters(prepare(prm.module, hardware, 0))
    assert trained_parameters(sizes, setup_of(hardware)) == trained
    assert held_parameters(sizes, setup_of(hardware)) == held


def test_operations_by_hand() -> None:
    """10 tokens: 2 · 10 · 144 per layer; 30 products of attention: 4 · 30 · 4 per layer; 3 reads of 48."""
    batch = Batch(10, 30, 3)
    forward = 2 * (2880 + 480) + 144
    assert forward_flops(TINY, batch) == forward
    assert training_flops(TINY, batch, Setup(kernel="math")) == 3 * forward
    assert training_flops(TINY, batch, Setup()) == 3 * forward + 2 * 240, "half a pass of attention more"
    again = 2 * (2880 + 480 - 2 * 10 * 32)
    assert training_flops(TINY, batch, Setup(kernel="math", checkpointing=True)) == 3 * forward + again
    frozen = Setup(kernel="math", frozen=1)
    assert training_flops(TINY, batch, frozen) == 4 * (2880 + 480) + 3 * 144
    assert training_flops(TINY, batch, replace(frozen, kept=True)) == 3 * (2880 + 480) + 3 * 144


def test_bytes_by_hand() -> None:
    """2 · (144 + 16) + 40 + 4 + 30 = 394 numbers: 4 bytes each as weights and gradients, 8 in the optimizer."""
    assert TINY.parameters == 394
    found = training_memory(TINY, Batch(10, 100, 3), Setup())
    assert [found.parts[name] for name in ("weights", "gradients", "optimizer")] == [1576, 1576, 3152]
    norms, attention, mlp = 2 * 4 * 12, 4 * 4 * 4 + 4 * 2, 4 * 8 * 4
    assert found.parts["activations"] == 2 * 10 * (norms + attention + mlp)
    saving = training_memory(TINY, Batch(10, 100, 3), Setup(checkpointing=True))
    assert saving.parts["activations"] == 2 * 10 * 4 * 4 + 10 * (norms + attention + mlp)
    sharded = training_memory(TINY, Batch(10, 100, 3), Setup(gpus=4, sharded=True))
    assert [sharded.parts[name] for name in ("weights", "gradients", "optimizer")] == [394, 394, 788]
    adapters = training_memory(TINY, Batch(10, 100, 3), Setup(rank=1, targets=TARGETS))
    assert adapters.parts["gradients"] == 4 * (2 * (8 + 6 + 6 + 8 + 12 + 12 + 12) + 30)
    once = training_memory(TINY, Batch(10, 100, 3), Setup(accumulates=False))
    assert found.peak == sum(found.parts.values())
    assert found.peak - once.peak == 1576, "gradients come while activations go"
    assert cache_bytes(TINY, 10, Setup(compute=2)) == 2 * 2 * 2 * 10 * 2

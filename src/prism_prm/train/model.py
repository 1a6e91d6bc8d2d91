"""Prepare the model for training: frozen layers, LoRA adapters, and weights sharded over processes with FSDP2.

accelerate starts the processes and holds a copy of the model in each (DDP). Its own FSDP works only on GPUs and cannot
be tested without them, so sharding calls torch directly: the same code runs on CPUs (gloo), where it is tested, and on
GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from prism_prm.models.module import PrmModule
    from prism_prm.models.prm import PRM
    from prism_prm.train.recipe import HardwareSettings, Lora, Recipe


POLICIES = {
    "no": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
"""By mixed precision: the dtypes in which layers are gathered and run, and gradients are summed."""


def is_sharded(model: torch.nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the unsharded tensor, in CPU memory; every process must call this."""
    full: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.to("cpu", copy=True)  # even if it is there: uneven shards are gathered with padding behind them


def place_like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Move a whole tensor to the other's device, dtype and sharding; every process must call this."""
    moved = tensor.to(other.device, other.dtype)
    return distribute_tensor(moved, other.device_mesh, other.placements) if isinstance(other, DTensor) else moved


def gather(model: torch.nn.Module, *, keep: bool) -> None:
    """Replace the shards of a model by whole weights, in CPU memory, on processes with `keep`; every process must call
    this.

    The model can then be merged and saved like any other, but not run.
    """
    gathered: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for part in model.modules():
        for name, parameter in part.named_parameters(recurse=False):
            assert isinstance(parameter, DTensor), f"{name} is not sharded between updates"
            if parameter not in gathered:  # a head that is tied to the embedding stays tied
                full = whole(parameter.detach())
                gathered[parameter] = torch.nn.Parameter(full, parameter.requires_grad) if keep else parameter
            setattr(part, name, gathered[parameter])


def prepare(module: PrmModule, hardware: HardwareSettings, seed: int) -> torch.nn.Module:
    """Freeze layers, add adapters and turn on gradient checkpointing, as the settings say."""
    module.requires_grad_(True)
    dropout: Any = getattr(module.config, "attention_dropout", None)
    if dropout and hardware.attn == "flex":
        raise ConfigError(
            f'hardware.attn = "flex" has no dropout, but the model\'s config has attention_dropout = {dropout}: '
            'set that to 0, or train with hardware.attn = "sdpa".'
        )
    backbone = module.backbone
    embedding = backbone.get_input_embeddings()
    shared: torch.Tensor = embedding.weight
    is_partial = hardware.frozen_layers or hardware.lora is not None
    if is_partial and getattr(module.head, "weight", None) is shared:
        # Untie the head: it is trained, and the embedding is not.
        module.head.weight = torch.nn.Parameter(shared.detach().clone())
        module.config.tie_word_embeddings = False
    if layers := hardware.frozen_layers:
        if layers > len(backbone.layers):
            raise ConfigError(f"hardware.frozen_layers = {layers}: the model has only {len(backbone.layers)} layers.")
        is_all = layers == len(backbone.layers)
        if is_all and hardware.lora is not None:
            raise ConfigError(
                f"hardware.lora: hardware.frozen_layers = {layers} freezes all layers, so none can have adapters; "
                f"freeze fewer, or remove hardware.lora."
            )
        for part in (backbone,) if is_all else (embedding, *backbone.layers[:layers]):
            part.requires_grad_(False)
    if hardware.gradient_checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if hardware.lora is not None:
        return with_adapters(module, hardware.lora, seed)
    return module


def needs_sharding(hardware: HardwareSettings, accelerator: Accelerator) -> bool:
    """Whether to shard the weights; a single process has nothing to shard."""
    return hardware.sharding == "fsdp" and accelerator.num_processes > 1


def shard(model: Any, hardware: HardwareSettings, accelerator: Accelerator) -> None:
    """Shard every parameter over the processes, if the settings say so; a layer is gathered only while it runs."""
    if not needs_sharding(hardware, accelerator):
        return
    policy = POLICIES.get(accelerator.mixed_precision)
    if policy is None:
        raise ConfigError(
            f"mixed precision {accelerator.mixed_precision!r} does not work with sharding; use one of {list(POLICIES)}"
        )
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for part in (*backbone_of(model).layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)


def backbone_of(model: Any) -> Any:
    """The backbone of a PRM's module, with or without adapters."""
    return (model.get_base_model() if hasattr(model, "get_base_model") else model).backbone


def set_training_mode(model: Any) -> None:
    """Turn on dropout, but not in frozen layers, which must compute the same as in scoring, cached or not."""
    model.train()
    backbone = backbone_of(model)
    frozen = [layer for layer in backbone.layers if not any(p.requires_grad for p in layer.parameters())]
    if frozen:
        for part in [*(child for child in backbone.children() if child is not backbone.layers), *frozen]:
            part.eval()


def with_adapters(module: PrmModule, lora: Lora, seed: int) -> torch.nn.Module:
    """Add low-rank adapters to the backbone's linear layers; the head is trained in full."""
    from peft import get_peft_model

    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    torch.manual_seed(seed)
    try:
        model: Any = get_peft_model(module, lora.config(modules_to_save=[module.head_name]))
    except ValueError as error:
        linear = (name for name, part in module.backbone.named_modules() if isinstance(part, torch.nn.Linear))
        names = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise ConfigError(
            f"hardware.lora.targets = {list(lora.targets)}: {error} The model's linear layers are named {names}."
        ) from error
    frozen_layers = {name.rsplit(".", 1)[0] for name in frozen}
    for name, parameter in model.named_parameters():
        if any(f".{layer}." in name for layer in frozen_layers):
            parameter.requires_grad_(False)
    return model  # type: ignore[no-any-return]


def merge_adapters(model: Any) -> Any:
    """The plain module, with adapters merged into its weights."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def save_trained(prm: PRM, model: Any, folder: Path, accelerator: Accelerator, recipe: Recipe) -> None:
    """Save the trained PRM; the main process writes the folder, and the others wait."""
    hardware, is_main = recipe.hardware, accelerator.is_main_process
    if is_sharded(model):
        gather(model, keep=is_main)
    if is_main:
        prm.module = merge_adapters(model)
        card = replace(prm.card, frozen_layers=hardware.frozen_layers)
        prm.card = card.trained_on(recipe.data.inputs)
        dtype = getattr(torch, hardware.save_dtype or hardware.dtype)
        state = {key: value.to(dtype) for key, value in prm.module.state_dict().items()}
        prm.save(folder, state=state, aggregator=recipe.validation.aggregator)
    accelerator.wait_for_everyone()


def count_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """The number of (trained, all) parameters."""
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)

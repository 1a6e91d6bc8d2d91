"""The model as it is trained: frozen layers, adapters, and weights sharded over processes with FSDP2, by torch itself.

accelerate starts the processes and holds a copy of the model in each (DDP). Its own FSDP works on GPUs only and cannot
be tested without them, so sharding calls torch: the same code runs on CPUs (gloo), where it is tested, and on GPUs.
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
"""Mixed precision → the dtypes in which layers are gathered and run, and gradients are summed."""


def is_sharded(model: torch.nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor with all its parts, in CPU memory; every process calls this."""
    full: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.to("cpu", copy=True)  # also of what is there: uneven parts are gathered with padding behind them


def placed_like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A whole tensor on the other's device, and in parts if the other is; every process calls this."""
    moved = tensor.to(other.device, other.dtype)
    return distribute_tensor(moved, other.device_mesh, other.placements) if isinstance(other, DTensor) else moved


def gather(model: torch.nn.Module, *, keep: bool) -> None:
    """Put whole weights into a sharded model, in CPU memory, on the processes that `keep` them; all call this.

    The model can then be merged and saved like any other, but not run.
    """
    found: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for part in model.modules():
        for name, parameter in part.named_parameters(recurse=False):
            assert isinstance(parameter, DTensor), f"{name} is not sharded between updates"
            if parameter not in found:  # a head that is the embedding too stays so
                full = whole(parameter.detach())
                found[parameter] = torch.nn.Parameter(full, parameter.requires_grad) if keep else parameter
            setattr(part, name, found[parameter])


def prepare(module: PrmModule, hardware: HardwareSettings, seed: int) -> torch.nn.Module:
    """The module as the optimizer should see it."""
    module.requires_grad_(True)
    dropout: Any = getattr(module.config, "attention_dropout", None)
    if dropout and hardware.attn == "flex":
        raise ConfigError(
            f'hardware.attn = "flex" has no dropout, but the model\'s config has attention_dropout = {dropout}: '
            'set it to 0 there, or train with hardware.attn = "sdpa".'
        )
    backbone = module.backbone
    embedding = backbone.get_input_embeddings()
    shared: torch.Tensor = embedding.weight
    is_partial = hardware.frozen_layers or hardware.lora is not None
    if is_partial and getattr(module.head, "weight", None) is shared:
        # A head that is the embedding too gets its own weights: it is trained, the embedding is not.
        module.head.weight = torch.nn.Parameter(shared.detach().clone())
        module.config.tie_word_embeddings = False
    if layers := hardware.frozen_layers:
        if layers > len(backbone.layers):
            raise ConfigError(f"hardware.frozen_layers = {layers}: the model has {len(backbone.layers)} layers.")
        for part in (embedding, *backbone.layers[:layers]):
            part.requires_grad_(False)
    if hardware.gradient_checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if hardware.lora is not None:
        return with_adapters(module, hardware.lora, seed)
    return module


def is_to_shard(hardware: HardwareSettings, accelerator: Accelerator) -> bool:
    """Whether the weights are divided among processes; one has nothing to divide."""
    return hardware.sharding == "fsdp" and accelerator.num_processes > 1


def spread(model: Any, hardware: HardwareSettings, accelerator: Accelerator) -> None:
    """Leave each process its part of every parameter, if the recipe says so; a layer is whole only while it runs."""
    if not is_to_shard(hardware, accelerator):
        return
    policy = POLICIES.get(accelerator.mixed_precision)
    if policy is None:
        raise ConfigError(
            f"mixed precision {accelerator.mixed_precision!r} does not work with sharding; use one of {list(POLICIES)}."
        )
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for part in (*backbone_of(model).layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)


def backbone_of(model: Any) -> Any:
    """The backbone of a PRM's module, also behind adapters."""
    return (model.get_base_model() if hasattr(model, "get_base_model") else model).backbone


def to_training(model: Any) -> None:
    """Dropout where something is trained; frozen lower layers compute what they do in scoring, cached or not."""
    model.train()
    backbone = backbone_of(model)
    frozen = [layer for layer in backbone.layers if not any(p.requires_grad for p in layer.parameters())]
    if frozen:
        for part in [*(child for child in backbone.children() if child is not backbone.layers), *frozen]:
            part.eval()


def with_adapters(module: PrmModule, lora: Lora, seed: int) -> torch.nn.Module:
    """Low-rank adapters on the backbone's linear layers; the head is trained in full."""
    from peft import LoraConfig, get_peft_model

    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    torch.manual_seed(seed)
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.targets),
        modules_to_save=[module.head_name],
    )  # fmt: skip
    model: Any = get_peft_model(module, config)
    frozen_layers = {name.rsplit(".", 1)[0] for name in frozen}
    for name, parameter in model.named_parameters():
        if any(f".{layer}." in name for layer in frozen_layers):
            parameter.requires_grad_(False)
    return model  # type: ignore[no-any-return]


def merged(model: Any) -> PrmModule:
    """The plain PRM module again, adapters merged into its weights."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model  # type: ignore[no-any-return]


def save_trained(prm: PRM, model: Any, folder: Path, accelerator: Accelerator, recipe: Recipe) -> None:
    """The trained PRM as a folder, whole or not at all; the main process writes it, the others wait."""
    hardware, is_main = recipe.hardware, accelerator.is_main_process
    if is_sharded(model):
        gather(model, keep=is_main)
    if is_main:
        prm.module = merged(model)
        prm.card = replace(prm.card, frozen_layers=hardware.frozen_layers).trained_on(recipe.data.inputs)
        dtype = getattr(torch, hardware.save_dtype or hardware.dtype)
        state = {key: value.to(dtype) for key, value in prm.module.state_dict().items()}
        prm.save(folder, state=state, aggregator=recipe.validation.aggregator)
    accelerator.wait_for_everyone()


def count(model: torch.nn.Module) -> tuple[int, int]:
    """(trained, all) parameters."""
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)

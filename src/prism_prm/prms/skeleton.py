"""A PRM without its weights: its layout and sizes, from config and tokenizer alone, to plan with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prism_prm.costs import Matrix, ModelSizes
from prism_prm.errors import ConfigError, ModelError
from prism_prm.lm.attention import ATTENTION, check_attention
from prism_prm.lm.load import load_tokenizer
from prism_prm.lm.place import CONFIG_FILE, config_folder, readable
from prism_prm.prms import find_family
from prism_prm.prms.base import Family
from prism_prm.prms.folder import find_card
from prism_prm.prms.known_sizes import SIZES, Stand
from prism_prm.prms.module import PrmModule


class SkeletonModule(PrmModule):
    """A module on torch's meta device: every size and no number."""

    on_cpu = False
    """Whether to plan for a CPU, where attention runs in blocks."""

    @property
    def in_blocks(self) -> bool:
        return self.attention == "sdpa" and self.on_cpu


@dataclass
class Skeleton:
    """What planning needs of a PRM; packing takes it for one."""

    module: SkeletonModule
    family: Family
    token_budget: int
    context: int
    on_too_long: str = "error"
    notes: tuple[str, ...] = ()
    """What was not the PRM's own."""

    @property
    def sizes(self) -> ModelSizes:
        return sizes_of(self.module)


def load_skeleton(
    name: str,
    *,
    stand: Stand = Stand(),  # noqa: B008 (it is frozen)
    fresh: bool = False,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    layers: int | None = None,
    attn: str = "sdpa",
    on_cpu: bool = False,
    token_budget: int | None = None,
    context: int | None = None,
) -> Skeleton:
    """A PRM, or with `fresh` the one that `init_prm` would make of a language model, without loading weights."""
    folder, config, notes = _config(name, stand, attn)
    if layers is not None:
        _cut(config, layers)
    if fresh:
        kind = find_family(family or "qwen")
        chosen: Mapping[str, str] = settings or {}
        compat = False
    else:
        card, kind = find_card(name, folder or Path(name), config, family, settings)
        chosen, compat = card.settings, card.compat
    tokenizer, more = _tokenizer(name, folder, stand)
    missing = [token for token in kind.new_tokens if token not in tokenizer.get_vocab()]
    if missing and (fresh or more):
        tokenizer.add_tokens(missing, special_tokens=True)
        if fresh:
            config.vocab_size = max(config.vocab_size, len(tokenizer))
    laid_out = kind(tokenizer, compat=compat, settings=chosen)
    module = _module(config, laid_out)
    module.on_cpu = on_cpu
    budget = token_budget or (8192 if on_cpu else 16384)
    return Skeleton(module, laid_out, budget, context or config.max_position_embeddings, notes=(*notes, *more))


def backbone_sizes(name: str, stand: Stand = Stand()) -> tuple[ModelSizes, int, tuple[str, ...]]:  # noqa: B008
    """The sizes of a language model with its output layer, its vocabulary, and what was not its own."""
    from transformers import AutoModel

    _, config, notes = _config(name, stand, "sdpa")
    with torch.device("meta"):
        backbone = AutoModel.from_config(config)
        output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    if config.tie_word_embeddings:
        output.weight = backbone.get_input_embeddings().weight
    return _sizes_of(backbone, output), config.vocab_size, notes


def _config(name: str, stand: Stand, attn: str) -> tuple[Path | None, Any, tuple[str, ...]]:
    """(folder, config, notes); the folder is None where the config comes from SIZES."""
    from transformers import AutoConfig

    kernel = check_attention(attn)
    if stand.config in SIZES:
        known = dict(SIZES[stand.config])
        config = AutoConfig.for_model(known.pop("model_type"), **known, attn_implementation=kernel)
        config.architectures = []
        return None, config, (f"sizes of {stand.config}",)
    try:
        folder = config_folder(stand.config or name)
    except ModelError as error:
        raise ModelError(
            f"{error} To plan without it, give --config FOLDER (its config.json) or --config NAME, with --tokenizer "
            f"FOLDER to count tokens; names: {', '.join(SIZES)}."
        ) from None
    gguf = _gguf(folder)
    with readable(folder, gguf.get("gguf_file", CONFIG_FILE)):
        config = AutoConfig.from_pretrained(folder, attn_implementation=kernel, **gguf)
    return folder, config, (f"config of {stand.config}",) if stand.config else ()


def _tokenizer(name: str, folder: Path | None, stand: Stand) -> tuple[Any, tuple[str, ...]]:
    """(tokenizer, notes)."""
    if stand.tokenizer is None and folder is None:
        try:
            folder = config_folder(name)
        except ModelError:
            raise ConfigError(f"{name}: no tokenizer to count tokens with: give one with --tokenizer FOLDER") from None
    if stand.tokenizer is None:
        assert folder is not None, "a folder was found, or an error raised"
        return load_tokenizer(folder, **_gguf(folder)), ()
    place = config_folder(stand.tokenizer, needs_config=False)
    return load_tokenizer(place, **_gguf(place)), (f"tokens of {stand.tokenizer}",)


def _gguf(folder: Path) -> dict[str, Any]:
    """How transformers is told that a folder's model is a GGUF file."""
    files = [] if (folder / CONFIG_FILE).exists() else sorted(folder.glob("*.gguf"))
    return {"gguf_file": files[0].name} if files else {}


def _cut(config: Any, layers: int) -> None:
    if layers > config.num_hidden_layers:
        raise ConfigError(f"layers = {layers}: the backbone has {config.num_hidden_layers}.")
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = list(config.layer_types)[:layers]


def _module(config: Any, family: Family) -> SkeletonModule:
    from transformers import AutoModel

    with torch.device("meta"):
        backbone = AutoModel.from_config(config, attn_implementation=config._attn_implementation or ATTENTION["sdpa"])
        head = family.make_head(config.hidden_size, config)
    if family.uses_lm_head and config.tie_word_embeddings:
        head.weight = backbone.get_input_embeddings().weight
    return SkeletonModule(backbone, head, family)


def sizes_of(module: PrmModule) -> ModelSizes:
    """The sizes of a PRM, whose weights may be anywhere."""
    return _sizes_of(module.backbone, module.head)


def _sizes_of(backbone: Any, head: nn.Module) -> ModelSizes:
    config = backbone.config
    layers = [_layer_sizes(layer, config.model_type) for layer in backbone.layers]
    if len(set(layers)) != 1:
        raise ModelError(f"{config.model_type}: its layers differ in size, which a plan does not cover")
    matrices, small = layers[0]
    shared = backbone.get_input_embeddings().weight
    everything = sum(parameter.numel() for parameter in backbone.parameters())
    in_layers = len(layers) * (sum(matrix.size for matrix in matrices) + small)
    return ModelSizes(
        layers=len(layers),
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        matrices=matrices,
        small=small,
        embedding=shared.numel(),
        rest=everything - in_layers - shared.numel(),
        head=sum(parameter.numel() for parameter in head.parameters() if parameter is not shared),
        head_flops=_head_flops(head, config.hidden_size),
    )


def _layer_sizes(layer: nn.Module, model_type: str) -> tuple[tuple[Matrix, ...], int]:
    """The matrices of a layer, and the numbers in all else."""
    matrices = tuple(
        Matrix(name.rsplit(".", 1)[-1], part.in_features, part.out_features)
        for name, part in layer.named_modules()
        if isinstance(part, nn.Linear)
    )
    wide = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
    if wide != sum(matrix.size for matrix in matrices) or not matrices:
        raise ModelError(
            f"{model_type}: its layers have weights that are not plain matrices (a mixture of experts), which a "
            "plan does not cover"
        )
    return matrices, sum(parameter.numel() for parameter in layer.parameters()) - wide


def _head_flops(head: nn.Module, hidden: int) -> int:
    """Operations per read, counted by torch on a head without numbers."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        bare = copy.deepcopy(head).to("meta")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            bare(torch.empty(1, hidden))
    return int(counter.get_total_flops())

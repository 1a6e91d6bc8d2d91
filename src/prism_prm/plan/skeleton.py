"""A PRM without its weights: its layout and sizes, from config and tokenizer alone, to plan with.

Nothing here imports torch before a skeleton is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.card import find_card
from prism_prm.models.families import find_family
from prism_prm.models.families.base import Family
from prism_prm.models.model_files import CONFIG_FILE, check_model, config_folder, load_tokenizer, readable
from prism_prm.paths import nearest
from prism_prm.plan.costs import Matrix, ModelSizes

if TYPE_CHECKING:
    from torch import nn

    from prism_prm.models.module import PrmModule

_QWEN = {"model_type": "qwen2", "max_position_embeddings": 4096, "tie_word_embeddings": False}
_LLAMA = {"model_type": "llama", "max_position_embeddings": 131072, "tie_word_embeddings": False, "vocab_size": 128256}


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, **others: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, **others,
    }  # fmt: skip


SIZES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _QWEN | _sizes(896, 4864, 24, 14, 2, vocab_size=151936, tie_word_embeddings=True),
    "qwen2.5-1.5b": _QWEN | _sizes(1536, 8960, 28, 12, 2, vocab_size=151936, tie_word_embeddings=True),
    "qwen2.5-7b": _QWEN | _sizes(3584, 18944, 28, 28, 4, vocab_size=152064),
    "qwen2.5-14b": _QWEN | _sizes(5120, 13824, 48, 40, 8, vocab_size=152064),
    "qwen2.5-32b": _QWEN | _sizes(5120, 27648, 64, 40, 8, vocab_size=152064),
    "qwen2.5-72b": _QWEN | _sizes(8192, 29568, 80, 64, 8, vocab_size=152064),
    "llama-3.1-8b": _LLAMA | _sizes(4096, 14336, 32, 32, 8),
    "llama-3.1-70b": _LLAMA | _sizes(8192, 28672, 80, 64, 8),
    "mistral-7b": _LLAMA | _sizes(4096, 14336, 32, 32, 8, model_type="mistral", vocab_size=32000),
    "smollm2-135m": _LLAMA | _sizes(576, 1536, 30, 9, 3, vocab_size=49152, tie_word_embeddings=True),
}  # fmt: skip
"""Name → the config of a known model, for planning where it is not at hand. The context of Qwen is that of its PRMs."""


@dataclass(frozen=True)
class Stand:
    """What stands in for a model that is not at hand."""

    config: str | None = None
    """A folder with config.json (no weights are needed), or a name in SIZES."""
    tokenizer: str | None = None
    """A folder with a tokenizer."""

    def check(self, name: str) -> None:
        """Refuse what can be neither config nor tokenizer of the model `name`. The hub is not asked."""
        if self.config is not None and self.config not in SIZES:
            folder = Path(self.config)
            if not folder.is_dir() or not (any(folder.glob("*.gguf")) or (folder / CONFIG_FILE).exists()):
                raise ModelError(
                    f"--config {self.config}: neither a folder with {CONFIG_FILE} nor one of {', '.join(SIZES)}"
                )
        if self.tokenizer is not None and not Path(self.tokenizer).is_dir():
            raise ModelError(f"--tokenizer {self.tokenizer}: there is no such folder.{nearest(self.tokenizer)}")
        if self.config is None and not Path(name).is_dir():
            check_model(name)


@dataclass
class Skeleton:
    """What planning needs of a PRM; packing takes it for one."""

    module: PrmModule
    """On torch's meta device: every size and no number."""
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
    import torch
    from transformers import AutoModel

    from prism_prm.models.module import PrmModule

    folder, config, notes = _config(name, stand, attn)
    if layers is not None:
        if layers > config.num_hidden_layers:
            raise ConfigError(f"layers = {layers}: the backbone has {config.num_hidden_layers}.")
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = list(config.layer_types)[:layers]
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
    with torch.device("meta"):
        backbone = AutoModel.from_config(config)
        head = laid_out.make_head(config.hidden_size, config)
    if laid_out.uses_lm_head and config.tie_word_embeddings:
        head.weight = backbone.get_input_embeddings().weight
    module = PrmModule(backbone, head, laid_out)
    module.planned_for = "cpu" if on_cpu else "cuda"
    budget = token_budget or (8192 if on_cpu else 16384)
    return Skeleton(module, laid_out, budget, context or config.max_position_embeddings, notes=(*notes, *more))


def backbone_sizes(name: str, stand: Stand = Stand()) -> tuple[ModelSizes, int, tuple[str, ...]]:  # noqa: B008
    """The sizes of a language model with its output layer, its vocabulary, and what was not its own."""
    import torch
    from torch import nn
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

    from prism_prm.models.attention import check_attention

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
    notes: tuple[str, ...] = ()
    if stand.tokenizer is not None:
        folder, notes = config_folder(stand.tokenizer, needs_config=False), (f"tokens of {stand.tokenizer}",)
    elif folder is None:
        try:
            folder = config_folder(name)
        except ModelError:
            raise ConfigError(f"{name}: no tokenizer to count tokens with: give one with --tokenizer FOLDER") from None
    return load_tokenizer(folder, **_gguf(folder)), notes


def _gguf(folder: Path) -> dict[str, Any]:
    """What transformers must be told where the model is a GGUF file."""
    files = [] if (folder / CONFIG_FILE).exists() else sorted(folder.glob("*.gguf"))
    return {"gguf_file": files[0].name} if files else {}


def sizes_of(module: PrmModule) -> ModelSizes:
    """The sizes of a PRM, whose weights may be anywhere."""
    return _sizes_of(module.backbone, module.head)


def _sizes_of(backbone: Any, head: nn.Module) -> ModelSizes:
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    config = backbone.config
    layers: set[tuple[tuple[Matrix, ...], int]] = set()
    """(matrices, numbers in all else) of each layer."""
    for layer in backbone.layers:
        linear = [(name, part) for name, part in layer.named_modules() if isinstance(part, nn.Linear)]
        matrices = tuple(Matrix(name.rsplit(".", 1)[-1], part.in_features, part.out_features) for name, part in linear)
        wide = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
        if wide != sum(matrix.size for matrix in matrices) or not matrices:
            raise ModelError(
                f"{config.model_type}: its layers have weights that are not plain matrices (a mixture of experts, "
                "say), which a plan does not cover"
            )
        layers.add((matrices, sum(parameter.numel() for parameter in layer.parameters()) - wide))
    if len(layers) != 1:
        raise ModelError(f"{config.model_type}: its layers differ in size, which a plan does not cover")
    ((matrices, small),) = layers
    shared = backbone.get_input_embeddings().weight
    in_layers = len(backbone.layers) * (sum(matrix.size for matrix in matrices) + small)
    with torch.device("meta"):  # a head without numbers
        bare = copy.deepcopy(head).to("meta")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            bare(torch.empty(1, config.hidden_size))
    return ModelSizes(
        layers=len(backbone.layers),
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        matrices=matrices,
        small=small,
        embedding=shared.numel(),
        rest=sum(parameter.numel() for parameter in backbone.parameters()) - in_layers - shared.numel(),
        head=sum(parameter.numel() for parameter in head.parameters() if parameter is not shared),
        head_flops=int(counter.get_total_flops()),
    )

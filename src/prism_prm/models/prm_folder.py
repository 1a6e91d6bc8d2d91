"""Read and write PRM folders: safetensors, config, tokenizer, prism.json, model card."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prism_prm.errors import ConfigError, ModelError, first_sentence
from prism_prm.files import atomic_folder
from prism_prm.models.attention import check_attention
from prism_prm.models.card import README, Card, find_card, first_is_right
from prism_prm.models.families.base import Family
from prism_prm.models.load_lm import OUTPUT_LAYER, load_checked, own_weights, read_weights
from prism_prm.models.model_files import ModelFiles, load_tokenizer, local_folder, readable
from prism_prm.models.module import PrmModule


def load_folder(
    name: str,
    *,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    compat: bool | None = None,
    dtype: torch.dtype | str = "auto",
    device: torch.device | None = None,
    device_map: Any = None,
    attn: str = "sdpa",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> tuple[PrmModule, Family, Card]:
    """Load a published PRM, or one that this package wrote, with every weight accounted for."""
    from transformers import AutoConfig, AutoModel

    kernel = check_attention(attn)
    folder = local_folder(name, allow_pickle=allow_pickle)
    files = ModelFiles(folder)
    with readable(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    card, kind = find_card(name, folder, config, family, settings, compat)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    try:
        instance = kind(tokenizer, compat=card.compat, settings=card.settings)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    with readable(folder, "config.json"), torch.device("meta"):
        try:
            head = instance.make_head(config.hidden_size, config)
        except ConfigError as error:
            raise ConfigError(f"{folder}: {error}") from None
    names = [f"{instance.head_name}.{key}" for key in head.state_dict()]
    backbone = load_checked(
        AutoModel, folder, "backbone", unread=names if instance.uses_lm_head else [*names, OUTPUT_LAYER],
        config=config, dtype=dtype, device_map=device_map, attn_implementation=kernel,
        trust_remote_code=trust_remote_code, use_safetensors=not allow_pickle or None,
    )  # fmt: skip
    _load_head(folder, head, instance, backbone, allow_pickle=allow_pickle)
    if instance.names_labels and first_is_right(folder, config):
        for weight in head.parameters():
            weight.data = weight.data.flip(0)
    module = instance.make_module(backbone, head)
    own_weights(module, device)
    files.check_loaded()
    module.name_or_path, module.files = name, files
    return module, instance, card


def _load_head(folder: Path, head: nn.Module, family: Family, backbone: Any, *, allow_pickle: bool) -> None:
    """Load the folder's weights into the head (on the meta device so far), on the device of the last layer."""
    config, last = backbone.config, list(backbone.parameters())[-1]
    prefix = f"{family.head_name}."
    wanted = {prefix + key for key in head.state_dict()}
    weights = read_weights(folder, wanted, allow_pickle=allow_pickle)
    if family.uses_lm_head and config.tie_word_embeddings:
        embedding, output_layer = backbone.get_input_embeddings().weight, weights.get(f"{prefix}weight")
        if output_layer is None or torch.equal(output_layer.to(embedding), embedding):
            head.weight = embedding
            return
        config.tie_word_embeddings = False  # despite its config, the folder has a separate output layer
    if set(weights) != wanted:
        raise ModelError(
            f"{folder}: the head of family {family.name!r} needs the weights {sorted(wanted - set(weights))}, which "
            f"are missing. Name the right family, or make a new PRM from a language model with init_prm."
        )
    shapes = {prefix + key: value.shape for key, value in head.state_dict().items()}
    for key, value in weights.items():
        if value.shape != shapes[key]:
            raise ModelError(f"{folder}: weight {key!r} has shape {tuple(value.shape)}, not {tuple(shapes[key])}")
    state = {key.removeprefix(prefix): value.to(last.device, last.dtype) for key, value in weights.items()}
    head.load_state_dict(state, assign=True)


def save_folder(
    folder: Path, module: PrmModule, family: Family, card: Card, state: Mapping[str, Tensor] | None, readme: str
) -> None:
    """Write a PRM folder atomically; `state` replaces the module's own weights (if gathered from many devices)."""
    from huggingface_hub import save_torch_state_dict

    weights = dict(module.state_dict() if state is None else state)
    expected = set(module.state_dict())
    if set(weights) != expected:
        differing = sorted(set(weights) ^ expected)[:3]
        raise ModelError(f"the weights to save are not those of the PRM; they differ in {differing}")
    if family.uses_lm_head and module.config.tie_word_embeddings:
        del weights[f"{family.head_name}.weight"]
    config = copy.deepcopy(module.config)
    config.architectures = [family.architecture(config)]
    config.update(dict(family.config_extras))
    if "num_labels" in family.config_extras:
        config.id2label = dict(enumerate(family.labels))
        config.label2id = {label: i for i, label in config.id2label.items()}
    config.dtype = next(iter(weights.values())).dtype
    vars(config).pop("auto_map", None)  # it refers to code in the original repository, which is not saved
    with atomic_folder(folder) as aside:
        save_torch_state_dict({key: value.detach().cpu().contiguous() for key, value in weights.items()}, aside)
        config.save_pretrained(aside)
        family.text.tokenizer.save_pretrained(aside)
        card.write(aside)
        (aside / README).write_text(readme, encoding="utf-8")


def push_folder(folder: Path, repo_id: str, *, private: bool, message: str, token: str | None, api: Any) -> str:
    """Upload a folder to the Hugging Face hub; returns the URL of the commit."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = api or HfApi(token=token)
    try:
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        return str(api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message))
    except (httpx.HTTPError, HFValidationError, OSError) as error:
        reason = first_sentence(error)
        raise ModelError(f"{repo_id}: the hub refused the upload ({reason}); log in with `hf auth login`") from error

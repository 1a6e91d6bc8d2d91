"""Read and write PRM folders: safetensors, config, tokenizer, prism.json, model card. No pickle, no remote code."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prism_prm.errors import ModelError
from prism_prm.files import whole_folder
from prism_prm.prms import FAMILIES
from prism_prm.prms.base import Family
from prism_prm.prms.card import CARD_FILE, README, Card, check_family, known_settings, read_card, recognise
from prism_prm.prms.module import PrmModule, check_attention

_INDEX = "model.safetensors.index.json"
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_PICKLED = ("*.bin", "*.pt", "*.pth")
_BIG_BYTES = 2 * 10**9
"""Reading a model this big takes seconds."""


@contextlib.contextmanager
def readable(folder: Path, what: str) -> Iterator[None]:
    """A file that is damaged, cut short or of another kind is the folder's fault, and said so."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise ModelError(f"{folder}: its {what} cannot be read: {error}") from error


@contextlib.contextmanager
def quietly(folder: Path) -> Iterator[None]:
    """No reports of heads that transformers does not know (what must be there is checked here), bars for big files."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) < _BIG_BYTES:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def local_folder(name: str, *, allow_pickle: bool = False) -> Path:
    """The folder of a model: itself, or the download of a hub id."""
    if Path(name).is_dir():
        return Path(name)
    if Path(name).exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"{name}: there is no such model folder")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=[*_WANTED, *(_PICKLED if allow_pickle else ())]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(f"{name}: not a folder, and the hub does not give it: {error}") from None


def prm_folder(name: str | Path) -> str | Path:
    """`name` itself, or the best round of the `prism train` run whose folder it is."""
    folder = Path(name)
    if (folder / "config.json").exists() or not (folder / "recipe.toml").exists():
        return name
    run = folder / "run.json"
    if run.exists():
        with readable(folder, run.name):
            return folder / str(json.loads(run.read_text(encoding="utf-8"))["best"])
    done = sorted(str(card.parent) for card in folder.glob(f"rounds/*/{CARD_FILE}"))
    finished = f"the finished rounds are PRMs: {', '.join(done)}" if done else "no round is finished yet"
    raise ModelError(f"{folder}: this run is not finished ({finished}); `prism train` with the same recipe goes on.")


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    from transformers import AutoTokenizer

    with readable(folder, "tokenizer"):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, **options)


def load_folder(
    name: str,
    *,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    compat: bool | None = None,
    dtype: torch.dtype | str = "auto",
    device_map: Any = None,
    attn: str = "sdpa",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> tuple[PrmModule, Family, Card]:
    """A published PRM, or one of our own, with every weight accounted for."""
    from transformers import AutoConfig

    kernel = check_attention(attn)
    folder = local_folder(name, allow_pickle=allow_pickle)
    if not (folder / "config.json").exists():
        raise ModelError(f"{folder}: no config.json, so this is not a model folder")
    check_weights(folder, allow_pickle=allow_pickle)
    with readable(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    card = find_card(name, folder, config, family, settings, compat)
    laid_out = FAMILIES[card.family](
        load_tokenizer(folder, trust_remote_code=trust_remote_code), compat=card.compat, settings=card.settings
    )
    backbone = load_backbone(
        folder, config=config, dtype=dtype, device_map=device_map, attn_implementation=kernel,
        trust_remote_code=trust_remote_code, use_safetensors=not allow_pickle or None,
    )  # fmt: skip
    head = load_head(folder, laid_out, backbone, allow_pickle=allow_pickle)
    module = PrmModule(backbone, head, laid_out)
    module.name_or_path = name
    return module, laid_out, card


def check_weights(folder: Path, *, allow_pickle: bool) -> None:
    """Pickled weights can run any code when they are read, so they need the user's word."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if not pickled:
        raise ModelError(f"{folder}: no .safetensors file, so there are no weights to load")
    if not allow_pickle:
        raise ModelError(
            f"{folder}: the weights are pickled ({pickled[0]}), and reading them can run any code. Convert them to "
            "safetensors, or pass allow_pickle=True (`prism score --allow-pickle`) if you trust their author."
        )


def find_card(
    name: str,
    folder: Path,
    config: Any,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    compat: bool | None = None,
) -> Card:
    """prism.json first, then what is known of published models; arguments override both."""
    card = read_card(folder)
    if card is None:
        if family is None:
            family = recognise(name, config)
        check_family(family)
        known = known_settings(name, FAMILIES[family]) or {}
        card = Card(family, {**known, **(settings or {})}, aggregator=FAMILIES[family].aggregator)
    elif family is not None and family != card.family:
        raise ModelError(f"{folder}: its prism.json says family {card.family!r}, not {family!r}")
    elif settings:
        card = replace(card, settings={**card.settings, **settings})
    return card if compat is None else replace(card, compat=compat)


def load_backbone(folder: Path, **options: Any) -> Any:
    """The transformer without any head; an error if a weight of it is missing."""
    from transformers import AutoModel

    with readable(folder, "backbone"), quietly(folder):  # also an architecture without this attention
        backbone, report = AutoModel.from_pretrained(folder, output_loading_info=True, **options)
    missing = sorted(report["missing_keys"]) + sorted(str(key) for key in report.get("mismatched_keys", ()))
    if missing:
        raise ModelError(f"{folder}: {len(missing)} weights are missing or of another shape, such as {missing[0]!r}")
    return backbone


def load_head(folder: Path, family: Family, backbone: Any, *, allow_pickle: bool) -> nn.Module:
    """The family's head with the folder's weights, where the backbone's last layer is."""
    config, last = backbone.config, list(backbone.parameters())[-1]
    with torch.device("meta"):
        head = family.make_head(config.hidden_size, config)
    prefix = f"{family.head_name}."
    if family.uses_lm_head and config.tie_word_embeddings:
        head.weight = backbone.get_input_embeddings().weight
        return head
    wanted = {prefix + key for key in head.state_dict()}
    found = read_weights(folder, wanted, allow_pickle=allow_pickle)
    if set(found) != wanted:
        raise ModelError(
            f"{folder}: the head of family {family.name!r} needs the weights {sorted(wanted - set(found))}, which are "
            "not there. Name the right family, or make a new PRM from a language model with init_prm."
        )
    shapes = {prefix + key: value.shape for key, value in head.state_dict().items()}
    for key, value in found.items():
        if value.shape != shapes[key]:
            raise ModelError(f"{folder}: weight {key!r} has shape {tuple(value.shape)}, not {tuple(shapes[key])}")
    state = {key.removeprefix(prefix): value.to(last.device, last.dtype) for key, value in found.items()}
    head.load_state_dict(state, assign=True)
    return head


def read_weights(folder: Path, wanted: set[str], *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Those of the wanted weights that the folder has."""
    from safetensors import safe_open

    if allow_pickle and not any(folder.glob("*.safetensors")):
        states = (torch.load(path, map_location="cpu", weights_only=True) for path in sorted(folder.glob("*.bin")))
        return {key: value for state in states for key, value in state.items() if key in wanted}
    index = folder / _INDEX
    if index.exists():
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({folder / where[key] for key in wanted if key in where})
    else:
        files = sorted(folder.glob("*.safetensors"))
    found: dict[str, Tensor] = {}
    for path in files:
        with readable(folder, path.name), safe_open(path, framework="pt") as weights:
            found |= {key: weights.get_tensor(key) for key in wanted & set(weights.keys())}
    return found


def save_folder(
    folder: Path, module: PrmModule, family: Family, card: Card, state: Mapping[str, Tensor] | None, readme: str
) -> None:
    """Write a whole PRM folder or nothing; `state` replaces the module's own weights (gathered from many devices)."""
    from huggingface_hub import save_torch_state_dict

    weights = dict(module.state_dict() if state is None else state)
    expected = set(module.state_dict())
    if set(weights) != expected:
        others = sorted(set(weights) ^ expected)[:3]
        raise ModelError(f"the weights to save are not those of the PRM; they differ in {others}")
    if family.uses_lm_head and module.config.tie_word_embeddings:
        del weights[f"{family.head_name}.weight"]
    config = copy.deepcopy(module.config)
    config.architectures = [family.architecture(config)]
    config.update(dict(family.config_extras))
    config.dtype = next(iter(weights.values())).dtype
    vars(config).pop("auto_map", None)  # it names code of the original's repository, which is not written here
    with whole_folder(folder) as aside:
        save_torch_state_dict({key: value.detach().cpu().contiguous() for key, value in weights.items()}, aside)
        config.save_pretrained(aside)
        family.text.tokenizer.save_pretrained(aside)
        card.write(aside)
        (aside / README).write_text(readme, encoding="utf-8")

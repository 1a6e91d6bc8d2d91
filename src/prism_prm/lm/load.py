"""Load a model from a folder or a hub id, with every weight accounted for. No pickle, no remote code unless asked for.

transformers fills weights that a folder lacks with random numbers and ignores those it does not know, at most with a
log message. Here both are errors that name them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prism_prm.errors import MissingExtraError, ModelError
from prism_prm.lm.place import ADAPTER_FILE, ModelFiles, check_pickled, readable

log = logging.getLogger(__name__)

OUTPUT_LAYER = "lm_head."
"""How the names of a language model's output layer begin."""
_INDEX = "model.safetensors.index.json"
_BIG_BYTES = 2 * 10**9
"""Reading a model this big takes seconds."""
_NAMED = 3
"""How many weights an error names."""


@contextlib.contextmanager
def _attention_fits(folder: Path) -> Iterator[None]:
    """Some architectures have no SDPA, or no flex attention."""
    try:
        yield
    except ValueError as error:
        reason = str(error).split(". ")[0]
        if "does not support an attention implementation" not in reason:
            raise
        raise ModelError(
            f"{folder}: {reason}. A PRM may work with attn='flex'; a policy can be served (openai:<base url>)."
        ) from error


@contextlib.contextmanager
def _quietly(folder: Path) -> Iterator[None]:
    """No reports of heads that transformers does not know (what must be there is checked here), bars for big files."""
    from transformers.utils import logging as verbose

    verbosity, bars = verbose.get_verbosity(), verbose.is_progress_bar_enabled()
    verbose.set_verbosity_error()
    if sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) < _BIG_BYTES:
        verbose.disable_progress_bar()
    try:
        yield
    finally:
        verbose.set_verbosity(verbosity)
        if bars:
            verbose.enable_progress_bar()


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    from transformers import AutoTokenizer

    with readable(folder, "tokenizer"):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, **options)


def language_model(
    folder: Path,
    dtype: torch.dtype | str,
    device: torch.device | None = None,
    *,
    kernel: str = "sdpa",
    allow_pickle: bool = False,
    output_layer: bool = True,
    other_heads: bool = False,
) -> tuple[Any, Any]:
    """(model, tokenizer) of a folder, which may hold a single GGUF file.

    Args:
        folder: where it is.
        dtype: of its weights, or "auto".
        device: where it goes; default: it stays in the machine's memory.
        kernel: transformers' name of its attention.
        allow_pickle: read pickled weights.
        output_layer: whether the language model's output layer is needed; without it the backbone alone is loaded.
        other_heads: whether heads of other kinds may be left out.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    kind, what = (AutoModelForCausalLM, "language model") if output_layer else (AutoModel, "backbone")
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": kernel, "unread": None if other_heads else ()}
    files = ModelFiles(folder)
    gguf = sorted(folder.glob("*.gguf"))
    if gguf and not (folder / "config.json").exists():
        model, tokenizer = _from_gguf(kind, folder, gguf, options)
    else:
        check_pickled(folder, allow_pickle=allow_pickle)
        options["use_safetensors"] = not allow_pickle or None
        model, tokenizer = load_checked(kind, folder, what, **options), load_tokenizer(folder)
    own_weights(model, device)
    files.check_loaded()
    return model, tokenizer


def own_weights(model: nn.Module, device: torch.device | None) -> None:
    """Move a model to a device, if one is given, and copy what is still mapped from its files.

    Mapped weights change with the file, and a file that is cut short would end the process.
    """
    if device is not None:
        model.to(device)
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.device.type == "cpu" and not tensor.untyped_storage().resizable():  # memory of torch's own is
            tensor.data = tensor.data.clone()


def _from_gguf(kind: Any, folder: Path, files: Sequence[Path], options: dict[str, Any]) -> tuple[Any, Any]:
    """A model from a GGUF file, copied into a fresh one of its config: one read from GGUF refuses to be saved."""
    if len(files) > 1:
        raise ModelError(f"{folder}: GGUF files {', '.join(f.name for f in files)}; leave one of them in the folder")
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MissingExtraError("gguf", "gguf") from None
    if options["dtype"] == "auto":
        options["dtype"] = torch.bfloat16
    name = files[0].name
    read = load_checked(kind, folder, name, gguf_file=name, **options)
    with readable(folder, name), _quietly(folder):
        tokenizer = load_tokenizer(folder, gguf_file=name)
    vars(read.config).pop("quantization_config", None)
    fresh = kind.from_config(read.config, attn_implementation=options["attn_implementation"]).to(options["dtype"])
    fresh.load_state_dict(read.state_dict())
    return fresh, tokenizer


def load_checked(kind: Any, folder: Path, what: str, *, unread: Collection[str] | None = (), **options: Any) -> Any:
    """A model of transformers' class `kind`, or an error that names the weights that are missing, misshapen or left.

    Heads whose weights' names begin as `unread` says may be left; with None any head, which is then logged.
    """
    if (folder / ADAPTER_FILE).exists():
        raise ModelError(f"{folder}: this is a LoRA adapter, not a model; merge it into its base model first")
    with readable(folder, what), _attention_fits(folder), _quietly(folder):
        model, report = kind.from_pretrained(folder, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    missing = sorted(report["missing_keys"])
    misshapen = [
        f"{key}: {'×'.join(map(str, found))} instead of {'×'.join(map(str, wanted))}"
        for key, found, wanted in sorted(report["mismatched_keys"])
    ]
    left = [
        key
        for key in sorted(report["unexpected_keys"])
        if _of_backbone(model, key) or not (unread is None or key.startswith(tuple(unread)))
    ]
    faults = [
        *_counted(missing, "is missing", "are missing"),
        *_counted(misshapen, "has another shape", "have another shape"),
        *_counted(left, *(f"{has} no place in {type(model).__name__}" for has in ("has", "have"))),
    ]
    if faults:
        raise ModelError(f"{folder}: {'; '.join(faults)}. {_remedy(model, missing, misshapen, left)}")
    if unread is None:
        others = (key for key in sorted(report["unexpected_keys"]) if not key.startswith(OUTPUT_LAYER))
        for said in _counted(list(others), "is not used", "are not used"):
            log.warning("%s: %s", folder, said)
    return model


def _of_backbone(model: Any, key: str) -> bool:
    """Whether a weight's name is one of a part of the backbone, such as a layer more than the config has."""
    part = key.removeprefix(f"{model.base_model_prefix}.").split(".")[0]
    return part in dict(model.base_model.named_children())


def _counted(names: Sequence[str], one: str, many: str) -> Iterator[str]:
    """How many there are and the first of them; nothing if there are none."""
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        is_so = f"1 weight {one}" if len(names) == 1 else f"{len(names)} weights {many}"
        yield f"{is_so} ({', '.join(names[:_NAMED])}{more})"


def _remedy(model: Any, missing: Sequence[str], misshapen: Sequence[str], left: Sequence[str]) -> str:
    if any(key.startswith(OUTPUT_LAYER) for key in missing):
        return (
            "Without its output layer this is not a language model. A PRM cannot be a policy, and a new PRM on this "
            "checkpoint needs a family with its own head, such as qwen or token-classification."
        )
    if not missing and not misshapen and not any(_of_backbone(model, key) for key in left):
        return "A head that nobody would read belongs to a PRM of another family, and a PRM is not a policy."
    return "Weights that are missing would be random: the folder is incomplete, or its config is another model's."


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

"""Load models with every weight accounted for, move them to a device, hash them, and retry when memory runs out.

transformers initializes missing weights at random and ignores unknown ones, at most with a log message. Here both are
errors that name the weights. Pickled weights and remote code are off by default.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import xxhash
from torch import Tensor, nn

from prism_prm.console import say
from prism_prm.errors import ConfigError, ModelError, is_out_of_memory
from prism_prm.file_types import read_json
from prism_prm.models.gguf_files import converted, find_gguf
from prism_prm.models.model_files import (
    ADAPTER_FILE,
    CONFIG_FILE,
    ModelFiles,
    check_pickled,
    config_folder,
    is_adapter,
    load_tokenizer,
    plain_folder,
    readable,
)

log = logging.getLogger(__name__)

OUTPUT_LAYER = "lm_head."
"""The name prefix of a language model's output layer."""
BF16_HIDDEN = 256
"""From this hidden size on, bfloat16 is 1.6 to 2 times as fast on CPUs that have it; see docs/lab/performance.md."""
_BIG_BYTES = 2 * 10**9
"""Reading a model this big takes seconds, so it shows progress bars."""
_NUM_NAMED = 3
"""How many weights an error names."""
_IRRELEVANT = (
    "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id", "num_labels", "problem_type",
    "return_dict", "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip

Module = TypeVar("Module", bound=nn.Module)
T = TypeVar("T")
R = TypeVar("R")


@contextlib.contextmanager
def quiet_transformers(*others: str, bars: bool = False) -> Iterator[None]:
    """Silence transformers and the loggers `others`, except for errors; also progress bars, unless `bars`."""
    from transformers.utils import logging as hf_logging

    levels = {name: logging.getLogger(name).level for name in ("transformers", *others)}
    had_bars = hf_logging.is_progress_bar_enabled()
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    if not bars:
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if had_bars:
            hf_logging.enable_progress_bar()


def pick_device(device: torch.device | str | None) -> torch.device:
    """Return the given device if it is available; by default a GPU if there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"device {str(device)!r} cannot be used here ({reason}); cpu always works") from error


def pick_dtype(dtype: torch.dtype | str | None, device: torch.device, name: str) -> torch.dtype | str:
    """Resolve the dtype to load a model in.

    Args:
        dtype: a dtype or its name, or "auto"; by default "auto" on a GPU and float32 on a CPU.
        device: where the model runs.
        name: the model's folder or hub id. On a CPU, "auto" depends on its hidden size.
    """
    if dtype == "auto" and device.type == "cpu":
        chosen = torch.bfloat16 if has_bf16() and _hidden_size(name) >= BF16_HIDDEN else torch.float32
        say(f"{name}: dtype auto is {str(chosen).removeprefix('torch.')} here")
        return chosen
    if isinstance(dtype, str) and dtype != "auto":
        resolved = getattr(torch, dtype, None)
        if not isinstance(resolved, torch.dtype):
            raise ConfigError(f"dtype={dtype!r} is not a torch dtype such as bfloat16, float16, float32")
        return resolved
    return dtype or (torch.float32 if device.type == "cpu" else "auto")


def has_bf16() -> bool:
    """Whether the CPU multiplies matrices in bfloat16 (AVX512_BF16 or AMX); others emulate it, slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _hidden_size(name: str) -> int:
    """The hidden size in a model's config; 0 if it is not there."""
    folder = plain_folder(config_folder(name))
    with readable(folder, CONFIG_FILE):
        config = read_json(folder / CONFIG_FILE)
        return next((int(config[key]) for key in ("hidden_size", "n_embd", "d_model") if key in config), 0)


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
    """Load (model, tokenizer) from a folder, which may hold a single GGUF file.

    Args:
        folder: the model folder.
        dtype: the dtype of the weights, or "auto".
        device: the device to move the model to. By default it stays in main memory.
        kernel: transformers' name of the attention implementation.
        allow_pickle: allow pickled weights.
        output_layer: load the language model's output layer too, not only the backbone.
        other_heads: ignore the weights of other heads instead of raising an error.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    if (gguf := find_gguf(folder)) is not None:
        with_tokenizer = plain_folder(folder)
        folder = converted(gguf, "model", lambda made: _convert_gguf(gguf, with_tokenizer, made))
        dtype = torch.bfloat16 if dtype == "auto" else dtype
    kind, what = (AutoModelForCausalLM, "language model") if output_layer else (AutoModel, "backbone")
    files = ModelFiles(folder)
    check_pickled(folder, allow_pickle=allow_pickle)
    model = load_checked(
        kind, folder, what, unread=None if other_heads else (), dtype=dtype, attn_implementation=kernel,
        use_safetensors=not allow_pickle or None,
    )  # fmt: skip
    tokenizer = load_tokenizer(folder)
    own_weights(model, device)
    files.check_loaded()
    return model, tokenizer


def own_weights(model: nn.Module, device: torch.device | None) -> None:
    """Move a model to a device, if one is given, and copy weights that are still memory-mapped from its files.

    Mapped weights change with the file, and truncating the file would crash the process.
    """
    if device is not None:
        model.to(device)
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if tensor.device.type == "cpu" and not tensor.untyped_storage().resizable():  # only torch's own memory is
            tensor.data = tensor.data.clone()


def _convert_gguf(file: Path, with_tokenizer: Path, folder: Path) -> None:
    """Write the language model of a GGUF file, in 32 bits, as an ordinary model folder."""
    from huggingface_hub import save_torch_state_dict
    from transformers import AutoModelForCausalLM

    shutil.copytree(with_tokenizer, folder, dirs_exist_ok=True)
    model = load_checked(AutoModelForCausalLM, file.parent, file.name, gguf_file=file.name, dtype=torch.float32)
    is_tied = model.config.tie_word_embeddings
    state = {key: value for key, value in model.state_dict().items() if not (is_tied and key.startswith(OUTPUT_LAYER))}
    save_torch_state_dict(state, folder)
    vars(model.config).pop("quantization_config", None)
    model.config.save_pretrained(folder)


def load_checked(kind: Any, folder: Path, what: str, *, unread: Collection[str] | None = (), **options: Any) -> Any:
    """Load a model of transformers' class `kind`. Raises an error that names missing, misshapen and unused weights.

    Heads whose names start with one of `unread` may stay unused; with None any head, which is then logged.
    """
    if is_adapter(folder):
        raise ModelError(f"{folder}: this is a LoRA adapter, not a model; merge it into its base model first")
    is_big = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) >= _BIG_BYTES
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with readable(folder, what), quiet_transformers(bars=is_big):
        try:
            model, report = kind.from_pretrained(folder, **options)
        except ValueError as error:  # some architectures have no SDPA, or no flex attention
            reason = str(error).split(". ")[0]
            if "does not support an attention implementation" not in reason:
                raise
            raise ModelError(
                f"{folder}: {reason}. A PRM may work with attn='flex'; a policy can be served (openai:<base url>)."
            ) from error

    def in_backbone(key: str) -> bool:
        """Whether a weight's name belongs to the backbone, such as a layer beyond the config's number of layers."""
        part = key.removeprefix(f"{model.base_model_prefix}.").split(".")[0]
        return part in dict(model.base_model.named_children())

    missing, unexpected = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    misshapen = [
        f"{key}: {'×'.join(map(str, found))} instead of {'×'.join(map(str, wanted))}"
        for key, found, wanted in sorted(report["mismatched_keys"])
    ]
    unused = [key for key in unexpected if in_backbone(key) or not (unread is None or key.startswith(tuple(unread)))]
    faults = [
        *_count(missing, "is missing", "are missing"),
        *_count(misshapen, "has another shape", "have another shape"),
        *_count(unused, *(f"{has} no place in {type(model).__name__}" for has in ("has", "have"))),
    ]
    if faults:
        if any(key.startswith(OUTPUT_LAYER) for key in missing):
            remedy = (
                "Without its output layer this is not a language model. A PRM cannot be a policy, and a new PRM on "
                "this checkpoint needs a family with its own head, such as qwen or token-classification."
            )
        elif not missing and not misshapen and not any(map(in_backbone, unused)):
            remedy = "An unused head belongs to a PRM of another family, and a PRM is not a policy."
        else:
            remedy = "Missing weights would be random: the folder is incomplete, or its config is another model's."
        raise ModelError(f"{folder}: {'; '.join(faults)}. {remedy}")
    if unread is None:
        others = [key for key in unexpected if not key.startswith(OUTPUT_LAYER)]
        for ignored in _count(others, "is not used", "are not used"):
            log.warning("%s: %s", folder, ignored)
    return model


def _count(names: Sequence[str], singular: str, plural: str) -> Iterator[str]:
    """Yield the number of weights and the first of their names; nothing if there are none."""
    if names:
        more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
        count = f"1 weight {singular}" if len(names) == 1 else f"{len(names)} weights {plural}"
        yield f"{count} ({', '.join(names[:_NUM_NAMED])}{more})"


def read_weights(folder: Path, wanted: set[str], *, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Read those of the wanted weights that the folder has."""
    from safetensors import safe_open

    if allow_pickle and not any(folder.glob("*.safetensors")):
        states = (torch.load(path, map_location="cpu", weights_only=True) for path in sorted(folder.glob("*.bin")))
        return {key: value for state in states for key, value in state.items() if key in wanted}
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({folder / weight_map[key] for key in wanted if key in weight_map})
    else:
        files = sorted(folder.glob("*.safetensors"))
    tensors: dict[str, Tensor] = {}
    for path in files:
        with readable(folder, path.name), safe_open(path, framework="pt") as file:
            tensors |= {key: file.get_tensor(key) for key in wanted & set(file.keys())}
    return tensors


def merge_adapter(module: Module, folder: Path) -> Module:
    """Merge a LoRA adapter (peft) into a module's weights. Raises unless all of the adapter fits."""
    from peft import PeftConfig, PeftModel

    if not is_adapter(folder):
        raise ModelError(f"{folder}: no {ADAPTER_FILE}, so this is not a LoRA adapter")
    if not (folder / "adapter_model.safetensors").exists():
        raise ModelError(f"{folder}: no adapter_model.safetensors; pickled adapters are not read")
    try:
        config = PeftConfig.from_pretrained(str(folder))
        config.task_type = None  # peft's task classes need methods that only some models have
        config.inference_mode = True
        wrapped: Any = PeftModel(module, config, "default")
        report = wrapped.load_adapter(str(folder), "default")
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ModelError(f"{folder}: this adapter does not fit the model: {reason}") from error
    faults = [
        f"{fault} {len(keys)} weight{'s' * (len(keys) > 1)}, such as {sorted(keys)[0].replace('.default', '')}"
        for keys, fault in ((report.missing_keys, "it lacks"), (report.unexpected_keys, "the model has no place for"))
        if keys
    ]
    if faults:
        raise ModelError(
            f"{folder}: this adapter does not fit the model: {'; '.join(faults)}. Load the model it was trained on."
        )
    merged: Module = wrapped.merge_and_unload()
    return merged


def plain_config(config: Any) -> dict[str, Any]:
    """Return the entries of a model's config that affect its output."""
    return {key: value for key, value in config.to_dict().items() if key not in _IRRELEVANT}


def hash_tensors(texts: Iterable[str], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Hash strings, and named tensors (in any order) with their dtypes and shapes."""
    digest = xxhash.xxh3_128()
    for text in texts:
        digest.update(text.encode())
    for name, tensor in sorted(tensors):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()


def halving(
    items: Sequence[T], run: Callable[[Sequence[T]], R], name: Callable[[T], str]
) -> Iterator[tuple[Sequence[T], R]]:
    """Yield (items, result) of the whole batch; if memory runs out, of its halves, down to single items."""
    result = None
    try:
        result = run(items)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise ModelError(
                f"out of memory with {name(items[0])} alone: lower the token budget, or use a smaller dtype or "
                "another device"
            ) from error
    if result is not None:
        yield items, result
        return
    # The failed batch's tensors are freed only here, outside the handler; then cached blocks can be released.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = (len(items) + 1) // 2
    yield from halving(items[:half], run, name)
    yield from halving(items[half:], run, name)

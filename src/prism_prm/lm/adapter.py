"""LoRA adapters (peft): merged into their model, with every weight accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from prism_prm.errors import ModelError
from prism_prm.lm.place import ADAPTER_FILE, is_adapter

_WEIGHTS = "adapter_model.safetensors"
_NAME = "default"

Module = TypeVar("Module", bound=nn.Module)


def merge_adapter(module: Module, folder: Path) -> Module:
    """The module with an adapter merged into its weights; an error unless all of the adapter fits."""
    from peft import PeftConfig, PeftModel

    if not is_adapter(folder):
        raise ModelError(f"{folder}: no {ADAPTER_FILE}, so this is not a LoRA adapter")
    if not (folder / _WEIGHTS).exists():
        raise ModelError(f"{folder}: no {_WEIGHTS}; pickled adapters are not read")
    try:
        config = PeftConfig.from_pretrained(str(folder))
        config.task_type = None  # the tasks' own classes ask for methods that only some models have
        config.inference_mode = True
        wrapped: Any = PeftModel(module, config, _NAME)
        report = wrapped.load_adapter(str(folder), _NAME)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ModelError(f"{folder}: this adapter does not fit the model: {reason}") from error
    faults = [
        f"{fault} {len(keys)} weight{'s' * (len(keys) > 1)}, such as {sorted(keys)[0].replace(f'.{_NAME}', '')}"
        for keys, fault in ((report.missing_keys, "it lacks"), (report.unexpected_keys, "the model has no place for"))
        if keys
    ]
    if faults:
        raise ModelError(
            f"{folder}: this adapter does not fit the model: {'; '.join(faults)}. Is this the model that it was "
            "trained on?"
        )
    merged: Module = wrapped.merge_and_unload()
    return merged

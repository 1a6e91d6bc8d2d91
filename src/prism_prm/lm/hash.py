"""Hashes and texts of everything that determines a model's output: weights, config, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
import xxhash
from torch import Tensor

_CHANGES_NOTHING = (
    "_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id", "num_labels", "problem_type",
    "return_dict", "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip


def plain_config(config: Any) -> dict[str, Any]:
    """What of a model's config decides its output."""
    return {key: value for key, value in config.to_dict().items() if key not in _CHANGES_NOTHING}


def hash_tensors(texts: Iterable[str], tensors: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of texts, and of named tensors with their types and shapes, in any order."""
    digest = xxhash.xxh3_128()
    for text in texts:
        digest.update(text.encode())
    for name, tensor in sorted(tensors):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()


def tokenizer_text(tokenizer: Any) -> str:
    """The tokenizer's whole definition, or for a slow one its vocabulary; and its chat template."""
    template = getattr(tokenizer, "chat_template", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps([sorted(tokenizer.get_vocab().items()), template])
    # Truncation and padding are call options that tokenizers remember; they are not part of what a text means.
    definition = json.loads(backend.to_str())
    return json.dumps([{**definition, "truncation": None, "padding": None}, template], sort_keys=True)

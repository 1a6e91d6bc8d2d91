"""Sizes of known models, and what stands in for a model whose config or tokenizer is not at hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism_prm.errors import ModelError
from prism_prm.lm.place import CONFIG_FILE
from prism_prm.places import is_hub_id, nearest

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
        if self.config is None and not Path(name).is_dir() and not is_hub_id(name):
            raise ModelError(
                f"{name}: there is no such model folder.{nearest(name)} A model on the hub is named owner/name."
            )

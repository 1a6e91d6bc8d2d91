"""What makes golden numbers the same on every CPU.

Vectorized code for 32-bit logarithms, sines and powers differs between CPUs in the last bit; sums in 64 bits differ far
below 1e-9. So weights are small fractions of 64, which no arithmetic has to round, and models run in 64 bits, also
where transformers computes in 32: in norms and rotary embeddings.

Run as a script it is the `prism` command under these conditions, once for each line of words that the file has.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.mistral.modeling_mistral import MistralRMSNorm, MistralRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm, Qwen2RotaryEmbedding

from prism_prm.cli import main


@contextmanager
def exact() -> Iterator[None]:
    """Qwen2, Llama and Mistral models compute in their own precision, in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for norm in (Qwen2RMSNorm, LlamaRMSNorm, MistralRMSNorm):
            patch.setattr(norm, "forward", _normed)
        for rotary in (Qwen2RotaryEmbedding, LlamaRotaryEmbedding, MistralRotaryEmbedding):
            patch.setattr(rotary, "forward", _rotation)
        yield
    torch.set_num_threads(threads)


def _normed(self: Any, hidden: torch.Tensor) -> torch.Tensor:
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    normed: torch.Tensor = self.weight * (hidden * scale)
    return normed


def _rotation(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    theta, half = self.config.rope_parameters["rope_theta"], len(self.inv_freq)
    frequencies = torch.tensor([theta ** (-i / half) for i in range(half)], dtype=x.dtype)
    angles = position_ids[..., None].to(x.dtype) * frequencies.repeat(2)
    return angles.cos(), angles.sin()


def rounded(value: Any) -> Any:
    """A JSON value whose floats have 10 decimals, so that 64-bit noise does not rewrite golden files."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, 10) if isinstance(value, float) else value


@torch.no_grad()
def fill(module: torch.nn.Module) -> None:
    """Replace all parameters by fractions of 64 that their names decide; those of norms are near 1."""
    for name, parameter in module.named_parameters():
        draws = random.Random(name)
        values = [int(draws.random() * 49) - 24 for _ in range(parameter.numel())]
        parameter.copy_(torch.tensor(values).view_as(parameter) / 64 + ("norm" in name))


def prism(*words: object, code: int = 0) -> None:
    """Run the `prism` command in this process; it must end with this exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prism", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
    assert (end.value.code or 0) == code, f"prism {' '.join(map(str, words))}"


if __name__ == "__main__":
    with exact():
        for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
            prism(*line.split("\t"))

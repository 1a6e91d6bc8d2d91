"""A senseless value in a model's config.json is an error that names the folder, whatever transformers makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prism_prm import init_prm, load_prm
from prism_prm.errors import ModelError


@pytest.fixture(scope="module")
def prm(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("configs") / "prm"
    init_prm(tiny_lm("qwen2"), family="qwen").save(folder)
    (folder / "good.json").write_bytes((folder / "config.json").read_bytes())
    return folder


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "model_type"])
@pytest.mark.parametrize("value", [0, -1, 33, 10**7, 1.5, "x", None, [1]])
def test_an_error_names_the_folder(key: str, value: Any, prm: Path) -> None:
    config = json.loads((prm / "good.json").read_text()) | {key: value}
    (prm / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load_prm(prm, device="cpu")
    message = str(caught.value)
    assert message.startswith(f"{prm}: ")
    assert "\n" not in message

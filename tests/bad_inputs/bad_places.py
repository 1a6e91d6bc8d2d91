"""Places of nothing, and models with a senseless config: refused before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bad_files import CONTENTS, change_bytes, change_key
from bad_recipes import changed
from bad_rows import Row
from valid_inputs import COMMANDS

from prism_prm.errors import shown

NAMES: list[Any] = [
    ("train.toml", "base.family", "nonsense", "nonsense", "qwen"),
    ("train.toml", "data.inputs", ["nowhere.jsonl"], "nowhere.jsonl"),
    ("train.toml", "data.exclude", ["nowhere.jsonl"], "nowhere.jsonl"),
    ("train.toml", "base.prm", "nowhere/there/prm", "nowhere/there/prm"),
    ("search.toml", "prm", ["nowhere/there/prm"], "nowhere/there/prm"),
]

CONFIG: dict[str, tuple[Any, ...]] = {
    "hidden_size": (None, "x", 0, -1, 31, 64, 10**30),
    "num_hidden_layers": (None, "x", -1, 3, 1),
    "vocab_size": (None, "x", 5, -1),
    "model_type": (None, "nonsense", 3),
}


def rows() -> Iterator[Row]:
    yield from (changed(name, dotted, value, *words) for name, dotted, value, *words in NAMES)
    yield Row("rerank --prm 'nowhere/there/prm'", (*COMMANDS["rerank"], "--prm", "nowhere/there/prm"), ("nowhere",))
    for name, words in {
        "ensemble:max:a,b": ("'max'", "mean"), "ensemble:mean:a": ("ensemble:RULE:PRM,PRM",),
        "implicit:prm": ("implicit:MODEL+REFERENCE",), "tail:prm": ("tail:hf:FOLDER",), "orm:nowhere/x/y": ("nowhere",),
        "self-certainty:openai:http://localhost:1": ("lowest-group",),
    }.items():  # fmt: skip
        yield Row(f"rerank --prm {name!r}", (*COMMANDS["rerank"], "--prm", name), words)
    yield Row("search family=nonsense", (*COMMANDS["search"], "--set", "family=nonsense"), ("nonsense", "qwen"))
    score = tuple(COMMANDS["score"])
    for file, kind in (("config", "a number"), ("config", "null"), ("config", "nested"), ("tokenizer", "a number"),
                       ("tokenizer", "null")):  # fmt: skip
        change = partial(change_bytes, f"prm/{file}.json", CONTENTS[kind])
        yield Row(f"score: prm/{file}.json is {kind}", score, ("prm", file), change)
    for key, values in CONFIG.items():
        for value in values:
            change = partial(change_key, "prm/config.json", key, value)
            yield Row(f"score: prm/config.json {key} = {shown(value)}", score, ("prm",), change)

"""Files of another kind than a command reads, damaged ones, and PRM folders with something wrong in them."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bad_rows import Row
from valid_inputs import COMMANDS

from prism_prm.errors import shown

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n"
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "blank": lambda _: b"\n  \n\n",
    "HTML": lambda _: HTML,
    "Git LFS": lambda _: LFS,
    "a picture": lambda _: b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "a ZIP": lambda _: b"PK\x03\x04" + bytes(60),
    "zeros": lambda _: bytes(300),
    "cut short": lambda right: right[:-20],
    "cut gzip": lambda right: gzip.compress(right)[:-12],
    "a number": lambda _: b"5\n",
    "null": lambda _: b"null\n",
    "nested": lambda _: b"[" * 100_000,
    "nested objects": lambda _: b'{"a":' * 100_000,
    "Latin-1": lambda _: '{"problem": "caf\xe9"}\n'.encode("latin-1"),
}
"""Kind of file → its bytes, made of the right ones."""

READ = {
    "pairs": "prm800k.jsonl",
    "score": "unlabelled.jsonl",
    "eval": "processbench.jsonl",
    "eval predictions": "predictions.jsonl",
    "rerank": "pool.jsonl",
    "rerank scores": "pool_scores.jsonl",
    "theory pool": "pool.jsonl",
    "theory scores": "pool_scores.jsonl",
    "search": "task.jsonl",
    "label": "task.jsonl",
}
"""Command → the JSON lines it reads."""

TABLES = {
    "export": "pairs/pairs.parquet",
    "score pairs": "pairs/trees.parquet",
    "eval pairs": "pairs/pairs.parquet",
    "eval scores": "scores.parquet",
    "compare": "eval/processbench.steps.parquet",
    "theory runs": "eval/processbench.steps.parquet",
}
TOML = {"train": "train.toml", "search": "search.toml"}
JSON = {"compare": "eval/metrics.json", "theory runs": "eval/metrics.json"}
GONE = {**READ, **TABLES, **TOML, **JSON}
SCORED = {
    "model.safetensors": ("empty", "HTML", "Git LFS", "zeros", "cut short", "a picture", "a number"),
    "config.json": ("empty", "HTML", "Git LFS", "cut short"),
    "prism.json": ("empty", "HTML", "Git LFS", "cut short", "a number", "null", "nested"),
    "tokenizer.json": ("empty", "HTML", "Git LFS", "cut short"),
}
CARD: dict[str, tuple[Any, ...]] = {
    "family": (None, 3, "", "nonsense", "rlhflow", "family.py", "family.py:Mine", "family.py:Other", "no.py:Mine"),
    "settings": (None, "x", {"system": 3}, {"nonsense": "x"}),
    "compat": ("x",),
    "threshold": ("x", 1.5, math.nan, True),
    "aggregator": (3, "nonsense"),
    "frozen_layers": ("x", -1, 1.5),
    "nonsense": (1,),
}


def change_bytes(file: str, make: Callable[[bytes], bytes], folder: Path) -> None:
    path = folder / file
    path.write_bytes(make(path.read_bytes()))


def _remove(file: str, folder: Path) -> None:
    (folder / file).unlink()


def _become_folder(file: str, folder: Path) -> None:
    (folder / file).unlink()
    (folder / file).mkdir()


def change_key(file: str, key: str, value: Any, folder: Path) -> None:
    found = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**found, key: value}))


def _unset(file: str, key: str, folder: Path) -> None:
    found = json.loads((folder / file).read_text())
    del found[key]
    (folder / file).write_text(json.dumps(found))


def _copy(source: str, target: str, folder: Path) -> None:
    shutil.copy(folder / source, folder / target)


WHOLE = {
    "score": "unlabelled.jsonl",
    "export": "pairs/pairs.parquet",
    "train": "train.toml",
    "compare": JSON["compare"],
}
"""Command → a file of each format: these are tried with every kind of content, the others with one."""


def rows() -> Iterator[Row]:
    for command, file in GONE.items():
        name = Path(file).name
        words = (name if command != "search" or file == "search.toml" else "task.jsonl",)
        base = tuple(COMMANDS[command])
        yield Row(f"{command}: no {file}", base, words, partial(_remove, file))
        if command in WHOLE:
            yield Row(f"{command}: {file} is a folder", base, words, partial(_become_folder, file))
    for command, file in (*READ.items(), *TABLES.items(), *TOML.items(), *JSON.items()):
        kinds = list(CONTENTS) if WHOLE.get(command) == file else ["HTML"]
        if file.endswith(".parquet"):
            kinds = [kind for kind in kinds if kind not in ("cut gzip", "nested", "nested objects", "Latin-1")]
        if file.endswith(".toml"):
            kinds = [kind for kind in kinds if kind != "cut short"]
        for kind in kinds:
            change = partial(change_bytes, file, CONTENTS[kind])
            yield Row(f"{command}: {file} is {kind}", tuple(COMMANDS[command]), (Path(file).name,), change)
    score = tuple(COMMANDS["score"])
    for file, kinds in SCORED.items():
        for kind in kinds:
            change = partial(change_bytes, f"prm/{file}", CONTENTS[kind])
            word = {"model.safetensors": "cannot be read", "tokenizer.json": "tokenizer"}.get(file, file)
            yield Row(f"score: prm/{file} is {kind}", score, ("prm", word), change)
    for file in ("model.safetensors", "config.json"):
        yield Row(f"score: no prm/{file}", score, ("prm", Path(file).suffix), partial(_remove, f"prm/{file}"))
    for key, values in CARD.items():
        for value in values:
            change = partial(change_key, "prm/prism.json", key, value)
            words = ("prm",) if ".py" in str(value) else ("prm", key)
            yield Row(f"score: prm/prism.json {key} = {shown(value)}", score, words, change)
    yield Row(
        "score: prm/prism.json without a family",
        score,
        ("prism.json", "family"),
        partial(_unset, "prm/prism.json", "family"),
    )

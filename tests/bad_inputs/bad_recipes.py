"""Recipes: every key with values that its type or its range refuses, read from the settings themselves."""

from __future__ import annotations

import copy
import math
import typing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from bad_rows import Row
from valid_inputs import COMMANDS, RECIPES, write_recipe

from prism_prm.config import settings_of
from prism_prm.errors import shown
from prism_prm.ranges import MAY_BE_EMPTY, Range
from prism_prm.search.recipe import SearchRecipe
from prism_prm.training.recipe import Recipe

CLASSES = {"train.toml": Recipe, "search.toml": SearchRecipe}
PLAIN: dict[Any, tuple[Any, ...]] = {
    bool: ("yes", 1),
    int: ("x", 1.5, True, 10**30),
    float: ("x", True, math.nan, math.inf),
    str: (3, ""),
}


def bad_values(accepts: Any) -> Iterator[Any]:
    """Values that a type with its ranges refuses."""
    origin, parts = typing.get_origin(accepts), typing.get_args(accepts)
    if origin is Annotated:
        yield from (value for value in bad_values(parts[0]) if value != "" or MAY_BE_EMPTY not in parts)
        for limits in (part for part in parts if isinstance(part, Range)):
            step, number = (1, int) if parts[0] is int else (0.5, float)
            around = (limits.least - step, limits.most + step, limits.above, limits.below)
            yield from (number(value) for value in around if math.isfinite(value))
    elif origin is typing.Literal:
        yield from ("nonsense", 3, "")
    elif origin is tuple:
        yield from ("x", 3)
        yield from ([value] * (1 if parts[1:] == (...,) else len(parts)) for value in bad_values(parts[0]))
    elif origin is dict:
        yield from ("x", {"train": "x"}, {"train": -0.5}, {"train": math.nan}, {"train": 0.5})
        yield from [] if str in (parts[1], *typing.get_args(parts[1])) else [{}]  # texts by name: none is fine
    elif origin is None:
        yield from PLAIN.get(accepts, ())
    else:
        (kind, *_) = [part for part in parts if part is not type(None)]
        yield from bad_values(kind)


def _write(name: str, dotted: str, value: Any, folder: Path) -> None:
    settings = copy.deepcopy(RECIPES[name])
    *sections, key = dotted.split(".")
    section = settings
    for part in sections:
        section = section.setdefault(part, {})
    section[key] = value
    write_recipe(folder / name, settings)


def _without(name: str, key: str, folder: Path) -> None:
    write_recipe(folder / name, {other: value for other, value in RECIPES[name].items() if other != key})


def changed(name: str, dotted: str, value: Any, *words: str) -> Row:
    """The recipe with one key changed."""
    command = COMMANDS[name.split(".")[0]]
    change = partial(_write, name, dotted, value)
    return Row(f"{name}: {dotted} = {shown(value)}", tuple(command), words, change)


PAIRED = [
    ("train.toml", "data.pairs", {"min_gap": 3, "max_gap": 2}, "data.pairs.max_gap = 2", "min_gap"),
    ("train.toml", "data.pairs", {"negative_below": 0.9}, "data.pairs.negative_below = 0.9", "positive_above"),
    ("train.toml", "data.read.drop_finish", ["nonsense"], "nonsense", "found_error"),
    ("train.toml", "data.folder", "pairs", "folder", "inputs"),
    ("train.toml", "base.backbone", "policy", "prm", "backbone"),
    ("train.toml", "base.layers", 1, "layers"),
    ("train.toml", "objective.on", "labels", "objective.on", "bce"),
    ("train.toml", "curriculum.bins", [], "curriculum.bins"),
    ("train.toml", "curriculum.bins", [[0.5, 0.1]], "curriculum.bins", "0.5"),
    ("train.toml", "curriculum.bins", [[0.0, 2.0]], "curriculum.bins", "2.0"),
    ("train.toml", "curriculum.bins", [[0.0, 0.2], [0.5, 1.0]], "curriculum.bins", "hole"),
    ("train.toml", "curriculum.bins", [[0.0, 0.6], [0.5, 1.0]], "curriculum.bins", "overlap"),
    ("train.toml", "curriculum.bins", [[0.0]], "curriculum.bins", "[[0.0]]"),
    ("train.toml", "curriculum.rescore", True, "rescore"),
    ("train.toml", "hardware.cache", "states", "hardware.cache", "frozen_layers"),
    ("train.toml", "validation.aggregator", "nonsense", "nonsense", "min"),
    ("search.toml", "search.aggregator", "nonsense", "nonsense", "min"),
    ("search.toml", "search", {"lookahead": 1, "prm_weight": 0.0}, "prm_weight"),
    ("search.toml", "n", [], "n = ()"),
    ("search.toml", "prm", [], "--prm"),
    ("search.toml", "policy.prompting.user", "no place", "no place", "{problem}"),
]  # fmt: skip
"""What no single type can say: settings that contradict each other."""

NAMES: list[Any] = [
    ("train.toml", "data.format", "nonsense", "nonsense", "prm800k"),
    ("search.toml", "prm", ["a=prm", "a=policy"], "'a'"),
    ("search.toml", "prm", ["=prm"], "''"),
    ("search.toml", "prm", ["a="], "a="),
    ("search.toml", "task", "nonsense", "nonsense", "gsm8k"),
    ("search.toml", "task_data", "nowhere.jsonl", "nowhere.jsonl"),
    ("search.toml", "policy.name", "nonsense", "nonsense", "hf:"),
    ("search.toml", "policy.name", "hf:", "hf:"),
    ("search.toml", "policy.name", "hf:nowhere/there/lm", "nowhere/there/lm"),
    ("search.toml", "policy.name", "gguf:policy", "gguf:policy", "hf:"),
    ("search.toml", "policy.name", "openai:localhost", "localhost", "http"),
    ("search.toml", "policy.name", "openai:ftp://localhost/v1", "ftp://localhost/v1", "http"),
    ("search.toml", "policy.name", "openai:http://:x/v1", "http://:x/v1"),
    ("search.toml", "policy.device", "nonsense", "nonsense"),
    ("search.toml", "policy.dtype", "nonsense", "nonsense", "float32"),
]  # fmt: skip
"""Names of nothing: the message says the name."""

NOT_ALONE = {"curriculum.bins"}
"""Keys whose bad values are all written out above."""


def rows() -> Iterator[Row]:
    for name, cls in CLASSES.items():
        sections = {""}
        for dotted, setting in settings_of(cls).items():
            sections |= {".".join(dotted.split(".")[:i]) for i in range(1, dotted.count(".") + 1)}
            for value in () if dotted in NOT_ALONE else bad_values(setting.accepts):
                yield changed(name, dotted, value, name, dotted.rpartition(".")[2], *_shown(value))
        for section in sorted(sections):
            where = f"{section}." if section else ""
            yield changed(name, f"{where}nonsense", 1, name, "nonsense", "Known")
            yield from [changed(name, section, 3, name, section, "3")] if section else []
    yield from (changed(name, dotted, value, name, *words) for name, dotted, value, *words in PAIRED)
    yield from (changed(name, dotted, value, *words) for name, dotted, value, *words in NAMES)
    for name, key in (
        ("train.toml", "data"),
        ("train.toml", "base"),
        ("search.toml", "task"),
        ("search.toml", "policy"),
    ):
        command = COMMANDS[name.split(".")[0]]
        yield Row(f"{name}: no {key}", tuple(command), (name, key), partial(_without, name, key))
    near = [
        ("train.epoch", 1, "epochs"),
        ("valdation", {}, "validation"),
        ("hardware.frozen_layer", 1, "frozen_layers"),
    ]
    for dotted, value, meant in near:
        yield changed("train.toml", dotted, value, "train.toml", f"Did you mean {meant}?")
    for assignment in ("train.lr", "=1", "train..lr=1", "seed.x=1", "train.lr=nan", "train.warp=9", "train=3"):
        command = (*COMMANDS["train"], "--set", assignment)
        yield Row(f"train --set {assignment}", command, ("--set", assignment))


def _shown(value: Any) -> list[str]:
    """What of a bad value a message has to repeat."""
    return [] if value in ("", {}) or isinstance(value, dict | list) else [str(value)]

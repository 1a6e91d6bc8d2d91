"""Recipes with keys of the wrong type, unknown keys, names of nothing, and settings that contradict each other."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bad_rows import Row
from valid_inputs import COMMANDS, RECIPES, write_recipe

from prism_prm.errors import shown


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
    ("grpo.toml", "prm", "", "rounds.count", "set prm"),
    ("grpo.toml", "rounds.train", "", "rounds.train", "recipe"),
    ("grpo.toml", "rounds.labels", "judge", "rounds.labels = 'judge'", "rounds.judge"),
    ("grpo.toml", "rounds.disagree", "judge", "rounds.disagree = 'judge'", "rounds.judge"),
    ("grpo.toml", "rounds.judge", "prm", "rounds.judge = 'prm'", "rounds.labels"),
    ("grpo.toml", "rounds.rule", "soft", "rounds.rule = 'soft'"),
    ("grpo.toml", "trainer.scale_rewards", "none", "scale_rewards", "reward.scale"),
    ("grpo.toml", "reward.clip", "cart", "reward.clip = 'cart'", "card"),
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
    ("grpo.toml", "rounds.train", "nowhere.toml", "nowhere.toml"),
    (
        "grpo.toml", "rounds", {"count": 1, "train": "train.toml", "labels": "judge", "judge": "nowhere"},
        "nowhere: there is no such model",
    ),
]  # fmt: skip
"""Names of nothing: the message says the name."""

TYPES: list[Any] = [
    ("train.toml", "train.lr", "x", "lr = 'x'"),
    ("train.toml", "train.epochs", 0, "train.epochs = 0"),
    ("train.toml", "seed", 1.5, "seed = 1.5"),
    ("train.toml", "hardware.gradient_checkpointing", "yes", "hardware.gradient_checkpointing = 'yes'"),
    ("train.toml", "nonsense", 1, "nonsense", "Known"),
    ("train.toml", "data.nonsense", 1, "nonsense", "[data]", "Known"),
    ("train.toml", "train", 3, "train = 3", "section"),
    ("search.toml", "search.method", "nonsense", "search.method = 'nonsense'"),
    ("search.toml", "search.sampling.temperature", math.nan, "search.sampling.temperature = nan"),
    ("search.toml", "search.sampling.nonsense", 1, "nonsense", "[search.sampling]", "Known"),
]
"""What types refuse: the message names the file, too. test_settings.py has all keys."""


def rows() -> Iterator[Row]:
    yield from (changed(name, dotted, value, name, *words) for name, dotted, value, *words in TYPES)
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

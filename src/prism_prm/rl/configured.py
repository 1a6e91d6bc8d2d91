"""A `PRMReward` for frameworks that call a function of a file: made once, from their options and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from prism_prm.errors import ConfigError
from prism_prm.rl.reward import PRMReward


def _yes(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no"):
        raise ValueError(f"{text!r} is not 1 or 0")
    return text.lower() in ("1", "true", "yes")


OPTIONS: dict[str, Callable[[str], Any]] = {
    "prm": str, "aggregator": str, "gate": _yes, "verifiable": float, "clip": float, "stop": str,
}  # fmt: skip
"""Options of `PRMReward` that can be set from outside → how their text is read."""
PREFIX = "PRISM_RL_"
"""`PRISM_RL_PRM`, `PRISM_RL_AGGREGATOR`, … are the environment's names for them."""
END = f"{PREFIX}EOS"
"""The text that ends a completion, such as `<|im_end|>`, where a framework leaves it in."""


def configured_reward(options: Mapping[str, Any] | None = None) -> PRMReward:
    """The reward that the options and, where they say nothing, the environment ask for; the same one for the same."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise ConfigError(f"Unknown options {unknown} of the reward. Known: {', '.join(OPTIONS)}.")
    for name in OPTIONS:
        if name not in given and (text := os.environ.get(PREFIX + name.upper())):
            given[name] = text
    if "prm" not in given:
        raise ConfigError(f"No PRM is named; set {PREFIX}PRM to the folder or hub id of one.")
    return _reward(**{name: _read(name, value) for name, value in given.items()})


def without_end(text: str) -> tuple[str, bool]:
    """A completion without the text that ends it, and whether it was cut off; without such a text nobody can tell."""
    end = os.environ.get(END)
    if not end:
        return text, False
    there = text.rstrip().endswith(end)
    return (text.rstrip().removesuffix(end), False) if there else (text, True)


def _read(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return OPTIONS[name](value)
    except ValueError as error:
        raise ConfigError(f"{PREFIX}{name.upper()}: {error}") from None


@lru_cache
def _reward(**options: Any) -> PRMReward:
    return PRMReward(**options)

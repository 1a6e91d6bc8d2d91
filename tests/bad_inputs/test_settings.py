"""Every key of every settings class and every number among the options, with values that its type or range refuses."""

from __future__ import annotations

import math
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from valid_inputs import COMMANDS

from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.cli import main
from prism_prm.cli.options import load
from prism_prm.config import MAY_BE_EMPTY, Range, from_mapping, settings_of
from prism_prm.errors import ConfigError, SettingError
from prism_prm.evaluate.evaluate_prm import EvalSettings
from prism_prm.lab.demo.asymmetry import MapSettings
from prism_prm.lab.theory.report_theory import VerifierSettings
from prism_prm.models.load_settings import LoadSettings
from prism_prm.ray import RaySettings
from prism_prm.rl.recipe import GrpoRecipe
from prism_prm.search.recipes import LabelRecipe, SearchRecipe
from prism_prm.search.rerank_pool import RerankSettings
from prism_prm.serve.settings import ServeSettings
from prism_prm.train.recipe import Recipe

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
        yield from (3,) if "str" in str(parts[0]) else ("x", 3)  # one string stands for a list of one
        yield from ([value] * (1 if parts[1:] == (...,) else len(parts)) for value in bad_values(parts[0]))
    elif origin is dict:
        yield "x"
        yield from ({"name": value} for value in bad_values(parts[1]))
    elif origin is None:
        yield from PLAIN.get(accepts, ())
    else:
        (kind, *_) = [part for part in parts if part is not type(None)]
        yield from bad_values(kind)


NEEDED: dict[type, dict[str, Any]] = {
    Recipe: {"data": {"inputs": ["x"]}, "base": {"prm": "x"}},
    GrpoRecipe: {"policy": "x", "prm": "x", "problems": {"train": "x"}},
    SearchRecipe: {"task": "x", "prm": ["x"], "policy": {"name": "hf:x"}},
    LabelRecipe: {"task": "x", "policy": {"name": "hf:x"}},
    EvalSettings: {}, RerankSettings: {}, LoadSettings: {}, CriticSettings: {}, ServeSettings: {}, RaySettings: {},
    MapSettings: {}, VerifierSettings: {},
}  # fmt: skip
"""Settings class → the settings without which there is no such object."""


@pytest.mark.parametrize("cls", NEEDED)
def test_every_key_refuses_what_its_type_does_not_accept(cls: Any) -> None:
    """In one line that names the key with its sections, and the value; in Python too."""
    from_mapping(cls, NEEDED[cls])
    for dotted, setting in settings_of(cls).items():
        for value in bad_values(setting.accepts):
            with pytest.raises(ConfigError) as refused:
                from_mapping(cls, changed(NEEDED[cls], dotted, value))
            said = str(refused.value)
            assert said.startswith(f"{dotted} = "), said
            assert "\n" not in said
            assert isinstance(value, dict | list) or repr(value) in said
            if "." not in dotted and not NEEDED[cls]:
                with pytest.raises(SettingError, match=f"^{dotted} = "):
                    cls(**{dotted: value})


def changed(settings: Any, dotted: str, value: Any) -> Any:
    """The settings with one key changed."""
    key, _, rest = dotted.partition(".")
    return {**settings, key: changed(settings.get(key, {}), rest, value) if rest else value}


def numbers_of(command: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(flag, bad values) of all options of a command that are numbers."""
    found = load(command)
    for flag in found.options:
        hint = found.setting(flag).hint
        if bad := next((bad for kind, bad in NUMBERS.items() if kind in (hint, *typing.get_args(hint))), None):
            yield flag, bad


NUMBERS: dict[Any, tuple[str, ...]] = {int: ("-1",), float: ("nan", "-1")}


@pytest.mark.parametrize("command", sorted({name.split()[0] for name in COMMANDS}))
def test_every_number_among_the_options_has_its_range(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that names the option and the value, before any input is read."""
    monkeypatch.chdir(tmp_path)
    for flag, values in numbers_of(command):
        for value in values:
            monkeypatch.setattr(sys, "argv", ["prism", *COMMANDS[command], flag, value])
            with pytest.raises(SystemExit) as ended:
                main()
            said = capsys.readouterr().err
            assert ended.value.code == 2, said
            assert said.startswith("error: "), said
            assert said.count("\n") == 1, said
            assert flag in said
            assert value in said

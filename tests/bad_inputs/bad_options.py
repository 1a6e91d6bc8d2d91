"""Options: each one with values that its type or its range refuses, read from the commands themselves."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bad_rows import Row
from valid_inputs import COMMANDS

from prism_prm.cli import app

HUGE = "1" + "0" * 30
VALUES: dict[Any, tuple[str, ...]] = {
    int: ("x", "1.5", "nan", "-1", HUGE, ""),
    float: ("x", "nan", "inf", "-1", ""),
    str: ("",),
    Path: ("",),
    typing.Literal: ("nonsense", ""),
}
"""The type of an option → values that no option of that type takes; `FINE` names those that do."""

FINE = {
    ("search", "--system", ""): "no system turn",
}


def options(name: str) -> Iterator[tuple[str, Any]]:
    """(flag, type) of all options of a command, also of those that are made from settings."""
    (info,) = [info for info in app.registered_commands if (info.name or info.callback.__name__) == name]  # type: ignore[union-attr]
    made = vars(info.callback).get("signature")
    given = made(whole=True) if made else inspect.signature(info.callback, eval_str=True)  # type: ignore[arg-type]
    for parameter in given.parameters.values():
        if typing.get_origin(parameter.annotation) is not typing.Annotated:
            continue
        hint, about = typing.get_args(parameter.annotation)[:2]
        if type(about).__name__ == "OptionInfo":
            flags = [one for one in (about.default, *(about.param_decls or ())) if isinstance(one, str)]
            yield next(iter(flags), f"--{parameter.name.replace('_', '-')}"), _kind(hint)


def _kind(hint: Any) -> Any:
    """What one value of the option is: of `list[str] | None` it is `str`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not types.NoneType]
    origin = typing.get_origin(hint)
    return typing.get_args(hint)[0] if origin is list else origin or hint


def rows() -> Iterator[Row]:
    for name in dict.fromkeys(name.split()[0] for name in COMMANDS):
        yield Row(f"{name} --nonsense", (*COMMANDS[name], "--nonsense"), ("--nonsense",))
        for flag, kind in options(name):
            for value in VALUES.get(kind, ()):
                if (name, flag, value) not in FINE:
                    yield Row(f"{name} {flag} {value!r}", (*COMMANDS[name], flag, value), (flag, value))

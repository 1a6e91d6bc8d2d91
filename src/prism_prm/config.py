"""Settings from TOML files and the command line: typed, documented beside their owner, unknown keys refused.

A section is a frozen dataclass. `read_settings` fills one from a file, options and `--set`; `to_toml` writes resolved
settings back, to be saved with a run. `settings_of` lists the settings of a class with their types, defaults and texts:
command-line options and the tables of the docs are made from it.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import re
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from prism_prm.errors import ConfigError, DataError, SettingError, shown
from prism_prm.file_types import read_text

LARGEST = 2**63
"""Integers must be smaller than this: arrays hold 64 bits."""
MAY_BE_EMPTY = "may be empty"
"""Marks a string that may be empty: `Annotated[str, MAY_BE_EMPTY]`."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a type accepts: `Annotated[int, Range(1)]`."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: Any) -> bool:
        return bool(self.least <= value <= self.most and self.above < value < self.below)

    def __str__(self) -> str:
        limits = {
            "{:g} or more": self.least, "above {:g}": self.above, "at most {:g}": self.most, "below {:g}": self.below,
        }  # fmt: skip
        return " and ".join(words.format(limit) for words, limit in limits.items() if math.isfinite(limit))


Count = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Word = Annotated[str, "word"]
"""A string without commas: an option takes several as `a,b`."""


def _accepted(cls: Any) -> dict[str, Any]:
    """Field of a dataclass → its type with ranges; a string that is empty by default may be empty."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        field.name: Annotated[hints[field.name], MAY_BE_EMPTY] if field.default == "" else hints[field.name]
        for field in dataclasses.fields(cls)
    }


accepted: Callable[[type], dict[str, Any]] = functools.cache(_accepted)


def check(settings: Any) -> None:
    """Raise SettingError for a value that its field does not accept."""
    for name, hint in accepted(type(settings)).items():
        if reason := fault(getattr(settings, name), hint):
            raise SettingError(name, getattr(settings, name), reason)


OLD_WORDS = {"drop-left-steps": "window"}
"""Former values of settings → what they are called now."""


def fault(value: Any, hint: Any) -> str:
    """What the value must be instead ("must be 1 or more"); "" if the type accepts it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated_fault(value, *parts)
    if origin in (typing.Union, types.UnionType):
        return _union_fault(value, parts)
    if origin is Literal:
        fits = any(type(value) is type(part) and value == part for part in parts)
        if fits:
            return ""
        new = OLD_WORDS.get(value) if isinstance(value, str) else None
        return f"is now called {new}" if new in parts else f"must be one of {', '.join(map(str, parts))}"
    if origin in (tuple, list):
        return _list_fault(value, parts)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            return "must be names and values, such as a=0.9,b=0.1"
        return next((found for one in value.values() if (found := fault(one, parts[1]))), "")
    return _plain_fault(value, hint)


def _annotated_fault(value: Any, hint: Any, *marks: Any) -> str:
    if value == "" and MAY_BE_EMPTY in marks:
        return ""
    found = fault(value, hint)
    if found:
        return found
    return next((f"must be {mark}" for mark in marks if isinstance(mark, Range) and value not in mark), "")


def _union_fault(value: Any, choices: tuple[Any, ...]) -> str:
    if value is None and types.NoneType in choices:
        return ""
    found = [fault(value, choice) for choice in choices if choice is not types.NoneType]
    return "" if "" in found else " or ".join([found[0], *(one.removeprefix("must be ") for one in found[1:])])


def _list_fault(value: Any, parts: tuple[Any, ...]) -> str:
    if not isinstance(value, tuple | list):
        return "must be a list"
    hints = [parts[0]] * len(value) if parts[1:] in ((), (...,)) else list(parts)
    if len(value) != len(hints):
        return f"must be a list of {len(hints)}"
    bad = next((found for one, hint in zip(value, hints, strict=True) if (found := fault(one, hint))), "")
    return f"each of the list {bad}" if bad else ""


def _plain_fault(value: Any, hint: Any) -> str:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if hint is bool:
        return "" if isinstance(value, bool) else "must be true or false"
    if hint is int:
        if not is_number or not isinstance(value, numbers.Integral):
            return "must be a whole number"
        return "" if abs(int(value)) < LARGEST else "is too large: whole numbers have 64 bits"
    if hint is float:
        return "" if is_number and abs(value) < math.inf else "must be a finite number"
    if hint is str and not isinstance(value, str):
        return "must be a string"
    if hint is Path and not isinstance(value, str | Path):
        return "must be the name of a file or folder"
    return "must not be empty" if value == "" else ""


T = TypeVar("T")


SHOWN = "shown"
"""In the metadata of a field: what help and docs show for a default that is decided later."""
EXTENDS = "extends"
"""The key with which a file names the file that it changes; relative to its own folder."""


def read_settings(
    cls: type[T], path: str | Path | None, assignments: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> T:
    """Settings from a TOML file, then options ("search.method" → value), then `--set` assignments.

    An error names the file, and says if options were applied on top of it.
    """
    options = {name: value for name, value in (given or {}).items() if value is not None}
    on_top = ["the options given"] * bool(options) + [f"--set {assignment}" for assignment in assignments]
    where = f"{path} with {', '.join(on_top)}" if on_top else str(path)
    settings = {} if path is None else read_toml(path)
    for name, value in [*options.items(), *(parse_assignment(cls, assignment) for assignment in assignments)]:
        _put(settings, name.split("."), value, where)
    try:
        return from_mapping(cls, settings)
    except ConfigError as error:
        error.args = (str(error) if path is None else f"{where}: {error}",)
        raise


def read_toml(
    path: str | Path, below: Sequence[Path] = (), shipped: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """The content of a TOML file on top of those it extends; `below` are those that led to it, and `shipped` are files
    that can be extended by a name.

    An error names the file and what is wrong with it.
    """
    chain = [*below, Path(path)]
    if chain[-1].resolve() in [file.resolve() for file in below]:
        raise ConfigError(f"{chain[0]}: extends itself: {' → '.join(file.name for file in chain)}")
    try:
        settings = tomllib.loads(read_text(path))
    except FileNotFoundError:
        by = f" (that {below[-1]} extends)" if below else ""
        raise ConfigError(f"{path}: no such file{by}. Name a TOML file, e.g. one in recipes/.") from None
    except (IsADirectoryError, NotADirectoryError):
        raise ConfigError(f"{path}: not a file. Name a TOML file, e.g. one in recipes/.") from None
    except OSError as error:  # no permission, a name that is too long
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Name a TOML file.") from None
    except DataError as error:
        raise ConfigError(str(error)) from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be read. Is this a recipe?") from None
    except ValueError as error:  # of tomllib, or an integer of thousands of digits
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    base = settings.pop(EXTENDS, None)
    if base is None:
        return settings
    if not isinstance(base, str) or not base.strip() or "\0" in base:
        raise ConfigError(f"{path}: {EXTENDS} = {base!r}, expected the name of a TOML file")
    place = (shipped or {}).get(base, chain[-1].parent / base)
    return _merged(read_toml(place, chain, shipped), settings)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Sections are merged key by key; any other value replaces the one below."""
    both = {key: _merged(base[key], value) for key, value in changes.items()
            if isinstance(value, dict) and isinstance(base.get(key), dict)}  # fmt: skip
    return {**base, **changes, **both}


def parse_assignment(
    cls: type, assignment: str, flag: str = "--set", sections: Sequence[str] = ("",)
) -> tuple[str, Any]:
    """(full name, value) of `KEY=VALUE`, where KEY is a setting in one of the sections, or an unambiguous end of it."""
    key, equals, text = (part.strip() for part in assignment.partition("="))
    if not equals or not key:
        raise ConfigError(f"{flag} {assignment}: expected KEY=VALUE, e.g. {flag} seed=1")
    known = {name: one for name, one in settings_of(cls).items() if name.startswith(tuple(sections))}
    name = _find_setting(known, key, f"{flag} {assignment}", sections)
    value = parse_value(text, known[name].accepts) if name in known else _toml_value(text)
    if name in known and (reason := fault(value, known[name].accepts)):
        raise ConfigError(f"{flag} {assignment}: {reason}")
    return name, value


def _find_setting(known: Mapping[str, Setting], key: str, where: str, sections: Sequence[str]) -> str:
    for name in [key, *(section + key for section in sections)]:
        # Below a table of free names (TRL's settings), or a whole section as a TOML table, anything goes for now.
        is_free = any(name.startswith(f"{one}.") and _is_table(known[one].hint) for one in known)
        if name in known or is_free or any(one.startswith(f"{name}.") for one in known):
            return name
    ends = [name for name in known if name.endswith(f".{key}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ConfigError(f"{where}: {key} is ambiguous: {' or '.join(ends)}. Give more of the name.")
    names = {name.rpartition(".")[2]: name for name in known} | {name: name for name in known}
    near = difflib.get_close_matches(key, names, n=1)
    meant = f" Did you mean {names[near[0]]}?" if near else ""
    raise ConfigError(f"{where}: there is no setting {key}.{meant} --help-all lists all.")


def _is_table(hint: Any) -> bool:
    return typing.get_origin(hint) in (dict, Mapping)


def parse_value(text: str, hint: Any) -> Any:
    """Text from the command line as a value of this type: TOML, a plain string, or a list `a,b`.

    Text that does not fit is returned as TOML or as it is; `fault` then says what is wrong with it.
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return parse_value(text, parts[0])
    if origin in (typing.Union, types.UnionType):
        values = [parse_value(text, choice) for choice in parts if choice is not types.NoneType]
        fitting = [value for value, choice in zip(values, parts, strict=False) if not fault(value, choice)]
        return (fitting or values)[0]
    value = _toml_value(text)
    if origin is tuple and not isinstance(value, list):
        return [parse_value(part.strip(), parts[0]) for part in text.split(",") if part.strip()]
    if _is_table(hint) and not isinstance(value, dict):
        items = [part.partition("=") for part in text.split(",")]
        table = {key.strip(): parse_value(part.strip(), parts[1]) for key, equals, part in items if equals}
        return table if len(table) == len(items) else text  # without a value, or a name twice: refused
    if hint in (str, Path) or origin is Literal:
        return value if isinstance(value, str) else text
    return value


def _put(settings: dict[str, Any], keys: Sequence[str], value: Any, where: str) -> None:
    section = settings
    for i, key in enumerate(keys[:-1]):
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise ConfigError(f"{where}: [{'.'.join(keys[: i + 1])}] must be a section, not {section!r}")
    section[keys[-1]] = value


def from_mapping(cls: type[T], settings: Mapping[str, Any], where: str = "") -> T:
    """Fill the dataclass `cls`; an error names the key with its sections, the value, and what it must be."""
    _reject_unknown_keys(cls, settings, where)
    settings = _with_lists(cls, settings)
    prefix = f"{where}." if where else ""
    sections, known = _sections(cls), accepted(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name, required = prefix + field.name, field.default is field.default_factory is dataclasses.MISSING
        if field.name not in settings:
            if required:
                what = f"section [{name}]" if field.name in sections else f"setting {name}"
                raise ConfigError(f"the {what} is missing; it has no default")
            continue
        value = settings[field.name]
        if field.name in sections and isinstance(value, Mapping):
            from_mapping(sections[field.name], value, name)
        elif field.name in sections:
            raise ConfigError(f"{name} = {shown(value)}: must be a section [{name}]")
        elif reason := fault(value, known[field.name]):
            raise SettingError(name, value, reason)
    import msgspec  # not needed by those who only declare settings, as the sandbox does

    try:
        return msgspec.convert(settings, type=cls, dec_hook=lambda kind, value: kind(value))  # kind is Path
    except SettingError as error:
        raise SettingError(prefix + error.name, error.value, error.reason) from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"Wrong setting{f' in [{where}]' if where else ''}: {error}") from error


def _with_lists(cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with lists where one string stands for a list of one: `inputs = "file.jsonl"`."""
    sections, known, found = _sections(cls), accepted(cls), dict(settings)
    for key, value in settings.items():
        if key in sections and isinstance(value, Mapping):
            found[key] = _with_lists(sections[key], value)
        elif isinstance(value, str) and key in known and fault(value, known[key]) and not fault([value], known[key]):
            found[key] = [value]
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One field of a settings class."""

    name: str
    """The name with its sections: "search.sampling.top_p"."""
    hint: Any
    """Its type; `accepts` has the range too."""
    accepts: Any
    default: Any
    """`dataclasses.MISSING` if it must be given."""
    text: str
    """The string below the field."""
    shown: str = ""
    """What help and docs show for a default that is decided later."""


@functools.cache
def settings_of(cls: type) -> dict[str, Setting]:
    """Dotted name → setting: all of a dataclass and of its sections, in their order."""
    assert dataclasses.is_dataclass(cls), f"{cls} is no settings class"
    hints, texts, sections = typing.get_type_hints(cls), _field_texts(cls), _sections(cls)
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(cls):
        if field.name in sections:
            below = settings_of(sections[field.name]).values()
            parts = [dataclasses.replace(setting, name=f"{field.name}.{setting.name}") for setting in below]
        else:
            made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            accepts, shown = accepted(cls)[field.name], field.metadata.get(SHOWN, "")
            parts = [Setting(field.name, hints[field.name], accepts, made, texts.get(field.name, ""), shown)]
        found |= {setting.name: setting for setting in parts}
    return found


def _field_texts(cls: type) -> dict[str, str]:
    """Field → the string literal below it, also of base classes; Python keeps it in the source alone."""
    found: dict[str, str] = {}
    for one in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(definition, ast.ClassDef)
        for line, below in zip(definition.body, definition.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[ast.unparse(line.target)] = " ".join(str(below.value.value).split())
    return found


def to_toml(config: Any) -> str:
    """The settings of a dataclass as TOML, sections last; None is left out, since TOML has no such value."""
    import tomli_w

    text = tomli_w.dumps(_without_none(dataclasses.asdict(config)), indent=2)
    return re.sub(r"\[\n([^\[\]\"]*),\n *\]", _on_one_line, text)


def _on_one_line(numbers: re.Match[str]) -> str:
    """A list of numbers in a line, as people write it."""
    return "[" + ", ".join(number.strip() for number in numbers[1].split(",")) + "]"


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if value is not None
    }


def _toml_value(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text  # a string of several lines may look like settings


def _sections(cls: type) -> dict[str, type]:
    """The fields of a dataclass that are dataclasses themselves, also as `Section | None`."""
    found: dict[str, type] = {}
    for name, hint in typing.get_type_hints(cls).items():
        for choice in typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
            if isinstance(choice, type) and dataclasses.is_dataclass(choice):
                found[name] = choice
    return found


def _reject_unknown_keys(cls: type, settings: Mapping[str, Any], where: str) -> None:
    assert dataclasses.is_dataclass(cls), f"{cls} is no settings class"
    known = [field.name for field in dataclasses.fields(cls)]
    unknown = [key for key in settings if key not in known]
    if unknown:
        near = [name for key in unknown for name in difflib.get_close_matches(str(key), known, n=1)]
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"Unknown keys {unknown}{f' in [{where}]' if where else ''}.{meant} Known: {known}.")

"""Plugins: entry points of installed packages, and names in Python files of the user (`my_file.py:Name`)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from prism_prm.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Plugins(Generic[T]):
    """All values of one kind: built in, and from installed packages, which are loaded on first use."""

    what: str
    """What a value is called in messages: `benchmark`."""
    own: Mapping[str, T]
    group: str
    """The entry point group of other packages."""
    wanted: str
    """What a value must be, for messages: `a Benchmark`."""
    fits: Callable[[Any], bool]
    """Whether a value is valid."""
    also: str = ""
    """What else can be named, for messages."""

    def names(self) -> list[str]:
        """All known names; loads no other package."""
        return list(dict.fromkeys([*self.own, *sorted(entry.name for entry in entry_points(group=self.group))]))

    def find(self, name: str) -> T:
        """Load the value of that name."""
        entries = {entry.value: entry for entry in entry_points(group=self.group) if entry.name == name}
        places = [*["prism-prm"] * (name in self.own), *entries]
        if len(places) > 1:
            raise self._error(
                f"The {self.what} {name!r} is defined {len(places)} times: {', '.join(places)}. Rename or uninstall "
                "one."
            )
        if name in self.own:
            return self.own[name]
        if not entries:
            raise self._error(f"Unknown {self.what} {name!r}.")
        (entry,) = entries.values()
        try:
            found = entry.load()
        except Exception as error:  # another package's code may raise anything
            raise self._error(
                f"The {self.what} {name!r} cannot be loaded from {entry.value}: {type(error).__name__}: {error}. "
                "Fix or uninstall that package."
            ) from error
        return self._checked(found, name, entry.value)

    def from_file(self, name: str) -> tuple[T, str]:
        """Run the file of `my_file.py:Name`; returns the value and the file's SHA-256."""
        file, _, value = name.rpartition(":")
        if not file:
            raise ConfigError(f"{name} is a file; name the {self.what} in it to use, e.g. {name}:Mine.")
        module, sha256 = _run(Path(file), f"The {self.what} {name!r}")
        if not hasattr(module, value):
            valid = [key for key, one in vars(module).items() if not key.startswith("_") and self.fits(one)]
            raise ConfigError(
                f"{file} has no {value!r}. Names in it that are {self.wanted}: {', '.join(valid) or 'none'}."
            )
        return self._checked(getattr(module, value), name, name), sha256

    def _checked(self, found: Any, name: str, place: str) -> T:
        if not self.fits(found):
            what = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
            raise self._error(f"The {self.what} {name!r}: {place} is {what}, not {self.wanted}.")
        value: T = found
        return value

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{message} Known: {', '.join(self.names())}{self.also}.")


def is_in_file(name: str) -> bool:
    """Whether a name has the form `my_file.py:Name`."""
    return name.endswith(".py") or name.rpartition(":")[0].endswith(".py")


def sha256_of(value: type) -> str:
    """The SHA-256 of the file that defines a class."""
    file = getattr(sys.modules[value.__module__], "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(f"{value.__module__}:{value.__name__} has no source file; install its package unzipped.")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _run(file: Path, who: str) -> tuple[ModuleType, str]:
    """Run a file as a module; returns it and the hash of the code. An unchanged file runs once."""
    try:
        code = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{who}: {file} cannot be read ({error.strerror}); give its correct path.") from None
    sha256 = hashlib.sha256(code).hexdigest()
    name = f"prism_prm_file_{file.stem}_{sha256[:16]}"
    if name not in sys.modules:
        module = ModuleType(name)
        module.__file__ = str(file)
        sys.modules[name] = module  # dataclasses look up their module there
        try:
            exec(compile(code, str(file), "exec"), vars(module))
        except Exception as error:
            del sys.modules[name]
            raise ConfigError(f"{who} cannot be loaded: {type(error).__name__}: {error}. Fix {file}.") from error
    return sys.modules[name], sha256

"""Values that other packages add: each names one in an entry point, and it is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TypeVar

from prism_prm.errors import ConfigError

T = TypeVar("T")


def find(name: str, own: Mapping[str, T], kind: type[T], group: str) -> T:
    """The value of that name: one of ours, or the one that an installed package names in the entry points `group`."""
    what = kind.__name__.lower()
    added = {entry.name: entry for entry in entry_points(group=group)}
    if name in own and name in added:
        raise ConfigError(f"Two {what}s are called {name!r}: ours and {added[name].value}; give that one another name.")
    if name in own:
        return own[name]
    if name not in added:
        raise ConfigError(f"Unknown {what}s {[name]}. Known: {', '.join(dict.fromkeys([*own, *sorted(added)]))}.")
    entry = added[name]
    try:
        found = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The {what} {name!r} cannot be loaded from {entry.value}: {error}. Mend or uninstall that package."
        ) from error
    if not isinstance(found, kind):
        raise ConfigError(f"The {what} {name!r}: {entry.value} is of type {type(found).__name__}, not {kind.__name__}.")
    return found

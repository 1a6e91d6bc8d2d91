"""The journal of a search: one line per problem that is done, so that a run that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from prism_prm.errors import ConfigError, DataError
from prism_prm.files import JsonLines
from prism_prm.search.results import Found


class Journal:
    """Appends what was found; opens only onto work that was made in the same way."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.done: dict[str, Found] = {}
        """Key of a problem → what was found; the records' own numbers are of no meaning here."""
        self.seconds = 0.0
        """Of all runs that wrote to it."""
        made = msgspec.to_builtins(made_with)
        self._lines = JsonLines(self.path, sync=True)
        before = self._read()
        if before is None:
            self._lines.append({"made_with": made})
        elif changed := [key for key in {**before, **made} if before.get(key) != made.get(key)]:
            raise ConfigError(
                f"{self.path}: the search there was made with other settings ({', '.join(changed)}). Choose another "
                "--out, or remove that folder."
            )
        self._before = self.seconds

    def _read(self) -> dict[str, Any] | None:
        """Take in what is there; what it was made with, or None for an empty journal."""
        try:
            first, *rest = self._lines.read() or [None]
            for record in rest:
                self.done[record["problem"]] = msgspec.convert(record["found"], Found)
                self.seconds = record["seconds"]
            return None if first is None else dict(first["made_with"])
        except (DataError, msgspec.MsgspecError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path}: not a journal of prism search ({error}). Choose another --out.") from error

    def append(self, problem: str, found: Found, seconds: float) -> None:
        """Note a problem as done; `seconds` is how long this run has taken so far."""
        self.done[problem] = found
        self.seconds = self._before + seconds
        self._lines.append({"problem": problem, "found": found, "seconds": self.seconds})

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

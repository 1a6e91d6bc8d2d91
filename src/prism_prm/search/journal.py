"""The journal of a search: one line per problem that is done, so that a run that was stopped goes on where it was.

A line is only counted when it is whole; a run that dies while writing loses that one problem.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from prism_prm.errors import ConfigError
from prism_prm.search.results import Found


class Journal:
    """Appends what was found; opens only onto work that was made in the same way."""

    def __init__(self, path: str | Path, made_with: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.done: dict[str, Found] = {}
        """Key of a problem → what was found; the records' own numbers are of no meaning here."""
        self.seconds = 0.0
        """Of all runs that wrote to it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = msgspec.to_builtins(made_with)
        whole = self._read(made) if self.path.exists() else 0
        self._file = self.path.open("r+b" if self.path.exists() else "wb")
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self._write({"made_with": made})
        self._before = self.seconds

    def _read(self, made: Mapping[str, Any]) -> int:
        """Take in the lines that are whole; how many bytes they are."""
        data = self.path.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        if not lines:
            return 0
        try:
            before = msgspec.json.decode(lines[0])["made_with"]
            for line in lines[1:]:
                record = msgspec.json.decode(line)
                self.done[record["problem"]] = msgspec.convert(record["found"], Found)
                self.seconds = record["seconds"]
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path}: not a journal of prism search ({error}). Choose another --out.") from error
        changed = [key for key in {**before, **made} if before.get(key) != made.get(key)]
        if changed:
            raise ConfigError(
                f"{self.path}: the search there was made with other settings ({', '.join(changed)}). Choose another "
                "--out, or remove that folder."
            )
        return sum(len(line) + 1 for line in lines)

    def append(self, problem: str, found: Found, seconds: float) -> None:
        """Note a problem as done; `seconds` is how long this run has taken so far."""
        self.done[problem] = found
        self.seconds = self._before + seconds
        self._write({"problem": problem, "found": found, "seconds": self.seconds})

    def _write(self, record: Any) -> None:
        self._file.write(msgspec.json.encode(record) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

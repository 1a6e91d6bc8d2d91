"""What a critic wrote, and the append-only files that keep it: asking twice costs nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from prism_prm.errors import DataError, PrismError
from prism_prm.files import JsonLines
from prism_prm.job import locked_file

Turn = tuple[str, str]
"""(role, content)."""
MOST_FILES = 1000


class TokenChoice(msgspec.Struct, frozen=True, array_like=True):
    """A token as it was written, and the likeliest ones in its place with their log-probabilities."""

    token: str
    top: tuple[tuple[str, float], ...]


class Reply(msgspec.Struct, frozen=True):
    """One answer of a model."""

    text: str
    reason: Literal["stop", "length", "content_filter", "too-long"]
    """Why it ends; "too-long": the server did not take the question."""
    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False
    """Whether the numbers of tokens are guessed from the length of the texts, because the server gives none."""
    refused: bool = False
    stopped_by: str | None = None
    """The stop text, if the server names it."""
    tokens: tuple[TokenChoice, ...] | None = None
    """Log-probabilities; None if the server gives none."""
    seconds: float = 0.0

    @property
    def has_no_text(self) -> bool:
        """Whether there is nothing to continue or to read."""
        return self.refused or self.reason in ("content_filter", "too-long")

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: the turns so far, and how the critic's own turn begins."""

    turns: tuple[Turn, ...]
    begun: str
    """The critic's turn so far, to be continued; "" begins a new one."""
    opening: str
    """What must stand before it at the head of the turn."""
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    stops: tuple[str, ...]
    log_probabilities: bool
    draw: str
    """Which of several answers to the same question: `vote.redraw`."""

    @property
    def seed(self) -> int:
        """A seed of 31 bits, as servers take them."""
        return int.from_bytes(hashlib.blake2b(repr(asdict(self)).encode("utf-8", "surrogatepass")).digest()[:4]) >> 1

    def key(self, format: str, model: str) -> str:
        """What a reply is kept under: the format, the model, and everything that is asked."""
        said = json.dumps([format, model, asdict(self)], sort_keys=True)
        return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Replies:
    """All replies in a folder; this process appends to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, Reply] = {}
        for path in sorted(folder.glob("replies-*.jsonl")):
            self._read(path)
        self._held = contextlib.ExitStack()
        self._lines: JsonLines | None = None
        self._ledger: JsonLines | None = None

    def _read(self, path: Path) -> None:
        try:
            for line in JsonLines(path).read():
                self.found[line["key"]] = msgspec.convert(line["reply"], Reply)
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a file of replies ({error}); correct or remove it") from None

    def append(self, key: str, reply: Reply, about: dict[str, Any]) -> None:
        """File a reply; it is on disk when this returns."""
        self._open()
        assert self._lines is not None
        self.found[key] = reply
        self._lines.append({"key": key, **about, "reply": msgspec.to_builtins(reply)})

    def charge(self, record: dict[str, Any]) -> None:
        """Add a line to the ledger."""
        self._open()
        assert self._ledger is not None
        self._ledger.append(record)

    def _open(self) -> None:
        """The first file that no other process holds."""
        if self._lines is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(MOST_FILES):
            path = self.folder / f"replies-{number:03}.jsonl"
            try:
                self._held.enter_context(locked_file(path))
            except PrismError:
                continue
            self._lines = JsonLines(path, sync=True)
            self._ledger = JsonLines(self.folder / f"ledger-{number:03}.jsonl")
            return
        raise PrismError(f"{self.folder}: {MOST_FILES} processes are writing replies here; name another --replies")

    def close(self) -> None:
        """Let other processes have the file."""
        for lines in (self._lines, self._ledger):
            if lines is not None:
                lines.close()
        self._lines = self._ledger = None
        self._held.close()

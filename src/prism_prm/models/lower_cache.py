"""A cache of frozen-layer activations on disk, so that training and scoring run only the upper layers.

A token's hidden state depends only on its own path, not on the tree, row or batch it is in. So states are cached by
content: those of one prompt or step under its length and the hash of all ids from the start of its path to its end. Any
work with the same path reuses them: another epoch, another objective, margins, validation, a benchmark.

States are added in shards, each a safetensors file that appears whole or not at all; what a killed process had computed
since its last shard is computed again. Several processes may use one folder: each writes its own shards, and appends
their names to a list, so that the others find them without scanning the folder.

Shapes: B rows, L tokens of a row, H hidden size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prism_prm.errors import DataError
from prism_prm.files import whole_file
from prism_prm.models.load_lm import hash_tensors, plain_config
from prism_prm.models.module import PrmModule, divide
from prism_prm.models.packing import PackedBatch, Row, batch_rows

log = logging.getLogger(__name__)

SHARD_BYTES = 128 * 2**20
"""States are held in memory up to this size before they become a file."""
LIST_FILE = "shards.txt"
"""In the settings' folder: the shards in order of writing. It only tells of new ones; the folder says what exists."""


@dataclass(frozen=True)
class CacheSettings:
    """Where states are kept, and how much room they may take."""

    folder: str | Path
    layers: int
    """The embedding and this many lowest layers are frozen."""
    gigabytes: float = 50.0
    """When it is full, what is not in it is computed each time; nothing is thrown out."""


class LowerCache:
    """The kept states of one model's lower layers; `attach` puts them into a batch, computing what is missing."""

    def __init__(self, module: PrmModule, settings: CacheSettings) -> None:
        module.halves = divide(module.backbone, settings.layers)
        self.module = module
        self.folder = Path(settings.folder) / f"{settings.layers}-layers-{hash_lower(module, settings.layers)[:16]}"
        """States of other weights, of another dtype or number of layers have another folder."""
        self.settings = settings
        self.room = int(settings.gigabytes * 1e9)
        self.is_full = False
        self._bytes = 0
        """The size of everything in the settings' folder."""
        self._known: set[Path] = set()
        self._list_bytes = 0
        """How many bytes of the list have been read."""
        self._shards: list[Any] = []
        self._places: dict[bytes, tuple[int, int, int]] = {}
        """Key → (shard, its first token there, the token behind its last)."""
        self._new: dict[bytes, Tensor] = {}
        """States that are in no shard yet."""
        self._new_bytes = 0
        self._list = Path(settings.folder) / LIST_FILE
        with contextlib.suppress(OSError):
            self._list_bytes = self._list.stat().st_size  # before looking: a shard may be listed twice, not missed
        for path in sorted(Path(settings.folder).glob("*/*.safetensors")):
            self._add(path)

    def attach(self, batch: PackedBatch, rows: Sequence[Row]) -> PackedBatch:
        """The batch that was made of these rows, with the states of its tokens."""
        size = (*batch.input_ids_BL.shape, self.module.config.hidden_size)
        hidden_BLH = torch.zeros(size, dtype=self.module.backbone.dtype)
        needs = [_Need.of(row, self._has) for row in rows]
        for row_LH, need in zip(hidden_BLH, needs, strict=True):
            for start, stop, key in need.kept:
                if key in self._new:
                    row_LH[start:stop] = self._new[key]
                else:
                    shard, first, behind = self._places[key]
                    row_LH[start:stop] = self._shards[shard][first:behind]
        missing = [i for i, need in enumerate(needs) if need.missing]
        for i, states_LH in zip(missing, self._compute([needs[i] for i in missing]), strict=True):
            hidden_BLH[i, needs[i].columns_L] = states_LH
        return replace(batch, hidden_BLH=hidden_BLH)

    def fill(self, rows: Sequence[Row], token_budget: int) -> None:
        """Compute and keep what these rows need and the cache has not."""
        by_row = {id(need.row): need for row in rows if (need := _Need.of(row, self._has)).missing}
        for batch in batch_rows([need.row for need in by_row.values()], token_budget):
            if not self.is_full:
                self._compute([by_row[id(row)] for row in batch])
        self.flush()

    def flush(self) -> None:
        """Write what is held in memory as one more shard."""
        if not self._new:
            return
        self._find_new()
        new = {key: states for key, states in self._new.items() if key not in self._places}
        self._new, self._new_bytes = {}, 0
        if not new:
            return
        path = self.folder / f"{uuid.uuid4().hex}.safetensors"
        keys = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), -1)
        content = {
            "keys": torch.from_numpy(keys.copy()),
            "stops": torch.tensor([len(states) for states in new.values()]).cumsum(0),
            "hidden": torch.cat(list(new.values())),
        }
        try:
            with whole_file(path) as aside:
                save_file(content, aside)
            self._add(path)
            with self._list.open("a", encoding="utf-8") as file:
                file.write(f"\n{path.relative_to(self.settings.folder)}\n")  # the first newline ends a torn line
        except (OSError, SafetensorError) as error:
            log.warning("%s: no more activations can be cached (%s): they are computed each time", self.folder, error)
            self.is_full, self.room = True, 0

    def _find_new(self) -> None:
        """Find the shards that other processes have written since the last time."""
        try:
            with self._list.open("rb") as file:
                file.seek(self._list_bytes)
                listed = file.read()
        except OSError:
            return
        end = listed.rfind(b"\n") + 1  # what follows is being written
        self._list_bytes += end
        for name in listed[:end].decode(errors="replace").split():
            with contextlib.suppress(OSError):
                self._add(Path(self.settings.folder) / name)

    def _add(self, path: Path) -> None:
        """Count a shard, and open it if it is one of this model."""
        if path in self._known:
            return
        self._bytes += path.stat().st_size
        self._known.add(path)
        if path.parent != self.folder:
            return
        try:
            shard: Any = safe_open(path, framework="pt")
            keys, stops = shard.get_tensor("keys").numpy(), shard.get_tensor("stops").tolist()
        except (SafetensorError, OSError) as error:
            raise DataError(f"{path}: not a shard of cached activations ({error}); remove it") from error
        for key, start, stop in zip(keys, [0, *stops], stops, strict=False):
            self._places[key.tobytes()] = (len(self._shards), start, stop)
        self._shards.append(shard.get_slice("hidden"))

    def _has(self, key: bytes) -> bool:
        return key in self._places or key in self._new

    def _compute(self, needs: Sequence[_Need]) -> list[Tensor]:
        """The states_LH that each row needs, from the model; those that are new are kept."""
        if not needs:
            return []
        batch = self.module.collate([need.row for need in needs]).to(self.module.device)
        found = []
        for states_LH, need in zip(self.module.lower(batch).cpu(), needs, strict=True):
            found.append(states_LH[: len(need.row)])
            for start, stop, key in need.missing:
                self._keep(key, states_LH[start:stop])
        return found

    def _keep(self, key: bytes, states: Tensor) -> None:
        if self._has(key):
            return
        size = states.nbytes
        if self._bytes + self._new_bytes + size > self.room:
            if not self.is_full:
                folder = self.settings.folder
                log.warning("%s is full (%.1f GB): other activations are computed each time", folder, self.room / 1e9)
            self.is_full = True
            return
        self._new[key] = states.clone()
        self._new_bytes += size
        if self._new_bytes >= SHARD_BYTES:
            self.flush()


Span = tuple[int, int, bytes]
"""(first column, column behind the last, key) of a prompt or step in a row."""


@dataclass(frozen=True, slots=True)
class _Need:
    """What of a row is kept already, and the part of the row that has to be run for the rest."""

    kept: list[Span]
    row: Row
    """What is missing and what that stands on."""
    columns_L: np.ndarray
    """Where these tokens are in the whole row."""
    missing: list[Span]
    """In columns of the part."""

    @classmethod
    def of(cls, row: Row, has: Callable[[bytes], bool]) -> _Need:
        kept: list[Span] = []
        missing: list[Span] = []
        is_run_L = np.zeros(len(row), bool)
        for start, stop in zip(row.starts, (*row.starts[1:], len(row)), strict=True):
            on_path_L = row.ends_L[:stop] >= stop
            length = int(stop - start).to_bytes(8, "little")  # the same path may be cut into other steps
            key = hashlib.blake2b(row.ids_L[:stop][on_path_L].tobytes(), digest_size=16, salt=length).digest()
            if has(key):
                kept.append((start, stop, key))
            else:
                missing.append((start, stop, key))
                is_run_L[:stop] |= on_path_L
        before_L = np.concatenate([[0], np.cumsum(is_run_L)])
        columns_L = np.flatnonzero(is_run_L)
        part = Row(row.ids_L[columns_L], row.positions_L[columns_L], before_L[row.ends_L[columns_L]], (), (), ())
        return cls(kept, part, columns_L, [(int(before_L[a]), int(before_L[b]), key) for a, b, key in missing])


def hash_lower(module: PrmModule, layers: int) -> str:
    """A hash of the embedding and the lowest layers: what decides the hidden states behind them."""
    backbone = module.backbone
    upper = {f"layers.{i}." for i in range(layers, len(backbone.layers))}
    config = plain_config(module.config)
    for later in ("num_hidden_layers", "max_window_layers", "tie_word_embeddings"):
        config.pop(later, None)
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:layers]
    lower = [item for item in backbone.state_dict().items() if not item[0].startswith((*upper, "norm."))]
    return hash_tensors([json.dumps([config, layers], sort_keys=True, default=str)], lower)

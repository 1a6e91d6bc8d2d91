"""A disk cache of frozen-layer activations, so that training and scoring run only the upper layers, or only the head.

A token's hidden state depends only on its own path, not on the tree, row or batch it is in. So states are cached by
content: the states of a prompt or step, under its length and the hash of all ids from the start of its path to its end.
Any work with the same path reuses them: another epoch, another objective, margins, validation, a benchmark. If all
layers are frozen, the head needs only the last states at the read positions, so only these are cached.

States are written in shards, each an atomically written safetensors file; a killed process loses only what it computed
since its last shard. Several processes may use one folder: each writes its own shards and appends their names to a
list, so that the others find them without scanning the folder.

Shapes: B rows, L tokens of a row, R reads, H hidden size.
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
from safetensors.torch import save
from torch import Tensor

from prism_prm.arrays import Ints
from prism_prm.errors import ConfigError, DataError
from prism_prm.files import atomic_file, remove_parts
from prism_prm.models.load_lm import hash_tensors, plain_config
from prism_prm.models.module import PrmModule, divide
from prism_prm.models.packing import PackedBatch, Row, batch_rows

log = logging.getLogger(__name__)

SHARD_BYTES = 128 * 2**20
"""States are buffered in memory up to this size before they are written."""
LIST_FILE = "shards.txt"
"""Lists the shards in order of writing, to announce new ones; the files themselves are what counts."""


@dataclass(frozen=True)
class CacheSettings:
    """The folder and the size limit of the cache."""

    folder: str | Path
    layers: int
    """The number of frozen layers, counted from the lowest; the embedding is frozen too, and with all layers the last
    norm."""
    gigabytes: float = 50.0
    """The size limit. When the cache is full, other activations are computed each time; nothing is evicted."""
    bf16: bool = False
    """Run the frozen layers in mixed precision and store their activations in bfloat16."""


class LowerCache:
    """The cached states of one model's lower layers; `attach` adds them to a batch and computes what is missing."""

    def __init__(self, module: PrmModule, settings: CacheSettings) -> None:
        self.reads_only = settings.layers == len(getattr(module.backbone, "layers", ()))
        """Whether all layers are frozen: only the last states at read positions are cached."""
        if self.reads_only and module.reads_tokens:
            raise ConfigError(
                f"{settings.layers} frozen layers: the scores of a language model need its last states at all tokens, "
                f"and with all layers frozen only those at read positions are cached; freeze fewer layers."
            )
        if not self.reads_only:
            module.halves = divide(module.backbone, settings.layers)
        self.module = module
        self.dtype = torch.bfloat16 if settings.bf16 else module.backbone.dtype
        name = f"{settings.layers}-layers-{'bf16-' * settings.bf16}{hash_lower(module, settings.layers)[:16]}"
        self.folder = Path(settings.folder) / name
        """Other weights, dtypes and numbers of layers have other folders."""
        self.settings = settings
        self.room = int(settings.gigabytes * 1e9)
        self.is_full = False
        self._bytes = 0
        """The size of all shards in the settings' folder."""
        self._known: set[Path] = set()
        self._list_bytes = 0
        """The number of bytes of the list that have been read."""
        self._shards: list[Tensor] = []
        """The states of each shard, memory-mapped."""
        self._places: dict[bytes, tuple[int, int, int]] = {}
        """Key → (shard, first token, end token)."""
        self._new: dict[bytes, Tensor] = {}
        """States that are not written yet."""
        self._new_bytes = 0
        self._list = Path(settings.folder) / LIST_FILE
        with contextlib.suppress(OSError):  # it may be read-only
            remove_parts(self.folder, ".*")
        with contextlib.suppress(OSError):
            self._list_bytes = self._list.stat().st_size  # before the scan: a shard may be seen twice, but not missed
        for path in sorted(Path(settings.folder).glob("*/*.safetensors")):
            self._add(path)

    def attach(self, batch: PackedBatch, rows: Sequence[Row]) -> PackedBatch:
        """Add the states of its tokens, or of its reads, to a batch that was collated from these rows."""
        size = (*batch.input_ids_BL.shape, self.module.config.hidden_size)
        make = torch.empty if self.reads_only else torch.zeros  # untouched memory costs nothing
        hidden_BLH = make(size, dtype=self.module.backbone.dtype)
        needs = [self._need(row) for row in rows]
        for row_LH, need in zip(hidden_BLH, needs, strict=True):
            for start, stop, key in need.kept:
                if key in self._new:
                    row_LH[start:stop] = self._new[key]
                else:
                    shard, first, end = self._places[key]
                    row_LH[start:stop] = self._shards[shard][first:end]
        missing = [i for i, need in enumerate(needs) if need.missing]
        for i, states_LH in zip(missing, self._compute([needs[i] for i in missing]), strict=True):
            hidden_BLH[i, needs[i].columns_L] = states_LH.to(hidden_BLH.dtype)
        if self.reads_only:
            return replace(batch, hidden_RH=hidden_BLH[batch.read_row_R, batch.read_col_R])
        return replace(batch, hidden_BLH=hidden_BLH)

    def fill(self, rows: Sequence[Row], token_budget: int) -> int:
        """Compute and cache what these rows need and the cache does not have. Returns the number of tokens run."""
        by_row: dict[int, _Need] = {}
        planned: set[bytes] = set()  # two trees may share a path
        for row in rows:
            need = _Need.of(row, lambda key: self._has(key) or key in planned, reads_only=self.reads_only)
            if need.missing:
                by_row[id(need.row)] = need
                planned.update(key for _, _, key in need.missing)
        tokens = 0
        for batch in batch_rows([need.row for need in by_row.values()], token_budget):
            if not self.is_full:
                self._compute([by_row[id(row)] for row in batch])
                tokens += sum(map(len, batch))
        self.flush()
        return tokens

    def places(self, rows: Sequence[Row]) -> Ints | None:
        """(shard, index) of the state of each read of these rows, for `take`; None if some are not in the cache."""
        self.flush()
        needs = [self._need(row) for row in rows]
        if any(need.missing for need in needs):
            return None
        return np.array([self._places[key][:2] for need in needs for _, _, key in need.kept], np.int64)

    def take(self, places_R2: Ints) -> Tensor:
        """Read the states hidden_RH at these places."""
        hidden_RH = torch.empty(len(places_R2), self.module.config.hidden_size, dtype=self.module.backbone.dtype)
        for shard in np.unique(places_R2[:, 0]).tolist():
            at_R = np.flatnonzero(places_R2[:, 0] == shard)
            hidden_RH[at_R] = self._shards[shard][places_R2[at_R, 1]].to(hidden_RH.dtype)
        return hidden_RH

    def _need(self, row: Row) -> _Need:
        return _Need.of(row, self._has, reads_only=self.reads_only)

    def flush(self) -> None:
        """Write the buffered states as one more shard."""
        if not self._new:
            return
        self.find_new_shards()
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
            with atomic_file(path) as aside:
                aside.write_bytes(save(content))  # `save_file` makes a new file, which would not be locked
            self._add(path)
            with self._list.open("a", encoding="utf-8") as file:
                file.write(f"\n{path.relative_to(self.settings.folder)}\n")  # the first newline ends a torn line
        except (OSError, SafetensorError) as error:
            log.warning("%s: cannot cache more activations (%s); they are computed each time", self.folder, error)
            self.is_full, self.room = True, 0

    def find_new_shards(self) -> None:
        """Add the shards that other processes have written since the last call."""
        try:
            with self._list.open("rb") as file:
                file.seek(self._list_bytes)
                new_lines = file.read()
        except OSError:
            return
        end = new_lines.rfind(b"\n") + 1  # the rest is still being written
        self._list_bytes += end
        for name in new_lines[:end].decode(errors="replace").split():
            with contextlib.suppress(OSError):
                self._add(Path(self.settings.folder) / name)

    def _add(self, path: Path) -> None:
        """Count a shard, and open it if it belongs to this model."""
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
        self._shards.append(shard.get_tensor("hidden"))

    def _has(self, key: bytes) -> bool:
        return key in self._places or key in self._new

    def _compute(self, needs: Sequence[_Need]) -> list[Tensor]:
        """Run the model for each row's part; returns its states_LH and caches those that are new."""
        if not needs:
            return []
        batch = self.module.collate([need.row for need in needs]).to(self.module.device)
        with torch.autocast(self.module.device.type, torch.bfloat16, enabled=self.settings.bf16):
            hidden_BLH = self.module.lower(batch).to("cpu", self.dtype)
        states = []
        for states_LH, need in zip(hidden_BLH, needs, strict=True):
            states.append(states_LH[: len(need.row)])
            for start, stop, key in need.missing:
                self._keep(key, states_LH[start:stop])
        return states

    def _keep(self, key: bytes, states: Tensor) -> None:
        if self._has(key):
            return
        size = states.nbytes
        if self._bytes + self._new_bytes + size > self.room:
            if not self.is_full:
                folder = self.settings.folder
                log.warning("%s is full (%.1f GB); other activations are computed each time", folder, self.room / 1e9)
            self.is_full = True
            return
        self._new[key] = states.clone()
        self._new_bytes += size
        if self._new_bytes >= SHARD_BYTES:
            self.flush()


Span = tuple[int, int, bytes]
"""(first column, end column, key) of a prompt or step in a row; if only reads are cached, of a read."""


@dataclass(frozen=True, slots=True)
class _Need:
    """The spans of a row that are cached, and the part of the row to run for the rest."""

    kept: list[Span]
    row: Row
    """The part to run: missing spans and their ancestors."""
    columns_L: np.ndarray
    """The columns of the part's tokens in the whole row."""
    missing: list[Span]
    """The missing spans, in columns of the part."""

    @classmethod
    def of(cls, row: Row, has: Callable[[bytes], bool], *, reads_only: bool) -> _Need:
        kept: list[Span] = []
        missing: list[Span] = []
        is_run_L = np.zeros(len(row), bool)
        texts = zip(row.starts, (*row.starts[1:], len(row)), strict=True)
        for start, stop in ((column, column + 1) for column in row.reads) if reads_only else texts:
            on_path_L = row.ends_L[:stop] >= stop
            length = int(stop - start).to_bytes(8, "little")  # the same path may be split into other steps
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
    """Hash the embedding and the lowest layers, which determine the hidden states after them; with all layers, also the
    last norm."""
    backbone = module.backbone
    upper = [f"layers.{i}." for i in range(layers, len(backbone.layers))]
    config = plain_config(module.config)
    for later in ("num_hidden_layers", "max_window_layers", "tie_word_embeddings"):
        config.pop(later, None)
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][:layers]
    lower = [item for item in backbone.state_dict().items() if not (upper and item[0].startswith((*upper, "norm.")))]
    return hash_tensors([json.dumps([config, layers], sort_keys=True, default=str)], lower)

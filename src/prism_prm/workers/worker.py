"""What runs in a worker: it makes what it holds, and acts on portions with it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prism_prm import __version__
from prism_prm.errors import ConfigError, DataError, ModelError, PrismError
from prism_prm.workers.copies import FolderCopy, unpack

KINDS = (DataError, ConfigError, ModelError, PrismError)
"""Errors that keep their kind on their way to the driver."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker that holds what it should."""

    node: str
    process: int
    version: str
    holds: str
    """What it holds, as `alike` names it."""


@dataclass(frozen=True, slots=True)
class Lacks:
    """A worker whose node does not see some folders."""

    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that the user can mend."""

    kind: type[PrismError]
    text: str
    node: str

    @classmethod
    def of(cls, error: PrismError) -> Refusal:
        return cls(next(kind for kind in KINDS if isinstance(error, kind)), str(error), node_name())

    def error(self) -> PrismError:
        """The error to raise in the driver."""
        return self.kind(f"{self.text} (on node {self.node})")


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The work did not fit; what is left of the memory is not to be trusted, so the worker is to be replaced."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """A result, and the seconds that it took."""

    result: Any
    seconds: float


class Worker:
    """A process of the cluster."""

    def prepare(
        self,
        made_by: tuple[Callable[[Mapping[str, str]], Any], Callable[[Any], str] | None],
        folders: Sequence[str],
        copies: Mapping[str, FolderCopy],
        threads: int,
    ) -> Ready | Lacks | Refusal | OutOfMemory:
        """Make what this worker holds; it may answer that it needs a copy of a folder first."""
        import torch

        make, alike = made_by
        torch.set_num_threads(threads)
        unseen = tuple(folder for folder in folders if not os.path.isdir(folder) and folder not in copies)
        if unseen:
            return Lacks(unseen)
        try:
            found = {name: name if os.path.isdir(name) else unpack(copies[name]) for name in folders}
            self.held = make(found)
            return Ready(node_name(), os.getpid(), __version__, "" if alike is None else alike(self.held))
        except PrismError as error:
            return Refusal.of(error)
        except (MemoryError, torch.OutOfMemoryError) as error:
            return OutOfMemory(str(error))

    def act(self, act: Callable[[Any, Any], Any], work: Any) -> Finished | Refusal | OutOfMemory:
        """Act on a portion."""
        import torch

        begun = time.perf_counter()
        try:
            return Finished(act(self.held, work), time.perf_counter() - begun)
        except PrismError as error:
            return Refusal.of(error)
        except (MemoryError, torch.OutOfMemoryError) as error:
            return OutOfMemory(str(error))


def node_name() -> str:
    """The machine and the node on it: several nodes can share a machine."""
    import ray

    return f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:6]}"

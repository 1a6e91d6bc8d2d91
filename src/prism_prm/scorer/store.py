"""The score store: which texts have been scored by which model.

A score is filed under its key, a hash of who scored (the scorer's identity: weights, family and its settings, dtype,
context, treatment of long paths) and of what was read: the problem and every step up to the scored one. Other texts,
another model or other settings have other keys, so an old score is never mistaken for a new one.

A key is scored once and has one value: equal steps of one piece of work are scored where they come first, and what
other work has filed is not scored again.

Work is done in portions of trees. What a portion adds becomes one file, named by its keys: it is complete or absent,
and a killed run repeats at most one portion per process, bit for bit. Several processes may fill one store.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.errors import DataError
from prism_prm.files import whole_file
from prism_prm.foreign import fitted, reading_parquet
from prism_prm.protocol import Scorer, TreeScores
from prism_prm.records import ROOT, StepTree
from prism_prm.resume import stoppable
from prism_prm.types import Advance, Say, ignore, silent

PORTION = 64
"""Trees that are scored and filed together: what a stop can cost."""
_KEY_BYTES = 16
_KEYS = np.dtype(f"S{_KEY_BYTES}")


@dataclass(frozen=True, slots=True)
class Share:
    """Which of several processes this is, and how to wait for the others."""

    rank: int = 0
    world: int = 1
    wait: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Request:
    """Nodes of a tree whose scores are wanted."""

    tree: StepTree
    nodes: Sequence[int]

    @classmethod
    def all_of(cls, tree: StepTree) -> Request:
        return cls(tree, range(len(tree.nodes)))


@dataclass(frozen=True, slots=True)
class Filled:
    """How much of the work there was, and how much of it was there before."""

    portions: int
    found: int
    """Portions that did not have to be scored."""


def keys_of(identity: str, request: Request, *, whole: bool = False) -> list[bytes]:
    """The keys of a request's nodes: each path is hashed step by step, so a tree costs no more than its texts.

    `whole` is for scorers whose scores of a step depend on later steps too: then the whole tree is in every key.
    """
    tree = request.tree
    known: dict[int, bytes] = {ROOT: _digest(identity.encode(), tree.problem)}
    if whole:
        known[ROOT] = _digest(known[ROOT], tree.content_hash())
    for node, parent in enumerate(tree.parents):
        known[node] = _digest(known[parent], tree.nodes[node].text)
    return [known[node] for node in request.nodes]


def _digest(before: bytes, text: str) -> bytes:
    return hashlib.blake2b(before + b"\0" + text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()


@contextlib.contextmanager
def store_for(
    out: str | Path,
    scorer: Scorer,
    folder: str | Path | None,
    *,
    share: Share | None = None,
    portion: int = PORTION,
    say: Say = silent,
) -> Iterator[ScoreStore]:
    """The store in `folder`; without one, a store beside the file `out`, removed when the block has written that.

    If the block ends with an error, the store beside stays, and the same work is resumed from it.
    """
    share = share or Share()
    out = Path(out)
    own = out.with_name(f".{out.name}.scores")
    yield ScoreStore(folder or own, scorer, portion=portion, say=say)
    share.wait()
    if share.rank == 0:
        shutil.rmtree(own, ignore_errors=True)


class ScoreStore:
    """The scores of one scorer in a folder, which those of others may share."""

    def __init__(self, folder: str | Path, scorer: Scorer, *, portion: int = PORTION, say: Say = silent) -> None:
        self.scorer = scorer
        self.portion = portion
        self.say = say
        self.identity = scorer.identity()
        self.whole = bool(getattr(scorer, "reads_whole_solutions", False))
        """Whether a step's score depends on all of its solution."""
        self.folder = Path(folder) / hashlib.blake2b(self.identity.encode(), digest_size=8).hexdigest()
        self._files: set[str] = set()
        self._filed = _FiledScores.none(len(scorer.outputs))
        """Everything in the folder, sorted by key."""
        self._look()

    def score(
        self,
        requests: Sequence[Request],
        *,
        share: Share | None = None,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all requests, in order; see `fill`."""
        self.fill(requests, share=share, advance=advance)
        return list(self.read(requests))

    def fill(
        self,
        requests: Sequence[Request],
        *,
        share: Share | None = None,
        advance: Advance = ignore,
    ) -> Filled:
        """Score and file what is missing; `advance` is called with finished requests.

        Every process of a `Share` calls this with the same requests, scores its share, and returns when all is there.
        """
        share = share or Share()
        self._look()
        portions = list(self._portions(requests))
        is_there = [self._has(one) for one in portions]
        missing = self._missing(portions)
        share.wait()  # or a fast process's new portions would look like an earlier run's to a slow one
        total = sum(len(one.keys_N) for one in portions)
        filed = total - sum(len(rest.keys_N) for rest in missing)
        if filed:
            self.say(f"Reusing {filed:,} of {total:,} scores")
        with stoppable(lambda: f"with {filed:,} of {total:,} scores done" if filed else ""):
            for number, (one, rest) in enumerate(zip(portions, missing, strict=True)):
                if len(rest.keys_N) and number % share.world == share.rank:
                    some = [request for request in rest.requests if request.nodes]
                    found = self.scorer.score_trees([one.tree for one in some], [one.nodes for one in some])
                    self._write(_Portion(some, rest.keys_N), found)
                    filed += len(rest.keys_N)
                advance(len(one.requests))
        share.wait()
        self._look()
        return Filled(len(portions), sum(is_there))

    def read(self, requests: Sequence[Request]) -> Iterator[TreeScores]:
        """The scores of requests that were filled."""
        for one in self._portions(requests):
            yield from self._read(one)

    def add(self, requests: Sequence[Request], scores: Sequence[TreeScores]) -> None:
        """File scores that were made elsewhere, e.g. in a session; existing ones are kept."""
        self._look()
        [rest] = self._missing([_Portion.of(self.identity, requests, self.whole)])
        if len(rest.keys_N):
            self._write(rest, scores)
            self._look()

    def _portions(self, requests: Sequence[Request]) -> Iterator[_Portion]:
        for start in range(0, len(requests), self.portion):
            yield _Portion.of(self.identity, requests[start : start + self.portion], self.whole)

    def _has(self, portion: _Portion) -> bool:
        return bool((self._filed.places(portion.keys_N) >= 0).all())

    def _missing(self, portions: Sequence[_Portion]) -> list[_Portion]:
        """What each portion adds: its keys that are neither filed nor in an earlier place of the same work."""
        keys_N = np.concatenate([np.empty(0, _KEYS), *(one.keys_N for one in portions)])
        first_N = np.zeros(len(keys_N), bool)
        first_N[np.unique(keys_N, return_index=True)[1]] = True
        wanted_N = first_N & (self._filed.places(keys_N) < 0)
        parts = _parts(wanted_N, [len(one.keys_N) for one in portions])
        return [one.only(part_N) for one, part_N in zip(portions, parts, strict=True)]

    def _look(self) -> None:
        """Take in the files that are new, ours and those of other processes; of equal keys the first stays."""
        new = [path for path in sorted(self.folder.glob("*.parquet")) if path.name not in self._files]
        if new:
            self._filed = _FiledScores.joined(
                [self._filed, *(_FiledScores.in_file(path, self.scorer.outputs) for path in new)]
            )
            self._files.update(path.name for path in new)

    def _write(self, portion: _Portion, scores: Sequence[TreeScores]) -> None:
        rows = [(found, list(request.nodes)) for request, found in zip(portion.requests, scores, strict=True)]
        log_odds_NO = np.concatenate([found.log_odds_NO[nodes] for found, nodes in rows])
        too_long_N = np.concatenate([np.isin(nodes, found.too_long) for found, nodes in rows]).astype(bool)
        unjudged_N = np.concatenate([np.isin(nodes, found.unjudged) for found, nodes in rows]).astype(bool)
        assert np.isfinite(log_odds_NO[~too_long_N & ~unjudged_N]).all(), "a score is a number, unless it says why not"
        filed = _FiledScores(portion.keys_N, log_odds_NO, too_long_N, unjudged_N)
        filed.write(self.folder / portion.name, self.scorer.outputs)

    def _read(self, portion: _Portion) -> Iterator[TreeScores]:
        found = self._filed.take(self._filed.places(portion.keys_N))
        start = 0
        for request in portion.requests:
            nodes, here = np.array(request.nodes, np.int64), slice(start, start + len(request.nodes))
            start += len(nodes)
            log_odds_NO = np.full((len(request.tree.nodes), len(self.scorer.outputs)), np.nan)
            log_odds_NO[nodes] = found.log_odds_NO[here]
            too_long, unjudged = (tuple(nodes[flags[here]].tolist()) for flags in (found.too_long_N, found.unjudged_N))
            yield TreeScores(self.scorer.outputs, log_odds_NO, too_long, unjudged)


@dataclass(frozen=True, slots=True)
class _Portion:
    """Requests that are scored together, with the keys of their nodes."""

    requests: Sequence[Request]
    keys_N: np.ndarray

    @classmethod
    def of(cls, identity: str, requests: Sequence[Request], whole: bool = False) -> _Portion:
        keys = b"".join(key for request in requests for key in keys_of(identity, request, whole=whole))
        return cls(requests, np.frombuffer(keys, _KEYS))

    def only(self, wanted_N: np.ndarray) -> _Portion:
        """The same requests for some of their nodes, perhaps for none."""
        parts = _parts(wanted_N, [len(request.nodes) for request in self.requests])
        requests = [
            Request(request.tree, tuple(itertools.compress(request.nodes, part_N)))
            for request, part_N in zip(self.requests, parts, strict=True)
        ]
        return _Portion(requests, self.keys_N[wanted_N])

    @property
    def name(self) -> str:
        return f"{hashlib.blake2b(self.keys_N.tobytes(), digest_size=16).hexdigest()}.parquet"


def _parts(values_N: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The values cut into parts of these sizes."""
    return [values_N[start:end] for start, end in itertools.pairwise(itertools.accumulate(sizes, initial=0))]


@dataclass(frozen=True, slots=True)
class _FiledScores:
    """Scores by key, as columns."""

    keys_N: np.ndarray
    log_odds_NO: np.ndarray
    too_long_N: np.ndarray
    unjudged_N: np.ndarray
    """Where a critic gave no verdict; files have this column only if there are any."""

    @classmethod
    def none(cls, outputs: int) -> _FiledScores:
        return cls(np.empty(0, _KEYS), np.empty((0, outputs)), np.empty(0, bool), np.empty(0, bool))

    @classmethod
    def joined(cls, parts: Sequence[_FiledScores]) -> _FiledScores:
        """All of them sorted by key."""
        keys_N, first_N = np.unique(np.concatenate([part.keys_N for part in parts]), return_index=True)
        columns = ([getattr(part, name) for part in parts] for name in ("log_odds_NO", "too_long_N", "unjudged_N"))
        return cls(keys_N, *(np.concatenate(column)[first_N] for column in columns))

    def places(self, keys_N: np.ndarray) -> np.ndarray:
        """Where keys stand among these sorted ones; −1 where they do not."""
        if not len(self.keys_N):
            return np.full(len(keys_N), -1)
        at_N = np.minimum(np.searchsorted(self.keys_N, keys_N), len(self.keys_N) - 1)
        return np.where(self.keys_N[at_N] == keys_N, at_N, -1)

    def take(self, places_N: np.ndarray) -> _FiledScores:
        assert (places_N >= 0).all(), "requests are filled before they are read"
        columns = (self.keys_N, self.log_odds_NO, self.too_long_N, self.unjudged_N)
        return _FiledScores(*(column[places_N] for column in columns))

    @classmethod
    def in_file(cls, path: Path, outputs: Sequence[str]) -> _FiledScores:
        remedy = "not a file of the score store; remove it to score it again"
        fields = [("key", pa.binary(_KEY_BYTES)), *((name, pa.float64()) for name in outputs), ("too_long", pa.bool_())]
        try:
            with reading_parquet(path, remedy):
                found = pq.read_table(path)
                fields += [("unjudged", pa.bool_())] * ("unjudged" in found.column_names)
                schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])
                table = fitted(path, found, schema)
        except DataError as error:
            raise error if remedy in str(error) else DataError(f"{error}; {remedy}", reason=error.reason) from None
        keys_N = np.frombuffer(b"".join(table["key"].to_pylist()), _KEYS)
        log_odds_NO = np.stack([table[name].to_numpy() for name in outputs], axis=1)
        too_long_N = table["too_long"].to_numpy()
        unjudged_N = table["unjudged"].to_numpy() if "unjudged" in table.column_names else np.zeros(len(keys_N), bool)
        if not np.isfinite(log_odds_NO[~too_long_N & ~unjudged_N]).all():
            raise DataError(f"{path}: a score is not a finite number; {remedy}", reason="out-of-range")
        return cls(keys_N, log_odds_NO, too_long_N, unjudged_N)

    def write(self, path: Path, outputs: Sequence[str]) -> None:
        data = pa.py_buffer(self.keys_N.tobytes())
        keys = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_KEY_BYTES), len(self.keys_N), [None, data])
        log_odds = {name: pa.array(self.log_odds_NO[:, i]) for i, name in enumerate(outputs)}
        columns = {"key": keys, **log_odds, "too_long": pa.array(self.too_long_N)}
        if self.unjudged_N.any():
            columns["unjudged"] = pa.array(self.unjudged_N)
        with whole_file(path) as aside:
            pq.write_table(pa.table(columns), aside)

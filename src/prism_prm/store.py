"""The score store: a cache of scores on disk.

The key of a score is a hash of the scorer's identity (weights, family and its settings, dtype, context, treatment of
long paths) and of the text it read: the problem and every step up to the scored one. Other texts, another model or
other settings have other keys, so a stale score is never used.

Every key is scored once: equal steps are scored where they come first, and scores in the store are reused.

Trees are scored in chunks. The new scores of a chunk become one Parquet file, named by its keys and renamed into
place: it is complete or absent, and a killed run repeats at most the chunks in flight, bit for bit. Files never
change, so many processes and threads may extend a store. All keys and records of a scorer are in memory, sorted by key.
Several workers may score (`Scorer.workers`), but only this process writes. In training, several processes fill one
store, each its `Share`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prism_prm.aggregate import calibration_of
from prism_prm.console import Advance, ignore, say
from prism_prm.errors import DataError
from prism_prm.file_types import fitted, reading_parquet
from prism_prm.files import atomic_file, remove_parts
from prism_prm.job import Chunk, Here, stoppable
from prism_prm.scorer import Scorer, ScorerFacts, TreeScores
from prism_prm.tree import ROOT, StepTree

KEY = np.dtype("S16")
RECENT = 2**16
"""The size at which the small index of new records is merged into the large one."""
_REMEDY = "not a file of the score store; remove it to score it again"
CHUNK = 64
"""Trees that are scored and written together; a killed run loses the chunks in flight."""
AHEAD = 64
"""Finished chunks that may wait for an earlier one before reading pauses; with many workers, AHEAD_EACH per worker."""
AHEAD_EACH = 16
"""With 16, a worker with two chunks that is eight times slower than the others does not block them."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one process in a training run with several processes, and a barrier."""

    rank: int = 0
    world: int = 1
    wait: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Request:
    """Nodes of a tree to score."""

    tree: StepTree
    nodes: Sequence[int]

    @classmethod
    def all_of(cls, tree: StepTree) -> Request:
        return cls(tree, range(len(tree.nodes)))


Each = Callable[[Sequence[Request], list[TreeScores]], None]
"""A callback for requests and their scores."""


@dataclass(slots=True)
class Filled:
    """Counts of what was requested, and what was in the store already."""

    chunks: int = 0
    found: int = 0
    """Chunks that were in the store completely."""
    steps: int = 0
    missing: int = 0
    """Steps that had to be scored."""


def keys_of(identity: str, request: Request, *, whole: bool = False) -> list[bytes]:
    """The keys of a request's nodes. Paths are hashed step by step, so each text is hashed once.

    `whole` puts the whole tree into every key, for scorers whose scores depend on later steps.
    """
    tree = request.tree
    known: dict[int, bytes] = {ROOT: _digest(identity.encode(), tree.problem)}
    if whole:
        known[ROOT] = _digest(known[ROOT], tree.content_hash())
    for node, parent in enumerate(tree.parents):
        known[node] = _digest(known[parent], tree.nodes[node].text)
    return [known[node] for node in request.nodes]


def _digest(before: bytes, text: str) -> bytes:
    return hashlib.blake2b(before + b"\0" + text.encode("utf-8", "surrogatepass"), digest_size=KEY.itemsize).digest()


@contextlib.contextmanager
def store_for(
    out: str | Path,
    scorer: Scorer,
    folder: str | Path | None,
    *,
    chunk: int = CHUNK,
) -> Iterator[ScoreStore]:
    """The store in `folder`; without one, a temporary store next to the file `out`.

    The temporary store is removed when the block ends. It stays if the block fails, so that the work can be resumed.
    """
    out = Path(out)
    own = out.with_name(f".{out.name}.scores")
    yield ScoreStore(folder or own, scorer, chunk=chunk)
    shutil.rmtree(own, ignore_errors=True)


class ScoreStore:
    """The scores of one scorer in a folder that several may share. With `ScorerFacts` it only reads and adds."""

    def __init__(self, folder: str | Path, scorer: Scorer | ScorerFacts, *, chunk: int = CHUNK) -> None:
        self._given = scorer
        self.outputs = scorer.outputs
        self.chunk = chunk
        self.identity = scorer.identity()
        self.folder = Path(folder) / hashlib.blake2b(self.identity.encode(), digest_size=8).hexdigest()
        self._files: set[str] = set()
        """Names of the files that are in the index."""
        self._index = KeyIndex(_record(self.outputs))
        remove_parts(self.folder)
        self._read_new_files()

    @property
    def scorer(self) -> Scorer:
        assert isinstance(self._given, Scorer), "ScorerFacts cannot score"
        return self._given

    def score(
        self,
        requests: Sequence[Request],
        *,
        share: Share | None = None,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all requests, in order; missing ones are computed and stored (see `fill`)."""
        chunks = list(self._chunks(requests))
        self._fill(chunks, share or Share(), advance)
        return [scores for one in chunks for scores in self._scores_of(one)]

    def fill(self, requests: Iterable[Request], *, advance: Advance = ignore, each: Each | None = None) -> Filled:
        """Compute and store missing scores. Requests are read lazily, a chunk at a time.

        `advance` gets the number of finished requests; `each` gets every chunk's requests and scores, in order.
        """
        return self._fill(self._chunks(requests), Share(), advance, each)

    def add(self, requests: Sequence[Request], scores: Sequence[TreeScores]) -> None:
        """Store scores that were computed elsewhere, e.g. in a session; existing ones are kept."""
        self._read_new_files()
        keys_N = self._with_keys(requests).keys_N
        is_new_N = self._is_missing(keys_N)
        if is_new_N.any():
            self.file(keys_N[is_new_N], self._records(requests, scores)[is_new_N])

    def _fill(self, chunks: Iterable[_Keyed], share: Share, advance: Advance, each: Each | None = None) -> Filled:
        """Like `fill`; every process of a training run calls it with the same chunks and scores its share."""
        self._read_new_files()
        share.wait()  # or a slow process would take a fast one's new chunks for those of an earlier run
        workers = self.scorer.workers or Here(self.scorer)
        filled = Filled()
        waiting: dict[int, _Keyed] = {}  # chunks that were read but not passed on, in order
        in_work: set[int] = set()  # those of them that are not scored yet
        taken: set[bytes] = set()  # keys being scored, here or in another process

        def to_score() -> Iterator[Chunk[_Keyed] | None]:
            for number, one in enumerate(chunks):
                while len(waiting) - len(in_work) > max(AHEAD, AHEAD_EACH * workers.num_workers) and in_work:
                    yield None
                rest = one.only(self._is_missing(one.keys_N, taken))
                filled.chunks += 1
                filled.found += not rest.requests
                filled.steps += len(one.keys_N)
                filled.missing += len(rest.keys_N)
                waiting[number] = one
                taken.update(rest.keys_N.tolist())
                if rest.requests and number % share.world == share.rank:
                    in_work.add(number)
                    yield Chunk(number, rest.name, rest, len(rest.requests))
                else:
                    pass_on()

        def pass_on() -> None:
            """Pass on finished chunks; with `each`, which needs them in order, only up to the first unfinished one."""
            for number in list(waiting):
                if number in in_work:
                    if each is not None:
                        return
                    continue
                one = waiting.pop(number)
                if each is not None:
                    each(one.requests, self._scores_of(one))
                rates = workers.rates()
                advance(len(one.requests), rates) if rates else advance(len(one.requests))

        with stoppable(lambda: f"with {len(self._index):,} scores done" if len(self._index) else ""):
            for chunk, found in workers.run(_score, to_score()):
                self.file(chunk.work.keys_N, self._records(chunk.work.requests, found))
                in_work.remove(chunk.number)
                taken.difference_update(chunk.work.keys_N.tolist())
                pass_on()
        assert not waiting, "all chunks were passed on"
        if filled.steps > filled.missing:
            say(f"Reused {filled.steps - filled.missing:,} of {filled.steps:,} scores")
        share.wait()
        self._read_new_files()
        return filled

    def _chunks(self, requests: Iterable[Request]) -> Iterator[_Keyed]:
        left = iter(requests)
        while some := list(itertools.islice(left, self.chunk)):
            yield self._with_keys(some)

    def _with_keys(self, requests: Sequence[Request]) -> _Keyed:
        whole = self._given.reads_whole_solutions
        keys = b"".join(key for request in requests for key in keys_of(self.identity, request, whole=whole))
        return _Keyed(requests, np.frombuffer(keys, KEY))

    def _is_missing(self, keys_N: np.ndarray, others: Collection[bytes] = ()) -> np.ndarray:
        """Which keys are neither stored nor in `others`; of equal keys only the first counts."""
        is_missing_N = np.zeros(len(keys_N), bool)
        is_missing_N[np.unique(keys_N, return_index=True)[1]] = True
        is_missing_N &= ~self._index.find(keys_N)[0]
        if others:
            is_missing_N &= [key not in others for key in keys_N.tolist()]
        return is_missing_N

    def _records(self, requests: Sequence[Request], scores: Sequence[TreeScores]) -> np.ndarray:
        """One record for each node of the requests."""
        rows = [(found, list(request.nodes)) for request, found in zip(requests, scores, strict=True)]
        records_N = np.zeros(sum(len(nodes) for _, nodes in rows), _record(self.outputs))
        records_N["log_odds"] = np.concatenate([found.log_odds_NO[nodes] for found, nodes in rows])
        records_N["too_long"] = np.concatenate([np.isin(nodes, found.too_long) for found, nodes in rows])
        records_N["unjudged"] = np.concatenate([np.isin(nodes, found.unjudged) for found, nodes in rows])
        return records_N

    def _scores_of(self, chunk: _Keyed) -> list[TreeScores]:
        """The scores of a chunk; all its keys must be in the store."""
        is_there_N, records_N = self._index.find(chunk.keys_N)
        assert is_there_N.all(), "requests are filled before they are read"
        found, start, calibration = [], 0, calibration_of(self._given)
        for request in chunk.requests:
            nodes, own = np.array(request.nodes, np.int64), records_N[start : start + len(request.nodes)]
            start += len(nodes)
            log_odds_NO = np.full((len(request.tree.nodes), len(self.outputs)), np.nan)
            log_odds_NO[nodes] = own["log_odds"]
            too_long, unjudged = (tuple(nodes[own[why]].tolist()) for why in ("too_long", "unjudged"))
            found.append(TreeScores(self.outputs, log_odds_NO, too_long, unjudged, calibration))
        return found

    # --- files ---

    def _read_new_files(self) -> None:
        """Read files that other processes have added; of equal keys the first is kept."""
        new = [path for path in sorted(self.folder.glob("*.parquet")) if path.name not in self._files]
        if new:
            keys, records = zip(*map(self._read, new), strict=True)
            self._index.add(np.concatenate(keys), np.concatenate(records))
            self._files.update(path.name for path in new)

    def file(self, keys_N: np.ndarray, records_N: np.ndarray) -> None:
        """Write records with new keys to a file; it has a column `unjudged` only if a step was not judged."""
        assert _is_finite(records_N), "a score is finite unless its step is too long or not judged"
        keys = pa.py_buffer(keys_N.tobytes())
        columns = {"key": pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY.itemsize), len(keys_N), [None, keys])}
        for i, name in enumerate(self.outputs):
            columns[name] = pa.array(np.ascontiguousarray(records_N["log_odds"][:, i]))
        columns["too_long"] = pa.array(np.ascontiguousarray(records_N["too_long"]))
        if records_N["unjudged"].any():
            columns["unjudged"] = pa.array(np.ascontiguousarray(records_N["unjudged"]))
        name = f"{hashlib.blake2b(keys_N.tobytes(), digest_size=16).hexdigest()}.parquet"
        with atomic_file(self.folder / name) as aside:
            pq.write_table(pa.table(columns), aside)
        self._files.add(name)
        self._index.add(keys_N, records_N)

    def _read(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """The keys and records of a file."""
        fields = [("key", pa.binary(KEY.itemsize)), *((name, pa.float64()) for name in self.outputs)]
        try:
            with reading_parquet(path, _REMEDY):
                found = pq.read_table(path)
                flags = ["too_long", *(["unjudged"] if "unjudged" in found.column_names else [])]
                fields += [(name, pa.bool_()) for name in flags]
                table = fitted(path, found, pa.schema([pa.field(*field, nullable=False) for field in fields]))
        except DataError as error:
            raise error if _REMEDY in str(error) else DataError(f"{error}; {_REMEDY}", reason=error.reason) from None
        records_N = np.zeros(table.num_rows, _record(self.outputs))
        for i, name in enumerate(self.outputs):
            records_N["log_odds"][:, i] = table[name].to_numpy()
        for name in flags:
            records_N[name] = table[name].to_numpy()
        if not _is_finite(records_N):
            raise DataError(f"{path}: a score is not a finite number; {_REMEDY}", reason="out-of-range")
        return np.frombuffer(b"".join(table["key"].to_pylist()), KEY), records_N


def _record(outputs: Sequence[str]) -> np.dtype:
    """The record of a step: its log-odds, and whether they are missing because it is too long or was not judged."""
    return np.dtype([("log_odds", "<f8", (len(outputs),)), ("too_long", "?"), ("unjudged", "?")])


def _is_finite(records_N: np.ndarray) -> bool:
    return bool(np.isfinite(records_N["log_odds"][~records_N["too_long"] & ~records_N["unjudged"]]).all())


def _score(scorer: Scorer, work: _Keyed) -> list[TreeScores]:
    return scorer.score_trees([one.tree for one in work.requests], [one.nodes for one in work.requests])


@dataclass(frozen=True, slots=True)
class _Keyed:
    """A chunk of requests, with the keys of their nodes."""

    requests: Sequence[Request]
    keys_N: np.ndarray

    def only(self, wanted_N: np.ndarray) -> _Keyed:
        """The requests reduced to the wanted nodes; requests without any are dropped."""
        requests, start = [], 0
        for request in self.requests:
            nodes = tuple(itertools.compress(request.nodes, wanted_N[start:]))
            start += len(request.nodes)
            if nodes:
                requests.append(Request(request.tree, nodes))
        return _Keyed(requests, self.keys_N[wanted_N])

    @property
    def name(self) -> str:
        first, last = (
            one.tree.where or one.tree.name or one.tree.tree_id for one in (self.requests[0], self.requests[-1])
        )
        return f"{len(self.requests)} trees from {first} to {last}"


class KeyIndex:
    """Records sorted by key; of equal keys the first is kept."""

    def __init__(self, record: np.dtype, *, recent: int = RECENT) -> None:
        self.recent = recent
        self._empty = np.empty(0, KEY), np.empty(0, record)
        self._large = self._small = self._empty
        """Adding copies the index, so new records go to a small one first."""

    def __len__(self) -> int:
        return len(self._large[0]) + len(self._small[0])

    def add(self, keys_N: np.ndarray, records_N: np.ndarray) -> None:
        """Add records whose keys are new."""
        keys_N, first_N = np.unique(keys_N, return_index=True)
        is_new_N = ~self.find(keys_N)[0]
        self._small = _merged(self._small, (keys_N[is_new_N], records_N[first_N[is_new_N]]))
        if len(self._small[0]) > self.recent:
            self._large, self._small = _merged(self._large, self._small), self._empty

    def find(self, keys_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(whether each key is in the index, its record); the records of missing keys are meaningless."""
        is_there_N, found_N = np.zeros(len(keys_N), bool), np.zeros(len(keys_N), self._empty[1].dtype)
        for sorted_M, records_M in (self._large, self._small):
            if len(sorted_M):
                at_N = np.minimum(np.searchsorted(sorted_M, keys_N), len(sorted_M) - 1)
                is_here_N = sorted_M[at_N] == keys_N
                found_N[is_here_N] = records_M[at_N[is_here_N]]
                is_there_N |= is_here_N
        return is_there_N, found_N


def _merged(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    at_N = np.searchsorted(one[0], other[0])
    return np.insert(one[0], at_N, other[0]), np.insert(one[1], at_N, other[1])

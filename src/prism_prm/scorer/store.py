"""The score store: which texts have been scored by which model.

A score is filed under its key, a hash of who scored (the scorer's identity: weights, family and its settings, dtype,
context, treatment of long paths) and of what was read: the problem and every step up to the scored one. Other texts,
another model or other settings have other keys, so an old score is never mistaken for a new one.

A key is scored once and has one value: equal steps of one piece of work are scored where they come first, and what
other work has filed is not scored again.

Work is done in portions of trees. What a portion adds becomes one file, named by its keys: it is complete or absent,
and a killed run repeats at most the portions in flight, bit for bit. The workers that hold the scorer may be many (see
`workers`); this process alone writes. In training, several processes fill one store, each its `Share`.
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

from prism_prm.console import Advance, ignore, say
from prism_prm.files import remove_parts
from prism_prm.protocol import Scorer, ScorerFacts, TreeScores
from prism_prm.records import ROOT, StepTree
from prism_prm.resume import stoppable
from prism_prm.scorer.filed import read_filed, row_of, write_filed
from prism_prm.scorer.index import KEY_BYTES, KEYS, KeyIndex
from prism_prm.workers import Here, Portion

PORTION = 64
"""Trees that are scored and filed together: what a stop can cost."""
AHEAD = 64
"""Finished portions that wait for an earlier one; then no more is read. With many workers, AHEAD_EACH for each."""
AHEAD_EACH = 16
"""A worker with two portions that takes eight times as long as the others does not hold them up."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which of several processes of a training run this is, and how to wait for the others."""

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


Each = Callable[[Sequence[Request], list[TreeScores]], None]
"""Hears requests and their scores."""


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
    return hashlib.blake2b(before + b"\0" + text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


@contextlib.contextmanager
def store_for(
    out: str | Path,
    scorer: Scorer,
    folder: str | Path | None,
    *,
    portion: int = PORTION,
) -> Iterator[ScoreStore]:
    """The store in `folder`; without one, a store beside the file `out`, removed when the block has written that.

    If the block ends with an error, the store beside stays, and the same work is resumed from it.
    """
    out = Path(out)
    own = out.with_name(f".{out.name}.scores")
    yield ScoreStore(folder or own, scorer, portion=portion)
    shutil.rmtree(own, ignore_errors=True)


class ScoreStore:
    """The scores of one scorer in a folder, which those of others may share."""

    def __init__(self, folder: str | Path, scorer: Scorer | ScorerFacts, *, portion: int = PORTION) -> None:
        self._given = scorer
        self.outputs = scorer.outputs
        self.portion = portion
        self.identity = scorer.identity()
        self.whole = scorer.reads_whole_solutions
        """Whether a step's score depends on all of its solution."""
        self.folder = Path(folder) / hashlib.blake2b(self.identity.encode(), digest_size=8).hexdigest()
        self._files: set[str] = set()
        self._filed = KeyIndex(row_of(self.outputs))
        """Everything in the folder."""
        remove_parts(self.folder)
        self._look()

    @property
    def scorer(self) -> Scorer:
        assert isinstance(self._given, Scorer), "facts score nothing"
        return self._given

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
        requests: Iterable[Request],
        *,
        share: Share | None = None,
        advance: Advance = ignore,
        each: Each | None = None,
    ) -> Filled:
        """Score and file what is missing. Requests are read as they are scored, a portion at a time, and not held.

        Every process of a `Share` calls this with the same requests, scores its share, and returns when all is there.

        Args:
            requests: what is wanted, read once.
            share: this process's share of the work.
            advance: called with finished requests.
            each: called with every portion's requests and their scores, in order; for one process only.
        """
        share = share or Share()
        assert each is None or share.world == 1, "one process does not know the scores that others make"
        self._look()
        share.wait()  # or a fast process's new portions would look like an earlier run's to a slow one
        filling = _Filling(self, share, advance, each)
        with stoppable(lambda: f"with {len(self._filed):,} scores done" if len(self._filed) else ""):
            filling.run(requests)
        if filling.num_steps > filling.num_missing:
            say(f"Reused {filling.num_steps - filling.num_missing:,} of {filling.num_steps:,} scores")
        share.wait()
        self._look()
        return Filled(filling.num_portions, filling.num_found)

    def read(self, requests: Sequence[Request]) -> Iterator[TreeScores]:
        """The scores of requests that were filled."""
        for one in self._portions(requests):
            yield from self.scores_of(one)

    def add(self, requests: Sequence[Request], scores: Sequence[TreeScores]) -> None:
        """File scores that were made elsewhere, e.g. in a session; existing ones are kept."""
        self._look()
        rest = self.missing(_Portion.of(self.identity, requests, self.whole), ())
        if len(rest.keys_N):
            self.file(rest, scores)

    def _portions(self, requests: Iterable[Request]) -> Iterator[_Portion]:
        left = iter(requests)
        while some := list(itertools.islice(left, self.portion)):
            yield _Portion.of(self.identity, some, self.whole)

    def missing(self, portion: _Portion, others: Collection[bytes]) -> _Portion:
        """What a portion adds: its keys that are neither filed nor among `others`, each where it comes first."""
        wanted_N = np.zeros(len(portion.keys_N), bool)
        wanted_N[np.unique(portion.keys_N, return_index=True)[1]] = True
        wanted_N &= ~self._filed.find(portion.keys_N)[0]
        if others:
            wanted_N &= [key not in others for key in portion.keys_N.tolist()]
        return portion.only(wanted_N)

    def _look(self) -> None:
        """Take in the files that are new, ours and those of other processes; of equal keys the first stays."""
        for path in sorted(self.folder.glob("*.parquet")):
            if path.name not in self._files:
                self._filed.add(*read_filed(path, self.outputs))
                self._files.add(path.name)

    def file(self, portion: _Portion, scores: Sequence[TreeScores]) -> None:
        """File the scores of keys that are not filed yet."""
        rows = [(found, list(request.nodes)) for request, found in zip(portion.requests, scores, strict=True)]
        rows_N = np.zeros(len(portion.keys_N), row_of(self.outputs))
        rows_N["log_odds"] = np.concatenate([found.log_odds_NO[nodes] for found, nodes in rows])
        rows_N["too_long"] = np.concatenate([np.isin(nodes, found.too_long) for found, nodes in rows])
        rows_N["unjudged"] = np.concatenate([np.isin(nodes, found.unjudged) for found, nodes in rows])
        write_filed(self.folder / portion.name, portion.keys_N, rows_N, self.outputs)
        self._files.add(portion.name)
        self._filed.add_new(portion.keys_N, rows_N)

    def scores_of(self, portion: _Portion) -> Iterator[TreeScores]:
        """The scores of a portion all of whose keys are filed."""
        is_there_N, rows_N = self._filed.find(portion.keys_N)
        assert is_there_N.all(), "requests are filled before they are read"
        start = 0
        for request in portion.requests:
            nodes, here = np.array(request.nodes, np.int64), slice(start, start + len(request.nodes))
            start += len(nodes)
            log_odds_NO = np.full((len(request.tree.nodes), len(self.outputs)), np.nan)
            log_odds_NO[nodes] = rows_N["log_odds"][here]
            too_long, unjudged = (tuple(nodes[rows_N[why][here]].tolist()) for why in ("too_long", "unjudged"))
            yield TreeScores(self.outputs, log_odds_NO, too_long, unjudged)


class _Filling:
    """Work that is being filled: portions are read, scored in any order, and passed on in their own."""

    def __init__(self, store: ScoreStore, share: Share, advance: Advance, each: Each | None) -> None:
        self.store, self.share, self.advance, self.each = store, share, advance, each
        self.workers = store.scorer.workers or Here(store.scorer)
        self.num_portions = self.num_found = self.num_steps = self.num_missing = 0
        self._waiting: dict[int, _Portion] = {}
        """What is read and not passed on, by number and in order."""
        self._in_work: set[int] = set()
        """The numbers of those that are not scored yet."""
        self._taken: set[bytes] = set()
        """Keys that are in work, or another process's."""

    def run(self, requests: Iterable[Request]) -> None:
        for portion, found in self.workers.run(_score, self._to_score(requests)):
            self.store.file(portion.work, found)
            self._in_work.remove(portion.number)
            self._taken.difference_update(portion.work.keys_N.tolist())
            self._pass_on()
        assert not self._waiting, "all that is read is passed on"

    def _to_score(self, requests: Iterable[Request]) -> Iterator[Portion[_Portion] | None]:
        for one in self.store._portions(requests):
            most = max(AHEAD, AHEAD_EACH * self.workers.num_workers)
            while len(self._waiting) - len(self._in_work) > most and self._in_work:
                yield None
            number = self.num_portions
            rest = self.store.missing(one, self._taken)
            self.num_portions += 1
            self.num_steps += len(one.keys_N)
            self.num_missing += len(rest.keys_N)
            self.num_found += not len(rest.keys_N)
            self._waiting[number] = one
            self._taken.update(rest.keys_N.tolist())
            if len(rest.keys_N) and number % self.share.world == self.share.rank:
                self._in_work.add(number)
                yield rest.as_work(number)
            else:
                self._pass_on()

    def _pass_on(self) -> None:
        """Hand over what is done: up to the first portion in work, if somebody hears them in order."""
        for number in list(self._waiting):
            if number in self._in_work:
                if self.each is not None:
                    return
                continue
            one = self._waiting.pop(number)
            if self.each is not None:
                self.each(one.requests, list(self.store.scores_of(one)))
            rates = self.workers.rates()
            self.advance(len(one.requests), rates) if rates else self.advance(len(one.requests))


def _score(scorer: Scorer, work: _Portion) -> list[TreeScores]:
    return scorer.score_trees([one.tree for one in work.requests], [one.nodes for one in work.requests])


@dataclass(frozen=True, slots=True)
class _Portion:
    """Requests that are scored together, with the keys of their nodes."""

    requests: Sequence[Request]
    keys_N: np.ndarray

    @classmethod
    def of(cls, identity: str, requests: Sequence[Request], whole: bool = False) -> _Portion:
        keys = b"".join(key for request in requests for key in keys_of(identity, request, whole=whole))
        return cls(requests, np.frombuffer(keys, KEYS))

    def only(self, wanted_N: np.ndarray) -> _Portion:
        """The same requests for some of their nodes, perhaps for none."""
        parts = _parts(wanted_N, [len(request.nodes) for request in self.requests])
        requests = [
            Request(request.tree, tuple(itertools.compress(request.nodes, part_N)))
            for request, part_N in zip(self.requests, parts, strict=True)
        ]
        return _Portion(requests, self.keys_N[wanted_N])

    def as_work(self, number: int) -> Portion[_Portion]:
        """What is to be scored, for a worker: requests for nothing are left out."""
        some = [request for request in self.requests if request.nodes]
        first, last = (f"{tree.where or tree.name or tree.tree_id}" for tree in (some[0].tree, some[-1].tree))
        return Portion(number, f"{len(some)} trees from {first} to {last}", _Portion(some, self.keys_N), len(some))

    @property
    def name(self) -> str:
        return f"{hashlib.blake2b(self.keys_N.tobytes(), digest_size=16).hexdigest()}.parquet"


def _parts(values_N: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The values cut into parts of these sizes."""
    return [values_N[start:end] for start, end in itertools.pairwise(itertools.accumulate(sizes, initial=0))]

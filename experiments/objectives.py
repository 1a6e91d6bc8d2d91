"""Objectives compared on real text: heads on cached states of PRM800K phase 1, and tuned upper layers.

Stages, in this order; every command resumes, and partial results are results. `report` can run at any time.

python experiments/objectives.py setup … --backbone small=MODEL --backbone large=MODEL@14 --backbone large=MODEL@18
    the learning curve on 60, 120 and 240 trees; chooses backbone, layout, head and rate, then tunes the top layers
python experiments/objectives.py states …                     the chosen backbone reads all trees once
python experiments/objectives.py arms … [--part 0/2]          heads: 16 arms × 10 folds × 5 seeds
python experiments/objectives.py tuned … [--part 0/2]         top layers: 5 arms × 3 folds × 2 seeds on 240 trees
python experiments/objectives.py report …                     tables in Markdown, and a figure
python experiments/objectives.py transfer …                   ProcessBench, PRMBench, Best-of-N: base and best arm
python experiments/objectives.py search … [--gguf MODEL.gguf] guided search on GSM8K

`…` is --data FOLDER --out FOLDER. Parts run side by side, with OMP_NUM_THREADS=1; each ends with the work of the others
that is still missing. `--tiny` shrinks every count, to try the script on a random model in minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from prism_prm import PRM, init_prm
from prism_prm.arrays import Bools, Floats, Ints
from prism_prm.cli.ui import Terminal
from prism_prm.console import shown_on
from prism_prm.curriculum import PAPER_BINS, Curriculum, assign
from prism_prm.data.build_pairs import PairRecipe, build_pairs
from prism_prm.data.pair_examples import NO_STEP, Examples, Split, labeled_steps
from prism_prm.data.pair_rules import PairSettings
from prism_prm.data.same_problem import normalize_problem
from prism_prm.errors import DataError
from prism_prm.evaluate.measure import Measured, measure_rankings
from prism_prm.files import atomic_folder, write_text
from prism_prm.losses import Objective
from prism_prm.metrics import ranked_pairs
from prism_prm.models.lower_cache import CacheSettings
from prism_prm.models.packing import PackedBatch, Row
from prism_prm.models.prm import pair_cost
from prism_prm.report import Report
from prism_prm.report.figures import draw_dots, finish
from prism_prm.stats import Comparison, cluster_draws, number_clusters
from prism_prm.store import Share
from prism_prm.train.batches import KeptReads, RowLimits, batch_maker
from prism_prm.train.loop import TrainingRound
from prism_prm.train.margins import fill_cache, margins_of
from prism_prm.train.model import prepare
from prism_prm.train.recipe import HardwareSettings, TrainSettings
from prism_prm.tree import StepTree


@dataclass(frozen=True)
class Sizes:
    """Every count of the run."""

    trees: int | None = None
    """The trees of the main comparison; by default all."""
    curve: tuple[int, ...] = (60, 120, 240)
    curve_folds: int = 5
    tuned_check: int = 120
    """The trees on which `setup` tunes the top layers."""
    tops: tuple[int, ...] = (2, 4)
    """How many layers it tunes: the second only if neither heads nor the first are good enough."""
    folds: int = 10
    seeds: int = 5
    distances: tuple[int, ...] = (1, 3)
    """Rates are chosen on pairs of folds {f, f ± distance}: neither is trained on, and each is an inner fold of the
    other."""
    rates: tuple[float, ...] = (1e-4, 4e-4, 1.6e-3, 6.4e-3)
    updates: int = 300
    passes: int = 3
    tuned_trees: int = 240
    tuned_folds: int = 3
    tuned_seeds: int = 2
    tuned_rates: tuple[float, ...] = (2e-5, 1e-4)
    tuned_updates: int = 60
    tuned_passes: int = 1
    draws: int = 1000
    processbench: int = 80
    prmbench: int = 12
    """Items of each split or class, chosen by `prism eval --limit` with seed 0."""
    pool_problems: int = 50
    pool_solutions: int = 16
    problems: int = 30
    n: int = 8
    max_tokens: int = 512


TINY = Sizes(
    12, (4, 8, 12), 2, 8, (1, 2), folds=4, seeds=2, distances=(1,), rates=(1e-3, 1e-2), updates=8, passes=1,
    tuned_trees=8, tuned_folds=3, tuned_seeds=1, tuned_rates=(1e-3, 1e-2), tuned_updates=2, draws=100, processbench=2,
    prmbench=1, pool_problems=2, pool_solutions=2, problems=2, n=4, max_tokens=16,
)  # fmt: skip

LAYOUTS = {"plain": "token-classification", "chat": "qwen"}
"""The text is read at the line break after a step, or in a chat at `<extra_0>` after it → the PRM's family."""
HEADS = {"plain": ("linear",), "chat": ("linear", "mlp")}
"""The heads that the family can save. `qwen` has two layers, of which a linear head is a special case."""
PASSES = 0.62
"""A set-up with this AUROC within prefix is good enough for heads alone."""
FEW = 64
"""Rounds of the paper's curriculum with fewer pairs are joined to the next."""
SEED = 0
"""The seed for the order of trees, folds, subsets and the choice of rates."""

LABELS = Objective("bce", on="labels")
PAPER = Objective("sc")
LOG_ODDS = Objective("sc", space="log-odds")
ORDERED_BINS = (*PAPER_BINS, (0.0, 0.1), (-1.0, 0.0))


@dataclass(frozen=True)
class Arm:
    """An objective and its pairs."""

    title: str
    objective: Objective
    lookahead: str = "none"
    """Later steps as wrong ones, one per position: none, audited, or unaudited."""
    curriculum: Curriculum | None = None
    """None: all pairs in one round, whatever their margin."""
    model_only: bool = False
    """Only pairs of which the policy wrote both steps."""
    weighted: bool = False
    """Right and wrong labels get the same total weight."""


ARMS = {
    "labels": Arm("cross-entropy, all labels", LABELS),
    "labels-weighted": Arm("cross-entropy, all labels, class-weighted", LABELS, weighted=True),
    "pairs": Arm("cross-entropy, pairs", Objective("bce")),
    "contrastive": Arm("contrastive, probabilities", PAPER),
    "log-odds": Arm("contrastive, log-odds", LOG_ODDS),
    "hybrid": Arm("hybrid", Objective("hybrid", space="log-odds")),
    "listwise": Arm("listwise", Objective("listwise", space="log-odds")),
    "listwise-bce": Arm("listwise + cross-entropy", Objective("listwise+bce", space="log-odds")),
    "filter": Arm("contrastive + paper's filter", PAPER, curriculum=Curriculum("none")),
    "order": Arm("contrastive + paper's order", PAPER, curriculum=Curriculum("bins", ORDERED_BINS)),
    "filter-order": Arm("contrastive + filter and order", PAPER, curriculum=Curriculum("bins")),
    "paper": Arm("filter, order and lookahead (paper)", PAPER, "unaudited", Curriculum("bins")),
    "lookahead": Arm("log-odds + lookahead, audited", LOG_ODDS, "audited"),
    "lookahead-all": Arm("log-odds + lookahead, not audited", LOG_ODDS, "unaudited"),
    "model-pairs": Arm("cross-entropy, model-written pairs", Objective("bce"), model_only=True),
    "model-log-odds": Arm("log-odds, model-written pairs", LOG_ODDS, model_only=True),
}
BASE = "labels"
"""The arm whose heads give the margins, and with which tuned layers start."""
TUNED = ("labels", "pairs", "log-odds", "hybrid", "paper")
PRIMARY = ("log-odds", "pairs")
CONTRASTS = (
    PRIMARY, ("pairs", "labels"), ("labels-weighted", "labels"), ("contrastive", "pairs"), ("log-odds", "contrastive"),
    ("hybrid", "pairs"), ("hybrid", "log-odds"), ("listwise", "log-odds"), ("listwise-bce", "pairs"),
    ("filter", "contrastive"), ("order", "contrastive"), ("filter-order", "contrastive"), ("paper", "contrastive"),
    ("paper", "pairs"), ("lookahead", "log-odds"), ("lookahead-all", "log-odds"), ("lookahead", "lookahead-all"),
    ("model-log-odds", "model-pairs"), ("model-pairs", "pairs"),
)  # fmt: skip
EQUIVALENT = 0.015
"""Differences of AUROC below this do not matter."""
FLOOR = 0.58
"""Below this AUROC of the reference arm a null is uninformative: near chance all arms are equal."""
METRICS = {
    "prefix": "within prefix", "model": "model-written", "problem": "within problem", "pooled": "pooled",
    "fpr": "FPR at TPR 90",
}  # fmt: skip


class Data:
    """The trees in a random order, their labeled steps, and their pairs by kind of lookahead."""

    def __init__(self, source: Path, folder: Path, num_trees: int | None) -> None:
        """Make the pairs, unless they exist."""
        for name, audit in (("audited", "drop"), ("unaudited", "off")):
            if not (folder / name / "summary.json").exists():
                lines = source.read_text(encoding="utf-8").splitlines()
                random.Random(SEED).shuffle(lines)
                folder.mkdir(parents=True, exist_ok=True)
                write_text(folder / "trees.jsonl", "\n".join(lines[:num_trees]) + "\n")
                settings = PairSettings(lookahead=1, audit=audit)  # type: ignore[arg-type]
                build_pairs(folder / "trees.jsonl", folder / name, PairRecipe(settings))
        read = {name: Split.read(folder / name, None) for name in ("audited", "unaudited")}
        self.trees: Mapping[int, StepTree] = read["audited"].trees
        self.steps = labeled_steps(self.trees)
        of_audited = read["audited"]
        self.pairs = {name: split.pairs for name, split in read.items()}
        self.pairs["none"] = of_audited.pairs.take(np.flatnonzero(of_audited.kinds == "annotated"))
        self.right: Bools = self.steps.right()
        self.prefix = self._numbers(
            (tree, self.trees[tree].parents[node])
            for tree, node in zip(self.steps.tree.tolist(), self.steps.chosen.tolist(), strict=True)
        )
        problems = self._numbers(normalize_problem(self.trees[tree].problem) for tree in range(len(self.trees)))
        self.problem_T = problems
        self.problem = problems[self.steps.tree]
        self.by_model = self._by_model(self.steps.tree, self.steps.chosen)

    @staticmethod
    def _numbers(keys: Iterable[Any]) -> Ints:
        return number_clusters(keys)[0]

    def _by_model(self, tree: Ints, node: Ints) -> Bools:
        places = zip(tree.tolist(), node.tolist(), strict=True)
        return np.array([self.trees[t].nodes[n].origin != "human" for t, n in places], bool)

    def folds(self, num_folds: int, num_trees: int) -> Ints:
        """The fold of each tree, by problem; −1 for trees that are not used."""
        problems = np.unique(self.problem_T[:num_trees])
        of_problem = dict(
            zip(np.random.default_rng(SEED).permutation(problems).tolist(), _cycle(num_folds), strict=False)
        )
        return np.array([of_problem[p] if t < num_trees else -1 for t, p in enumerate(self.problem_T.tolist())])

    def training(self, arm: Arm, used_T: Bools) -> Examples:
        """The arm's examples in these trees."""
        if arm.objective.on == "labels":
            return self.steps.take(np.flatnonzero(used_T[self.steps.tree]))
        pairs = self.pairs[arm.lookahead]
        used = used_T[pairs.tree]
        if arm.model_only:
            used = used & self._by_model(pairs.tree, pairs.chosen) & self._by_model(pairs.rejected_tree, pairs.rejected)
        return pairs.take(np.flatnonzero(used))

    def reads(self, num_trees: int, *, lookahead: bool) -> Examples:
        """Every labeled step, and the later steps of lookahead pairs, as prefixes whose first step is listed twice."""
        parents = {tree_id: tree.parents for tree_id, tree in self.trees.items()}
        first: dict[tuple[int, int], int] = {}
        rows: dict[tuple[int, int, int, int], None] = {}
        for tree, node in zip(self.steps.tree.tolist(), self.steps.chosen.tolist(), strict=True):
            if tree < num_trees:
                rows[tree, first.setdefault((tree, parents[tree][node]), node), node, tree] = None
        for pairs in self.pairs.values() if lookahead else ():
            columns = (pairs.tree, pairs.chosen, pairs.rejected, pairs.rejected_tree)
            for tree, chosen, rejected, other in zip(*(column.tolist() for column in columns), strict=True):
                if tree < num_trees:
                    rows[tree, first[tree, parents[tree][chosen]], rejected, other] = None
        tree, chosen, rejected, other = np.array(list(rows), dtype=np.int64).T
        return Examples(self.trees, np.arange(len(tree)), tree, chosen, rejected, other).by_prefix()


def _cycle(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


Place = tuple[int, int, int, int]
"""(tree, prefix, tree of the step, step): one read."""


def places_of(examples: Examples) -> list[list[Place]]:
    """The reads of each example, right steps first."""
    found = []
    columns = (examples.tree, examples.chosen, examples.rejected, examples.rejected_tree)
    for tree, *sides in zip(*(column.tolist() for column in columns), strict=True):
        right, wrong, others = (side if isinstance(side, list) else [side] for side in sides)
        parent = examples.trees[tree].parents[right[0]]
        places = [(tree, parent, tree, node) for node in right if node != NO_STEP]
        if examples.labels is None:
            steps = zip(wrong, others, strict=True)
            places += [(tree, parent, other, node) for node, other in steps if node != NO_STEP]
        found.append(places)
    return found


@dataclass(frozen=True)
class SetUp:
    """A backbone's lowest layers and a layout of the text."""

    name: str
    path: str
    layers: int | None
    layout: str

    @property
    def key(self) -> str:
        return f"{self.name}{f'-{self.layers}' if self.layers else ''}-{self.layout}"

    def prm(self, folder: Path, top: int, *, bf16: bool) -> PRM:
        """A PRM with a new head and a cache below its `top` layers."""
        made = init_prm(self.path, family=LAYOUTS[self.layout], seed=SEED, layers=self.layers)
        made.module.requires_grad_(False)
        frozen = made.module.config.num_hidden_layers - top
        card = replace(made.card, frozen_layers=frozen)
        cache = CacheSettings(folder, frozen, 200.0, bf16)
        return PRM(made.module, made.family, card, cache=cache)


class States:
    """The standardized last states at all reads, and where each is."""

    def __init__(self, folder: Path) -> None:
        self.place = {tuple(row): i for i, row in enumerate(np.load(folder / "places.npy").tolist())}
        states_RH = torch.from_numpy(np.load(folder / "states.npy"))
        self.mean_H, self.std_H = states_RH.mean(0), states_RH.std(0).clamp_min(1e-6)
        self.states_RH = (states_RH - self.mean_H) / self.std_H
        self.take: Callable[[Ints], Tensor] = lambda places_R: self.states_RH[torch.from_numpy(places_R)]

    @classmethod
    def make(
        cls, folder: Path, set_up: SetUp, data: Data, num_trees: int, cache: Path, *, bf16: bool, full: bool
    ) -> States:
        """Run the backbone over the trees, unless that is done."""
        if not (folder / "states.npy").exists():
            prm = set_up.prm(cache, 0, bf16=bf16)
            assert prm.cache is not None
            reads = data.reads(num_trees, lookahead=full)
            started = time.monotonic()
            fill_cache(prm, reads)
            kept = KeptReads.of(prm.cache, reads, prm.family, RowLimits(prm.token_budget, pair_cost(prm.module)))
            assert kept is not None, "the cache has room"
            index: dict[Place, int] = {}
            for places, row in zip(places_of(reads), kept.reads_NK.tolist(), strict=True):
                index.update(zip(places, row, strict=False))
            rows = np.array(list(index), dtype=np.int64)
            with atomic_folder(folder) as partial:
                np.save(partial / "places.npy", rows)
                np.save(partial / "states.npy", kept.take(kept.places_R2[list(index.values())]).float().numpy())
                facts = {"reads": len(rows), "seconds": time.monotonic() - started, **asdict(set_up)}
                (partial / "about.json").write_text(json.dumps(facts))
        return cls(folder)

    def of(self, examples: Examples) -> KeptReads:
        """Where the states of these examples are; they must be all that a round has."""
        rows = [[self.place[place] for place in places] for places in places_of(examples)]
        reads_NK = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for row, indices in zip(reads_NK, rows, strict=True):
            row[: len(indices)] = indices
        return KeptReads(self.take, np.arange(len(self.states_RH)), reads_NK)


class Head(nn.Module):
    """A PRM's head without its backbone; `TrainingRound` trains it on states."""

    def __init__(self, kind: str, size: int, seed: int) -> None:
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.layers = nn.ModuleList()  # there is nothing to freeze
        layers: dict[str, list[nn.Module]] = {
            "linear": [nn.Linear(size, 2)],
            "mlp": [nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 2)],
        }
        self.score = nn.Sequential(*layers[kind])
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in self.score:
                if isinstance(layer, nn.Linear):  # as in init_prm
                    layer.weight.normal_(0.0, 0.02, generator=generator)
                    layer.bias.zero_()

    def forward(self, batch: PackedBatch) -> Tensor:
        assert batch.hidden_RH is not None, "heads read states"
        return self.read(batch.hidden_RH)

    def read(self, hidden_RH: Tensor) -> Tensor:
        logits_RC: Tensor = self.score(hidden_RH)
        return logits_RC[:, 1:2] - logits_RC[:, 0:1]

    @torch.no_grad()
    def log_odds(self, states: States, examples: Examples) -> Floats:
        """log-odds_NK of the reads of each example."""
        kept = states.of(examples)
        return np.asarray(self.read(states.states_RH)[:, 0].double().numpy()[kept.reads_NK])

    @torch.no_grad()
    def put_into(self, prm: PRM, states: States) -> None:
        """Make it the head of a PRM, which gets states that are not standardized."""
        first, *rest = [layer for layer in self.score if isinstance(layer, nn.Linear)]
        weight = first.weight / states.std_H
        bias = first.bias - weight @ states.mean_H
        head: Any = prm.module.head
        if isinstance(head, nn.Linear):
            head.weight.copy_(weight)
            head.bias.copy_(bias)
            return
        if rest:
            head[0].weight.copy_(weight)
            head[0].bias.copy_(bias)
            head[2].load_state_dict(rest[0].state_dict())
            return
        for parameter in head.parameters():  # x = ReLU(x) − ReLU(−x)
            parameter.zero_()
        difference, offset = weight[1] - weight[0], bias[1] - bias[0]
        for row, sign in enumerate((1.0, -1.0)):
            head[0].weight[row], head[0].bias[row] = sign * difference, sign * offset
            head[2].weight[1, row] = sign


class NoText:
    """The layout of heads: they read no text."""

    def prompt_ids(self, problem: str) -> list[int]:
        raise AssertionError(problem)

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
        raise AssertionError(text, index)


def no_batch(rows: Sequence[Row]) -> PackedBatch:
    raise AssertionError(f"{len(rows)} rows")


def settings_for(total: int, rate: float, updates: int, passes: int, per_tree: int) -> TrainSettings:
    """Every arm gets the same number of updates and of passes over its examples."""
    return TrainSettings(
        lr=rate, updates=updates, pairs_per_update=max(1, round(passes * total / updates)), warmup=0.05,
        betas=(0.9, 0.98), max_pairs_per_tree_per_update=per_tree, checkpoint_every=20,
    )  # fmt: skip


def fit_head(
    head: Head, states: States, rounds: Sequence[Examples], objective: Objective, rate: float, seed: int, sizes: Sizes
) -> Head:
    """Train a head by the package's training rounds."""
    counts = [len(examples.by_prefix() if objective.in_lists else examples) for examples in rounds]
    if not sum(counts):
        raise DataError("no examples to train on: too few trees, or no pair is in the paper's bins")
    settings = settings_for(sum(counts), rate, sizes.updates, sizes.passes, 8)
    settings = replace(settings, checkpoint_every=10**9)
    for number, (examples, updates) in enumerate(zip(rounds, settings.updates_of_rounds(counts), strict=True)):
        work = TrainingRound(
            "head", head, NoText(), no_batch, RowLimits(1), examples, objective, settings, (seed, number),
            Path("no-checkpoints"), updates,
        )  # fmt: skip
        work.kept_reads = states.of(work.examples)
        work.run(Accelerator(cpu=True))
    return head.eval()


def auroc_prefix(data: Data, steps: Ints, scores: Floats) -> float:
    """AUROC within prefix of some labeled steps."""
    _, groups = np.unique(data.prefix[steps], return_inverse=True)
    won, pairs = ranked_pairs(data.right[steps], scores, groups, int(groups.max()) + 1).sum(axis=0)
    return float(won / pairs) if pairs else float("nan")


class Clock:
    """Prints what is done and how long the rest will take."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done, self.ran, self.started = name, total, 0, 0, time.monotonic()

    def tick(self, what: str, *, ran: bool = True) -> None:
        self.done += 1
        self.ran += ran
        if ran:
            left = (time.monotonic() - self.started) / self.ran * (self.total - self.done)
            more = timedelta(seconds=round(left))
            print(f"{self.name}: {self.done} of {self.total}, {what}, {more} left", flush=True)


def in_parts(work: Sequence[Any], part: str) -> list[Any]:
    """This part's work, and then that of the others, from the end."""
    number, parts = map(int, part.split("/"))
    own = [item for i, item in enumerate(work) if i % parts == number]
    return own + [item for i, item in reversed(list(enumerate(work))) if i % parts != number]


class Run:
    """The folders and settings of a run."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.out: Path = given.out
        self.source: Path = given.data
        self.part: str = given.part
        self.bf16: bool = given.precision == "bf16"
        self.sizes = TINY if given.tiny else Sizes()

    @cached_property
    def data(self) -> Data:
        return Data(self.source / "prm800k" / "phase1_train.jsonl", self.out / "data", self.sizes.trees)

    @property
    def num_trees(self) -> int:
        return len(self.data.trees)

    def result(self, *names: object) -> Path:
        return self.out.joinpath("results", *map(str, names[:-1]), f"{names[-1]}.json")

    def states(self, set_up: SetUp, num_trees: int, *, full: bool = False) -> States:
        folder = self.out / "states" / f"{set_up.key}-{'all' if full else num_trees}"
        return States.make(folder, set_up, self.data, num_trees, self.out / "cache", bf16=self.bf16, full=full)

    @cached_property
    def choice(self) -> dict[str, Any]:
        path = self.out / "choice.json"
        if not path.exists():
            raise SystemExit(f"{path} is missing: run `setup` first")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    @cached_property
    def set_up(self) -> SetUp:
        return SetUp(**self.choice["set_up"])

    @cached_property
    def all_states(self) -> States:
        return self.states(self.set_up, self.num_trees, full=True)

    def new_head(self, seed: int) -> Head:
        return Head(self.choice["head"], self.all_states.states_RH.shape[1], seed)

    @lru_cache(maxsize=4)  # noqa: B019 - one run per process
    def _base_halves(self, used: bytes, seed: int) -> tuple[Head, Head]:
        """Two base heads, each trained on the labels of half of the problems."""
        used_T = np.frombuffer(used, bool)
        halves = []
        for half in (0, 1):
            some_T = used_T & (self.data.problem_T % 2 == half)
            rounds = [self.data.training(ARMS[BASE], some_T)]
            rate = self.choice["rate"]
            halves.append(fit_head(self.new_head(seed), self.all_states, rounds, LABELS, rate, seed, self.sizes))
        return halves[0], halves[1]

    def margins(self, pairs: Examples, used_T: Bools, seed: int) -> Floats:
        """The margin of each pair under the base head that has not seen its problem."""
        halves = self._base_halves(used_T.tobytes(), seed)
        margins_2N = [margins_of(head.log_odds(self.all_states, pairs)) for head in halves]
        seen = self.data.problem_T[pairs.tree] % 2
        return np.where(seen == 0, margins_2N[1], margins_2N[0])

    def rounds(self, arm: Arm, used_T: Bools, seed: int) -> tuple[list[Examples], Objective]:
        """The arm's rounds on these trees, and its objective."""
        examples, objective = self.data.training(arm, used_T), arm.objective
        if arm.weighted:
            share = float(examples.right().mean())
            objective = replace(objective, positive_weight=0.5 / share, negative_weight=0.5 / (1 - share))
        if arm.curriculum is None:
            return [examples], objective
        rounds: list[Ints] = []
        for indices in assign(self.margins(examples, used_T, seed), arm.curriculum).rounds:
            if rounds and (len(rounds[-1]) < FEW or len(indices) < FEW):
                rounds[-1] = np.concatenate([rounds[-1], indices])
            else:
                rounds.append(indices)
        return [examples.take(indices) for indices in rounds if len(indices)], objective

    def train(self, name: str, used_T: Bools, rate: float, seed: int) -> tuple[Head, list[int]]:
        """An arm's head, and the sizes of its rounds."""
        rounds, objective = self.rounds(ARMS[name], used_T, seed)
        head = fit_head(self.new_head(seed), self.all_states, rounds, objective, rate, seed, self.sizes)
        return head, [len(examples) for examples in rounds]

    def steps_in(self, used_T: Bools) -> Ints:
        """The labeled steps of these trees."""
        return np.flatnonzero(used_T[self.data.steps.tree])

    def score(self, head: Head, states: States, steps: Ints) -> Floats:
        return head.log_odds(states, self.data.steps.take(steps))[:, 0]

    def save_scores(self, path: Path, steps: Ints, scores: Floats, **facts: Any) -> None:
        """One result: what was trained, and the scores of the labeled steps that were held out."""
        facts["auroc_prefix"] = auroc_prefix(self.data, steps, scores)
        scored = {"steps": steps.tolist(), "scores": np.round(scores, 5).tolist()}
        write_text(path, json.dumps({**facts, **scored}))


# --- setup ---


def setup(run: Run, backbones: Sequence[str]) -> None:
    """The learning curve. Every backbone after the first has the layout that is best with the first; at each size, the
    better half of the set-ups goes on to the next."""
    sizes = run.sizes
    given = [SetUp(name, path, layers, layout) for name, path, layers in map(parse, backbones) for layout in LAYOUTS]
    first = [set_up for set_up in given if set_up.key.rsplit("-", 1)[0] == given[0].key.rsplit("-", 1)[0]]
    best_of = {set_up: curve_point(run, set_up, sizes.curve[0]) for set_up in first}
    layout = max(first, key=lambda set_up: best_of[set_up]["auroc"]).layout
    rest = [set_up for set_up in given if set_up not in first and set_up.layout == layout]
    left = [*first, *rest]
    for size in sizes.curve:
        best_of = {set_up: curve_point(run, set_up, size) for set_up in left}
        order = sorted(left, key=lambda set_up: -best_of[set_up]["auroc"])
        left = order[: max(1, len(order) // 2)]
    [chosen, *_] = left
    best = best_of[chosen]
    check = curve_point(run, chosen, min(sizes.tuned_check, run.num_trees))
    passes, tuned = best["auroc"] >= PASSES, {}
    for top in sizes.tops:
        tuned[top] = tuned_check(run, chosen, check, top)
        if passes or tuned[top] >= PASSES:
            break
    found = {
        "set_up": asdict(chosen), "head": best["head"], "rate": best["rate"], "auroc": best["auroc"], "passes": passes,
        "design": "heads" if passes else "tuned", "top": max(tuned, key=lambda top: tuned[top]), "tuned": tuned,
        "heads_on_same_trees": check["auroc"],
    }  # fmt: skip
    write_text(run.out / "choice.json", json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


def parse(backbone: str) -> tuple[str, str, int | None]:
    """NAME=PATH[@LAYERS]."""
    name, _, place = backbone.partition("=")
    path, _, layers = place.partition("@")
    return name, path, int(layers) if layers else None


def curve_point(run: Run, set_up: SetUp, size: int) -> dict[str, Any]:
    """The best head and rate of a set-up on the first trees, cross-fitted; every combination is a result."""
    data, sizes = run.data, run.sizes
    size = min(size, run.num_trees)
    fold_T = data.folds(sizes.curve_folds, size)
    states: States | None = None
    found = []
    for kind in HEADS[set_up.layout]:
        for rate in sizes.rates:
            path = run.result("setup", f"{set_up.key} {size} {kind} {rate:g}")
            if not path.exists():
                states = states or run.states(set_up, size)
                scores = np.full(len(data.steps), np.nan)
                for fold in range(sizes.curve_folds):
                    rounds = [data.training(ARMS[BASE], (fold_T != fold) & (fold_T >= 0))]
                    head = Head(kind, states.states_RH.shape[1], SEED)
                    fit_head(head, states, rounds, LABELS, rate, SEED, sizes)
                    held_out = run.steps_in(fold_T == fold)
                    scores[held_out] = run.score(head, states, held_out)
                steps = run.steps_in(fold_T >= 0)
                auroc = auroc_prefix(data, steps, scores[steps])
                facts = {"head": kind, "rate": rate, "auroc": auroc, "trees": size, **asdict(set_up)}
                write_text(path, json.dumps(facts))
                print(f"setup: {path.stem}: AUROC within prefix {100 * auroc:.1f}", flush=True)
            found.append(json.loads(path.read_text()))
    best: dict[str, Any] = max(found, key=lambda one: one["auroc"])
    return best


def tuned_check(run: Run, set_up: SetUp, start: Mapping[str, Any], top: int) -> float:
    """AUROC of tuned top layers at the best rate: cross-entropy on all labels, from the learning curve's heads."""
    data, sizes, size = run.data, run.sizes, int(start["trees"])
    fold_T = data.folds(sizes.tuned_folds, size)
    clock = Clock(f"setup, top {top} layers", sizes.tuned_folds * len(sizes.tuned_rates))
    tuner: Tuner | None = None
    found = []
    for rate in sizes.tuned_rates:
        scores = np.full(len(data.steps), np.nan)
        for fold in range(sizes.tuned_folds):
            path = run.result("setup", f"top-{top} {fold} {rate:g}")
            if is_new := not path.exists():
                tuner = tuner or Tuner(run, set_up, size, run.states(set_up, size), top)
                rounds = [data.training(ARMS[BASE], (fold_T != fold) & (fold_T >= 0))]
                head = Head(start["head"], tuner.states.states_RH.shape[1], SEED)
                fit_head(head, tuner.states, rounds, LABELS, start["rate"], SEED, sizes)
                tuner.train(head, rounds, LABELS, rate, SEED, path.stem)
                held_out = run.steps_in(fold_T == fold)
                run.save_scores(path, held_out, tuner.score(held_out), fold=fold, rate=rate)
            one = json.loads(path.read_text())
            scores[one["steps"]] = one["scores"]
            clock.tick(path.stem, ran=is_new)
        steps = run.steps_in(fold_T >= 0)
        found.append(auroc_prefix(data, steps, scores[steps]))
    print(f"setup: top {top} layers of {size} trees by rate: {[round(100 * auroc, 1) for auroc in found]}", flush=True)
    return max(found)


# --- heads ---


def arms(run: Run) -> None:
    """Choose rates on pairs of folds that are not trained on; then train every arm on every fold and seed."""
    sizes, data = run.sizes, run.data
    fold_T = data.folds(sizes.folds, run.num_trees)
    pairs = sorted({tuple(sorted((f, (f + d) % sizes.folds))) for f in range(sizes.folds) for d in sizes.distances})
    clock = Clock("rates", len(pairs) * len(ARMS))
    for left_out in in_parts(pairs, run.part):
        used_T = ~np.isin(fold_T, left_out)
        for name in ARMS:
            path = run.result("rates", name, "-".join(map(str, left_out)))
            if is_new := not path.exists():
                found: dict[str, dict[str, float]] = {}
                for rate in sizes.rates:
                    head, _ = run.train(name, used_T, rate, SEED)
                    inner = {fold: run.steps_in(fold_T == fold) for fold in left_out}
                    found[f"{rate:g}"] = {
                        str(fold): auroc_prefix(data, steps, run.score(head, run.all_states, steps))
                        for fold, steps in inner.items()
                    }
                write_text(path, json.dumps(found))
            clock.tick(f"{name} {path.stem}", ran=is_new)
    work = [(fold, seed) for seed in range(sizes.seeds) for fold in range(sizes.folds)]
    clock = Clock("heads", len(work) * len(ARMS))
    for fold, seed in in_parts(work, run.part):
        held_out, used_T = run.steps_in(fold_T == fold), fold_T != fold
        for name in ARMS:
            path = run.result("heads", name, f"{fold}-{seed}")
            if is_new := not path.exists():
                started, rate = time.monotonic(), chosen_rate(run, name, fold)
                head, rounds = run.train(name, used_T, rate, seed)
                facts = {"arm": name, "fold": fold, "seed": seed, "rate": rate, "rounds": rounds}
                facts["seconds"] = round(time.monotonic() - started, 2)
                run.save_scores(path, held_out, run.score(head, run.all_states, held_out), **facts)
            clock.tick(f"{name} {path.stem}", ran=is_new)


def chosen_rate(run: Run, name: str, fold: int) -> float:
    """The rate with the best mean AUROC of `fold`'s partners, by heads that have seen neither."""
    found: dict[float, list[float]] = {}
    for path in (run.out / "results" / "rates" / name).glob("*.json"):
        left_out = path.stem.split("-")
        if str(fold) in left_out:
            [partner] = [other for other in left_out if other != str(fold)]
            for rate, of_fold in json.loads(path.read_text()).items():
                found.setdefault(float(rate), []).append(of_fold[partner])
    return max(found, key=lambda rate: np.mean(found[rate]))


# --- tuned layers ---


class Tuner:
    """The chosen PRM with its lower layers cached; every training starts from the same weights."""

    def __init__(self, run: Run, set_up: SetUp, num_trees: int, states: States, top: int) -> None:
        self.run, self.states = run, states
        self.prm = set_up.prm(run.out / "cache", top, bf16=run.bf16)
        reads = run.data.reads(num_trees, lookahead=False)
        number, parts = map(int, run.part.split("/"))
        for share in (Share(number, parts), Share()):  # its own part, then what others have not done
            fill_cache(self.prm, reads, share=share)
        self.model = prepare(self.prm.module, HardwareSettings(frozen_layers=self.prm.card.frozen_layers), SEED)
        self.start = {k: p.detach().clone() for k, p in self.prm.module.named_parameters() if p.requires_grad}

    def train(
        self, head: Head, rounds: Sequence[Examples], objective: Objective, rate: float, seed: int, name: str
    ) -> None:
        """Train the top layers and the head. Checkpoints are kept until all rounds are done."""
        prm, sizes = self.prm, self.run.sizes
        with torch.no_grad():
            for key, parameter in prm.module.named_parameters():
                if key in self.start:
                    parameter.copy_(self.start[key])
        head.put_into(prm, self.states)
        counts = [len(examples) for examples in rounds]
        settings = settings_for(sum(counts), rate, sizes.tuned_updates, sizes.tuned_passes, 32)
        limits = RowLimits(settings.row_tokens, pair_cost(prm.module))
        folder = self.run.out / "checkpoints" / f"{name}-part-{self.run.part.replace('/', '-of-')}"
        for number, (examples, updates) in enumerate(zip(rounds, settings.updates_of_rounds(counts), strict=True)):
            work = TrainingRound(
                name, self.model, prm.family, batch_maker(prm.module, settings.microbatch_tokens, prm.cache), limits,
                examples, objective, settings, (seed, number), folder / str(number), updates,
            )  # fmt: skip
            clock = Clock(f"{name}, round {number + 1} of {len(rounds)}", len(work.updates))
            work.on_update = lambda line, clock=clock: clock.tick(f"loss {line['loss']:.4f}")  # type: ignore[misc]
            work.run(Accelerator(cpu=True))
        assert prm.cache is not None
        prm.cache.flush()
        shutil.rmtree(folder, ignore_errors=True)

    def score(self, steps: Ints) -> Floats:
        """The log-odds of labeled steps."""
        examples = self.run.data.steps.take(steps)
        scores = np.empty(len(steps))
        by_tree = examples.by_tree()
        trees = [examples.trees[int(examples.tree[indices[0]])] for indices in by_tree]
        wanted = [examples.chosen[indices].tolist() for indices in by_tree]
        for indices, nodes, found in zip(by_tree, wanted, self.prm.score_trees(trees, wanted), strict=True):
            scores[indices] = found.log_odds_NO[nodes, 0]
        return scores


def tuned(run: Run) -> None:
    """Rates are chosen with fold 0 left out, on fold 1 as the inner fold; then every fold and seed is trained."""
    sizes, data = run.sizes, run.data
    num_trees = min(sizes.tuned_trees, run.num_trees)
    fold_T = data.folds(sizes.tuned_folds, num_trees)
    tuner = Tuner(run, run.set_up, num_trees, run.all_states, run.choice["top"])

    def one(path: Path, name: str, left_out: Sequence[int], measured: int, rate: float, seed: int) -> None:
        used_T = (fold_T >= 0) & ~np.isin(fold_T, left_out)
        started = time.monotonic()
        base, _ = run.train(BASE, used_T, run.choice["rate"], seed)
        rounds, objective = run.rounds(ARMS[name], used_T, seed)
        tuner.train(base, rounds, objective, rate, seed, f"{path.parent.name}-{path.stem}")
        held_out = run.steps_in(fold_T == measured)
        facts = {"arm": name, "fold": measured, "seed": seed, "rate": rate, "rounds": list(map(len, rounds))}
        facts["seconds"] = round(time.monotonic() - started, 2)
        run.save_scores(path, held_out, tuner.score(held_out), **facts)

    first = [(name, rate) for name in TUNED for rate in sizes.tuned_rates]
    clock = Clock("rates of tuned layers", len(first))
    for name, rate in in_parts(first, run.part):
        path = run.result("tuned-rates", f"{name}-{rate:g}")
        if is_new := not path.exists():
            one(path, name, (0, 1), 1, rate, SEED)
        clock.tick(path.stem, ran=is_new)
    work = [
        (name, fold, seed) for seed in range(sizes.tuned_seeds) for fold in range(sizes.tuned_folds) for name in TUNED
    ]
    clock = Clock("tuned layers", len(work))
    for name, fold, seed in in_parts(work, run.part):
        path = run.result("tuned", name, f"{fold}-{seed}")
        if is_new := not path.exists():
            one(path, name, (fold,), fold, tuned_rate(run, name), seed)
        clock.tick(f"{name} {path.stem}", ran=is_new)


def tuned_rate(run: Run, name: str) -> float:
    def auroc(rate: float) -> float:
        return float(json.loads(run.result("tuned-rates", f"{name}-{rate:g}").read_text())["auroc_prefix"])

    return max(run.sizes.tuned_rates, key=auroc)


# --- report ---

Cells = dict[tuple[int, int], dict[str, Any]]
"""(fold, seed) → a result."""


def read_cells(run: Run, kind: str) -> dict[str, Cells]:
    """The results of each arm in the cells that all arms with results have."""
    found: dict[str, Cells] = {}
    for name in ARMS:
        read = [json.loads(path.read_text()) for path in sorted((run.out / "results" / kind / name).glob("*.json"))]
        if read:
            found[name] = {(one["fold"], one["seed"]): one for one in read}
    shared = set.intersection(*(set(cells) for cells in found.values())) if found else set()
    return {name: {cell: cells[cell] for cell in sorted(shared)} for name, cells in found.items() if shared}


def measure(run: Run, cells: Cells) -> tuple[dict[str, Measured], list[float]]:
    """All metrics, as means over seeds on the same draws of problems; and AUROC within prefix of each seed.

    Within prefix and problem, folds are put together: no comparison crosses them. The scores of different folds have
    different scales, so the pooled metrics are means over folds.
    """
    data = run.data
    problems = np.unique(np.concatenate([data.problem[one["steps"]] for one in cells.values()]))
    draws = cluster_draws(len(problems), run.sizes.draws)
    by_metric: dict[str, list[Measured]] = {name: [] for name in METRICS}

    def rankings(steps: Ints, scores: Floats, names: Sequence[str]) -> list[Measured]:
        columns = data.right[steps], scores, data.prefix[steps], np.searchsorted(problems, data.problem[steps])
        return list(measure_rankings(*columns, draws, names).values())

    for seed in sorted({seed for _, seed in cells}):
        own = [one for (_, other), one in cells.items() if other == seed]
        steps = np.concatenate([np.array(one["steps"], np.int64) for one in own])
        scores = np.concatenate([np.array(one["scores"]) for one in own])
        by_model = data.by_model[steps]
        both = rankings(steps, scores, ("auroc_prefix", "auroc_problem"))
        by_metric["prefix"].append(both[0])
        by_metric["problem"].append(both[1])
        by_metric["model"] += rankings(steps[by_model], scores[by_model], ("auroc_prefix",))
        of_folds = [
            rankings(np.array(one["steps"], np.int64), np.array(one["scores"]), ("auroc", "fpr_at_tpr_90"))
            for one in own
        ]
        for name, column in zip(("pooled", "fpr"), zip(*of_folds, strict=True), strict=True):
            by_metric[name].append(mean_of(column))
    return {name: mean_of(values) for name, values in by_metric.items()}, [one.value for one in by_metric["prefix"]]


def mean_of(values: Sequence[Measured]) -> Measured:
    replicates = np.mean([one.replicates for one in values], axis=0)
    return Measured(float(np.mean([one.value for one in values])), replicates, values[0].num_clusters)


def detectable(difference: Comparison, power: float = 0.8) -> float:
    """The difference that such an interval excludes 0 for with this power."""
    z, normal = NormalDist().inv_cdf(0.975), NormalDist()
    return (difference.high - difference.low) / (2 * z) * (z + normal.inv_cdf(power))


def verdict(difference: Comparison, of_model: Comparison, level: float) -> str:
    """The decision rule of experiments/LOG.md; `level` is the AUROC of the reference arm."""
    if difference.low > 0 or difference.high < 0:
        same_sign = difference.difference * of_model.difference > 0
        return "established" if same_sign else "not on model-written steps"
    inside = max(-difference.low, difference.high) <= EQUIVALENT
    if inside and level >= FLOOR:
        return f"null within ±{100 * EQUIVALENT:g}"
    return "uninformative: near chance" if inside else "undecided"


def report(run: Run, figure: Path | None) -> None:
    """Print and write the tables, and draw a dot per seed."""
    made, lines = Report("objectives"), table_of_setup(run)
    for kind in ("heads", "tuned"):
        arms_cells = read_cells(run, kind)
        if not arms_cells:
            lines.append(f"No {kind} in cells that all arms share.\n")
            continue
        measured = {name: measure(run, cells) for name, cells in arms_cells.items()}
        cells = next(iter(arms_cells.values()))
        folds, seeds = ({cell[i] for cell in cells} for i in (0, 1))
        lines += [f"### {kind}: {len(cells)} cells ({len(folds)} folds, {len(seeds)} seeds)\n"]
        lines += table_of_arms({name: table for name, (table, _) in measured.items()}, arms_cells)
        lines += table_of_contrasts({name: table for name, (table, _) in measured.items()})
        dots = {ARMS[name].title: [100 * value for value in values] for name, (_, values) in measured.items()}
        alt = "AUROC within prefix of every arm, a dot per seed"
        with made.figure(f"objectives-{kind}", caption="", alt=alt, size=(5.6, 0.8 + 0.26 * len(dots))) as axes:
            draw_dots(axes, dots)
            finish(axes, "AUROC within prefix (%)", percent="")
    lines += others(run)
    text = "\n".join(lines)
    write_text(run.out / "report" / "objectives.md", text + "\n")
    print(text)
    if made.blocks:
        made.write(figure or run.out / "report")


def shown(value: Measured) -> str:
    ends = value.interval()
    return f"{100 * ends.value:.1f} [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"


def table_of_setup(run: Run) -> list[str]:
    """The learning curve: the best rate of each head."""
    best: dict[tuple[str, str], dict[int, float]] = {}
    for path in (run.out / "results" / "setup").glob("*.json"):
        one = json.loads(path.read_text())
        if "trees" in one:
            set_up = SetUp(one["name"], one["path"], one["layers"], one["layout"])
            row = best.setdefault((set_up.key, one["head"]), {})
            row[one["trees"]] = max(one["auroc"], row.get(one["trees"], 0.0))
    sizes = sorted({size for row in best.values() for size in row})
    lines = [f"| set-up | head | {' | '.join(f'{size} trees' for size in sizes)} |", f"|---|---|{'---|' * len(sizes)}"]
    for (key, head), row in sorted(best.items()):
        cells = [f"{100 * row[size]:.1f}" if size in row else "" for size in sizes]
        lines.append(f"| {key} | {head} | {' | '.join(cells)} |")
    return ["### Learning curve, AUROC within prefix\n", *lines, ""]


def table_of_arms(tables: Mapping[str, Mapping[str, Measured]], cells: Mapping[str, Cells]) -> list[str]:
    lines = [f"| arm | {' | '.join(METRICS.values())} | rates | examples |", f"|---|{'---|' * len(METRICS)}---|---|"]
    for name, table in tables.items():
        rates = sorted({one["rate"] for one in cells[name].values()})
        sizes = [sum(one["rounds"]) for one in cells[name].values()]
        values = " | ".join(shown(table[metric]) for metric in METRICS)
        shown_rates = ", ".join(f"{rate:g}" for rate in rates)
        lines.append(f"| {ARMS[name].title} | {values} | {shown_rates} | {round(float(np.mean(sizes))):,} |")
    return [*lines, ""]


def table_of_contrasts(tables: Mapping[str, Mapping[str, Measured]]) -> list[str]:
    lines = [
        "| difference, AUROC within prefix | all candidates | p | detectable (power 80 %) | model-written | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for a, b in CONTRASTS:
        if a in tables and b in tables:
            found, of_model = (tables[a][metric].minus(tables[b][metric]) for metric in ("prefix", "model"))
            cells = [
                f"{100 * one.difference:+.2f} [{100 * one.low:+.2f}, {100 * one.high:+.2f}]"
                for one in (found, of_model)
            ]
            title = f"{ARMS[a].title} − {ARMS[b].title}" + " (primary)" * ((a, b) == PRIMARY)
            power, decision = f"{100 * detectable(found):.2f}", verdict(found, of_model, tables[b]["prefix"].value)
            lines.append(f"| {title} | {cells[0]} | {found.p:.3f} | {power} | {cells[1]} | {decision} |")
    return [*lines, ""]


def others(run: Run) -> list[str]:
    """Where the reports of the other stages are."""
    found = [path for stage in ("transfer", "search") for path in run.out.glob(f"{stage}/*/report.md")]
    return [f"- {path}" for path in sorted(found)]


# --- transfer and search ---


def prism(*words: object) -> None:
    """Run a `prism` command."""
    line = [str(word) for word in words]
    print("prism", *line, flush=True)
    subprocess.run([sys.executable, "-m", "prism_prm", *line], check=True, env=os.environ)


def saved_prms(run: Run) -> dict[str, Path]:
    """The base and the best arm, trained on all trees, as PRM folders."""
    kind = run.choice["design"]
    cells = read_cells(run, kind)
    if BASE not in cells:
        raise SystemExit(f"no results of {kind}: run that stage first")
    best = max((name for name in cells if name != BASE), key=lambda name: measure(run, cells[name])[0]["prefix"].value)
    folders = {"base": run.out / "prms" / BASE, "best": run.out / "prms" / best}
    tuner: Tuner | None = None
    for folder in folders.values():
        if folder.exists():
            continue
        name, seed = folder.name, SEED
        if kind == "heads":
            rates = [one["rate"] for one in cells[name].values()]
            rate = min(run.sizes.rates, key=lambda rate: abs(np.log(rate / median(rates))))
            head, _ = run.train(name, np.ones(run.num_trees, bool), rate, seed)
            prm = run.set_up.prm(run.out / "cache", 0, bf16=run.bf16)
            head.put_into(prm, run.all_states)
        else:
            num_trees = min(run.sizes.tuned_trees, run.num_trees)
            tuner = tuner or Tuner(run, run.set_up, num_trees, run.all_states, run.choice["top"])
            used_T = np.arange(run.num_trees) < num_trees
            head, _ = run.train(BASE, used_T, run.choice["rate"], seed)
            rounds, objective = run.rounds(ARMS[name], used_T, seed)
            tuner.train(head, rounds, objective, tuned_rate(run, name), seed, f"all-{name}")
            prm = tuner.prm
        prm.save(folder, aggregator="min")
    return folders


def loading(run: Run) -> list[object]:
    """How PRMs are loaded: the backbone reads every text once for all of them."""
    words: list[object] = ["--set", f"load.cache={run.out / 'cache'}", "--set", "load.cache_gb=200"]
    return [*words, "--dtype", "bfloat16"] if run.bf16 else words


def transfer(run: Run) -> None:
    """ProcessBench and PRMBench, and Best-of-N on a part of the MATH-500 pool, beside the pool's own PRM scores."""
    prms, out = saved_prms(run), run.out / "transfer"
    for bench, limit in (("processbench", run.sizes.processbench), ("prmbench", run.sizes.prmbench)):
        for name, place in prms.items():
            folder = out / f"{bench}-{name}"
            if not (folder / "metrics.json").exists():
                words = [*loading(run), "--set", "load.on_too_long=window", "--set", f"name={name}", "--out", folder]
                prism("eval", "--bench", bench, "--data", run.source / bench, "--limit", limit, "--prm", place, *words)
        names = [f"{name}={out / f'{bench}-{name}'}" for name in prms]
        prism("compare", *names, "--out", out / f"{bench}-compare")
    pool, scores = part_of_pool(run, out)
    named = [word for name, place in prms.items() for word in ("--prm", f"{name}={place}")]
    ns = ",".join(str(2**i) for i in range(run.sizes.pool_solutions.bit_length()))
    prism("rerank", pool, *named, "--scores", f"qwen-7b={scores}", *loading(run), "--set", "load.on_too_long=skip",
          "-n", ns, "--out", out / "rerank")  # fmt: skip


def part_of_pool(run: Run, out: Path) -> tuple[Path, Path]:
    """Some problems and solutions of the MATH-500 pool, and the scores of Qwen2.5-Math-PRM-7B."""
    folder, sizes = run.source / "best_of_n_prm", run.sizes
    rng = random.Random(SEED)
    files = [out / "pool.jsonl", out / "scores.jsonl"]
    names = ("math500_pool_250x32", "math500_scores_qwen2.5-math-prm-7b")
    records = [
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in names
    ]
    chosen = sorted(rng.sample(range(len(records[0])), sizes.pool_problems))
    for i in chosen:
        picked = sorted(rng.sample(range(len(records[0][i]["solutions"])), sizes.pool_solutions))
        for column, key in zip(records, ("solutions", "scores"), strict=True):
            column[i][key] = [column[i][key][k] for k in picked]
    for path, column in zip(files, records, strict=True):
        out.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(json.dumps(column[i]) + "\n" for i in chosen))
    return files[0], files[1]


def search(run: Run, given: argparse.Namespace) -> None:
    """Beam search with the base and the best arm, beside Best-of-n and the majority of as many samples."""
    prms, sizes, out = saved_prms(run), run.sizes, run.out / "search"
    named = [word for name, place in prms.items() for word in ("--prm", f"{name}={place}")]
    with contextlib.ExitStack() as stack:
        policy = given.policy or f"hf:{run.set_up.path}"
        words: list[object] = []
        if given.gguf:
            from code_run import served  # needs xllamacpp

            policy = f"openai:{stack.enter_context(served(given.gguf, sizes.n, given.threads))}"
        if policy.startswith("openai:"):
            words += ["-P", f"tokenizer={given.tokenizer or run.set_up.path}", "-P", f"concurrency={sizes.n}"]
        words += ["-P", f"max_tokens={sizes.max_tokens}", "-P", f"max_step_tokens={sizes.max_tokens // 2}"]
        task = ["--task", "gsm8k", "--task-data", run.source / "gsm8k" / "test.jsonl", "--limit", sizes.problems]
        common = [*task, "-n", sizes.n, "--seed", SEED, *words]
        prism("search", "--policy", policy, *common, *named, "--method", "beam", "--out", out / "beam")
        prism("search", "--policy", policy, *common, "--method", "sample", "--select", "majority",
              "--out", out / "sample")  # fmt: skip
    [pool] = (out / "sample" / "pools").glob("*.jsonl")
    prism("rerank", pool, *named, *loading(run), "-n", f"1,{sizes.n}", "--out", out / "best-of-n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["setup", "states", "arms", "tuned", "report", "transfer", "search"])
    parser.add_argument("--data", type=Path, required=True, help="folder with prm800k/, processbench/, gsm8k/, …")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", action="append", default=[], help="NAME=MODEL or NAME=MODEL@LAYERS (setup)")
    parser.add_argument("--precision", choices=["bf16", "float32"], default="bf16", help="of the frozen layers")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--figure", type=Path, help="a folder for the figure (report)")
    parser.add_argument("--policy", help="hf:MODEL or openai:URL; default: the backbone (search)")
    parser.add_argument("--gguf", type=Path, help="serve this policy by llama.cpp (search)")
    parser.add_argument("--tokenizer", help="of a served policy; default: the backbone's (search)")
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp (search)")
    parser.add_argument("--tiny", action="store_true", help="very small counts")
    given = parser.parse_args()
    run = Run(given)
    stages: dict[str, Callable[[], object]] = {
        "setup": lambda: setup(run, given.backbone),
        "states": lambda: run.all_states,
        "arms": lambda: arms(run),
        "tuned": lambda: tuned(run),
        "report": lambda: report(run, given.figure),
        "transfer": lambda: transfer(run),
        "search": lambda: search(run, given),
    }
    with shown_on(Terminal()):
        stages[given.what]()


if __name__ == "__main__":
    main()

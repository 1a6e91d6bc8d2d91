"""Benchmarks: how their items are read, and which metrics and tables they add to the common ones.

All are in one dict, BENCHMARKS. To add one, write a module and a line there, or an entry point in your own package.
Your own labels are benchmarks too. `labeled` takes any data that `prism pairs` reads: a step is right if its label is
above ½, wrong if it is below, and not judged otherwise. `pairs` takes a folder written by `prism pairs`: each kind of
pair is a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import xxhash

from prism_prm.arrays import Bools
from prism_prm.data.formats import ReadOptions
from prism_prm.data.pair_examples import Split, as_one_tree
from prism_prm.data.reader import Reader
from prism_prm.data.same_problem import Exclusions, normalize_problem
from prism_prm.data.tables import check_split
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.measure import Measured, Measurer, Steps, SubsetResult, Tables
from prism_prm.plugins import Plugins
from prism_prm.report import Report
from prism_prm.stats import NUM_DRAWS, SEED
from prism_prm.tree import ROOT, StepTree, unique_names

REDUNDANCY_THRESHOLD = 0.15


@dataclass(frozen=True, slots=True)
class Item:
    """One solution (or tree of candidate steps) with labels."""

    tree: StepTree
    group: str
    """The class or split that it is reported under."""
    problem: str
    """The problem in the words of its source."""
    contaminated: bool | None = None
    """Whether the PRM was trained on the problem; None if that was not checked."""
    also: tuple[str, ...] = ()
    """Other wordings of the problem, for that check."""

    @property
    def problem_key(self) -> str:
        """Equal for items of the same problem, which the bootstrap draws together."""
        return normalize_problem(self.problem)


@dataclass(frozen=True, slots=True)
class ItemSet:
    """The items of a benchmark, and where they come from."""

    items: tuple[Item, ...]
    files: tuple[str, ...]
    notes: dict[str, int] = field(default_factory=dict)
    """Counts of what was left out or is irregular, by reason."""
    complete: bool | None = None
    """Whether this is the whole benchmark; None if it has no fixed size."""
    name: str = ""
    """The benchmark's name; set by `read_benchmark`."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Groups that do not count in totals, and what their items are called; set by `read_benchmark`."""
    split: str | None = None
    """The split that was read; set by `read_benchmark`."""

    def __post_init__(self) -> None:
        if not self.items:
            where = ", ".join(self.files)
            raise DataError(
                f"{where}: no items to measure; name other files, or remove the filter", reason="empty-split"
            )

    def counts(self) -> dict[str, int]:
        """The number of items of each group."""
        return dict(Counter(item.group for item in self.items))

    def describe(self) -> str:
        """E.g. "part of prmbench: 2,290 items"."""
        part = {True: "all of ", False: "part of ", None: ""}[self.complete]
        counts = self.counts()
        beside = {called: counts.pop(group) for group, called in self.aside.items() if group in counts}
        listed = "".join(f" and {count:,} {called}" for called, count in beside.items())
        return f"{part}{self.name}: {sum(counts.values()):,} items{listed}"

    def some(self, limit: int, seed: int) -> ItemSet:
        """A sample of at most `limit` items of each group, chosen by the seed and their problem.

        It does not take the first items, because published files are often sorted: ProcessBench lists all errors first.
        """
        drawn = sorted(
            self.items, key=lambda item: (xxhash.xxh3_64_intdigest(item.problem_key.encode(), seed), item.tree.tree_id)
        )
        seen: Counter[str] = Counter()
        chosen: set[int] = set()
        for item in drawn:
            seen[item.group] += 1
            if seen[item.group] <= limit:
                chosen.add(item.tree.tree_id)
        kept = [item for item in self.items if item.tree.tree_id in chosen]
        if len(kept) == len(self.items):
            return self
        notes = {**self.notes, f"items left out by the limit of {limit} per group": len(self.items) - len(kept)}
        return replace(self, items=tuple(kept), notes=notes, complete=None if self.complete is None else False)

    def checked_against(self, training: Iterable[str | Path]) -> ItemSet:
        """The same items, with `contaminated` set if the training files have their problem."""
        seen = Exclusions.read(training)
        marked = [
            replace(item, contaminated=any(seen.match(text) for text in {item.problem, *item.also}))
            for item in self.items
        ]
        return replace(self, items=tuple(marked))


@dataclass(frozen=True)
class Benchmark:
    """A benchmark. Only `read` is required."""

    read: Callable[..., ItemSet]
    """Reads the items from files, folders or hub ids; with `has_splits`, also takes a `split`."""
    hub: str | None = None
    """Its dataset on the hub, which is read by default."""
    has_splits: bool = False
    """Whether its data can be a folder of `prism pairs`, with splits to choose from."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Groups that do not count in totals, and what their items are called. Predictions may leave them out."""
    threshold: float | None = None
    """The threshold that its rules prescribe. By default that of the PRM's card."""
    needs_every_step: bool = True
    """Whether steps after the first wrong one need scores too, which some critics do not give."""
    counts_unanswered: bool = False
    """Whether an item without a critic's verdict counts as a miss. By default it is left out."""
    by_redundancy: tuple[str, ...] = ()
    """Groups whose steps are judged by their redundancy score, if the PRM has one."""
    positives_only: tuple[str, ...] = ()
    """Groups without wrong steps, whose PRMScore is F1 alone."""
    measure: Callable[[Measurer], Tables] = lambda _: {}
    """Computes its own tables of metrics, by name. The measurer has all items, including those set aside."""
    headlines: Callable[[Tables], dict[str, Measured]] = lambda _: {}
    """Its own metrics to print and to compare PRMs by, by label."""
    shows_groups: bool = True
    """Whether reports have the plain table of groups; False if `add_to_report` adds a better one."""
    add_to_report: Callable[[Report, Mapping[str, SubsetResult]], None] = lambda *_: None
    """Adds its own part to the report on one PRM, given the results on all, clean and contaminated items."""
    add_to_comparison: Callable[[Report, Mapping[str, Tables]], None] = lambda *_: None
    """Adds its own part to a comparison, given every PRM's tables."""

    def in_total(self, steps: Steps) -> Steps:
        """The steps that count in totals."""
        names = [name for name in steps.group_names if name not in self.aside]
        return steps if len(names) == len(steps.group_names) else steps.only_groups(names)

    def judge(self, steps: Steps, threshold: float, redundancy_threshold: float = REDUNDANCY_THRESHOLD) -> Bools:
        """Which steps are judged good: those above the threshold or, in some groups, those that are not redundant."""
        good = steps.probability > threshold
        if steps.redundancy is None:
            return good
        by_redundancy = np.isin(steps.group_names, self.by_redundancy)[steps.step_group]
        return np.where(by_redundancy, ~(steps.redundancy > redundancy_threshold), good)

    def tables(
        self,
        steps: Steps,
        threshold: float,
        redundancy_threshold: float = REDUNDANCY_THRESHOLD,
        num_draws: int = NUM_DRAWS,
        seed: int = SEED,
    ) -> tuple[Measurer, Tables]:
        """The measurer of the totals, and the tables: `steps`, which every benchmark has, and its own ones."""

        def measurer(part: Steps) -> Measurer:
            return Measurer(part, threshold, num_draws, seed, self.judge(part, threshold, redundancy_threshold))

        total = measurer(self.in_total(steps))
        common = {**total.rates(), **total.rankings(), **total.calibration(), **total.first_errors()}
        return total, {"steps": common, **self.measure(total if total.steps is steps else measurer(steps))}


def read_labeled(inputs: Sequence[str | Path], split: str | None = None) -> ItemSet:
    """Read the trees that have a label, grouped by file. A `split` needs folders of `prism pairs`."""
    reader = Reader(inputs, options=ReadOptions(split=split))
    for source in reader.sources if split is not None else ():
        if source.kind != "parquet":
            raise ConfigError(f"{source.name}: has no splits; --split {split} needs a folder of `prism pairs`")
        check_split(source.name, split)
    notes: Counter[str] = Counter()
    items: list[Item] = []
    for source, draft in reader.drafts():
        if all(label is None or label == 0.5 for label in draft.labels):
            notes["trees without a judged step"] += 1
            continue
        tree = replace(draft.tree(len(items)), name=draft.name or f"tree-{len(items)}")
        items.append(Item(tree, Path(source.name).name, draft.problem))
    names = unique_names(item.tree.name for item in items)
    items = [replace(item, tree=replace(item.tree, name=name)) for item, name in zip(items, names, strict=True)]
    notes.update({f"records dropped: {reason}": count for reason, count in reader.report.dropped.items()})
    files = tuple(source.name for source in reader.sources)
    if not items:
        raise DataError(f"{', '.join(files)}: no step has a label, so there is nothing to measure")
    return ItemSet(tuple(items), files, dict(notes))


def read_pair_folders(folders: Sequence[str | Path], split: str | None = None) -> ItemSet:
    """Read an item per tree and kind of pair: chosen steps are right, rejected ones wrong, others are not judged."""
    items: list[Item] = []
    for folder in folders:
        data = Split.read(Path(folder), split)
        for kind in sorted(set(data.kinds)):
            pairs = data.pairs.take(np.flatnonzero(data.kinds == kind))
            for indices in pairs.by_tree():
                tree, groups = as_one_tree(pairs, indices)
                pruned = _prune(tree, {chosen for chosen, _ in groups}, {rejected for _, rejected in groups})
                named = replace(pruned, tree_id=len(items), name=f"{tree.name or tree.tree_id}:{kind}#{len(items)}")
                items.append(Item(named, str(kind), tree.problem))
    files = tuple(map(str, folders))
    return ItemSet(tuple(items), files)


def _prune(tree: StepTree, right: Collection[int], wrong: Collection[int]) -> StepTree:
    """The tree with only these labels, and only the nodes on the paths to them."""
    kept = sorted({node for judged in (*right, *wrong) for node in tree.path(judged)})
    number = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
    labels = dict.fromkeys(right, 1.0) | dict.fromkeys(wrong, 0.0)
    return replace(
        tree,
        nodes=tuple(replace(tree.nodes[node], label=labels.get(node), rating=None) for node in kept),
        parents=tuple(number[tree.parents[node]] for node in kept),
        trunk=tuple(number[node] for node in tree.trunk if node in number),
    )


from prism_prm.evaluate.benchmarks.prmbench import PRMBENCH  # noqa: E402  it needs Benchmark
from prism_prm.evaluate.benchmarks.processbench import PROCESSBENCH  # noqa: E402

BENCHMARKS: dict[str, Benchmark] = {
    "prmbench": PRMBENCH,
    "processbench": PROCESSBENCH,
    "labeled": Benchmark(read_labeled, has_splits=True),
    "pairs": Benchmark(read_pair_folders, has_splits=True),
}
_PLUGINS = Plugins(
    "benchmark", BENCHMARKS, "prism_prm.benchmarks", "a Benchmark", lambda value: isinstance(value, Benchmark)
)


def find_benchmark(name: str) -> Benchmark:
    """One of BENCHMARKS by its name, or one that an installed package adds."""
    if name == "labelled":
        raise ConfigError(
            "The benchmark 'labelled' is now spelled 'labeled': use --bench labeled, and rerun `prism eval` if the "
            "results are of version 0.2.0 or earlier."
        )
    return _PLUGINS.find(name)


def read_benchmark(name: str, data: str | Path | Sequence[str | Path] = (), split: str | None = None) -> ItemSet:
    """Read the items of a benchmark.

    Args:
        name: prmbench, processbench, labeled, pairs, or one that an installed package adds.
        data: files, folders (or a folder that contains one named after the benchmark), or hub ids; by default from the
            hub.
        split: for labeled and pairs, use only this split of a folder written by `build_pairs`.

    Example:
        >>> items = read_benchmark("labeled", ["labeled.jsonl"])
        >>> len(items.items)
        4
    """
    data = [data] if isinstance(data, str | Path) else data
    benchmark = find_benchmark(name)
    if split is not None and not benchmark.has_splits:
        with_splits = ", ".join(name for name, known in BENCHMARKS.items() if known.has_splits)
        raise ConfigError(f"--split is for the benchmarks {with_splits}, not for {name}")
    if not data:
        if benchmark.hub is None:
            raise ConfigError(f"--bench {name} needs --data: the file or folder to read")
        data = [benchmark.hub]
    places = [Path(place) / name if (Path(place) / name).is_dir() else place for place in data]
    items = benchmark.read(places, split) if benchmark.has_splits else benchmark.read(places)
    return replace(items, name=name, aside=benchmark.aside, split=split)

"""What a benchmark is: items with labels, and what it measures and shows in addition to the common metrics.

All are in one dict, BENCHMARKS: a new one is a module here and a line there, or an entry point of another package.
Your own labels are benchmarks too. `labelled` takes any data that `prism pairs` reads: a step is right if its label is
above ½, wrong if it is below, and not judged otherwise. `pairs` takes what `prism pairs` wrote: each kind of pair is a
group.
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
    """The class or split it is reported under."""
    problem: str
    """The problem it stems from, as its source words it."""
    contaminated: bool | None = None
    """Whether the problem is among those the PRM was trained on; None where nobody checked."""
    also: tuple[str, ...] = ()
    """Other wordings of the problem, for that check."""

    @property
    def problem_key(self) -> str:
        """Equal for items of one problem, which the bootstrap draws together."""
        return normalize_problem(self.problem)


@dataclass(frozen=True, slots=True)
class ItemSet:
    """The items read from a benchmark, and where they came from; `complete` says whether some are missing."""

    items: tuple[Item, ...]
    files: tuple[str, ...]
    notes: dict[str, int] = field(default_factory=dict)
    """What was left out or out of order, by reason."""
    complete: bool | None = None
    """Whether this is all of the benchmark; None where it has no fixed size."""
    name: str = ""
    """The benchmark's name; `read_benchmark` sets it."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Groups whose items are in no total → what these are called; `read_benchmark` sets it."""
    split: str | None = None
    """The split that was read; `read_benchmark` sets it."""

    def __post_init__(self) -> None:
        if not self.items:
            where = ", ".join(self.files)
            raise DataError(
                f"{where}: no items to measure; give other files or remove the filter", reason="empty-split"
            )

    def counts(self) -> dict[str, int]:
        """Items by group, in order of first sight."""
        return dict(Counter(item.group for item in self.items))

    def described(self) -> str:
        """What was measured, in a few words: `part of prmbench: 2,290 items`."""
        part = {True: "all of ", False: "part of ", None: ""}[self.complete]
        counts = self.counts()
        beside = {called: counts.pop(group) for group, called in self.aside.items() if group in counts}
        listed = "".join(f" and {count:,} {called}" for called, count in beside.items())
        return f"{part}{self.name}: {sum(counts.values()):,} items{listed}"

    def some(self, limit: int, seed: int) -> ItemSet:
        """At most `limit` items of each group, chosen by the seed and their problem; then it is a part.

        The first ones would not do: published files are often sorted, ProcessBench's with all errors first.
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
        """The same items, marked by whether their problem is one of those in the training files."""
        seen = Exclusions.read(training)
        marked = [
            replace(item, contaminated=any(seen.match(text) for text in {item.problem, *item.also}))
            for item in self.items
        ]
        return replace(self, items=tuple(marked))


@dataclass(frozen=True)
class Benchmark:
    """A value: `read` is all a benchmark needs; the rest is what makes it special."""

    read: Callable[..., ItemSet]
    """Takes the files, folders or hub ids; and a `split`, where it has any."""
    hub: str | None = None
    """Its home on the hub, read where no data is given."""
    has_splits: bool = False
    """Whether it can be a folder of `prism pairs`, with splits to choose from."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Groups whose items are in no total → what these are called; predictions may leave them out."""
    threshold: float | None = None
    """Where its rules judge every PRM; None leaves it to each PRM's card."""
    needs_every_step: bool = True
    """Whether steps after the first one that is judged wrong need scores too; some critics give none."""
    counts_unanswered: bool = False
    """Whether an item on which a critic gave no verdict counts, as one that is not matched; else it is left out."""
    by_redundancy: tuple[str, ...] = ()
    """Groups whose steps are judged by their redundancy score, where a PRM has one."""
    positives_only: tuple[str, ...] = ()
    """Groups without wrong steps, whose PRMScore is F1 alone."""
    measure: Callable[[Measurer], Tables] = lambda _: {}
    """Tables of its own metrics, by name; the measurer has all items, also those that are in no total."""
    headlines: Callable[[Tables], dict[str, Measured]] = lambda _: {}
    """Its own numbers to print and to compare PRMs by: label → one of the measured."""
    shows_groups: bool = True
    """Whether reports have the plain table of groups; not where `add_to_report` has a better one."""
    add_to_report: Callable[[Report, Mapping[str, SubsetResult]], None] = lambda *_: None
    """Its own part of the report on one PRM, given what was measured on all, clean and contaminated items."""
    add_to_comparison: Callable[[Report, Mapping[str, Tables]], None] = lambda *_: None
    """Its own part of a comparison, given every PRM's tables."""

    def in_total(self, steps: Steps) -> Steps:
        """The steps that are in totals."""
        names = [name for name in steps.group_names if name not in self.aside]
        return steps if len(names) == len(steps.group_names) else steps.only_groups(names)

    def judge(self, steps: Steps, threshold: float, redundancy_threshold: float = REDUNDANCY_THRESHOLD) -> Bools:
        """Which steps count as good: those above the threshold, or of some groups those that are not redundant."""
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
        """The table `steps`, which every benchmark has, and its own ones; and the measurer of the totals."""

        def measurer(of: Steps) -> Measurer:
            return Measurer(of, threshold, num_draws, seed, self.judge(of, threshold, redundancy_threshold))

        total = measurer(self.in_total(steps))
        common = {**total.rates(), **total.rankings(), **total.calibration(), **total.first_errors()}
        return total, {"steps": common, **self.measure(total if total.steps is steps else measurer(steps))}


def read_labelled(inputs: Sequence[str | Path], split: str | None = None) -> ItemSet:
    """The trees that carry a label, grouped by file; of a split, where the input is a folder of `prism pairs`."""
    reader = Reader(inputs, options=ReadOptions(split=split))
    for source in reader.sources if split is not None else ():
        if source.kind != "parquet":
            raise ConfigError(f"{source.name}: has no splits; --split {split} is for folders of `prism pairs`")
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
    """An item per tree and kind of pair: its chosen steps are right, its rejected ones wrong, others not judged."""
    items: list[Item] = []
    for folder in folders:
        data = Split.read(Path(folder), split)
        for kind in sorted(set(data.kinds)):
            pairs = data.pairs.take(np.flatnonzero(data.kinds == kind))
            for indices in pairs.by_tree():
                tree, groups = as_one_tree(pairs, indices)
                judged = _judged(tree, {chosen for chosen, _ in groups}, {rejected for _, rejected in groups})
                named = replace(judged, tree_id=len(items), name=f"{tree.name or tree.tree_id}:{kind}#{len(items)}")
                items.append(Item(named, str(kind), tree.problem))
    files = tuple(map(str, folders))
    return ItemSet(tuple(items), files)


def _judged(tree: StepTree, right: Collection[int], wrong: Collection[int]) -> StepTree:
    """The tree with these labels alone, and only the nodes that they stand on."""
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
    "labelled": Benchmark(read_labelled, has_splits=True),
    "pairs": Benchmark(read_pair_folders, has_splits=True),
}
_PLUGINS = Plugins(
    "benchmark", BENCHMARKS, "prism_prm.benchmarks", "a Benchmark", lambda found: isinstance(found, Benchmark)
)


find_benchmark = _PLUGINS.find
"""One of BENCHMARKS by its name, or one that an installed package adds."""


def read_benchmark(name: str, data: str | Path | Sequence[str | Path] = (), split: str | None = None) -> ItemSet:
    """The items of a benchmark.

    Args:
        name: prmbench, processbench, labelled, pairs, or one that an installed package adds.
        data: files, folders (or a folder that contains one named after the benchmark), or hub ids; by default from the
            hub.
        split: for labelled and pairs, use only this split of a folder written by `build_pairs`.

    Example:
        >>> items = read_benchmark("labelled", ["labelled.jsonl"])
        >>> len(items.items)
        4
    """
    data = [data] if isinstance(data, str | Path) else data
    benchmark = find_benchmark(name)
    if split is not None and not benchmark.has_splits:
        having = ", ".join(name for name, one in BENCHMARKS.items() if one.has_splits)
        raise ConfigError(f"--split is for the benchmarks {having}, not for {name}")
    if not data:
        if benchmark.hub is None:
            raise ConfigError(f"--bench {name} needs --data: the file or folder to read")
        data = [benchmark.hub]
    places = [Path(given) / name if (Path(given) / name).is_dir() else given for given in data]
    found = benchmark.read(places, split) if benchmark.has_splits else benchmark.read(places)
    return replace(found, name=name, aside=benchmark.aside, split=split)

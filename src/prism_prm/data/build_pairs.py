"""Stream labeled solutions into `trees.parquet`, `pairs.parquet` and `summary.json`.

Trees are read, paired and written in chunks, so memory does not grow with the data.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prism_prm import __version__
from prism_prm.console import Advance, ignore
from prism_prm.data.formats import Draft
from prism_prm.data.inputs import as_places, keep_inputs
from prism_prm.data.pair_arrays import (
    OtherProblems,
    PairColumns,
    Small,
    add_perturbed,
    annotated_columns,
    lookahead_columns,
)
from prism_prm.data.pair_rules import PairSettings
from prism_prm.data.reader import Reader
from prism_prm.data.same_problem import Exclusions, Splits, split_by_problem
from prism_prm.data.tables import PAIRS, Forest, pair_writer, tree_table, tree_writer
from prism_prm.errors import DataError
from prism_prm.files import atomic_file
from prism_prm.job import Job
from prism_prm.tree import PAIR_KINDS, PairKind

Write = Callable[[pa.Table], None]

CHUNK_NODES = 16384
"""Steps per chunk: enough to keep NumPy busy, few enough to keep memory low."""
MAX_RATINGS = 16
"""Up to this many distinct ratings are counted by value; soft labels have too many."""


@dataclass(frozen=True, slots=True)
class PairRecipe:
    """Everything that determines which pairs are made from the input."""

    pairs: PairSettings = field(default_factory=PairSettings)
    splits: Splits | None = None
    exclusions: Exclusions | None = None


def build_pairs(
    inputs: Reader | str | Path | Sequence[str | Path],
    out: str | Path,
    recipe: PairRecipe | None = None,
    *,
    advance: Advance = ignore,
) -> dict[str, Any]:
    """Turn labeled solutions into matched pairs of a right and a wrong step; returns the summary.

    Args:
        inputs: files, folders or hub datasets of labeled solutions, or a `Reader` of them.
        out: folder for trees.parquet, pairs.parquet and summary.json.
        recipe: which steps to compare, splits, and problems to leave out.
        advance: a callback, called with the number of newly read bytes of input.

    Example:
        >>> summary = build_pairs("labeled.jsonl", "pairs", PairRecipe(PairSettings(lookahead="none")))
        >>> summary["trees"]
        4
    """
    reader = inputs if isinstance(inputs, Reader) else Reader(as_places(inputs))
    recipe = recipe or PairRecipe()
    settings, exclusions = recipe.pairs, recipe.exclusions
    out = Path(out)
    read = [*(source.name for source in reader.sources), *(exclusions.counts if exclusions else ())]
    keep_inputs(read, [out / name for name in ("trees.parquet", "pairs.parquet", "summary.json")])
    split_names = tuple(recipe.splits.shares) if recipe.splits else ("",)
    split_of = split_by_problem(recipe.splits) if recipe.splits else lambda _: ""
    tree_counts, counts = TreeCounts(settings), PairCounts({name: Counter(trees=0, pairs=0) for name in split_names})
    others = OtherProblems(settings, counts.drops["random"])
    done = 0
    with (
        Job(out),
        atomic_file(out / "trees.parquet") as trees_file,
        atomic_file(out / "pairs.parquet") as pairs_file,
        atomic_file(out / "summary.json") as summary_file,
    ):
        with (
            tree_writer(trees_file) as trees,
            pair_writer(pairs_file) as pairs,
            _in_background(trees.write_table) as write_trees,
            _in_background(pairs.write_table) as write_pairs,
        ):
            for sources, drafts in _chunks(reader, exclusions):
                first_id = tree_counts.trees
                tree_ids = range(first_id, first_id + len(drafts))
                names = [split_of(draft.problem) for draft in drafts]
                splits = np.array([split_names.index(name) for name in names], dtype=np.int32)
                perturbed = add_perturbed(drafts, first_id, settings, counts.drops["perturbed"])
                forest = Forest.of(drafts)
                write_trees(tree_table(forest, tree_ids=tree_ids, splits=names, sources=sources))
                kinds: dict[PairKind, PairColumns] = {
                    "annotated": annotated_columns(forest, first_id, settings, counts.drops["annotated"]),
                    "lookahead": lookahead_columns(forest, first_id, settings, counts.drops["lookahead"]),
                    "perturbed": perturbed,
                }
                tree = np.concatenate([columns.tree for columns in kinds.values()])
                # Pairs are written tree by tree. NumPy sorts 16-bit numbers with a radix sort.
                order = np.argsort(tree.astype(np.uint16) if len(splits) < 2**16 else tree, kind="stable")
                tree = tree[order]
                position, chosen, rejected, gap, rollouts = (
                    np.concatenate([getattr(columns, name) for columns in kinds.values()])[order]
                    for name in ("position", "chosen", "rejected", "gap", "rollouts")
                )
                codes = np.array([PAIR_KINDS.index(kind) for kind in kinds], dtype=np.int32)
                kind = np.repeat(codes, [len(columns) for columns in kinds.values()])[order]
                ids = tree + np.int32(first_id)
                small = (ids, position, chosen, rejected, ids, kind, splits[tree])
                estimates = pa.array(gap, mask=np.isnan(gap)), pa.array(rollouts, mask=rollouts < 0)
                _write(write_pairs, small, *estimates, counts)
                tree_counts.add(forest)
                for name in names:
                    counts.splits[name]["trees"] += 1
                if settings.random:
                    for tree_id, draft, split in zip(tree_ids, drafts, splits.tolist(), strict=True):
                        others.add(tree_id, draft, split)
                advance(reader.report.bytes - done)
                done = reader.report.bytes
            if settings.random:  # these come last, because any tree may provide the negative
                anchor, offer = others.draw()
                kind = np.full(len(anchor), PAIR_KINDS.index("random"))
                columns = (anchor["tree"], anchor["position"], anchor["node"], offer["node"], offer["tree"], kind)
                estimates = pa.nulls(len(anchor), pa.float64()), pa.nulls(len(anchor), pa.int32())
                numbers = [column.astype(np.int32) for column in (*columns, anchor["split"])]
                _write(write_pairs, numbers, *estimates, counts)
        if not tree_counts.trees:
            left_out = {**reader.report.bad, **reader.report.dropped}
            for file, counter in (exclusions.counts if exclusions else {}).items():
                left_out[f"excluded by {file}"] = sum(counter.values())
            reasons = ", ".join(f"{reason} {count}" for reason, count in left_out.items() if count)
            read_from = ", ".join(source.name for source in reader.sources)
            raise DataError(f"no tree is left from {read_from} (left out: {reasons or 'nothing'})", reason="no-trees")
        report = reader.report
        summary = {
            **tree_counts.as_dict(),
            **counts.as_dict(),
            "records": {"read": report.records, "formats": dict(report.formats)},
            "dropped_records": dict(report.dropped),
            "bad_records": {"count": report.bad.total(), "reasons": dict(report.bad), "first": report.first_bad},
            "excluded_trees": {file: dict(count) for file, count in exclusions.counts.items()} if exclusions else {},
            "settings": {
                "format": reader.format,
                **asdict(reader.options),
                **asdict(settings),
                "split": dict(recipe.splits.shares) if recipe.splits else None,
                "exclude_ngram": exclusions.ngram if exclusions else None,
            },
            "inputs": [
                {"name": source.name, "bytes": source.size(), "sha256": source.sha256()} for source in reader.sources
            ],
            "version": __version__,
        }
        summary_file.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return summary


def _chunks(reader: Reader, exclusions: Exclusions | None) -> Iterator[tuple[list[str], list[Draft]]]:
    """Yield chunks of trees that are not excluded, with their sources."""
    sources: list[str] = []
    drafts: list[Draft] = []
    size = 0
    for source, draft in reader.drafts():
        if exclusions and exclusions.match(draft.problem):
            continue
        sources.append(source.name)
        drafts.append(draft)
        size += len(draft.texts)
        if size >= CHUNK_NODES:
            yield sources, drafts
            sources, drafts, size = [], [], 0
    if drafts:
        yield sources, drafts


def _write(write: Write, columns: Sequence[Small], gap: Any, rollouts: Any, counts: PairCounts) -> None:
    """Number and write pairs, given all columns of `pairs.parquet` after the id."""
    *numbers, kind, split = columns
    first = sum(counts.kinds.values())
    if len(kind):
        ids = np.arange(first, first + len(kind))
        named = [
            pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))
            for codes, names in ((kind, PAIR_KINDS), (split, list(counts.splits)))
        ]
        table = [*map(pa.array, (ids, *numbers)), *named, gap, rollouts]
        write(pa.Table.from_arrays(table, schema=PAIRS))
    for number, count in enumerate(np.bincount(kind).tolist()):
        counts.kinds[PAIR_KINDS[number]] += count
    for of_split, count in zip(counts.splits.values(), np.bincount(split).tolist(), strict=False):
        of_split["pairs"] += count


@dataclass(slots=True)
class TreeCounts:
    """Counts over trees; `docs/guides/data.md` defines the shares."""

    settings: PairSettings
    trees: int = 0
    positions: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    ratings: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)
    rated: int = 0
    rated_positive: int = 0
    trunk: int = 0
    trunk_positive: int = 0
    end_known: int = 0
    all_right: int = 0
    model_all_right: int = 0

    def add(self, forest: Forest) -> None:
        """Count a chunk of trees."""
        labels, ratings = (column.to_numpy(zero_copy_only=False) for column in (forest.labels, forest.ratings))
        human = pc.equal(forest.origins, "human").to_numpy(zero_copy_only=False)
        positive, negative = labels > self.settings.positive_above, labels < self.settings.negative_below
        tree = forest.tree_of_node()
        self.trees += len(forest.drafts)
        self.positions += int(np.count_nonzero(np.bincount(forest.node_starts[tree] + tree + forest.parents + 1)))
        none = int(np.count_nonzero(np.isnan(labels)))
        num_positive, num_negative = int(np.count_nonzero(positive)), int(np.count_nonzero(negative))
        undecided = len(labels) - none - num_positive - num_negative
        self.labels.update(positive=num_positive, negative=num_negative, undecided=undecided, none=none)
        for counted in pc.value_counts(forest.origins).to_pylist():
            self.origins[counted["values"]] += counted["counts"]
        is_rated = ~np.isnan(ratings)
        self.rated += int(np.count_nonzero(is_rated))
        self.rated_positive += int(np.count_nonzero(is_rated & positive))
        for counted in pc.value_counts(forest.ratings).to_pylist():
            value = counted["values"]
            self.ratings["none" if value is None else f"{value:g}"] += counted["counts"]
        tree = np.repeat(np.arange(len(forest.drafts)), np.diff(forest.trunk_starts))
        nodes = forest.trunk + forest.node_starts[tree]
        self.trunk += len(nodes)
        self.trunk_positive += int(np.count_nonzero(positive[nodes]))
        faults = np.bincount(tree[~positive[nodes]], minlength=len(forest.drafts))
        helped = np.bincount(tree[human[nodes]], minlength=len(forest.drafts))
        for draft, num_faults, num_helped in zip(forest.drafts, faults.tolist(), helped.tolist(), strict=True):
            self.end_known += draft.ended is not None
            all_right = bool(draft.ended) and bool(draft.trunk) and num_faults == 0
            self.all_right += all_right
            self.model_all_right += all_right and num_helped == 0

    def as_dict(self) -> dict[str, Any]:
        """Return the entries of `summary.json`; a share of nothing is null."""
        few = len(self.ratings) <= MAX_RATINGS
        return {
            "trees": self.trees,
            "positions": self.positions,
            "candidates": sum(self.origins.values()),
            "trunk_steps": self.trunk,
            "labels": dict(self.labels),
            "ratings": dict(sorted(self.ratings.items())) if few else {"distinct": len(self.ratings)},
            "origins": dict(sorted(self.origins.items())),
            "positive_step_share": {
                "rated": _share(self.rated_positive, self.rated),
                "trunk": _share(self.trunk_positive, self.trunk),
            },
            "all_right_share": _share(self.all_right, self.end_known),
            "model_all_right_share": _share(self.model_all_right, self.end_known),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass
class PairCounts:
    """Counts of pairs, and of candidates that made none."""

    splits: dict[str, Counter[str]]
    kinds: Counter[PairKind] = field(default_factory=Counter)
    drops: dict[PairKind, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in PAIR_KINDS})

    def as_dict(self) -> dict[str, Any]:
        """Return pairs and drops by kind; audit marks are separate, because marked pairs may have been kept."""
        drops: dict[str, dict[str, int]] = {}
        marked: dict[str, int] = {}
        for kind, counts in self.drops.items():
            for reason, count in sorted(counts.items()):
                if reason.startswith("marked:"):
                    marked[reason.removeprefix("marked:")] = count
                elif count:
                    drops.setdefault(kind, {})[reason] = count
        return {
            "pairs": {**{kind: self.kinds[kind] for kind in PAIR_KINDS}, "total": sum(self.kinds.values())},
            "dropped_pairs": drops,
            "audit_marks": marked,
            "splits": {name: dict(counts) for name, counts in self.splits.items()},
        }


@contextlib.contextmanager
def _in_background(write: Write) -> Iterator[Write]:
    """Run `write` in a background thread, in order; at most one table waits, to bound memory.

    Compressing and writing release the GIL, so reading continues meanwhile.
    """
    with ThreadPoolExecutor(max_workers=1) as pool:
        running: list[Future[None]] = []

        def finish() -> None:
            while running:
                running.pop().result()

        def write_later(table: pa.Table) -> None:
            finish()
            running.append(pool.submit(write, table))

        yield write_later
        finish()

"""From labelled solutions to `trees.parquet`, `pairs.parquet` and `summary.json`, as a stream.

Trees are read, paired and written in chunks, so that memory does not grow with the data.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prism_prm import __version__
from prism_prm.arrays import Floats, Ints
from prism_prm.console import Advance, ignore
from prism_prm.data import Reader
from prism_prm.data.draft import Draft
from prism_prm.data.forest import Forest
from prism_prm.data.inputs import as_places, keep_inputs
from prism_prm.errors import ConfigError, DataError
from prism_prm.files import whole_file
from prism_prm.pairs.negatives import OtherProblems, add_perturbed
from prism_prm.pairs.same_problem import Exclusions, SplitByProblem, Splits
from prism_prm.pairs.settings import PairSettings
from prism_prm.pairs.summary import PairCounts, TreeCounts
from prism_prm.pairs.vectorised import PairColumns, Small, annotated_columns, lookahead_columns
from prism_prm.records import PAIR_KINDS, PairKind
from prism_prm.tables import PAIRS, pair_writer, tree_table, tree_writer

Write = Callable[[pa.Table], None]

CERTAINTY = ("gap", "rollouts")
CHUNK_NODES = 16384
"""Steps per chunk: enough for NumPy to be busy, few enough to stay small."""


@dataclass(slots=True)
class _Output:
    """The two tables while they are written, and the counts."""

    trees: Write
    pairs: Write
    counts: PairCounts
    split_names: Sequence[str]
    next_pair: int = 0

    def write_pairs(self, kinds: Sequence[tuple[PairKind, PairColumns]], splits: Ints, first_id: int) -> None:
        """Write the pairs of a chunk tree by tree; `splits` numbers the split of each tree of the chunk."""
        tree = np.concatenate([pairs.tree for _, pairs in kinds])
        # Numbers of 16 bits are sorted by counting.
        order = np.argsort(tree.astype(np.uint16) if len(splits) < 2**16 else tree, kind="stable")
        tree = tree[order]
        position, chosen, rejected = (
            np.concatenate([getattr(pairs, name) for _, pairs in kinds])[order]
            for name in ("position", "chosen", "rejected")
        )
        kind = np.repeat(
            np.array([PAIR_KINDS.index(kind) for kind, _ in kinds], dtype=np.int32), [len(p) for _, p in kinds]
        )[order]
        tree_id = tree + np.int32(first_id)
        gap, rollouts = (np.concatenate([getattr(pairs, name) for _, pairs in kinds])[order] for name in CERTAINTY)
        self.write_columns(
            tree_id, position, chosen, rejected, tree_id, kind, splits.astype(np.int32)[tree], gap, rollouts
        )  # fmt: skip

    def write_columns(
        self,
        tree: Small,
        position: Small,
        chosen: Small,
        rejected: Small,
        rejected_tree: Small,
        kind: Small,
        split: Small,
        gap: Floats | None = None,
        rollouts: Small | None = None,
    ) -> None:
        """Write pairs, numbering them on; kinds and splits are numbers of names."""
        if not len(tree):
            return
        numbers = np.arange(self.next_pair, self.next_pair + len(tree))
        columns = [pa.array(column) for column in (numbers, tree, position, chosen, rejected, rejected_tree)]
        names = [_named(kind, PAIR_KINDS), _named(split, self.split_names)]
        sure = [_known(gap, len(tree), pa.float64()), _known(rollouts, len(tree), pa.int32())]
        self.pairs(pa.Table.from_arrays([*columns, *names, *sure], schema=PAIRS))
        self.next_pair += len(tree)
        for code, count in enumerate(np.bincount(kind, minlength=len(PAIR_KINDS)).tolist()):
            self.counts.kinds[PAIR_KINDS[code]] += count
        for code, count in enumerate(np.bincount(split, minlength=len(self.split_names)).tolist()):
            self.counts.splits[self.split_names[code]]["pairs"] += count


def _known(values: Any, size: int, kind: Any) -> Any:
    """Arrow values, null where there is none: NaN, or below 0."""
    if values is None:
        return pa.nulls(size, kind)
    return pa.array(values, kind, mask=np.isnan(values) if values.dtype.kind == "f" else values < 0)


def _named(codes: Small, names: Sequence[str]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))


@dataclass(frozen=True, slots=True)
class PairRecipe:
    """Everything that decides which pairs are made from the input."""

    pairs: PairSettings = field(default_factory=PairSettings)
    splits: Splits | None = None
    exclusions: Exclusions | None = None

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that trees can be in."""
        return tuple(self.splits.shares) if self.splits else ("",)

    def splitter(self) -> Callable[[str], int]:
        """Problem, one after another → the number of its split in `split_names`."""
        if self.splits is None:
            return lambda _: 0
        names, by_problem = self.split_names, SplitByProblem(self.splits)
        return lambda problem: names.index(by_problem.split_of(problem))


def build_pairs(
    inputs: Reader | str | Path | Sequence[str | Path],
    out: str | Path,
    recipe: PairRecipe | None = None,
    *,
    advance: Advance = ignore,
) -> dict[str, Any]:
    """Turn labelled solutions into matched pairs of a right and a wrong step; returns the summary.

    Args:
        inputs: files, folders or hub datasets of labelled solutions, or a `Reader` of them.
        out: folder for trees.parquet, pairs.parquet and summary.json.
        recipe: which steps are compared, splits, and problems to leave out.
        advance: called with the number of further bytes of input that are done.

    Example:
        >>> summary = build_pairs("labelled.jsonl", "pairs", PairRecipe(PairSettings(lookahead="none")))
        >>> summary["trees"]
        4
    """
    reader = inputs if isinstance(inputs, Reader) else Reader(as_places(inputs))
    recipe = recipe or PairRecipe()
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder for the output")
    read = [*(source.name for source in reader.sources), *(recipe.exclusions.counts if recipe.exclusions else ())]
    keep_inputs(read, [out / name for name in ("trees.parquet", "pairs.parquet", "summary.json")])
    counts, tree_counts = PairCounts(), TreeCounts(recipe.pairs)
    counts.splits = {name: Counter(trees=0, pairs=0) for name in recipe.split_names}
    others = OtherProblems(recipe.pairs, counts.drops["random"])
    with _three_files(out) as (trees_file, pairs_file, summary_file):
        with (
            tree_writer(trees_file) as trees,
            pair_writer(pairs_file) as pairs,
            _in_background(trees.write_table) as write_trees,
            _in_background(pairs.write_table) as write_pairs,
        ):
            output = _Output(write_trees, write_pairs, counts, recipe.split_names)
            done, split_of = 0, recipe.splitter()
            for sources, drafts in _chunks(reader, recipe):
                splits = np.array([split_of(draft.problem) for draft in drafts], dtype=np.int64)
                _write_chunk(output, sources, drafts, splits, tree_counts, others, recipe)
                advance(reader.report.bytes - done)
                done = reader.report.bytes
            _write_random(output, others)
        if not tree_counts.trees:
            raise DataError(_nothing_left(reader, recipe), reason="no-trees")
        summary = _summary(reader, recipe, tree_counts, counts)
        summary_file.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return summary


def _chunks(reader: Reader, recipe: PairRecipe) -> Iterator[tuple[list[str], list[Draft]]]:
    """Trees that are not excluded, with their sources, in chunks."""
    sources: list[str] = []
    drafts: list[Draft] = []
    size = 0
    for source, draft in reader.drafts():
        if recipe.exclusions and recipe.exclusions.match(draft.problem):
            continue
        sources.append(source.name)
        drafts.append(draft)
        size += len(draft.texts)
        if size >= CHUNK_NODES:
            yield sources, drafts
            sources, drafts, size = [], [], 0
    if drafts:
        yield sources, drafts


def _write_chunk(
    output: _Output,
    sources: list[str],
    drafts: list[Draft],
    splits: Ints,
    tree_counts: TreeCounts,
    others: OtherProblems,
    recipe: PairRecipe,
) -> None:
    first_id = tree_counts.trees
    settings, drops = recipe.pairs, output.counts.drops
    perturbed = add_perturbed(drafts, first_id, settings, drops["perturbed"])
    forest = Forest.of(drafts)
    names = [recipe.split_names[split] for split in splits]
    tree_ids = range(first_id, first_id + len(drafts))
    output.trees(tree_table(forest, tree_ids=tree_ids, splits=names, sources=sources))
    kinds: list[tuple[PairKind, PairColumns]] = [
        ("annotated", annotated_columns(forest, first_id, settings, drops["annotated"])),
        ("lookahead", lookahead_columns(forest, first_id, settings, drops["lookahead"])),
        ("perturbed", perturbed),
    ]
    output.write_pairs(kinds, splits, first_id)
    tree_counts.add(forest)
    for name in names:
        output.counts.splits[name]["trees"] += 1
    if settings.random:
        for tree_id, draft, split in zip(tree_ids, drafts, splits.tolist(), strict=True):
            others.add(tree_id, draft, split)


def _write_random(output: _Output, others: OtherProblems) -> None:
    """These come last, since any tree may give the negative."""
    if others.settings.random:
        anchor, offer = others.draw()
        kind = np.full(len(anchor), PAIR_KINDS.index("random"))
        columns = (anchor["tree"], anchor["position"], anchor["node"], offer["node"], offer["tree"], kind)
        tree, position, chosen, rejected, other, kinds, split = (
            column.astype(np.int32) for column in (*columns, anchor["split"])
        )
        output.write_columns(tree, position, chosen, rejected, other, kinds, split)


@contextlib.contextmanager
def _in_background(write: Write) -> Iterator[Write]:
    """The same, in a thread of its own and in the same order; at most one table waits, so that memory stays small.

    Compressing and writing release Python's lock, so reading continues meanwhile.
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


@contextlib.contextmanager
def _three_files(out: Path) -> Iterator[tuple[Path, Path, Path]]:
    """The output files, none of which is there before all of them are; other files in the folder stay untouched."""
    existed = out.exists()
    try:
        with (
            whole_file(out / "trees.parquet") as trees,
            whole_file(out / "pairs.parquet") as pairs,
            whole_file(out / "summary.json") as summary,
        ):
            yield trees, pairs, summary
    except BaseException:  # also when it is interrupted
        if not existed:
            with contextlib.suppress(OSError):
                out.rmdir()
        raise


def _nothing_left(reader: Reader, recipe: PairRecipe) -> str:
    left_out = {**reader.report.bad, **reader.report.dropped}
    for file, counts in (recipe.exclusions.counts if recipe.exclusions else {}).items():
        left_out[f"excluded by {file}"] = sum(counts.values())
    said = ", ".join(f"{reason} {count}" for reason, count in left_out.items() if count)
    return f"no tree is left from {', '.join(source.name for source in reader.sources)} (left out: {said or 'nothing'})"


def _summary(reader: Reader, recipe: PairRecipe, trees: TreeCounts, pairs: PairCounts) -> dict[str, Any]:
    report = reader.report
    exclusions = recipe.exclusions
    splits = recipe.splits
    return {
        **trees.as_dict(),
        **pairs.as_dict(),
        "records": {"read": report.records, "formats": dict(report.formats)},
        "dropped_records": dict(report.dropped),
        "bad_records": {"count": report.bad.total(), "reasons": dict(report.bad), "first": report.first_bad},
        "excluded_trees": {file: dict(counts) for file, counts in exclusions.counts.items()} if exclusions else {},
        "settings": {
            "format": reader.format,
            **asdict(reader.options),
            **asdict(recipe.pairs),
            "split": dict(splits.shares) if splits else None,
            "exclude_ngram": exclusions.ngram if exclusions else None,
        },
        "inputs": _input_list(reader.sources),
        "version": __version__,
    }


def _input_list(sources: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"name": source.name, "bytes": source.size(), "sha256": source.sha256()} for source in sources]

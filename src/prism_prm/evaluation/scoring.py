"""Score a benchmark's items with a PRM; scores are kept, so that nothing is scored twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prism_prm.errors import DataError
from prism_prm.evaluation.items import Benchmark

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer


def scores_file(folder: str | Path, bench: str) -> Path:
    """Where a run keeps the raw scores of a benchmark."""
    return Path(folder) / f"{bench}.scores.parquet"


def score_benchmark(
    prm: Scorer, benchmark: Benchmark, folder: str | Path, advance: Callable[[int], None] | None = None
) -> Path:
    """Write the scores table of a benchmark (or find it done); work that was stopped goes on where it was."""
    from prism_prm.scorer.table import write_scores

    path = scores_file(folder, benchmark.name)
    trees = [item.tree for item in benchmark.items]
    report = write_scores(prm, trees, path, advance=advance)
    if unscored := sum(len(tree.nodes) for tree in trees) - report.steps:
        raise DataError(
            f"{benchmark.name}: {unscored:,} steps exceed the context of {prm.context:,} tokens and have no "
            "score; raise --context, or score them without their earliest steps: --on-too-long drop-left-steps"
        )
    return path

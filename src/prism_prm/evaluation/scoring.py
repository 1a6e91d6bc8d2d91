"""Score a benchmark's items with a PRM; scores are kept, so that nothing is scored twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prism_prm.errors import DataError
from prism_prm.evaluation.items import Benchmark

if TYPE_CHECKING:
    from prism_prm.scorer import Prm


def scores_file(folder: str | Path, bench: str) -> Path:
    """Where a run keeps the raw scores of a benchmark."""
    return Path(folder) / f"{bench}.scores.parquet"


def score_benchmark(
    prm: Prm, benchmark: Benchmark, folder: str | Path, advance: Callable[[int], None] | None = None
) -> Path:
    """Write the scores table of a benchmark (or find it done); work that was stopped goes on where it was."""
    from prism_prm.scorer.table import write_scores

    path = scores_file(folder, benchmark.name)
    report = write_scores(prm, [item.tree for item in benchmark.items], path, advance=advance)
    if report.too_long and prm.on_too_long == "skip":
        raise DataError(
            f"{benchmark.name}: {report.too_long:,} steps exceed the context of {prm.context:,} tokens and have no "
            "score; raise --context, or score them without their earliest steps: --on-too-long drop-left-steps"
        )
    return path

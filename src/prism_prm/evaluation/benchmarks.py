"""The benchmarks, in one dict, and where their data is looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prism_prm.errors import ConfigError
from prism_prm.evaluation import prmbench, processbench
from prism_prm.evaluation.items import Benchmark
from prism_prm.evaluation.labelled import read_labelled


@dataclass(frozen=True, slots=True)
class BenchmarkKind:
    """How a benchmark is read, and its home on the hub (None: it has none)."""

    read: Callable[[Sequence[str | Path]], Benchmark]
    hub: str | None


BENCHMARKS: dict[str, BenchmarkKind] = {
    "prmbench": BenchmarkKind(prmbench.read_prmbench, prmbench.HUB),
    "processbench": BenchmarkKind(processbench.read_processbench, processbench.HUB),
    "labelled": BenchmarkKind(read_labelled, None),
}


def check_names(names: Sequence[str]) -> None:
    """Every name must be one of BENCHMARKS."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown or not names:
        raise ConfigError(f"Unknown benchmarks {unknown}. Known: {', '.join(BENCHMARKS)}.")


def read_benchmark(name: str, data: Sequence[str | Path]) -> Benchmark:
    """A benchmark from `data`: files, folders (also a folder that has one named like the benchmark), or hub ids.

    Without `data` it comes from the hub.
    """
    check_names([name])
    kind = BENCHMARKS[name]
    if not data:
        if kind.hub is None:
            raise ConfigError(f"--bench {name} needs --data: the file or folder to read")
        return kind.read([kind.hub])
    return kind.read([Path(given) / name if (Path(given) / name).is_dir() else given for given in data])

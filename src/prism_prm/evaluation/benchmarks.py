"""The benchmarks, in one dict, and where their data is looked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prism_prm.errors import ConfigError
from prism_prm.evaluation import prmbench, processbench
from prism_prm.evaluation.items import Benchmark
from prism_prm.evaluation.labelled import read_labelled
from prism_prm.evaluation.pair_folders import read_pair_folders


@dataclass(frozen=True, slots=True)
class BenchmarkKind:
    """How a benchmark is read, and its home on the hub (None: it has none)."""

    read: Callable[..., Benchmark]
    """Takes the files or folders; and a `split`, where it has any."""
    hub: str | None
    has_splits: bool = False
    """Whether it can be a folder of `prism pairs`, with splits to choose from."""


BENCHMARKS: dict[str, BenchmarkKind] = {
    "prmbench": BenchmarkKind(prmbench.read_prmbench, prmbench.HUB),
    "processbench": BenchmarkKind(processbench.read_processbench, processbench.HUB),
    "labelled": BenchmarkKind(read_labelled, None, has_splits=True),
    "pairs": BenchmarkKind(read_pair_folders, None, has_splits=True),
}


def check_names(names: Sequence[str]) -> None:
    """Every name must be one of BENCHMARKS."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown or not names:
        raise ConfigError(f"Unknown benchmarks {unknown}. Known: {', '.join(BENCHMARKS)}.")


def read_benchmark(name: str, data: Sequence[str | Path], split: str | None = None) -> Benchmark:
    """A benchmark from `data`: files, folders (also a folder that has one named like the benchmark), or hub ids.

    Without `data` it comes from the hub. `split` chooses one of a folder that `prism pairs` has written.
    """
    check_names([name])
    kind = BENCHMARKS[name]
    if split is not None and not kind.has_splits:
        having = ", ".join(name for name, kind in BENCHMARKS.items() if kind.has_splits)
        raise ConfigError(f"--split is for the benchmarks {having}, not for {name}")
    if not data:
        if kind.hub is None:
            raise ConfigError(f"--bench {name} needs --data: the file or folder to read")
        return kind.read([kind.hub])
    places = [Path(given) / name if (Path(given) / name).is_dir() else given for given in data]
    return kind.read(places, split) if kind.has_splits else kind.read(places)

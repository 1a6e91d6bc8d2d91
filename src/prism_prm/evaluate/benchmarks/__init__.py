"""The benchmarks, in one dict: a new one is a module here and a line below, or an entry point of another package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prism_prm.errors import ConfigError
from prism_prm.evaluate.benchmarks.base import Benchmark, Item, ItemSet
from prism_prm.evaluate.benchmarks.labelled import LABELLED, PAIRS
from prism_prm.evaluate.benchmarks.prmbench import PRMBENCH
from prism_prm.evaluate.benchmarks.processbench import PROCESSBENCH
from prism_prm.plugins import Plugins

__all__ = ["BENCHMARKS", "Benchmark", "Item", "ItemSet", "find_benchmark", "read_benchmark"]

BENCHMARKS: dict[str, Benchmark] = {
    "prmbench": PRMBENCH,
    "processbench": PROCESSBENCH,
    "labelled": LABELLED,
    "pairs": PAIRS,
}
_PLUGINS = Plugins(
    "benchmark", BENCHMARKS, "prism_prm.benchmarks", "a Benchmark", lambda found: isinstance(found, Benchmark)
)


def find_benchmark(name: str) -> Benchmark:
    """One of BENCHMARKS, or one that an installed package adds."""
    return _PLUGINS.find(name)


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

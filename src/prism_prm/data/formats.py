"""The formats we read, in one dict, and how a record shows which one it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prism_prm.data import math_shepherd, plain_solutions, prm800k, step_lists
from prism_prm.data.draft import Draft
from prism_prm.data.read_options import ReadOptions
from prism_prm.errors import DataError
from prism_prm.plugins import Plugins

TREE_TABLE_KEYS = frozenset({"tree_id", "nodes", "trunk"})
"""The fields of a row of our own `trees.parquet`."""


def _never(record: Any, options: ReadOptions) -> str | None:  # noqa: ARG001
    return None


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of record is recognised and read."""

    name: str
    record: type[Any]
    """The msgspec type that a record must have."""
    keys: frozenset[str]
    """A record with these keys looks like this format."""
    read: Callable[[Any, ReadOptions], list[Draft]]
    drop_reason: Callable[[Any, ReadOptions], str | None] = _never
    unique_names: bool = False
    """Whether a name that was seen before is dropped (and counted)."""


FORMATS: dict[str, tuple[Format, ...]] = {
    "prm800k": (Format("prm800k", prm800k.Prm800kRecord, prm800k.KEYS, prm800k.read, prm800k.drop_reason),),
    "math-shepherd": (
        Format("math-shepherd", math_shepherd.TaggedRecord, math_shepherd.KEYS, math_shepherd.read),
        Format("math-shepherd", math_shepherd.SplitRecord, math_shepherd.SPLIT_KEYS, math_shepherd.read_split),
    ),
    "stepwise": (Format("stepwise", step_lists.StepwiseRecord, step_lists.STEPWISE_KEYS, step_lists.read_stepwise),),
    "process-labels": (
        Format(
            "process-labels",
            step_lists.ProcessLabelsRecord,
            step_lists.PROCESS_LABELS_KEYS,
            step_lists.read_process_labels,
        ),
    ),
    "prmbench": (
        Format(
            "prmbench", step_lists.PRMBenchRecord, step_lists.PRMBENCH_KEYS, step_lists.read_prmbench, unique_names=True
        ),
    ),
}
"""Format name → its variants, in the order in which they are tried."""


def _is_reader(found: Any) -> bool:
    variants = found if isinstance(found, tuple) else (found,)
    return bool(variants) and all(isinstance(variant, Format) for variant in variants)


_PLUGINS: Plugins[Any] = Plugins(
    "format", FORMATS, "prism_prm.readers", "a Format (or a tuple of them)", _is_reader, also="; or auto"
)


def find_format(name: str) -> tuple[Format, ...]:
    """The variants of one of FORMATS, or of one that an installed package adds."""
    found = _PLUGINS.find(name)
    return found if isinstance(found, tuple) else (found,)


def added_formats() -> list[Format]:
    """All variants of all formats that installed packages add."""
    return [variant for name in _PLUGINS.added() for variant in find_format(name)]


SOLUTIONS = tuple(
    Format("solutions", plain_solutions.PlainSolution, keys, plain_solutions.read_solution)
    for keys in plain_solutions.KEYS
)
"""Plain solutions, tried after all others and only when the user asks for splitting into steps."""

UNLABELLED = (
    Format("steps", step_lists.UnlabelledSteps, step_lists.STEPS_KEYS, step_lists.read_steps),
    Format("steps", step_lists.UnlabelledCompletions, step_lists.COMPLETIONS_KEYS, step_lists.read_completions),
)
"""Steps without labels, which can be scored and not learned from; tried after those with labels."""


def detect(
    keys: Iterable[str],
    *,
    wanted: tuple[Format, ...] | None = None,
    added: Callable[[], Iterable[Format]] = added_formats,
    with_solutions: bool = False,
    with_unlabelled: bool = False,
) -> Format:
    """The format of a record with these keys: of the wanted variants, or of all; `added` gives those not ours.

    Those of installed packages are tried after all of ours, and loaded only then.
    """
    keys = set(keys)
    every = [variant for variants in FORMATS.values() for variant in variants] + list(UNLABELLED) * with_unlabelled
    fitting = [variant for variant in (*every, *(SOLUTIONS * with_solutions)) if variant.keys <= keys]
    if wanted is None:
        others = [] if fitting else list(added())
        fitting += [variant for variant in others if variant.keys <= keys]
        if fitting:
            return fitting[0]
        raise DataError(
            f"a record with the fields {sorted(keys)} is in no known format.{_hint(keys, with_solutions)} "
            f"Known: {describe_formats([*every, *others])}.",
            reason="wrong-format",
        )
    for variant in wanted:
        if variant.keys <= keys:
            return variant
    needed = " or ".join(str(sorted(variant.keys)) for variant in wanted)
    other = f" It looks like {fitting[0].name}: give --format {fitting[0].name}." if fitting else ""
    raise DataError(
        f"a {wanted[0].name} record needs the fields {needed}; found {sorted(keys)}.{other}", reason="wrong-format"
    )


def _hint(keys: set[str], with_solutions: bool) -> str:
    """What else the record looks like, and what to do with it."""
    if pool := next((field for field in plain_solutions.POOL_FIELDS if field in keys), None):
        return f" It looks like {plain_solutions.POOL.format(pool)}"
    if not with_solutions and any(variant.keys <= keys for variant in SOLUTIONS):
        return " It looks like a plain solution: `prism score` and `prism pairs` cut it into steps with --split-steps."
    return ""


def describe_formats(variants: Iterable[Format]) -> str:
    """Each format with the fields that show it."""
    return "; ".join(f"{variant.name} ({', '.join(sorted(variant.keys))})" for variant in variants)

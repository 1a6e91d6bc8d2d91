"""From judged steps to everything a report shows: thresholds, subsets, metrics with intervals, curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np

from prism_prm import chosen, metrics
from prism_prm.arrays import Bools
from prism_prm.chosen import CardValues, Choice
from prism_prm.config import SHOWN
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluation.benchmarks import Benchmark, ItemSet, find_benchmark
from prism_prm.evaluation.benchmarks.base import REDUNDANCY_THRESHOLD
from prism_prm.evaluation.example import WrongStep, find_wrong_step
from prism_prm.evaluation.judged_steps import Steps
from prism_prm.evaluation.measure import Measurer, PairTable, SubsetResult, intervals, measure_pairs
from prism_prm.ranges import Natural, Range, Share, check
from prism_prm.stats import NUM_DRAWS, SEED

GRID = np.linspace(0.0, 1.0, 201)
"""Thresholds of the FPR–FNR curve."""
NUM_HISTOGRAM_BINS = 25


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """How steps are judged, and how intervals are computed."""

    threshold: Share | Literal["prm"] | None = field(default=None, metadata={SHOWN: "the PRM's card"})
    """A step counts as right if its score is above this. By default the threshold of the PRM's card, but 0.5 for
    PRMBench and ProcessBench, as their rules require. "prm" uses the card's threshold for them too."""
    target_tpr: Annotated[float, Range(above=0, most=1)] | None = None
    """Instead of `threshold`: choose the highest threshold that keeps this share of the right steps of held-out
    problems."""
    holdout: Annotated[float, Range(above=0, below=1)] = 0.2
    """The share of problems held out to choose a threshold. They are not measured."""
    redundancy_threshold: Share | None = field(default=None, metadata={SHOWN: "the critic's format, or 0.15"})
    """For PRMs with a redundancy score: a step is redundant above this (PRMBench NR and NCL). By default ReasonEval's
    0.15, and for a critic what its format says."""
    num_draws: Annotated[int, Range(100)] = NUM_DRAWS
    """The number of bootstrap draws of problems for the intervals."""
    seed: Natural = SEED
    """The seed for the draws and for every choice of problems."""

    def __post_init__(self) -> None:
        check(self)

    def settled(self, card: CardValues | None) -> EvalSettings:
        """With what the PRM's card says where nothing is given."""
        own = REDUNDANCY_THRESHOLD if card is None or card.redundancy_threshold is None else card.redundancy_threshold
        return replace(self, redundancy_threshold=own) if self.redundancy_threshold is None else self


@dataclass(frozen=True)
class Threshold:
    """The threshold that was used, and where it came from."""

    value: float
    origin: str
    target_tpr: float | None = None
    heldout_problems: int = 0
    heldout_right_steps: int = 0
    heldout_tpr: float = math.nan


@dataclass(frozen=True)
class Evaluation:
    """One PRM on one benchmark."""

    bench: str
    described: str
    complete: bool | None
    files: tuple[str, ...]
    notes: dict[str, int]
    threshold: Threshold
    subsets: dict[str, SubsetResult]
    """`all`, and where training problems were given also `clean` and `contaminated`."""
    steps: Steps = field(repr=False)
    """What was measured, without held-out problems."""
    curve: dict[str, list[float]] = field(default_factory=dict)
    histogram: dict[str, list[float]] = field(default_factory=dict)
    pairs: PairTable | None = None
    example: WrongStep | None = None
    """The wrong step that scores highest."""
    split: str | None = None
    """The split of the data that was read."""


RULE = "the benchmark's rule"


def fixed_threshold(benchmark: Benchmark, settings: EvalSettings, card: CardValues | None) -> Choice[float]:
    """The threshold that is given, or the rule of the benchmark, or that of the PRM's card."""
    if settings.threshold is None and benchmark.threshold is not None:
        return Choice(benchmark.threshold, RULE)
    return chosen.choose_threshold(None if settings.threshold == "prm" else settings.threshold, card)


def choose_threshold(
    benchmark: Benchmark, steps: Steps, settings: EvalSettings, card: CardValues | None = None
) -> tuple[Threshold, Steps]:
    """The threshold, and the steps left to measure."""
    if settings.target_tpr is None:
        fixed = fixed_threshold(benchmark, settings, card)
        return Threshold(fixed.value, fixed.origin), steps
    if steps.hard:
        raise ConfigError("a threshold can be chosen only for scores; give scores instead of labels")
    rng = np.random.default_rng(settings.seed)
    held = np.zeros(steps.num_clusters, bool)
    held[rng.permutation(steps.num_clusters)[: max(1, round(settings.holdout * steps.num_clusters))]] = True
    held_out = benchmark.in_total(steps.only(held[steps.item_cluster]))
    rest = steps.only(~held[steps.item_cluster])
    judged = held_out.judged
    value = metrics.threshold_for_tpr(held_out.right[judged], held_out.probability[judged], settings.target_tpr)
    if math.isnan(value) or not rest.items:
        raise DataError(
            f"{held_out.num_clusters} held-out problems have no right step to choose a threshold on; hold out more"
        )
    tpr = float(np.mean(held_out.probability[held_out.right & judged] > value))
    origin = "chosen on held-out problems"
    return (
        Threshold(value, origin, settings.target_tpr, held_out.num_clusters, int(held_out.right.sum()), tpr),
        rest,
    )


def evaluate_steps(
    items: ItemSet,
    steps: Steps,
    settings: EvalSettings | None = None,
    *,
    notes: Mapping[str, int] | None = None,
    card: CardValues | None = None,
) -> Evaluation:
    """Measure the judged steps of a benchmark.

    Args:
        items: the benchmark, from `read_benchmark`.
        steps: its steps with scores, from `steps_from_predictions` for example.
        settings: threshold, bootstrap draws and seed.
        notes: what was left out and how often, for the report.
        card: the values of the PRM's card, for the threshold; `card_values(prm)` of `prism_prm.chosen`.

    Example:
        >>> items = read_benchmark("labelled", "labelled.jsonl")
        >>> steps, notes = steps_from_predictions(items, "predictions.jsonl")
        >>> found = evaluate_steps(items, steps, EvalSettings(num_draws=100), notes=notes)
        >>> found.subsets["all"].counts["fp"]
        0
    """
    settings = (settings or EvalSettings()).settled(card)
    benchmark = find_benchmark(items.name)
    threshold, rest = choose_threshold(benchmark, steps, settings, card)
    total = benchmark.in_total(rest)
    if not (total.right | total.wrong).any():
        raise DataError(f"{items.name}: no step has a label, so there is nothing to measure", reason="empty-split")
    subsets = {"all": _measure(benchmark, rest, threshold.value, settings)}
    checked = rest.item_contaminated >= 0
    if checked.all():
        for name, value in (("clean", 0), ("contaminated", 1)):
            keep = rest.item_contaminated == value
            if keep.any():
                subsets[name] = _measure(benchmark, rest.only(keep), threshold.value, settings)
    return Evaluation(
        items.name, items.described(), items.complete, items.files, {**items.notes, **(notes or {})},
        threshold, subsets, rest,
        curve=error_curve(total), histogram=histogram(total),
        pairs=measure_pairs(total, settings.num_draws, settings.seed),
        example=find_wrong_step((item.tree for item in items.items), {items.name: total}),
        split=items.split,
    )  # fmt: skip


def _measure(benchmark: Benchmark, steps: Steps, threshold: float, settings: EvalSettings) -> SubsetResult:
    assert settings.redundancy_threshold is not None, "it is settled"
    whole, tables = benchmark.tables(steps, threshold, settings.redundancy_threshold, settings.num_draws, settings.seed)
    total, groups = whole.steps, whole.by_group(benchmark.positives_only)
    masks = {name: total.step_group == i for i, name in enumerate(total.group_names)}
    for name, mask in masks.items():
        groups[name] |= whole.rankings(mask, ("auroc",))
    return SubsetResult(
        len(total.items), len(total.label), total.num_clusters, _counts(whole), tables,
        groups, {name: _counts(whole, mask) for name, mask in masks.items()},
    )  # fmt: skip


def _counts(measurer: Measurer, keep: Bools | None = None) -> dict[str, int]:
    return dict(zip(("tp", "fp", "tn", "fn"), measurer.counts(keep).astype(int).tolist(), strict=True))


def error_curve(steps: Steps) -> dict[str, list[float]]:
    """FPR and FNR at every threshold of GRID; empty for verdicts or without both kinds of steps."""
    judged = steps.judged
    if steps.hard or not steps.right[judged].any() or not steps.wrong[judged].any():
        return {}
    fpr, fnr = metrics.Ranking.of(steps.right[judged], steps.probability[judged]).error_curve(GRID)
    return {"threshold": GRID.tolist(), "fpr": fpr.tolist(), "fnr": fnr.tolist()}


def histogram(steps: Steps) -> dict[str, list[float]]:
    """Shares of right and wrong steps by score."""
    edges = np.linspace(0, 1, NUM_HISTOGRAM_BINS + 1)
    result: dict[str, list[float]] = {"edges": edges.tolist()}
    for name, mask in (("right", steps.right & steps.judged), ("wrong", steps.wrong & steps.judged)):
        if mask.any():
            result[name] = (np.histogram(steps.probability[mask], edges)[0] / mask.sum()).tolist()
    return result


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """What goes into metrics.json."""
    return {
        "described": evaluation.described,
        "complete": evaluation.complete,
        "files": evaluation.files,
        "split": evaluation.split,
        "notes": evaluation.notes,
        "threshold": asdict(evaluation.threshold),
        "subsets": {
            name: {
                "items": subset.num_items,
                "steps": subset.num_steps,
                "problems": subset.num_problems,
                "counts": subset.counts,
                "metrics": intervals(subset.tables),
                "groups": intervals(subset.groups),
                "group_counts": subset.group_counts,
            }
            for name, subset in evaluation.subsets.items()
        },
        "curve": evaluation.curve,
        "histogram": evaluation.histogram,
        "pairs": None if evaluation.pairs is None else asdict(evaluation.pairs),
        "example": evaluation.example,
    }

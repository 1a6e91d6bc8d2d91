"""`evaluate_prm`: read benchmarks, attach scores, measure, and write a report. `prism eval` calls it.

`evaluate_steps` is the measuring part: the threshold, the subsets, and all metrics with intervals.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from prism_prm import aggregate, metrics
from prism_prm.aggregate import CardValues, card_values
from prism_prm.backends.open_critic import is_critic
from prism_prm.backends.open_rival import rival_place
from prism_prm.backends.open_scorer import PrmOptions, check_scorer, ensemble_place, opened_prm, remote_place
from prism_prm.calibration import Calibration
from prism_prm.config import SHOWN, Natural, Range, Share, check
from prism_prm.console import progress, say
from prism_prm.data.inputs import as_places, find_sources, keep_inputs
from prism_prm.errors import ConfigError, DataError
from prism_prm.evaluate.benchmarks import REDUNDANCY_THRESHOLD, Benchmark, ItemSet, find_benchmark, read_benchmark
from prism_prm.evaluate.measure import (
    AUROCS,
    Measurer,
    PairTable,
    Steps,
    SubsetResult,
    error_curve,
    histogram,
    measure_pairs,
)
from prism_prm.evaluate.reliability import AFTER, BEFORE, Reliability
from prism_prm.evaluate.report import RunInfo, WrongStep, find_wrong_step, steps_file, write_run
from prism_prm.evaluate.score_files import (
    card_of_scores,
    read_scores,
    score_benchmark,
    steps_from_predictions,
    steps_from_table,
)
from prism_prm.job import Job
from prism_prm.models.card import CARD_FILE, prm_folder, read_calibration, read_card
from prism_prm.models.model_files import local_folder
from prism_prm.paths import check_name, own_name
from prism_prm.scorer import Scorer
from prism_prm.stats import NUM_DRAWS, SEED
from prism_prm.tree import StepTree


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """How steps are judged, and how intervals are computed."""

    threshold: Share | Literal["prm"] | None = field(default=None, metadata={SHOWN: "the PRM's card"})
    """A step counts as right if its score is above this. By default the threshold of the PRM's card, but 0.5 for
    PRMBench and ProcessBench, as their rules require, on scores without calibration. "prm" uses the card's threshold
    and calibration for them too."""
    target_tpr: Annotated[float, Range(above=0, most=1)] | None = None
    """Choose the highest threshold that keeps this fraction of the right steps of held-out problems, instead of
    `threshold`."""
    holdout: Annotated[float, Range(above=0, below=1)] = 0.2
    """The fraction of problems held out to choose the threshold for `target_tpr`. They are not measured."""
    redundancy_threshold: Share | None = field(default=None, metadata={SHOWN: "the critic's format, or 0.15"})
    """For PRMs with a redundancy score: a step is redundant above this (PRMBench NR and NCL). By default ReasonEval's
    0.15, or the value of a critic's format."""
    num_draws: Annotated[int, Range(100)] = NUM_DRAWS
    """The number of bootstrap draws of problems for the intervals."""
    seed: Natural = SEED
    """The seed for the draws, --limit and held-out problems."""

    def __post_init__(self) -> None:
        check(self)

    def settled(self, card: CardValues | None) -> EvalSettings:
        """These settings, with the redundancy threshold of the PRM's card unless one is set."""
        own = REDUNDANCY_THRESHOLD if card is None or card.redundancy_threshold is None else card.redundancy_threshold
        return replace(self, redundancy_threshold=own) if self.redundancy_threshold is None else self


@dataclass(frozen=True)
class Threshold:
    """The threshold in use, and where it comes from."""

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
    """`all`; with `trained_on`, also `clean` and `contaminated`."""
    steps: Steps = field(repr=False)
    """The measured steps, without held-out problems."""
    curve: dict[str, list[float]] = field(default_factory=dict)
    histogram: dict[str, list[float]] = field(default_factory=dict)
    pairs: PairTable | None = None
    example: WrongStep | None = None
    """The wrong step that scores highest."""
    split: str | None = None
    """The split of the data that was read."""
    reliability: dict[str, Reliability] = field(default_factory=dict)
    """Of the model's own scores (BEFORE) and, with a calibrated PRM, of the calibrated ones (AFTER)."""
    calibration: Calibration | None = None
    """The PRM's calibration."""


def evaluate_prm(
    prm: Scorer | str | Path | None,
    bench: str | Sequence[str],
    out: str | Path,
    *,
    data: str | Path | Sequence[str | Path] = (),
    split: str | None = None,
    scores: str | Path | None = None,
    predictions: str | Path | None = None,
    name: str | None = None,
    trained_on: Sequence[str | Path] = (),
    limit: int | None = None,
    settings: EvalSettings | None = None,
    store: str | Path | None = None,
    prm_options: PrmOptions | None = None,
) -> dict[str, Evaluation]:
    """Measure how well a PRM judges steps, and write a report. Returns the evaluation of each benchmark.

    Scores are kept in `out`. To try another threshold without scoring again, repeat the call with the same PRM and
    `out`.

    Args:
        prm: a PRM, or its folder or hub id; None with `scores` or `predictions`.
        bench: prmbench, processbench, labeled, pairs, or one that an installed package adds; or several.
        out: folder for report.html, report.md, metrics.json and scores.
        data: files or folders of the benchmark, or a hub id; by default the data comes from the hub.
        split: for labeled and pairs, use only this split of a folder written by `build_pairs`.
        scores: instead of a PRM, a scores table of this data.
        predictions: instead of a PRM, JSON lines {"id": "…", "scores": […]} or {"id": "…", "labels": […]}.
        name: the PRM's name in the report; default: the last part of its folder or hub id.
        trained_on: training data; items on its problems are reported separately, as contaminated.
        limit: the maximum number of items of each class or split, chosen by the settings' seed.
        settings: threshold, bootstrap draws and seed.
        store: a folder of scores to reuse and extend.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.

    Example:
        >>> settings = EvalSettings(num_draws=100)
        >>> evaluations = evaluate_prm("my-prm", "labeled", "eval", data="labeled.jsonl", settings=settings)
        >>> evaluations["labeled"].subsets["all"].num_steps
        12
    """
    settings, out, options = settings or EvalSettings(), Path(out), prm_options or PrmOptions()
    benches = [bench] if isinstance(bench, str) else list(bench)

    # Refuse what cannot work before anything is read or loaded.
    if not benches:
        raise ConfigError("--bench is empty; name a benchmark")
    sources = {"--prm": prm, "--scores": scores, "--predictions": predictions}
    given = {option: value for option, value in sources.items() if value is not None}
    if len(given) != 1:
        raise ConfigError(f"give one of --prm, --scores and --predictions; got {' and '.join(given) or 'none'}")
    [(option, value)] = given.items()
    if len(benches) > 1 and option != "--prm":
        raise ConfigError(f"{option} is one file, so give one --bench with it, not {', '.join(benches)}")
    source = str(value) if isinstance(value, str | Path) else type(value).__name__
    for bench_name in benches:
        find_benchmark(bench_name)
    read = [place for places in (data, scores, predictions, trained_on) if places for place in as_places(places)]
    keep_inputs(read, [out / "metrics.json", *(steps_file(out, bench_name) for bench_name in benches)])
    run_name = check_name(name) if name else own_name(source)
    if not name and Path(source).is_file():
        run_name = run_name.split(".")[0] or run_name
    if is_critic(prm):  # by default the benchmark decides how a missing verdict counts
        critic = replace(options.critic, on_missing=options.critic.on_missing or "skip")
        options = replace(options, critic=critic)
    if prm is not None:
        check_scorer(prm, options)
    find_sources([file for file in (scores, predictions) if file is not None])
    if settings.threshold == "prm":
        _check_card(prm, scores)
    if trained_on:
        find_sources(trained_on)

    items_by_bench = {}
    for bench_name in benches:
        items = read_benchmark(bench_name, data, split)
        items = items.some(limit, settings.seed) if limit else items
        items_by_bench[bench_name] = items.checked_against([Path(file) for file in trained_on]) if trained_on else items

    evaluations = {}
    card: CardValues | None = None
    model_hash = ""
    scored: list[StepTree] = []
    scorer: Scorer | None = None
    with Job(out), contextlib.ExitStack() as opened:
        for bench_name, items in items_by_bench.items():
            say(f"{items.describe()}, from {len(items.files)} files")
            if predictions is not None:
                steps, notes = steps_from_predictions(items, predictions)
            else:
                if scores is not None:
                    table = Path(scores)
                else:
                    assert prm is not None, "one of the three is given"
                    scorer = scorer or opened.enter_context(opened_prm(prm, options))
                    with progress(f"scoring {bench_name}", len(items.items), unit="items") as advance:
                        table = score_benchmark(scorer, items, out, store=store, advance=advance)
                    scored += [item.tree for item in items.items]
                steps, model_hash, notes = steps_from_table(items, table)
                card = card_of_scores(table) if scorer is None else card_values(scorer)
            if scorer is None and options.calibration is not None:
                calibration = read_calibration(options.calibration)
                card = replace(card or CardValues(), threshold=calibration.threshold, calibration=calibration)
            with progress(f"measuring {bench_name}", settings.num_draws, unit="draws") as advance:
                evaluations[bench_name] = evaluate_steps(items, steps, settings, notes=notes, card=card)
                advance(settings.num_draws)

        tokens, summary = (None, None) if scorer is None else (scorer.count_all(scored), scorer.summary(scored))
        run = RunInfo(run_name, source, model_hash, tokens, summary)
        write_run(out, run, list(evaluations.values()), settings.settled(card))
    return evaluations


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
        steps: its steps with the model's own scores, for example from `steps_from_predictions`.
        settings: threshold, bootstrap draws and seed.
        notes: counts of what was left out, by reason, for the report.
        card: the values of the PRM's card, for the threshold and the calibration; `card_values(prm)` of
            `prism_prm.aggregate`.

    Example:
        >>> items = read_benchmark("labeled", "labeled.jsonl")
        >>> steps, notes = steps_from_predictions(items, "predictions.jsonl")
        >>> evaluation = evaluate_steps(items, steps, EvalSettings(num_draws=100), notes=notes)
        >>> evaluation.subsets["all"].counts["fp"]
        0
    """
    settings = (settings or EvalSettings()).settled(card)
    benchmark = find_benchmark(items.name)
    calibration = None if card is None or steps.hard else card.calibration
    calibrated = steps
    if calibration is not None:
        calibrated = replace(steps, probability=calibration.of_probability(steps.probability))
    by_rule = settings.threshold is None and settings.target_tpr is None and benchmark.threshold is not None
    threshold, rest = _choose_threshold(benchmark, steps if by_rule else calibrated, settings, card)
    total = benchmark.in_total(rest)
    if not (total.right | total.wrong).any():
        raise DataError(f"{items.name}: no step has a label, so there is nothing to measure", reason="empty-split")
    subsets = {"all": _measure(benchmark, rest, threshold.value, settings)}
    if (rest.item_contaminated >= 0).all():
        for name, value in (("clean", 0), ("contaminated", 1)):
            keep = rest.item_contaminated == value
            if keep.any():
                subsets[name] = _measure(benchmark, rest.only(keep), threshold.value, settings)
    reliability = {}
    if not steps.hard:
        scored = {BEFORE: steps} | ({} if calibration is None else {AFTER: calibrated})
        for name, part in scored.items():
            measurer = Measurer(benchmark.in_total(part), threshold.value, settings.num_draws, settings.seed)
            reliability[name] = Reliability.of(measurer)
    return Evaluation(
        items.name, items.describe(), items.complete, items.files, {**items.notes, **(notes or {})},
        threshold, subsets, rest,
        curve=error_curve(total), histogram=histogram(total),
        pairs=measure_pairs(total, settings.num_draws, settings.seed),
        example=find_wrong_step((item.tree for item in items.items), {items.name: total}),
        split=items.split, reliability=reliability, calibration=calibration,
    )  # fmt: skip


def _choose_threshold(
    benchmark: Benchmark, steps: Steps, settings: EvalSettings, card: CardValues | None
) -> tuple[Threshold, Steps]:
    """The threshold, and the steps to measure.

    It is chosen on held-out problems with `target_tpr`; else it is that of the settings, the benchmark or the card.
    """
    if settings.target_tpr is None:
        if settings.threshold is None and benchmark.threshold is not None:
            return Threshold(benchmark.threshold, "the benchmark's rule"), steps
        fixed = aggregate.choose_threshold(None if settings.threshold == "prm" else settings.threshold, card)
        return Threshold(fixed.value, fixed.origin), steps
    if steps.hard:
        raise ConfigError("a threshold can be chosen only for scores; use predictions with scores instead of labels")
    rng = np.random.default_rng(settings.seed)
    held = np.zeros(steps.num_clusters, bool)
    held[rng.permutation(steps.num_clusters)[: max(1, round(settings.holdout * steps.num_clusters))]] = True
    held_out = benchmark.in_total(steps.only(held[steps.item_cluster]))
    rest = steps.only(~held[steps.item_cluster])
    judged = held_out.judged
    ranking = metrics.Ranking.of(held_out.right[judged], held_out.probability[judged])
    value = ranking.threshold(metrics.Target("tpr", settings.target_tpr))
    if math.isnan(value) or not rest.items:
        raise DataError(
            f"the {held_out.num_clusters} held-out problems have no right step to choose a threshold on; hold out more "
            "with --set holdout=…"
        )
    tpr = float(np.mean(held_out.probability[held_out.right & judged] > value))
    num_right = int(held_out.right.sum())
    origin = "chosen on held-out problems"
    return Threshold(value, origin, settings.target_tpr, held_out.num_clusters, num_right, tpr), rest


def _measure(benchmark: Benchmark, steps: Steps, threshold: float, settings: EvalSettings) -> SubsetResult:
    assert settings.redundancy_threshold is not None, "it is settled"
    whole, tables = benchmark.tables(steps, threshold, settings.redundancy_threshold, settings.num_draws, settings.seed)
    total, groups = whole.steps, whole.by_group(benchmark.positives_only)
    masks = {name: total.step_group == i for i, name in enumerate(total.group_names)}
    for name, mask in masks.items():
        groups[name] |= whole.rankings(mask, tuple(AUROCS))
    return SubsetResult(
        len(total.items), len(total.label), total.num_clusters, whole.counts(), tables,
        groups, {name: whole.counts(mask) for name, mask in masks.items()},
    )  # fmt: skip


def _check_card(prm: Scorer | str | Path | None, scores: str | Path | None) -> None:
    """Raise if there is no card with a threshold, before the PRM is loaded."""
    if remote_place(prm) or is_critic(prm) or ensemble_place(prm) or rival_place(prm):
        return  # the server, the format or the scorer has a threshold
    lacking = ""
    if isinstance(prm, str | Path):
        has_card = read_card(local_folder(str(prm_folder(prm)))) is not None
        lacking = f", which {prm} lacks"
    elif scores is not None:
        read_scores(scores)
        has_card = card_of_scores(scores) is not None
        lacking = f", or scores that record one, which {scores} does not"
    else:
        has_card = card_values(prm) is not None
    if not has_card:
        raise ConfigError(f"--threshold prm needs a --prm with a {CARD_FILE}{lacking}; give a number instead")

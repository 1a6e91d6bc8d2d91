"""`calibrate_prm`: choose a PRM's threshold, and calibrate its scores. `prism calibrate` calls it.

`calibrate_steps` is the fitting part. What it promises is measured on problems that were not fitted: the problems are
divided into folds, and each fold is judged by what was fitted to the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from prism_prm import __version__
from prism_prm.arrays import Bools
from prism_prm.backends.open_critic import is_critic
from prism_prm.backends.open_scorer import PrmOptions, check_scorer, opened_prm, remote_place
from prism_prm.calibration import Calibration, Method, fit_points
from prism_prm.config import Natural, Range, check, read_toml
from prism_prm.console import progress, say
from prism_prm.data.inputs import TREE_TABLE, as_places, find_sources, keep_inputs
from prism_prm.data.same_problem import Exclusions
from prism_prm.data.tables import iter_trees
from prism_prm.errors import ConfigError, DataError, SettingError
from prism_prm.evaluate.benchmarks import ItemSet, find_benchmark, read_benchmark
from prism_prm.evaluate.measure import NOT_JUDGED, RATES, Measured, Measurer, Steps, Table, intervals, read_steps, shown
from prism_prm.evaluate.reliability import AFTER, BEFORE, Reliability, draw_reliability
from prism_prm.evaluate.report import steps_file
from prism_prm.evaluate.score_files import judgment, score_benchmark, steps_from_predictions, steps_from_table
from prism_prm.file_types import read_json
from prism_prm.files import write_text
from prism_prm.job import Job
from prism_prm.metrics import TARGETS, Ranking, Target, parse_target, ratio
from prism_prm.models.card import CALIBRATION_FILE, CARD_FILE, prm_folder, read_card, rewrite_card
from prism_prm.models.model_files import CONFIG_FILE, is_adapter
from prism_prm.paths import is_hub_id
from prism_prm.report import Report, escaped, signed_percent
from prism_prm.stats import NUM_DRAWS, SEED, Interval, interval

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer

OWN_FOLDER = "calibration"
"""The folder of the report in a PRM's folder."""
CHANCE = 0.5
"""The threshold before calibration."""


@dataclass(frozen=True, slots=True)
class CalibrateSettings:
    """What the threshold is chosen for, and how scores are calibrated."""

    target: str = ""
    """What the threshold is for: tpr=X, fpr=X, f1, prm-score or cost=FP:FN. The threshold for tpr=0.9 is the highest
    that keeps this share of the right steps, and that for fpr=0.1 the lowest that passes at most this share of the
    wrong ones. Those for f1 and prm-score make them as high as possible. That for cost=5:1 makes the cost of errors as
    low as possible if a wrong step judged good costs 5, and a right step judged bad 1."""
    method: Method = "none"
    """How P(right) is calibrated: none, platt or isotonic. Platt's scaling fits a line to the log-odds and needs few
    steps. Isotonic regression fits any rising map and needs a thousand steps or more."""
    folds: Annotated[int, Range(2)] = 5
    """The number of parts that problems are divided into. Each is judged by what was fitted to the others."""
    num_draws: Annotated[int, Range(100)] = NUM_DRAWS
    """The number of bootstrap draws of problems for the intervals."""
    seed: Natural = SEED
    """The seed for the draws and the folds."""

    def __post_init__(self) -> None:
        check(self)
        if not self.target:
            raise ConfigError("no target: name one with --target, e.g. --target tpr=0.9 (or fpr=X, f1, prm-score)")
        self.parsed_target  # noqa: B018 - raises if it is invalid

    @property
    def parsed_target(self) -> Target:
        try:
            return parse_target(self.target)
        except ValueError as error:
            raise SettingError("target", self.target, str(error)) from None


@dataclass(frozen=True)
class CalibrationResult:
    """A calibration, and what it does to problems that it was not fitted to."""

    calibration: Calibration
    threshold: Interval
    """The chosen threshold of the calibrated scores."""
    before: Table
    """Rates at ½, the calibration error and the target's value, of the model's own scores."""
    after: Table
    """The same at the chosen threshold of calibrated scores; each problem is judged by what was fitted to others. Empty
    if there are too few problems for that."""
    reliability: dict[str, Reliability] = field(repr=False)
    written: Path | None = None
    """The PRM's card or the calibration.json that was written."""
    page: Path | None = None
    """The report."""

    def shown_threshold(self) -> str:
        """The threshold with its interval."""
        value, low, high = (f"{x:.4g}" for x in (self.threshold.value, self.threshold.low, self.threshold.high))
        return value if low == "nan" else f"{value} [{low}, {high}]"


def calibrate_prm(
    prm: Scorer | str | Path | None = None,
    data: str | Path | Sequence[str | Path] = (),
    *,
    settings: CalibrateSettings,
    bench: str | None = None,
    split: str | None = None,
    run: str | Path | None = None,
    scores: str | Path | None = None,
    predictions: str | Path | None = None,
    out: str | Path | None = None,
    trained_on: Sequence[str | Path] = (),
    store: str | Path | None = None,
    prm_options: PrmOptions | None = None,
) -> CalibrationResult:
    """Choose a PRM's threshold for a target, and calibrate its scores, on labeled steps of held-out problems.

    The result goes into the card of a PRM's folder, which all commands use, and the report into its folder
    `calibration`. With `out`, both go there instead, as calibration.json, which `load_prm(calibration=…)` reads.

    Args:
        prm: a PRM, or its folder or hub id; None with `run`, `scores` or `predictions`.
        data: labeled files, or those of the benchmark.
        settings: the target and the method.
        bench: the benchmark that the data belongs to; default: labeled, or the only one of the run.
        split: for labeled and pairs, use only this split of a folder written by `build_pairs`.
        run: instead of a PRM, a folder of `evaluate_prm`, for its PRM.
        scores: instead of a PRM, a scores table of this data.
        predictions: instead of a PRM, JSON lines {"id": "…", "scores": […]}.
        out: folder for calibration.json and the report. Needed unless the PRM is a folder with a card.
        trained_on: training data; the calibration is refused if it has problems of this data.
        store: a folder of scores to reuse and extend.
        prm_options: how to load a PRM given as a folder or hub id, and a Ray cluster.

    Example:
        >>> settings = CalibrateSettings("tpr=0.9", num_draws=100)
        >>> found = calibrate_prm("my-prm", "labeled.jsonl", settings=settings)
        >>> load_prm("my-prm").card.threshold == found.threshold.value
        True
    """
    options = prm_options or PrmOptions()
    sources = {"--prm": prm, "--run": run, "--scores": scores, "--predictions": predictions}
    given = [option for option, value in sources.items() if value is not None]
    if len(given) != 1:
        raise ConfigError(f"give one of {', '.join(sources)}; got {' and '.join(given) or 'none'}")
    if is_critic(prm):
        raise ConfigError(f"{prm} is a critic, which has no card; choose its threshold with `prism eval --target-tpr`")
    measured = None if run is None else _read_run(Path(run), bench)
    if measured is not None:
        if data or split:
            raise ConfigError(f"--run {run} has its own data; leave out --data and --split")
        bench, data, split = measured.bench, measured.files, measured.split
    bench = bench or "labeled"
    find_benchmark(bench)
    if prm is not None and not is_hub_id(str(prm)):  # a mistyped folder is not a PRM without a card
        check_scorer(prm, options)
    source: Scorer | str | Path | None = prm if measured is None else measured.source
    folder = _folder_with_card(source) if isinstance(source, str | Path) else None
    if out is not None:
        place = Path(out)
    elif folder is not None:
        place = folder / OWN_FOLDER
    else:
        named = f"{source} is not a folder with a {CARD_FILE}" if source is not None else f"{given[0]} names no PRM"
        raise ConfigError(f"{named}, so there is no card to write to; give --out, a folder for {CALIBRATION_FILE}")
    files = [file for file in (scores, predictions, *trained_on) if file is not None]
    keep_inputs([*as_places(data), *files], [place / "metrics.json", place / CALIBRATION_FILE])
    if prm is not None:
        check_scorer(prm, options)
    find_sources(files)

    items = read_benchmark(bench, data, split)
    names = ", ".join(dict.fromkeys(Path(file).name for file in items.files))
    exact = {judgment(node.label) for item in items.items for node in item.tree.nodes if node.estimate is None}
    if len(exact - {NOT_JUDGED}) < 2:
        only = "right steps" if 1 in exact else "wrong steps" if 0 in exact else "labels of rollouts, or none"
        raise DataError(f"{names}: has only {only}; a calibration needs right and wrong ones", reason="one-class")
    _refuse_training_problems(items, trained_on, folder)
    model_hash = ""
    with Job(place):
        say(f"{items.describe()}, from {len(items.files)} files")
        if prm is not None:
            with opened_prm(prm, replace(options, calibration=None)) as scorer:
                with progress(f"scoring {bench}", len(items.items), unit="items") as advance:
                    table = score_benchmark(scorer, items, place, store=store, advance=advance)
                steps, model_hash = steps_from_table(items, table)[0], scorer.model_hash()
        elif measured is not None:
            steps = read_steps(steps_file(str(run), bench))
            _refuse_changed_data(steps, items)
        elif scores is not None:
            steps = steps_from_table(items, scores)[0]
        else:
            assert predictions is not None, "one of the four is given"
            steps = steps_from_predictions(items, predictions)[0]
        steps, num_guessed = _without_rollout_labels(find_benchmark(bench).in_total(steps), items)
        counts = f"{steps.num_clusters:,} problems, {int(steps.judged.sum()):,} steps"
        on = f"{names if len(names) < 80 else bench}{f', split {split}' if split else ''} ({counts})"
        with progress("measuring", settings.num_draws, unit="draws") as advance:
            found = calibrate_steps(steps, settings, on=on, model_hash=model_hash)
            advance(settings.num_draws)
        notes = [f"{num_guessed:,} labels come from rollouts, which call wrong steps right, and are not used."]
        page = _write_report(place, str(source or given[0]), found, settings, notes * bool(num_guessed))
        if out is None:
            assert folder is not None, "it has a card, or --out was asked for"
            card = read_card(folder)
            assert card is not None, "it was there before"
            written = folder / CARD_FILE
            rewrite_card(folder, replace(card, threshold=found.calibration.threshold, calibration=found.calibration))
        else:
            written = place / CALIBRATION_FILE
            write_text(written, json.dumps(asdict(found.calibration), indent=2) + "\n")
    return replace(found, written=written, page=page)


@dataclass(frozen=True, slots=True)
class _Run:
    """An evaluated benchmark of a folder of `prism eval`."""

    bench: str
    source: str
    files: tuple[str, ...]
    split: str | None


def _read_run(folder: Path, bench: str | None) -> _Run:
    """Read which benchmark and PRM a folder of `prism eval` is about."""
    path = folder / "metrics.json"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; name a folder of `prism eval`")
    try:
        content = msgspec.convert(read_json(path), dict[str, Any])
        known: dict[str, Any] = content["benchmarks"]
        name = bench or (next(iter(known)) if len(known) == 1 else "")
        if name not in known:
            asked = f"{name!r} is not one of its benchmarks" if name else "it has several benchmarks"
            raise ConfigError(f"{folder}: {asked}; name one with --bench: {', '.join(known)}")
        own = known[name]
        if (own.get("calibration") or {}).get("method", "none") != "none":
            raise ConfigError(
                f"{folder}: its scores are calibrated already; give the model's own with --prm or --scores, and --data"
            )
        return _Run(name, str(content["run"]["source"]), tuple(map(str, own["files"])), own.get("split"))
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError):
        raise ConfigError(f"{path}: not what `prism eval` writes; rerun `prism eval`") from None


def _folder_with_card(source: str | Path) -> Path | None:
    """The folder of a local PRM with a prism.json, which can be changed; None for any other PRM."""
    if remote_place(source) is not None or not Path(source).is_dir():
        return None
    folder = Path(prm_folder(source))
    is_own = (folder / CONFIG_FILE).exists() and not is_adapter(folder) and read_card(folder) is not None
    return folder if is_own else None


def _refuse_training_problems(items: ItemSet, trained_on: Sequence[str | Path], folder: Path | None) -> None:
    """Raise if the PRM was trained on some of the problems, by the data that is named or that its run recorded."""
    seen = Exclusions.read(trained_on)
    above = folder.resolve().parents if folder else ()  # a relative path may not name the folders above it
    run = next((parent for parent in above if (parent / "recipe.toml").is_file()), None)
    if run is not None:
        data = Path(read_toml(run / "recipe.toml").get("data", {}).get("folder") or run / "data")
        if (data / TREE_TABLE).is_file():
            for tree in iter_trees(data, split="train"):
                seen.add(tree.problem, str(data))
        else:
            say(f"{data}: the PRM's training data is not there, so it is not checked for these problems")
    found: dict[str, str] = {}
    for item in items.items:
        for text in (item.problem, *item.also):
            if (match := seen.find(text)) is not None:
                found.setdefault(item.problem_key, match[0])
    if found:
        where = next(iter(found.values()))
        raise DataError(
            f"{', '.join(items.files)}: the PRM was trained on {len(found):,} of the problems (in {where}); calibrate "
            "on problems that it has not seen",
            reason="contaminated",
        )


def _refuse_changed_data(steps: Steps, items: ItemSet) -> None:
    """Raise if the judged steps of a run are not of these items, which were read again. Earlier versions wrote no
    hashes; then only names are compared."""
    content = {item.tree.name: item.tree.content_hash() for item in items.items}
    changed = [
        name
        for i, name in enumerate(steps.items)
        if name not in content or (steps.item_content and steps.item_content[i] != content[name])
    ]
    if changed:
        raise DataError(
            f"{', '.join(items.files)}: {len(changed):,} of {len(steps.items):,} items have changed since the "
            f"evaluation (the first: {changed[0]}); rerun `prism eval`"
        )


def _without_rollout_labels(steps: Steps, items: ItemSet) -> tuple[Steps, int]:
    """The steps without labels that are estimates of rollouts, and how many those were."""
    trees = {item.tree.name: item.tree for item in items.items}
    guessed = [node.estimate is not None for name in steps.items for node in trees[name].nodes]
    is_guess = np.array(guessed, bool) & (steps.label != NOT_JUDGED)
    return replace(steps, label=np.where(is_guess, NOT_JUDGED, steps.label).astype(np.int8)), int(is_guess.sum())


def _write_report(
    folder: Path, source: str, found: CalibrationResult, settings: CalibrateSettings, notes: Sequence[str]
) -> Path:
    """Write the report and metrics.json; returns the page."""
    calibration = found.calibration
    report = Report(f"Calibration of {Path(source).name}", f"For {calibration.target} on {calibration.on}")
    report.metrics |= {
        "prism_prm": __version__,
        "prm": source,
        "settings": asdict(settings),
        "threshold": found.threshold,
        "calibration": calibration,
        "before": intervals(found.before),
        "after": intervals(found.after),
        "reliability": {name: one.as_json() for name, one in found.reliability.items()},
    }
    report.finding = finding(found)
    report.table(*comparison_rows(found), caption="Steps before and after; after, of problems that were not fitted (%)")
    with report.figure(
        "reliability",
        caption="Of the steps with a score of 80 %, 80 % should be right.",
        alt="Reliability diagram before and after calibration",
    ) as axes:
        draw_reliability(axes, found.reliability)
    lines = [
        f"The threshold is {found.shown_threshold()}: brackets are 95 % bootstrap intervals from "
        f"{settings.num_draws:,} draws of whole problems, with the map held fixed.",
        f"Problems are divided into {settings.folds} folds, and each is judged by what was fitted to the others."
        if found.after
        else "There are too few problems to judge each by what was fitted to others.",
        "The map rises with the score, so it never changes which of two steps scores higher. By `min` and `last`, "
        "solutions keep their order; by `product`, `mean` and `soft-min` it can change.",
        *notes,
    ]
    report.notes(lines)
    return report.write(folder)


def comparison_rows(found: CalibrationResult) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of the table of metrics before and after."""
    labels = {**RATES, "calibration_error": "Calibration error ↓", "cost": "Cost per 100 steps ↓"}
    names = [name for name in labels if name in found.before]
    rows = [[labels[name], shown(found.before[name])] for name in names]
    headers = ["metric (%)", f"own scores, at {CHANCE:g}"]
    if found.after:
        headers += ["calibrated, at the threshold", "difference"]
        for row, name in zip(rows, names, strict=True):
            row += [shown(found.after[name]), signed_percent(found.after[name].minus(found.before[name]))]
    return headers, rows


def finding(found: CalibrationResult) -> str:
    """The result in two sentences."""
    calibration = found.calibration

    def rates(table: Mapping[str, Measured]) -> str:
        tpr, fpr, error = (shown(table[name]) for name in ("tpr", "fpr", "calibration_error"))
        return f"TPR {tpr} %, FPR {fpr} %, calibration error {error} %"

    sentence = (
        f"Threshold {found.shown_threshold()} for {calibration.target}, calibrated on "
        f"{escaped(calibration.on)}. Own scores at {CHANCE:g}: {rates(found.before)}."
    )
    return f"{sentence} Calibrated, on problems not fitted: {rates(found.after)}." if found.after else sentence


def calibrate_steps(
    steps: Steps, settings: CalibrateSettings, *, on: str = "held-out steps", model_hash: str = ""
) -> CalibrationResult:
    """Choose a threshold, fit the map, and measure both by folds of problems.

    Args:
        steps: judged steps with the model's own scores; see `steps_from_predictions`.
        settings: the target and the method.
        on: the name of the data in reports.
        model_hash: the hash of the model, so that the calibration is refused for others.

    Example:
        >>> items = read_benchmark("labeled", "labeled.jsonl")
        >>> steps, _ = steps_from_predictions(items, "predictions.jsonl")
        >>> found = calibrate_steps(steps, CalibrateSettings("tpr=0.9", num_draws=100))
        >>> 0 < found.threshold.value < 1
        True
    """
    if steps.hard:
        raise ConfigError("a threshold can be chosen only for scores; use predictions with scores instead of labels")
    target, judged = settings.parsed_target, steps.judged
    right, clusters = steps.right[judged], steps.step_cluster[judged]
    if not len(right):
        raise DataError(f"{on}: no step has a label and a score", reason="empty-split")

    def fit(part: Bools) -> Calibration:
        """The calibration of some of the judged steps; DataError if it cannot be fitted."""
        own = steps.probability[judged][part]
        if right[part].all() or not right[part].any():
            raise DataError(f"has only {'right' if right[part].all() else 'wrong'} steps; a calibration needs both")
        at, values = fit_points(settings.method, own, right[part])
        found = Calibration(on, str(target), CHANCE, None, None, settings.method, at, values, model_hash)
        chosen = Ranking.of(right[part], found.of_probability(own)).threshold(target)
        return replace(found, threshold=max(chosen, 0.0))

    try:
        whole = fit(np.ones(len(right), bool))
    except DataError as error:
        raise DataError(f"{on}: {error}", reason="one-class") from None
    ranking = Ranking.of(right, whole.of_probability(steps.probability[judged]))
    raw = Measurer(steps, CHANCE, settings.num_draws, settings.seed)
    drawn = [max(0.0, ranking.threshold(target, draw[clusters][ranking.order])) for draw in raw.draws]
    chosen = interval(whole.threshold, np.array(drawn), steps.num_clusters)
    if not np.isnan(chosen.low):
        whole = replace(whole, low=chosen.low, high=chosen.high)

    # Judge each fold by what was fitted to the others.
    order = np.random.default_rng(settings.seed).permutation(steps.num_clusters)
    fold_of = order % min(settings.folds, steps.num_clusters)
    probability, good = steps.probability.copy(), np.zeros(len(judged), bool)
    is_measured = steps.num_clusters > 1
    for fold in range(fold_of.max() + 1) if is_measured else ():
        here, others = fold_of[steps.step_cluster] == fold, fold_of[clusters] != fold
        try:
            own = fit(others)
        except DataError:
            is_measured = False
            break
        probability[here] = own.of_probability(steps.probability[here])
        good[here] = probability[here] > own.threshold
    cross = Measurer(replace(steps, probability=probability), CHANCE, settings.num_draws, settings.seed, good)
    measured = {BEFORE: raw} | ({AFTER: cross} if is_measured else {})
    tables = {name: _table(measurer, target) for name, measurer in measured.items()}
    reliability = {name: Reliability.of(measurer) for name, measurer in measured.items()}
    return CalibrationResult(whole, chosen, tables[BEFORE], tables.get(AFTER, {}), reliability)


def _table(measurer: Measurer, target: Target) -> Table:
    """Rates and calibration error; for a cost, also the cost per step."""
    table = {**measurer.rates(), **measurer.calibration()}
    if target.metric == "cost":
        counts = measurer.group_counts().reshape(measurer.steps.num_clusters, -1, 4).sum(axis=1)
        per_step = lambda sums: {"cost": ratio(-TARGETS["cost"](sums, target), sums.sum(axis=-1))}  # noqa: E731
        table |= measurer.of_sums(counts, per_step)
    return table

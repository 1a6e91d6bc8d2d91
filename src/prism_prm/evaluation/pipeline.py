"""`evaluate_prm`: from benchmarks to scores, metrics and a report, as `prism eval` does it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.chosen import CardValues, card_values
from prism_prm.console import progress, say
from prism_prm.critics.load import critic_settings, is_critic
from prism_prm.data.inputs import as_places, find_sources, keep_inputs
from prism_prm.errors import ConfigError
from prism_prm.evaluation.benchmarks import ItemSet, find_benchmark, read_benchmark
from prism_prm.evaluation.evaluate import EvalSettings, Evaluation, evaluate_steps
from prism_prm.evaluation.judged_steps import Steps
from prism_prm.evaluation.report import RunInfo, steps_file, write_run
from prism_prm.evaluation.scores import score_benchmark, steps_from_predictions, steps_from_table
from prism_prm.names import check_name, own_name
from prism_prm.prms.card import prm_folder
from prism_prm.scorer.opened import check_scorer, remote_place

if TYPE_CHECKING:
    from prism_prm.critics.settings import CriticSettings
    from prism_prm.records import StepTree
    from prism_prm.scorer import Scorer


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
    loading: Mapping[str, Any] | None = None,
) -> dict[str, Evaluation]:
    """Measure how well a PRM judges steps, and write a report; returns the evaluation of each benchmark.

    Scores
    are kept in `out`: to try another threshold without scoring again, repeat the call with the same PRM and `out`.

    Args:
        prm: a PRM, or its folder or hub id; None with `scores` or `predictions`.
        bench: prmbench, processbench, labelled, pairs, or one that an installed package adds; or several.
        out: folder for report.html, report.md, metrics.json and scores.
        data: files or folders of the benchmark, or a hub id; by default the data comes from the hub.
        split: for labelled and pairs, use only this split of a folder written by `build_pairs`.
        scores: instead of a PRM, a scores table of this data.
        predictions: instead of a PRM, JSON lines {"id": "…", "scores": […]} or {"id": "…", "labels": […]}.
        name: the PRM's name in the report; default: the last part of its folder or hub id.
        trained_on: training data; items on its problems are reported separately, as contaminated.
        limit: the maximum number of items of each class or split, chosen by the settings' seed.
        settings: threshold, bootstrap draws and seed.
        store: a folder of scores to reuse and extend.
        loading: options of `load_prm`, for a PRM given as a folder or hub id.

    Example:
        >>> settings = EvalSettings(num_draws=100)
        >>> found = evaluate_prm("my-prm", "labelled", "eval", data="labelled.jsonl", settings=settings)
        >>> found["labelled"].subsets["all"].num_steps
        12
    """
    settings, out = settings or EvalSettings(), Path(out)
    benches = [bench] if isinstance(bench, str) else list(bench)
    source = _source(benches, {"--prm": prm, "--scores": scores, "--predictions": predictions})
    for one in benches:
        find_benchmark(one)
    read = [place for given in (data, scores, predictions, trained_on) if given for place in as_places(given)]
    keep_inputs(read, [out / "metrics.json", *(steps_file(out, one) for one in benches)])
    called = check_name(name) if name else _short(source)
    attach = _Scores(prm, scores, predictions, out, store, loading)
    attach.check()
    if settings.threshold == "prm":
        _check_card(prm, scores)
    if trained_on:
        find_sources(trained_on)
    everything = {one: _items(one, data, split, limit, trained_on, settings) for one in benches}
    evaluations = {}
    with contextlib.closing(attach):
        for one, items in everything.items():
            say(f"{items.described()}, from {len(items.files)} files")
            steps, notes = attach.to(items)
            with progress(f"measuring {one}", settings.num_draws, unit="draws") as advance:
                evaluations[one] = evaluate_steps(items, steps, settings, notes=notes, card=attach.card)
                advance(settings.num_draws)
    run = RunInfo(called, source, attach.model_hash, attach.tokens, attach.summary())
    write_run(out, run, list(evaluations.values()), settings.settled(attach.card))
    return evaluations


def _items(
    bench: str,
    data: str | Path | Sequence[str | Path],
    split: str | None,
    limit: int | None,
    trained_on: Sequence[str | Path],
    settings: EvalSettings,
) -> ItemSet:
    items = read_benchmark(bench, data, split)
    items = items.some(limit, settings.seed) if limit else items
    return items.checked_against([Path(file) for file in trained_on]) if trained_on else items


def _source(benches: Sequence[str], given: Mapping[str, Any]) -> str:
    """Where the scores come from, in words; it must be one place."""
    if not benches:
        raise ConfigError("--bench is empty; name a benchmark")
    found = {option: value for option, value in given.items() if value is not None}
    if len(found) != 1:
        what = f"got {' and '.join(found)}" if found else "got none"
        raise ConfigError(f"give one of --prm, --scores and --predictions; {what}")
    [(option, value)] = found.items()
    if len(benches) > 1 and option != "--prm":
        raise ConfigError(f"{option} is one file, so give one --bench with it, not {', '.join(benches)}")
    return str(value) if isinstance(value, str | Path) else type(value).__name__


def _check_card(prm: Scorer | str | Path | None, scores: str | Path | None) -> None:
    """There must be a card to take a threshold from; looked up before the PRM is loaded."""
    from prism_prm.lm.files import local_folder
    from prism_prm.prms.card import CARD_FILE, read_card

    lacking = ""
    if remote_place(prm) is not None or is_critic(prm):
        return  # its server or format says
    if isinstance(prm, str | Path):
        has_card = read_card(local_folder(str(prm_folder(prm)))) is not None
        lacking = f", which {prm} lacks"
    elif scores is not None:
        from prism_prm.scorer.table import card_of_scores, read_scores

        read_scores(scores)
        has_card = card_of_scores(scores) is not None
        lacking = f", or scores that record one, which {scores} does not"
    else:
        has_card = card_values(prm) is not None
    if not has_card:
        raise ConfigError(f"--threshold prm needs a --prm with a {CARD_FILE}{lacking}; give a number instead")


def _short(source: str) -> str:
    """The last part of a path or hub id, without a file's ending."""
    last = own_name(source)
    return (last.split(".")[0] or last) if Path(source).is_file() else last


def _by_rule(given: CriticSettings | Mapping[str, Any] | None) -> CriticSettings:
    """A critic's settings: unless they say otherwise, the benchmark decides how a missing verdict counts."""
    settings = critic_settings(given)
    return replace(settings, on_missing=settings.on_missing or "skip")


class _Scores:
    """Where the scores come from; a PRM is loaded once, when it is first needed."""

    def __init__(
        self,
        prm: Scorer | str | Path | None,
        scores: str | Path | None,
        predictions: str | Path | None,
        out: Path,
        store: str | Path | None,
        loading: Mapping[str, Any] | None,
    ) -> None:
        self.prm, self.scores, self.predictions = prm, scores, predictions
        self.out, self.store = out, store
        self.loading = (
            {**(loading or {}), "critic": _by_rule((loading or {}).get("critic"))} if is_critic(prm) else loading
        )
        self._opened = contextlib.ExitStack()
        self._scorer: Scorer | None = None
        self.model_hash = ""
        self.card: CardValues | None = None
        """What the card of the PRM says, once its scores are here."""
        self.tokens: int | None = None
        """Tokens behind the scores of all benchmarks; None if they were not made here."""
        self.trees: list[StepTree] = []
        """What was scored."""

    def summary(self) -> dict[str, Any] | None:
        """What a critic says about itself and its verdicts."""
        return None if self._scorer is None else self._scorer.summary(self.trees)

    def check(self) -> None:
        """Refuse places where there can be no scores, before anything is read."""
        if self.prm is not None:
            check_scorer(self.prm, self.loading)
        for file in (self.scores, self.predictions):
            if file is not None:
                find_sources([file])

    def close(self) -> None:
        """Let go of a PRM that was loaded here."""
        self._opened.close()

    def to(self, items: ItemSet) -> tuple[Steps, dict[str, int]]:
        """Their judged steps, and what there is to note about them."""
        if self.predictions is not None:
            return steps_from_predictions(items, self.predictions)
        from prism_prm.scorer.table import card_of_scores

        path = self.scores if self.scores is not None else self._scored(items)
        steps, about = steps_from_table(items, path)
        self.card = card_of_scores(path) if self._scorer is None else card_values(self._scorer)
        self.model_hash = about["model_hash"]
        return steps, about["notes"]

    def _scored(self, items: ItemSet) -> Path:
        from prism_prm.scorer.opened import opened_prm

        assert self.prm is not None, "one of the three is given"
        if self._scorer is None:
            self._scorer = self._opened.enter_context(opened_prm(self.prm, self.loading))
        scorer = self._scorer
        with progress(f"scoring {items.name}", len(items.items), unit="items") as advance:
            path = score_benchmark(scorer, items, self.out, store=self.store, advance=advance)
        trees = [item.tree for item in items.items]
        self.trees += trees
        self.tokens = (self.tokens or 0) + scorer.count_all(trees)
        return path

"""`rerank_pool`: grade and score a pool, measure every selection rule, and write a report. `prism rerank` calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from prism_prm.aggregate import (
    AGGREGATORS,
    COUNT_FROM,
    GIVEN,
    CardValues,
    Choice,
    card_values,
    check_aggregator,
    choose_aggregator,
)
from prism_prm.arrays import Floats
from prism_prm.backends.ensemble import combine
from prism_prm.backends.open_scorer import (
    EnsemblePlace,
    PrmOptions,
    check_scorer,
    ensemble_place,
    named_segmenter,
    opened_prm,
)
from prism_prm.calibration import sigmoid
from prism_prm.config import SHOWN, Count, Natural, Range, Word, check
from prism_prm.console import progress, say
from prism_prm.data.inputs import as_places, find_sources, keep_inputs, total_size
from prism_prm.data.pools import Pool, read_pool
from prism_prm.data.tasks import Errata, Level, TaskGrader, Window, load_task
from prism_prm.errors import ConfigError, SettingError
from prism_prm.grading.extract import EXTRACTORS
from prism_prm.job import Here, Job, stoppable
from prism_prm.paths import file_name
from prism_prm.report import remove_report
from prism_prm.scorer import Scorer
from prism_prm.search.adaptive import AdaptiveSettings
from prism_prm.search.adaptive_pool import simulate
from prism_prm.search.controls import measure_controls
from prism_prm.search.curves import NUM_DRAWS, Curve, check_ns, compute_curves, largest_n
from prism_prm.search.grade_pool import (
    Grade,
    GradedPool,
    StepScores,
    grade_chunk,
    grading_hash,
    log_scores_of,
    read_grades,
    scores_in_file,
    scores_in_pool,
    scores_in_table,
    with_task,
    write_solutions,
)
from prism_prm.search.rerank_report import RerankResults, make_report
from prism_prm.search.select import select_solutions, write_selected
from prism_prm.segments import first_response, last_revision

SOLUTIONS = "solutions.parquet"
SELECTED = "selected.jsonl"
ROUNDED, EXACT = 1e-6, 1e-16
"""In ensembles, scores from files and from models are this far from 0 and 1, at least: published ones are rounded."""
SOLUTIONS_PER_CHUNK = 512
"""The maximum number of solutions that are graded together."""


@dataclass(frozen=True, slots=True)
class RerankSettings:
    """How answers are extracted and judged, and how one of n solutions is selected."""

    aggregators: tuple[Word, ...] | None = field(default=None, metadata={SHOWN: "all, with the PRM's own first"})
    """How step scores become a solution's score: last, min, product, mean, soft-min, adjusted-min, last-k,
    mean-of-lowest-k, response-only, min-after-last-revision. The first one selects solutions, and is in the main
    figures. By default all that differ, with the PRM's own first."""
    ns: tuple[Count, ...] | None = None
    """The numbers of solutions to select from, such as 1,4,16. By default 1, 2, 4, … up to all."""
    extract: tuple[Word, ...] = tuple(EXTRACTORS)
    """The ways to find the answer in a solution, the most reliable first."""
    answer_field: str | None = None
    """The field of the pool, or of the task's file, with the reference answer. By default `answer`, `final_answer`,
    `expected_answer` or `ground_truth`."""
    adaptive: AdaptiveSettings = field(default_factory=AdaptiveSettings)
    num_draws: Count = NUM_DRAWS
    """The number of draws per problem that votes are averaged over."""
    seed: Natural = 0
    """The seed for the draws."""
    judges: Count | None = None
    """The number of processes that judge answers. By default one per core."""
    time_limit: Annotated[float, Range(0.1)] = 5.0
    """The limit of one comparison of answers, in CPU seconds."""
    since: str | None = None
    """For code tasks: use only problems from this day on, such as 2024-08-01."""
    until: str | None = None
    """For code tasks: use only problems up to this day."""
    errata: Errata = "keep"
    """Whether to keep problems that the benchmark itself lists as flawed."""
    sandbox: Level = "auto"
    """The sandbox for programs: bubblewrap, landlock, the better one that works here (auto), or none, which lets them
    do everything that you can do."""

    def __post_init__(self) -> None:
        check(self)
        if self.adaptive.rule != "safe":
            raise SettingError(
                "adaptive.rule", self.adaptive.rule, "is for searches; rerank simulates all: leave it out"
            )
        if self.aggregators == ():
            raise ConfigError(f"aggregators is empty. Known: {', '.join(AGGREGATORS)}.")
        for aggregator in self.aggregators or ():
            check_aggregator(aggregator)
        self.window  # noqa: B018 - raises if a day is invalid

    @property
    def window(self) -> Window:
        """The filter on the task's problems."""
        return Window(self.since, self.until, self.errata)


def rerank_pool(
    pool: Pool | str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    prms: Mapping[str, Scorer | str | Path] | None = None,
    scores: Mapping[str, str | Path] | None = None,
    task: str | None = None,
    task_data: str | Path | None = None,
    settings: RerankSettings | None = None,
    store: str | Path | None = None,
    prm_options: PrmOptions | None = None,
) -> RerankResults:
    """Select one of n solutions by every rule (Best-of-N, votes, with and without PRMs), measure the accuracy, and
    write a report.

    Problems without a reference answer are not measured; a problem with fewer than n solutions uses all of them.
    Repeat a stopped call to resume it.

    Args:
        pool: a pool, or files, folders or hub datasets of one.
        out: folder for tables, metrics.json and the report.
        prms: PRMs to score the solutions with, or their folders or hub ids, by name. An ensemble may name others of
            this call: {"both": "ensemble:mean:a,b"}.
        scores: existing scores of this pool, by name: tables, or JSON lines {"name": "…", "scores": [[0.9, …], …]}
            with the name of each problem and the step scores of each of its solutions.
        task: take the reference answers from this task (math-500, gsm8k, …) or file instead of the pool.
        task_data: the local file of `task`; by default the task comes from the hub.
        settings: aggregators, numbers of solutions, draws and the judging of answers.
        store: a folder of scores to reuse and extend.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.

    Returns:
        `RerankResults`: the `selections` (the solution that each rule selects for each problem, also in
        selected.jsonl), the `curves` over n, the grades and the scores.

    Raises:
        PrismError: a setting, an input or a model cannot be used; the message says what to change.

    Example:
        >>> settings = RerankSettings(aggregators=("min",), num_draws=100, judges=1)
        >>> results = rerank_pool("pool.jsonl", "rerank", prms={"mine": "my-prm"}, settings=settings)
        >>> results.curve("majority").points[-1].value
        1.0
        >>> results.curve("best-of-n", "mine", "min").ns
        (1, 2, 3)
        >>> [chosen.answer for chosen in results.selections if chosen.rule == "majority"]
        ['3', '7']
    """
    from prism_prm.evaluate.score_files import write_scores

    settings, out = settings or RerankSettings(), Path(out)
    prms, tables = prms or {}, scores or {}
    read = [*([] if isinstance(pool, Pool) else as_places(pool)), *tables.values()]
    written = (SOLUTIONS, SELECTED, "curves.parquet", "metrics.json")
    keep_inputs([*read, task, task_data], [out / name for name in written])
    # Missing models and files raise before solutions are judged, which takes long.
    of_scores = _of_named_scores(prms, [*prms, *tables, "pool"])
    prms = {name: prm for name, prm in prms.items() if name not in of_scores}
    for name, prm in prms.items():
        check_scorer(prm, prm_options or PrmOptions(), name)
    find_sources(tables.values())
    _check_unique([*prms, *tables, *of_scores])
    reference = None
    if task:
        reference = load_task(task, task_data, answer_field=settings.answer_field, window=settings.window)
    title = "Re-ranking"
    if not isinstance(pool, Pool):
        places = as_places(pool)
        title = f"Re-ranking {', '.join(Path(place).name for place in places)}"
        with progress("reading", total_size(find_sources(places)), unit="bytes") as advance:
            pool = read_pool(
                places, advance, answer_field=settings.answer_field, with_answers=task is None,
                segmenter=named_segmenter(prms.values(), prm_options or PrmOptions()),
            )  # fmt: skip
    if reference is not None:
        pool = with_task(pool, reference)
        for note in reference.notes():
            say(note)
    most = largest_n([len(entry.solutions) for entry in pool.problems])
    ns = None if settings.ns is None else check_ns(pool, settings.ns)
    from_files = {name: scores_in_file(path, pool) for name, path in tables.items()}
    own_scores = scores_in_pool(pool)
    for name, place in of_scores.items():
        if own_scores is None and "pool" in place.members:
            raise ConfigError(f"--prm {name}: the member 'pool' stands for the pool's own scores, but it has none")
    with Job(out) as job:
        graded, graded_as = _grade(job, pool, settings, chunk=max(1, SOLUTIONS_PER_CHUNK // max(most, 1)))
        step_scores: dict[str, StepScores] = {}
        cards: dict[str, CardValues | None] = {}
        tokens: dict[str, int] = {}
        critics: dict[str, dict[str, Any]] = {}
        with stoppable(lambda: "with all answers judged"):
            if own_scores is not None:
                step_scores["pool"], cards["pool"] = own_scores, None
            _check_unique([*step_scores, *prms, *tables, *of_scores])
            for name, (of_solutions, card) in from_files.items():
                step_scores[name], cards[name] = of_solutions, card
            for name, prm in prms.items():
                table = out / "scores" / f"{file_name(name)}.parquet"
                with opened_prm(prm, prm_options, name) as scorer:
                    with progress(f"scoring, {name}", len(pool.trees()), unit="solutions") as advance:
                        write_scores(scorer, pool.trees(), table, store=store, advance=advance)
                    step_scores[name], cards[name] = scores_in_table(table, pool), card_values(scorer)
                    tokens[name] = scorer.count_all(pool.trees())
                    if (summary := scorer.summary(pool.trees())) is not None:
                        critics[name] = summary
            for name, place in of_scores.items():
                edges = [EXACT if member in prms else ROUNDED for member in place.members]
                step_scores[name] = _combine_scores([step_scores[one] for one in place.members], edges, place.rule)
                of_members = {cards[member] for member in place.members}
                cards[name] = of_members.pop() if len(of_members) == 1 else None
                if all(member in tokens for member in place.members):
                    tokens[name] = sum(tokens[member] for member in place.members)
        # Without thinking and revisions, these are `min`.
        has_roles = any(first_response(one.steps) or last_revision(one.steps) for one in pool.solutions)
        usual = [name for name in AGGREGATORS if has_roles or name not in COUNT_FROM]
        aggregators = tuple(dict.fromkeys(settings.aggregators or usual))
        first = settings.aggregators[0] if settings.aggregators else None
        own = {prm: Choice(first, GIVEN) if first else choose_aggregator(None, card) for prm, card in cards.items()}
        curves: list[Curve] = []
        if graded.measured:
            with progress("curves", len(graded.measured), unit="problems") as advance:
                curves = compute_curves(
                    graded, step_scores, aggregators=aggregators, ns=ns, num_draws=settings.num_draws,
                    seed=settings.seed, advance=advance,
                )  # fmt: skip
        selections = select_solutions(graded, step_scores, own)
        selecting = {prm: choice.value for prm, choice in own.items()}
        controls = measure_controls(graded, step_scores, selecting, curves[0].ns if curves else ())
        adaptive = []
        if curves and settings.adaptive.error is not None:
            log_scores = {prm: log_scores_of(each, selecting[prm], pool) for prm, each in step_scores.items()}
            adaptive = simulate(graded, step_scores, log_scores, settings.adaptive, seed=settings.seed)
        num_members = {name: len(place.members) for name, place in of_scores.items()}
        results = RerankResults(
            title, graded, step_scores, curves, aggregators, own, selections, settings.num_draws, settings.sandbox,
            tokens, critics, controls, adaptive, num_members,
        )  # fmt: skip
        report = make_report(results)
        remove_report(out)  # a killed process must not leave its solutions beside another run's metrics
        write_solutions(out / SOLUTIONS, graded, graded_as, step_scores, aggregators)
        write_selected(out / SELECTED, selections)
        results.write_curves(out / "curves.parquet")
        report.write(out)
    return results


def _of_named_scores(prms: Mapping[str, Scorer | str | Path], names: Sequence[str]) -> dict[str, EnsemblePlace]:
    """The ensembles whose members are names of other scores in this call, by name."""
    found: dict[str, EnsemblePlace] = {}
    for name, prm in prms.items():
        place = ensemble_place(prm)
        known = [member for member in place.members if member in names] if place else []
        if place is None or not known:
            continue
        if others := [member for member in place.members if member not in known]:
            if all(Path(member).exists() for member in known):
                continue
            raise ConfigError(
                f"--prm {name}: {known[0]!r} is a name of this command, and {others[0]!r} is not; give it a name, too "
                f"(--prm NAME={others[0]}), and use that"
            )
        found[name] = place
    for name, place in found.items():
        if inner := [member for member in place.members if member in found]:
            raise ConfigError(f"--prm {name}: its member {inner[0]!r} is an ensemble of names; name single scorers")
    return found


def _combine_scores(of_members: Sequence[StepScores], edges: Sequence[float], rule: str) -> StepScores:
    """The step scores of an ensemble; None where a member has none. Scores are `edges` from 0 and 1, at least."""
    combined: list[Floats | None] = []
    for of_solution in zip(*of_members, strict=True):
        known = [steps for steps in of_solution if steps is not None]
        if len(known) < len(of_solution):
            combined.append(None)
            continue
        edge_M1 = np.array(edges)[:, None]
        probability_MN = np.clip(np.stack(known), edge_M1, 1 - edge_M1)
        combined.append(sigmoid(combine(np.log(probability_MN) - np.log1p(-probability_MN), rule)))
    return combined


def _check_unique(names: Sequence[str]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(
            f"Two sets of scores are called {repeated[0]!r}; give them names, e.g. --scores old=scores.parquet"
        )


def _grade(job: Job, pool: Pool, settings: RerankSettings, chunk: int) -> tuple[GradedPool, str]:
    """The grades of the pool and their hash. Grades of an earlier run are reused: running programs may take hours."""
    table = job.out / SOLUTIONS
    with TaskGrader(
        methods=settings.extract, workers=settings.judges, seconds=settings.time_limit, sandbox=settings.sandbox
    ) as grader:
        graded_as = grading_hash(pool, grader)
        known = read_grades(table, pool, graded_as)
        if known is not None:
            say(f"Reusing the grades in {table}")
            return known, graded_as
        name = f"grades {graded_as}"
        mapped = job.map(
            grade_chunk, {str(i): entry for i, entry in enumerate(pool.problems)}, name=name, verb="judged",
            unit="problems", workers=Here(grader), made_with={}, kind=tuple[Grade, ...], chunk=chunk,
        )  # fmt: skip
    graded = GradedPool(pool, tuple(mapped.results.values()))
    write_solutions(table, graded, graded_as)
    job.forget(name)
    return graded, graded_as

"""`rerank_pool`: from a pool to its grades, scores, curves and report, as `prism rerank` does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from prism_prm.aggregate import AGGREGATORS, check_aggregator
from prism_prm.answers import EXTRACTORS
from prism_prm.chosen import GIVEN, CardValues, Choice, card_values, choose_aggregator
from prism_prm.config import SHOWN
from prism_prm.console import progress, say
from prism_prm.data.inputs import as_places, find_sources, keep_inputs, total_size
from prism_prm.errors import ConfigError
from prism_prm.names import file_name
from prism_prm.pools import Pool, read_pool
from prism_prm.ranges import Count, Natural, Range, check
from prism_prm.report import remove_report
from prism_prm.rerank.curves import Curve, check_ns, compute_curves, largest
from prism_prm.rerank.expectation import NUM_DRAWS
from prism_prm.rerank.grading import GradedPool, grade_in_portions, num_comparisons, with_task
from prism_prm.rerank.report import make_report
from prism_prm.rerank.results import Results
from prism_prm.rerank.selected import select_solutions, write_selected
from prism_prm.rerank.solutions import grading_hash, read_grades, write_solutions
from prism_prm.rerank.step_scores import StepScores, scores_in_pool, scores_in_table
from prism_prm.resume import stoppable
from prism_prm.scorer.opened import check_scorer
from prism_prm.tasks import Errata, Level, TaskGrader, Window, load_task

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer

SOLUTIONS = "solutions.parquet"
SELECTED = "selected.jsonl"


@dataclass(frozen=True, slots=True)
class RerankSettings:
    """How answers are found and judged, and how one of n solutions is selected."""

    aggregators: tuple[str, ...] | None = field(default=None, metadata={SHOWN: "all, with the PRM's own first"})
    """How step scores become a solution's score: last, min, product, mean, soft-min. The first one selects and is
    drawn in the main figures. By default that is the PRM's own, and all are measured."""
    ns: tuple[Count, ...] | None = None
    """The numbers of solutions to select from, e.g. 1,4,16. By default 1, 2, 4, … up to all."""
    extract: tuple[str, ...] = tuple(EXTRACTORS)
    """The ways to find the answer in a solution, most reliable first."""
    answer_field: str | None = None
    """The field of the pool, or of the task's file, that holds the reference answer. By default `answer`,
    `final_answer`, `expected_answer` or `ground_truth`."""
    num_draws: Count = NUM_DRAWS
    """The number of draws per problem over which votes are averaged."""
    seed: Natural = 0
    """The seed for the draws."""
    judges: Count | None = None
    """The number of processes that judge answers. By default one per core."""
    time_limit: Annotated[float, Range(0.1)] = 5.0
    """The limit in CPU seconds for one comparison of answers."""
    since: str | None = None
    """Of a code task: use only problems from this day on, e.g. 2024-08-01."""
    until: str | None = None
    """Of a code task: use only problems up to this day."""
    errata: Errata = "keep"
    """Whether to keep problems that the benchmark itself lists as flawed."""
    sandbox: Level = "auto"
    """What programs run in: bubblewrap, landlock, the better one that works here (auto), or nothing (none), which lets
    them do whatever you may do."""

    def __post_init__(self) -> None:
        check(self)
        if self.aggregators == ():
            raise ConfigError(f"no aggregator is named. Known: {', '.join(AGGREGATORS)}.")
        for how in self.aggregators or ():
            check_aggregator(how)
        self.window  # noqa: B018 - refuses a day that is none

    @property
    def window(self) -> Window:
        """Which problems of a task are used."""
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
    loading: Mapping[str, Any] | None = None,
) -> Results:
    """Select one of n solutions by every rule (Best-of-N, votes, with and without PRMs), measure it, and write a
    report.

    Problems without a reference answer are not measured; a problem with fewer than n solutions uses all of them.
    Repeat a stopped call to resume it.

    Args:
        pool: a pool, or the files, folders or hub datasets that hold one.
        out: folder for tables, metrics.json and the report.
        prms: name → a PRM, or its folder or hub id, to score the solutions with.
        scores: name → an existing scores table of this pool.
        task: take the reference answers from this task (math-500, gsm8k, …) or file, not from the pool.
        task_data: the local file of `task`; by default the task comes from the hub.
        settings: aggregators, numbers of solutions, draws and the judging of answers.
        store: a folder of scores to reuse and extend.
        loading: options of `load_prm`, for PRMs given as folders or hub ids; `family` may be a dict by PRM name.

    Returns:
        `Results`: the `selections` (which solution each rule selects for each problem, also in selected.jsonl), the
        `curves` over n, the grades and the scores.

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
    settings, out = settings or RerankSettings(), Path(out)
    read = [*([] if isinstance(pool, Pool) else as_places(pool)), *(scores or {}).values()]
    written = (SOLUTIONS, SELECTED, "curves.parquet", "metrics.json")
    keep_inputs([*read, task, task_data], [out / name for name in written])
    _check_places(prms or {}, scores or {}, loading)
    reference = None
    if task:
        reference = load_task(task, task_data, answer_field=settings.answer_field, window=settings.window)
    found, title = _read(pool, settings.answer_field, with_answers=task is None)
    if reference is not None:
        found = with_task(found, reference)
        for note in reference.notes():
            say(note)
    largest([len(entry.solutions) for entry in found.problems])
    ns = None if settings.ns is None else check_ns(found, settings.ns)
    graded, graded_as = _grade(found, out, settings)
    with stoppable(lambda: "with all answers judged"):
        made = _collect_scores(found, prms or {}, scores or {}, out, store, loading)
    step_scores, cards = made.scores, made.cards
    aggregators = tuple(dict.fromkeys(settings.aggregators or AGGREGATORS))
    own = {prm: _own_aggregator(settings, card) for prm, card in cards.items()}
    curves: list[Curve] = []
    if graded.measured:
        with progress("curves", len(graded.measured), unit="problems") as advance:
            curves = compute_curves(
                graded, step_scores, aggregators=aggregators, ns=ns, num_draws=settings.num_draws, seed=settings.seed,
                advance=advance,
            )  # fmt: skip
    selections = select_solutions(graded, step_scores, own)
    results = Results(
        title,
        graded,
        step_scores,
        curves,
        aggregators,
        own,
        selections,
        settings.num_draws,
        settings.sandbox,
        made.tokens,
        made.critics,
    )
    report = make_report(results)
    remove_report(out)  # or a killed process could leave its solutions beside another run's metrics
    write_solutions(out / SOLUTIONS, graded, graded_as, step_scores, aggregators)
    write_selected(out / SELECTED, selections)
    results.write_curves(out / "curves.parquet")
    report.write(out)
    return results


def _check_places(
    prms: Mapping[str, Scorer | str | Path], tables: Mapping[str, str | Path], loading: Mapping[str, Any] | None
) -> None:
    """Refuse mistyped places before solutions are judged, which takes long."""
    for name, prm in prms.items():
        check_scorer(prm, loading, name)
    find_sources(tables.values())
    if twice := sorted(set(prms) & set(tables)):
        raise ConfigError(
            f"Two sets of scores are called {twice[0]!r}; give them names, e.g. --scores old=scores.parquet"
        )
    for path in tables.values():
        from prism_prm.scorer.table import read_scores

        read_scores(path)


def _own_aggregator(settings: RerankSettings, card: CardValues | None) -> Choice[str]:
    """What selects by a PRM's scores."""
    return Choice(settings.aggregators[0], GIVEN) if settings.aggregators else choose_aggregator(None, card)


def _read(
    pool: Pool | str | Path | Sequence[str | Path], answer_field: str | None, *, with_answers: bool
) -> tuple[Pool, str]:
    """The pool, and the report's title."""
    if isinstance(pool, Pool):
        return pool, "Re-ranking"
    places = as_places(pool)
    with progress("reading", total_size(find_sources(places)), unit="bytes") as advance:
        found = read_pool(places, advance, answer_field=answer_field, with_answers=with_answers)
    return found, f"Re-ranking {', '.join(Path(place).name for place in places)}"


def _grade(pool: Pool, out: Path, settings: RerankSettings) -> tuple[GradedPool, str]:
    """The grades of the pool, from an earlier run where it has them."""
    with TaskGrader(
        methods=settings.extract, workers=settings.judges, seconds=settings.time_limit, sandbox=settings.sandbox
    ) as grader:
        graded_as = grading_hash(pool, grader)
        known = read_grades(out / SOLUTIONS, pool, graded_as)
        if known is not None:
            say(f"Reusing the grades in {out / SOLUTIONS}")
            return known, graded_as
        with progress("judging", num_comparisons(pool.problems), unit="comparisons") as advance:
            graded = grade_in_portions(pool, out / f"grading-{graded_as}.jsonl", grader, advance)
    write_solutions(out / SOLUTIONS, graded, graded_as)
    for filed in out.glob("grading-*.jsonl"):
        filed.unlink()
    return graded, graded_as


@dataclass(slots=True)
class _Collected:
    """By PRM: its scores, what its card says, the tokens it took, and what a critic says about itself."""

    scores: dict[str, StepScores] = field(default_factory=dict)
    cards: dict[str, CardValues | None] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    critics: dict[str, dict[str, Any]] = field(default_factory=dict)


def _collect_scores(
    pool: Pool,
    prms: Mapping[str, Scorer | str | Path],
    tables: Mapping[str, str | Path],
    out: Path,
    store: str | Path | None,
    loading: Mapping[str, Any] | None,
) -> _Collected:
    """The scores in the pool, those made before, and those to make now."""
    from prism_prm.scorer.opened import opened_prm
    from prism_prm.scorer.table import card_of_scores, write_scores

    made = _Collected()
    found, cards = made.scores, made.cards
    if (own := scores_in_pool(pool)) is not None:
        found["pool"], cards["pool"] = own, None
    if twice := [name for name in prms if name in tables] + [name for name in (*prms, *tables) if name in found]:
        raise ConfigError(
            f"Two sets of scores are called {twice[0]!r}; give them names, e.g. --scores old=scores.parquet"
        )
    for name, path in tables.items():
        found[name], cards[name] = scores_in_table(path, pool), card_of_scores(path)
    for name, prm in prms.items():
        table = out / "scores" / f"{file_name(name)}.parquet"
        with opened_prm(prm, loading, name) as scorer:
            with progress(f"scoring, {name}", len(pool.trees()), unit="solutions") as advance:
                write_scores(scorer, pool.trees(), table, store=store, advance=advance)
            found[name], cards[name] = scores_in_table(table, pool), card_values(scorer)
            made.tokens[name] = scorer.count_all(pool.trees())
            if (said := scorer.summary(pool.trees())) is not None:
                made.critics[name] = said
    return made

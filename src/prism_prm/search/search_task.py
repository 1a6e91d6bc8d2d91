"""`search_task`: search for solutions of a task, measure the accuracy, and write a report. `prism search` calls it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import (
    Choice,
    calibration_of,
    card_values,
    choose_aggregator,
    choose_threshold,
    log_score,
    segmenter_of,
)
from prism_prm.backends.open_scorer import PrmOptions, check_scorer, named_segmenter, opened_prm, prm_for_workers
from prism_prm.backends.policy import Policy, PolicySettings, check_policy, open_policy
from prism_prm.console import progress, say
from prism_prm.data.inputs import keep_inputs
from prism_prm.data.pools import Pool, PoolProblem, write_pool
from prism_prm.data.tasks import TaskGrader, TaskProblem, load_task
from prism_prm.errors import ConfigError
from prism_prm.job import Finished, Here, Job, Opening, Workers
from prism_prm.paths import file_name, named_places
from prism_prm.ray import executor_of
from prism_prm.scorer import Scorer, ScorerFacts, TreeScores
from prism_prm.search.controls import Controls, measure_controls
from prism_prm.search.curves import compute_curves
from prism_prm.search.engine import RoundStats, SearchEngine, Speedometer, policy_identity, policy_workers
from prism_prm.search.grade_pool import (
    GradedPool,
    StepScores,
    grade_pool,
    scorable,
    scores_by_prm,
    scores_in_pool,
    write_solutions,
)
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.rounds import FOLDER, RoundRecord, Rounds, SearchRound, record_round
from prism_prm.search.search_report import Point, make_report
from prism_prm.search.select import RULES, choose
from prism_prm.search.tree import SearchResult
from prism_prm.segments import DEFAULT_SEGMENTER
from prism_prm.stats import mean_interval, number_clusters
from prism_prm.store import Request, ScoreStore
from prism_prm.tree import StepTree, unique_names

Searcher = tuple[Policy, Scorer | None]
"""The policy and the PRM of a worker."""
CURVE_OF = {selector: rule for rule, selector in RULES.items()}
"""By selector (`--select`), the name of its curve in `prism rerank`."""


def search_task(
    recipe: SearchRecipe,
    out: str | Path,
    *,
    prms: Mapping[str, Scorer | str | Path] | None = None,
    policy: Policy | None = None,
    prm_options: PrmOptions | None = None,
    judges: int | None = None,
    store: str | Path | None = None,
) -> list[Point]:
    """Search for solutions of a task's problems, and measure the accuracy.

    Writes pools that `rerank_pool` reads, metrics.json and a report. Repeat a stopped call to resume it.

    Args:
        recipe: the policy, PRMs, task, method, and the sizes to run it at: a `SearchRecipe`, not a file.
        out: folder for pools, metrics.json and the report.
        prms: PRMs, or their folders or hub ids, by name; default: those of the recipe.
        policy: an open policy to use instead of the recipe's; it stays open.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.
        judges: processes that judge answers; default: all cores.
        store: a folder of scores to reuse and extend.

    Returns:
        One `Point` per PRM and size n: accuracy, oracle, tokens and seconds.

    Raises:
        PrismError: a setting, an input or a model cannot be used; the message says what to change.

    Example:
        >>> search = SearchSettings(method="beam", max_steps=2, sampling=Sampling(max_step_tokens=4))
        >>> recipe = SearchRecipe(
        ...     task="problems.jsonl", policy=PolicySettings("hf:my-lm"), prm=("my-prm",), n=(4,), search=search
        ... )
        >>> [point] = search_task(recipe, "beam", judges=1)
        >>> point.prm, point.n
        ('my-prm', 4)
    """
    out = Path(out)
    keep_inputs([recipe.task, recipe.task_data], [out / "pools", out / "metrics.json"])
    prms = named_places(recipe.prm) if prms is None else prms
    # A solution that a PRM cannot read to its end ranks last; it must not stop the run.
    options = (prm_options or PrmOptions()).skipping()
    for name, place in prms.items():
        check_scorer(place, options, name)
    if policy is None:
        check_policy(recipe.policy)
    task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field, window=recipe.window)
    has_tests = any(problem.tests and problem.tests.public for problem in task.problems)
    if recipe.selector == "public-tests" and not has_tests:
        raise ConfigError(f"--select public-tests: no problem of {task.name} has public tests; use another --select")
    if recipe.search.adaptive.error is not None and any(problem.tests for problem in task.problems):
        raise ConfigError("adaptive.error counts votes for answers, but the task has programs; leave it out")
    if not recipe.search.adaptive.is_fixed and len(recipe.ns) > 1:
        raise ConfigError(f"An adaptive budget needs one size, not {len(recipe.ns)}: give one number with -n")
    for note in task.notes():
        say(note)
    ray = options.ray
    if ray is not None and policy is not None:
        raise ConfigError("workers of a Ray cluster open the policy: name it in the recipe")
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(Job(out, executor=executor_of(ray)))
        # Servers return log-probabilities only if the search needs them.
        likelihood = recipe.policy.log_likelihood or recipe.search.needs_log_likelihood
        policy_settings = replace(recipe.policy, log_likelihood=likelihood)
        if policy is None and ray is None:
            policy = stack.enter_context(contextlib.closing(open_policy(policy_settings)))
        grader = stack.enter_context(TaskGrader(workers=judges, sandbox=recipe.sandbox))
        grader.prepare(task.problems)
        problems, scores = task.problems[: recipe.limit], Path(store or out / "scores")
        run = Experiment(recipe, problems, job, policy_settings, policy, prms, options, grader, scores)
        points, pools, controls = run.independent() if recipe.search.samples_once else run.guided()
        trees = [tree for graded in pools for tree in graded.pool.trees()]
        critics = {}
        for name, scorer in run.opened.items():
            for note in scorer.notes():
                say(note)
            if (summary := scorer.summary(trees)) is not None:
                critics[name] = summary
        job.write_settings(recipe)
        make_report(recipe, task.name, points, pools, controls, run.clusters, critics).write(out)
    return points


def search_chunk(searcher: Searcher, problems: Mapping[str, str], settings: SearchSettings) -> Iterator[Any]:
    """Search problems (texts by key) at the same time: a `Finished` for each, and rounds as (key, `RoundRecord`)."""
    keys = list(problems)
    engine = SearchEngine(*searcher, settings, at_once=len(keys))
    for event in engine.run(list(problems.values()), keys):
        match event:
            case SearchResult():
                yield Finished(keys[event.problem], event)
            case SearchRound():
                yield keys[event.problem], record_round(event, likelihood=settings.prm_weight < 1)
            case _:
                yield event


def prm_facts(searcher: Searcher) -> ScorerFacts:
    """The facts about a worker's PRM that the driver needs."""
    _, prm = searcher
    return ScorerFacts() if prm is None else ScorerFacts.of(prm)


@dataclass(slots=True)
class Experiment:
    """The run of one recipe. Without a policy, the workers of a cluster open it and the PRMs."""

    recipe: SearchRecipe
    problems: Sequence[TaskProblem]
    job: Job
    policy_settings: PolicySettings
    policy: Policy | None
    prms: Mapping[str, Scorer | str | Path]
    options: PrmOptions
    grader: TaskGrader
    store: Path
    opened: dict[str, Scorer] = field(default_factory=dict)
    policy_identity: str = ""

    @property
    def clusters(self) -> Any:
        """A number per problem, the same for equal texts."""
        return number_clusters(problem.text for problem in self.problems)[0]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Workers[Searcher]]:
        """Open workers with a PRM, or without one ("")."""
        if self.policy is not None:
            with self.prm(name) if name else contextlib.nullcontext() as prm:
                yield Here((self.policy, prm))
            return
        opening = prm_for_workers(self.prms[name], self.options, name) if name else Opening(_no_prm, loads=False)
        with policy_workers(self.job, self.policy_settings, opening) as workers:
            yield workers

    @contextlib.contextmanager
    def prm(self, name: str) -> Iterator[Scorer]:
        """Open a PRM in this process."""
        with opened_prm(self.prms[name], self.options, name) as scorer:
            self.opened[name] = scorer
            yield scorer

    def guided(self) -> tuple[list[Point], list[GradedPool], dict[str, Controls]]:
        """Search with each PRM at each size. Returns the points, their graded pools, and the controls of each pool."""
        points: list[Point] = []
        pools: list[GradedPool] = []
        controls: dict[str, Controls] = {}
        num_pools = len(self.prms) * len(self.recipe.ns)
        clusters = self.clusters
        for name in list(self.prms) or [""]:
            with self.open(name) as workers:
                prm = workers.ask(prm_facts)
                for n in self.recipe.ns:
                    results, seconds = self._search(workers, prm, name, n)
                    graded = self._grade(results, name, n)
                    aggregator = self._aggregator(prm)
                    selected = self._select(name, aggregator, n, graded)
                    solved = [k is not None and bool(graded.correct(i)[k]) for i, k in enumerate(selected)]
                    correct = np.array(solved, dtype=np.float64)
                    oracle = np.array([graded.correct(i).any() for i in range(len(results))], dtype=np.float64)
                    pools.append(graded)
                    label, scores = _label(name, n), scores_in_pool(graded.pool)
                    scored = {} if aggregator is None or scores is None else {label: scores}
                    selecting = {} if aggregator is None else {label: aggregator.value}
                    controls[label] = measure_controls(graded, scored, selecting, (n,), num_pools)
                    points.append(
                        Point(
                            name, aggregator, n, mean_interval(correct, clusters), mean_interval(oracle, clusters),
                            float(np.mean([result.policy_tokens for result in results])),
                            float(np.mean([result.prm_tokens for result in results])),
                            float(np.mean([len(result.solutions) for result in results])), seconds, correct,
                            graded.pool.num_empty,
                        )
                    )  # fmt: skip
        return points, pools, controls

    def independent(self) -> tuple[list[Point], list[GradedPool], dict[str, Controls]]:
        """Sample once. One pool gives the expected accuracy for every n, and every PRM scores the same solutions."""
        most, prms = self.recipe.ns[-1], self.prms
        with self.open("") as workers:
            results, seconds = self._search(workers, ScorerFacts(), "", most)
        graded = self._grade(results, "", most)
        pool = graded.pool
        scores: dict[str, StepScores] = {}
        aggregators: dict[str, Choice[str] | None] = {"": None}
        prm_tokens: dict[str, float] = {"": 0.0}
        for name in prms:
            with self.prm(name) as prm:
                aggregators[name] = self._aggregator(prm)
                with progress(f"scoring, {name}", len(pool.trees())) as advance:
                    scores[name] = scores_by_prm(ScoreStore(self.store, prm), pool, advance)
                scored = self._write_pool(results, name, most, scores[name])
                self._select(name, aggregators[name], most, GradedPool(scored, graded.grades))
                prm_tokens[name] = prm.count_all(scorable(prm, pool)) / len(self.problems)
        if not prms:
            self._select("", None, most, graded)
        used = list(dict.fromkeys(choice.value for choice in aggregators.values() if choice))
        with progress("curves", len(self.problems)) as advance:
            curves = compute_curves(graded, scores, aggregators=used, ns=self.recipe.ns, advance=advance)
        by_rule = {(curve.method, curve.prm, curve.aggregator): curve for curve in curves}
        sizes = np.array([len(result.solutions) for result in results])
        policy_tokens = float(np.mean([result.policy_tokens for result in results]))
        points = []
        for name in list(prms) or [""]:
            method, choice = CURVE_OF[self.recipe.selector], aggregators[name]
            curve = by_rule[(method, name, choice.value) if choice and method != "majority" else (method, "", "")]
            for k, n in enumerate(self.recipe.ns):
                tokens = (policy_tokens * n / most, prm_tokens[name] * n / most)
                oracle, solutions = by_rule["oracle", "", ""].points[k], float(np.minimum(n, sizes).mean())
                points.append(
                    Point(
                        name, choice, n, curve.points[k], oracle, *tokens, solutions, seconds, curve.values[k],
                        pool.num_empty,
                    )
                )  # fmt: skip
        selecting = {name: choice.value for name, choice in aggregators.items() if choice is not None}
        return points, [graded], {_label("", most): measure_controls(graded, scores, selecting, self.recipe.ns)}

    def _search(
        self, workers: Workers[Searcher], prm: ScorerFacts, name: str, n: int
    ) -> tuple[list[SearchResult], float]:
        """Search at one size. Returns the results, and the seconds that it took."""
        choice = self._aggregator(prm)
        settings = replace(self.recipe.search, n=n, aggregator=None if choice is None else choice.value)
        # Independent samples are cut for the PRMs that will score them.
        of_prms = segmenter_of(prm) if name else named_segmenter(self.prms.values(), self.options)
        if settings.sampling.segmenter is None and of_prms not in (None, DEFAULT_SEGMENTER):
            settings = replace(settings, sampling=replace(settings.sampling, segmenter=of_prms))
        if settings.samples_once:
            settings = replace(settings, method="sample")
        # Only once, because hashing billions of weights takes a while.
        self.policy_identity = self.policy_identity or workers.ask(policy_identity)
        label, texts = _label(name, n), [problem.text for problem in self.problems]
        threshold = choose_threshold(None, card_values(prm)).value
        recorded = ("method", "n", "expand", "lookahead", "prm_weight", "max_steps", "seed")
        about = {"prm": name, "aggregator": settings.effective_aggregator, "threshold": threshold}
        about |= {setting: getattr(settings, setting) for setting in recorded}
        made_with: dict[str, Any] = {"settings": asdict(settings), "policy": self.policy_identity, "prm": prm.name}
        if (calibration := calibration_of(prm)) is not None:
            made_with["calibration"] = asdict(calibration)
        with contextlib.ExitStack() as stack:
            rounds: list[Rounds] = []
            speed = Speedometer()

            def on_start(done: Collection[str]) -> None:
                self.job.write_settings(self.recipe)
                file = self.job.out / FOLDER / f"{file_name(label)}.jsonl"
                rounds.append(stack.enter_context(contextlib.closing(Rounds(file, about, done))))

            def on_event(event: Finished[SearchResult] | RoundStats | tuple[str, RoundRecord]) -> str:
                if isinstance(event, tuple):
                    rounds[0].add(*event)
                return speed.update(event)

            mapped = self.job.map(
                functools.partial(search_chunk, settings=settings),
                dict(zip(unique_names(texts), texts, strict=True)), name=label, verb="searched", unit="problems",
                workers=workers, kind=SearchResult, chunk=self.recipe.at_once, made_with=made_with,
                on_start=on_start, on_event=on_event,
            )  # fmt: skip
        results = [replace(result, problem=i) for i, result in enumerate(mapped.results.values())]
        if prm.name and not prm.reads_whole_solutions:  # else steps were scored before their solution was complete
            # Store the scores, so that the same solutions are not scored again with the same PRM.
            solutions = [(result.problem, found) for result in results for found in result.solutions if found.log_odds]
            trees = [StepTree.chain(self.problems[problem].text, found.steps) for problem, found in solutions]
            scores = [TreeScores(prm.outputs, np.array(found.log_odds)) for _, found in solutions]
            ScoreStore(self.store, prm).add([Request.all_of(tree) for tree in trees], scores)
        return results, mapped.seconds

    def _aggregator(self, prm: Scorer | ScorerFacts) -> Choice[str] | None:
        if isinstance(prm, ScorerFacts) and not prm.name:
            return None
        return choose_aggregator(self.recipe.search.aggregator, card_values(prm))

    def _write_pool(self, results: Sequence[SearchResult], name: str, n: int, scores: StepScores | None = None) -> Pool:
        """Write the solutions as a pool for `prism rerank`; `scores` replace the solutions' own."""
        flat = iter(scores or ())
        entries = []
        for problem, result in zip(self.problems, results, strict=True):
            solutions = [solution.to_pool() for solution in result.solutions]
            if scores is not None:
                own = [next(flat) for _ in solutions]
                solutions = [
                    replace(solution, scores=None if values is None else tuple(values.tolist()))
                    for solution, values in zip(solutions, own, strict=True)
                ]
            entries.append(PoolProblem(problem, tuple(solutions)))
        write_pool(self.job.out / "pools" / f"{file_name(_label(name, n))}.jsonl", entries)
        return Pool(tuple(entries))

    def _grade(self, results: Sequence[SearchResult], name: str, n: int) -> GradedPool:
        pool = self._write_pool(results, name, n)
        with progress("judging", 2 * len(pool.solutions)) as advance:
            return grade_pool(pool, self.grader, advance)

    def _select(self, name: str, choice: Choice[str] | None, n: int, graded: GradedPool) -> list[int | None]:
        """Select a solution of each problem, and write the grades and selections for `prism view`."""
        selected = []
        for i, entry in enumerate(graded.pool.problems):
            scores = [
                log_score(solution.scores, choice.value, solution.steps) if choice and solution.scores else -np.inf
                for solution in entry.solutions
            ]
            selected.append(choose(graded, i, self.recipe.selector, np.array(scores)))
        file = self.job.out / "solutions" / f"{file_name(_label(name, n))}.parquet"
        write_solutions(file, graded, chosen=selected)
        return selected


def _no_prm(_folders: Mapping[str, str]) -> None:
    pass


def _label(prm: str, n: int) -> str:
    return f"{prm}-n{n}" if prm else f"n{n}"

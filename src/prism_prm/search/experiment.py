"""Run a recipe: search every problem, write pools, grade them, and measure accuracy against n and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.arrays import Floats
from prism_prm.chosen import Choice, card_values, choose_aggregator, choose_threshold
from prism_prm.config import to_toml
from prism_prm.console import progress, say
from prism_prm.files import write_text
from prism_prm.names import file_name
from prism_prm.pools import Pool, PoolProblem, write_pool
from prism_prm.protocol import TreeScores, tokens_of
from prism_prm.records import StepTree
from prism_prm.rerank.curves import compute_curves
from prism_prm.rerank.grading import GradedPool, grade_pool
from prism_prm.rerank.report import without_solution
from prism_prm.rerank.select import SELECTORS, Candidates
from prism_prm.rerank.solutions import write_solutions
from prism_prm.rerank.step_scores import StepScores, scorable, scores_by_prm
from prism_prm.resume import Journal, stoppable
from prism_prm.scorer.store import Request, ScoreStore
from prism_prm.search.engine import Watch, problem_keys
from prism_prm.search.found import Done, Found
from prism_prm.search.methods import METHODS, SearchSettings
from prism_prm.search.portions import PrmFacts, Searcher, SearchWork, policy_identity, search_portion
from prism_prm.search.recipe import SearchRecipe
from prism_prm.search.rounds import FOLDER, Rounds, ToldRound
from prism_prm.stats import Interval, mean_interval, number_clusters
from prism_prm.tasks import Grader, TaskProblem
from prism_prm.workers import Here, Portion, Workers
from prism_prm.workers.watching import AllWatched, not_done, run_evenly

if TYPE_CHECKING:
    from prism_prm.policies import Policy
    from prism_prm.scorer import Scorer

CURVE_OF = {"argmax": "best-of-n", "majority": "majority", "weighted": "weighted", "public-tests": "public-tests"}
"""`--select` → the name of its curve in `prism rerank`."""


@dataclass(frozen=True, slots=True)
class Point:
    """One search at one size."""

    prm: str
    """"" where there is none."""
    aggregator: Choice[str] | None
    """How the scores of steps became those of paths and solutions; None without a PRM."""
    n: int
    accuracy: Interval
    oracle: Interval
    """How often a right solution is among those found."""
    policy_tokens: float
    """Mean per problem."""
    prm_tokens: float
    solutions: float
    """Mean per problem."""
    seconds: float
    """The time of the whole run over all problems; for independent samples, at the largest n."""
    correct: Floats
    """For each problem whether it was solved, or how likely."""
    num_empty: int = 0
    """Problems without a solution; they count as not solved."""

    def empty_note(self) -> str:
        """A line on these problems; "" where there are none."""
        size = f"{self.prm}, n = {self.n}" if self.prm else f"n = {self.n}"
        note = without_solution(self.num_empty, len(self.correct))
        return note and f"{size}: {note}"


@contextmanager
def _shown(label: str, total: int, done: int) -> Iterator[Callable[[Watch], None]]:
    """Shows problems, tokens per second, and the best score so far."""
    with progress(f"searching, {label}", total, unit="problems", done=done) as advance:
        shown = 0

        def watch(state: Watch) -> None:
            nonlocal shown
            rate = state.spent.policy_tokens / state.seconds if state.seconds else 0.0
            more = f"{state.num_active} active   {rate:,.0f} tokens/s"
            if state.best == state.best:  # a number: something was scored
                more += f"   best {state.best:.3f}"
            advance(state.num_done - shown, f"{more}   {state.rates}".rstrip())
            shown = state.num_done

        yield watch


OpenPrm = Callable[[], "AbstractContextManager[Scorer]"]
"""Opens a PRM for as long as it is needed."""
Spread = Callable[[str], AbstractContextManager[Workers[Searcher]]]
"""The name of a PRM, or "" → workers elsewhere that hold the policy and that PRM."""


class Experiment:
    """The work of one recipe, in one folder."""

    def __init__(
        self,
        recipe: SearchRecipe,
        problems: Sequence[TaskProblem],
        policy: Policy | None,
        out: Path,
        *,
        spread: Spread | None = None,
        store: str | Path | None = None,
    ) -> None:
        assert (policy is None) != (spread is None), "the policy is held here, or by workers elsewhere"
        self.recipe = recipe
        self.problems = list(problems)
        self.policy = policy
        self.spread = spread
        self.out = out
        self.store = Path(store or out / "scores")
        self._policy_identity: str | None = None
        self.keys = problem_keys([problem.text for problem in problems])
        self.clusters, _ = number_clusters(problem.text for problem in problems)

    def write_settings(self) -> None:
        """Write settings.toml; not before they are known to be those of the work that is there."""
        write_text(self.out / "settings.toml", to_toml(self.recipe))

    def run(self, prms: Mapping[str, OpenPrm], grader: Grader) -> tuple[list[Point], list[GradedPool]]:
        """All points, and the graded pools they come from; PRMs are opened one after the other."""
        if METHODS[self.recipe.search.method].independent:
            return self._run_independent(prms, grader)
        points: list[Point] = []
        pools: list[GradedPool] = []
        for name in list(prms) or [""]:
            with self._searchers(name, prms) as workers:
                prm = workers.ask(PrmFacts.of)
                for n in self.recipe.ns:
                    found, seconds = self._search(workers, prm, name, n)
                    graded = self._grade(self._pool(found, name, n), grader)
                    pools.append(graded)
                    how = self._aggregator(prm)
                    points.append(self._point(name, how, n, graded, self._select(name, how, n, graded), found, seconds))
        return points, pools

    @contextmanager
    def _searchers(self, name: str, prms: Mapping[str, OpenPrm]) -> Iterator[Workers[Searcher]]:
        """Who searches with a PRM, or with none ("")."""
        if self.spread is not None:
            with self.spread(name) as workers:
                yield workers
            return
        assert self.policy is not None
        with prms[name]() if name else nullcontext() as prm:
            yield Here(Searcher(self.policy, prm))

    def _search(self, workers: Workers[Searcher], prm: PrmFacts, name: str, n: int) -> tuple[list[Found], float]:
        """What the search of one size finds; portions done before are not done again."""
        how = self._aggregator(prm)
        settings = replace(self.recipe.search, n=n, aggregator=None if how is None else how.value)
        if METHODS[settings.method].independent:  # sampled once, for all PRMs and with none of them
            settings = replace(settings, method="sample")
        if self._policy_identity is None:  # once: hashing billions of weights takes a while
            self._policy_identity = workers.ask(policy_identity)
        made_with = {"settings": asdict(settings), "policy": self._policy_identity, "prm": prm.name}
        label = _label(name, n)
        with Journal(self.out / "journal" / f"{file_name(label)}.jsonl", made_with, Done) as journal:
            work = SearchWork(settings, [problem.text for problem in self.problems], self.keys)
            is_here = isinstance(workers, Here)
            todo = not_done(work.portions(self.recipe.at_once), journal.done, is_here=is_here)
            total = len(self.keys)
            done = total - sum(portion.size for portion in todo)
            if done:
                say(f"Reusing {done:,} of {total:,} searched problems, {label}")
            with stoppable(lambda: f"with {len(journal.done):,} of {total:,} problems searched, {label}"):
                if todo:
                    self.write_settings()
                    how_searched = _how_searched(prm, name, settings)
                    self._search_rest(workers, journal, todo, label, how_searched)
            seconds = max((one.seconds for one in journal.done.values()), default=0.0)
            found = [replace(journal.done[key].found, problem=i) for i, key in enumerate(self.keys)]
        if prm.name:
            self._file_scores(prm, found)
        return found, seconds

    def _aggregator(self, prm: Scorer | PrmFacts) -> Choice[str] | None:
        if isinstance(prm, PrmFacts) and not prm.name:
            return None
        return choose_aggregator(self.recipe.search.aggregator, card_values(prm))

    def _file_scores(self, prm: PrmFacts, found: Sequence[Found]) -> None:
        """What the search has scored, for whoever scores the same solutions with the same PRM."""
        if prm.reads_whole_solutions:
            return  # a step was scored before its solution was whole
        solutions = [(entry.problem, one) for entry in found for one in entry.solutions if one.log_odds]
        trees = [StepTree.chain(self.problems[problem].text, one.steps) for problem, one in solutions]
        scores = [TreeScores(prm.outputs, np.array(one.log_odds)) for _, one in solutions]
        ScoreStore(self.store, cast("Scorer", prm)).add([Request.all_of(tree) for tree in trees], scores)

    def _search_rest(
        self, workers: Workers[Searcher], journal: Journal[Done], todo: Sequence[Portion[SearchWork]], label: str,
        how_searched: Mapping[str, Any],
    ) -> None:  # fmt: skip
        before = max((done.seconds for done in journal.done.values()), default=0.0)
        total = len(self.keys)
        with (
            _shown(label, total, total - sum(portion.size for portion in todo)) as watch,
            Rounds(self.out / FOLDER / journal.path.name, how_searched, journal.done) as rounds,
        ):

            def tell(key: str, told: ToldRound) -> None:
                if key not in journal.done:
                    rounds.add(key, told)

            def file(key: str, found: Found) -> None:
                if key not in journal.done:
                    journal.append(key, Done(found, before + all_of_it.seconds()))

            all_of_it = AllWatched(watch, Watch())
            act = search_portion
            if isinstance(workers, Here):
                act = partial(search_portion, watch=all_of_it.see, tell=tell, file=file)
            for portion, searched in run_evenly(workers, act, todo):
                all_of_it.add(searched.watch, workers.rates())
                for key, told in searched.rounds:
                    tell(key, told)
                for key, found in zip(portion.work.keys, searched.found, strict=True):
                    file(key, found)

    def _pool(self, found: Sequence[Found], name: str, n: int, scores: StepScores | None = None) -> Pool:
        """The pool of what was found, written for `prism rerank`; `scores` replace the solutions' own."""
        flat = iter(scores or ())
        entries = []
        for problem, entry in zip(self.problems, found, strict=True):
            solutions = [solution.in_pool() for solution in entry.solutions]
            if scores is not None:
                own = [next(flat) for _ in solutions]
                solutions = [
                    replace(solution, scores=None if values is None else tuple(values.tolist()))
                    for solution, values in zip(solutions, own, strict=True)
                ]
            entries.append(PoolProblem(problem, tuple(solutions)))
        write_pool(self.out / "pools" / f"{file_name(_label(name, n))}.jsonl", entries)
        return Pool(tuple(entries))

    def _grade(self, pool: Pool, grader: Grader) -> GradedPool:
        with progress("judging", 2 * len(pool.solutions)) as advance:
            return grade_pool(pool, grader, advance)

    def _point(
        self, name: str, how: Choice[str] | None, n: int, graded: GradedPool, chosen: Sequence[int | None],
        found: Sequence[Found], seconds: float,
    ) -> Point:  # fmt: skip
        solved = [one is not None and bool(graded.correct(i)[one]) for i, one in enumerate(chosen)]
        correct = np.array(solved, dtype=np.float64)
        oracle = np.array([graded.correct(i).any() for i in range(len(found))], dtype=np.float64)
        return Point(
            name, how, n, mean_interval(correct, self.clusters), mean_interval(oracle, self.clusters),
            float(np.mean([entry.policy_tokens for entry in found])),
            float(np.mean([entry.prm_tokens for entry in found])),
            float(np.mean([len(entry.solutions) for entry in found])), seconds, correct,
            graded.pool.num_empty,
        )  # fmt: skip

    def _select(self, name: str, how: Choice[str] | None, n: int, graded: GradedPool) -> list[int | None]:
        """Which solution of each problem is selected; filed with all grades for `prism view`."""
        chosen = [self._chosen(graded, i, how) for i in range(len(graded.grades))]
        write_solutions(self.out / "solutions" / f"{file_name(_label(name, n))}.parquet", graded, chosen=chosen)
        return chosen

    def _chosen(self, graded: GradedPool, problem: int, how: Choice[str] | None) -> int | None:
        solutions = graded.pool.problems[problem].solutions
        scores = [_log_score(solution.scores, how.value) if how else -np.inf for solution in solutions]
        keys = [None if group < 0 else str(group) for group in graded.groups(problem).tolist()]
        passed = graded.passed(problem) if graded.has_tests else None
        return SELECTORS[self.recipe.selector](Candidates(keys, np.array(scores), passed))

    def _run_independent(self, prms: Mapping[str, OpenPrm], grader: Grader) -> tuple[list[Point], list[GradedPool]]:
        """Sample once; one pool tells the expected accuracy for every n, and every PRM scores the same solutions."""
        most = self.recipe.ns[-1]
        with self._searchers("", {}) as workers:
            found, seconds = self._search(workers, PrmFacts(""), "", most)
        pool = self._pool(found, "", most)
        graded = self._grade(pool, grader)
        scores: dict[str, StepScores] = {}
        hows: dict[str, Choice[str] | None] = {"": None}
        read: dict[str, float] = {"": 0.0}
        for name, opened in prms.items():
            with opened() as prm:
                hows[name] = self._aggregator(prm)
                scores[name] = self._score(prm, name, pool)
                scored = self._pool(found, name, most, scores[name])
                self._select(name, hows[name], most, GradedPool(scored, graded.grades))
                read[name] = tokens_of(prm, scorable(prm, pool)) / len(self.problems)
        if not prms:
            self._select("", None, most, graded)
        used = list(dict.fromkeys(how.value for how in hows.values() if how))
        with progress("curves", len(self.problems)) as advance:
            curves = compute_curves(graded, scores, aggregators=used, ns=self.recipe.ns, advance=advance)
        of = {(curve.method, curve.prm, curve.aggregator): curve for curve in curves}
        sizes = np.array([len(entry.solutions) for entry in found])
        written = float(np.mean([entry.policy_tokens for entry in found]))
        points = []
        for name in list(prms) or [""]:
            method = CURVE_OF[self.recipe.selector]
            how = hows[name]
            curve = of[method, "", ""] if method == "majority" or how is None else of[method, name, how.value]
            for k, n in enumerate(self.recipe.ns):
                share = n / most
                tokens = (written * share, read[name] * share)
                oracle, solutions = of["oracle", "", ""].points[k], float(np.minimum(n, sizes).mean())
                points.append(
                    Point(
                        name, how, n, curve.points[k], oracle, *tokens, solutions, seconds, curve.values[k],
                        pool.num_empty,
                    )
                )  # fmt: skip
        return points, [graded]

    def _score(self, prm: Scorer, name: str, pool: Pool) -> StepScores:
        with progress(f"scoring, {name}", len(pool.trees())) as advance:
            return scores_by_prm(ScoreStore(self.store, prm), pool, advance)


def _label(prm: str, n: int) -> str:
    return f"{prm}-n{n}" if prm else f"n{n}"


def _how_searched(prm: PrmFacts, name: str, settings: SearchSettings) -> dict[str, Any]:
    """What the file of a search's rounds begins with."""
    threshold = choose_threshold(None, card_values(prm)).value
    named = ("method", "n", "expand", "lookahead", "prm_weight", "max_steps", "seed")
    chosen = {setting: getattr(settings, setting) for setting in named}
    return {"prm": name, "aggregator": settings.how, "threshold": threshold, **chosen}


def _log_score(scores: tuple[float, ...] | None, aggregator: str) -> float:
    return -np.inf if not scores else log_score(scores, aggregator)


def plain_settings(recipe: SearchRecipe) -> dict[str, Any]:
    """The resolved settings, for `metrics.json`."""
    return asdict(recipe) | {"select": recipe.selector, "n": recipe.ns}

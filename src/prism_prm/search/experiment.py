"""Run a recipe: search every problem, write pools, grade them, and measure accuracy against n and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prism_prm.aggregate import log_score
from prism_prm.chosen import Choice, card_values, choose_aggregator
from prism_prm.names import file_name
from prism_prm.pools import Pool, PoolProblem, write_pool
from prism_prm.protocol import TreeScores
from prism_prm.records import StepTree
from prism_prm.rerank.curves import compute_curves
from prism_prm.rerank.grading import GradedPool, grade_pool
from prism_prm.rerank.report import without_solution
from prism_prm.rerank.select import SELECTORS, Candidates
from prism_prm.rerank.step_scores import StepScores, scorable, scores_by_prm
from prism_prm.resume import Journal, stoppable
from prism_prm.scorer.store import Request, ScoreStore
from prism_prm.search.engine import Engine, Watch, problem_keys
from prism_prm.search.found import Done, Found
from prism_prm.search.methods import METHODS, SearchSettings
from prism_prm.search.recipe import SearchRecipe
from prism_prm.statistics import Interval, mean_interval, number_clusters
from prism_prm.tasks import Grader, TaskProblem
from prism_prm.types import Bars, Floats, Say, no_bars, silent

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


Live = Callable[[str, int, int], AbstractContextManager[Callable[[Watch], None]]]
"""(description, problems, already done) → a live display of a search."""


def no_live(_label: str, _total: int, _done: int) -> AbstractContextManager[Callable[[Watch], None]]:
    """A `Live` for callers that show nothing."""
    return nullcontext(lambda _: None)


class Experiment:
    """The work of one recipe, in one folder."""

    def __init__(
        self,
        recipe: SearchRecipe,
        problems: Sequence[TaskProblem],
        policy: Policy,
        out: Path,
        *,
        bar: Bars = no_bars,
        live: Live = no_live,
        say: Say = silent,
        store: str | Path | None = None,
    ) -> None:
        self.recipe = recipe
        self.problems = list(problems)
        self.policy = policy
        self.out = out
        self.store = Path(store or out / "scores")
        self.bar = bar
        self.live = live
        self.say = say
        self._prm_identities: dict[str, str] = {}
        self.keys = problem_keys([problem.text for problem in problems])
        self.clusters, _ = number_clusters(problem.text for problem in problems)

    def run(self, prms: Mapping[str, Callable[[], Scorer]], grader: Grader) -> tuple[list[Point], list[GradedPool]]:
        """All points, and the graded pools they come from; PRMs are opened one after the other."""
        if METHODS[self.recipe.search.method].independent:
            return self._run_independent(prms, grader)
        points: list[Point] = []
        pools: list[GradedPool] = []
        for name in list(prms) or [""]:
            prm = prms[name]() if name else None
            for n in self.recipe.ns:
                found, seconds = self._search(prm, name, n)
                graded = self._grade(self._pool(found, name, n), grader)
                pools.append(graded)
                points.append(self._point(name, self._aggregator(prm), n, graded, found, seconds))
        return points, pools

    def _search(self, prm: Scorer | None, name: str, n: int) -> tuple[list[Found], float]:
        """What the search of one size finds; problems done before are not done again."""
        how = self._aggregator(prm)
        settings = replace(self.recipe.search, n=n, aggregator=None if how is None else how.value)
        if METHODS[settings.method].independent:  # sampled once, for all PRMs and with none of them
            settings = replace(settings, method="sample")
        made_with = {
            "settings": asdict(settings),
            "policy": self._policy_identity,
            "prm": self._prm_identity(prm, name),
        }
        label = _label(name, n)
        with Journal(self.out / "journal" / f"{file_name(label)}.jsonl", made_with, Done) as journal:
            todo = [i for i, key in enumerate(self.keys) if key not in journal.done]
            total = len(self.keys)
            if len(todo) < total:
                self.say(f"Reusing {total - len(todo):,} of {total:,} searched problems, {label}")
            with stoppable(lambda: f"with {len(journal.done):,} of {total:,} problems searched, {label}"):
                if todo:
                    self._search_rest(prm, settings, journal, todo, label)
            seconds = max((done.seconds for done in journal.done.values()), default=0.0)
            found = [replace(journal.done[key].found, problem=i) for i, key in enumerate(self.keys)]
        if prm is not None:
            self._file_scores(prm, found)
        return found, seconds

    def _aggregator(self, prm: Scorer | None) -> Choice[str] | None:
        return None if prm is None else choose_aggregator(self.recipe.search.aggregator, card_values(prm))

    def _file_scores(self, prm: Scorer, found: Sequence[Found]) -> None:
        """What the search has scored, for whoever scores the same solutions with the same PRM."""
        if getattr(prm, "reads_whole_solutions", False):
            return  # a step was scored before its solution was whole
        solutions = [(entry.problem, one) for entry in found for one in entry.solutions if one.log_odds]
        trees = [StepTree.chain(self.problems[problem].text, one.steps) for problem, one in solutions]
        scores = [TreeScores(prm.outputs, np.array(one.log_odds)) for _, one in solutions]
        ScoreStore(self.store, prm).add([Request.all_of(tree) for tree in trees], scores)

    @cached_property
    def _policy_identity(self) -> str:
        return self.policy.identity()

    def _prm_identity(self, prm: Scorer | None, name: str) -> str:
        """Once per PRM: hashing billions of weights takes a while."""
        if name not in self._prm_identities:
            self._prm_identities[name] = prm.identity() if prm is not None else ""
        return self._prm_identities[name]

    def _search_rest(
        self, prm: Scorer | None, settings: SearchSettings, journal: Journal[Done], todo: Sequence[int], label: str
    ) -> None:
        texts = [self.problems[i].text for i in todo]
        before = max((done.seconds for done in journal.done.values()), default=0.0)
        with self.live(label, len(self.problems), len(self.problems) - len(todo)) as watch:
            engine = Engine(self.policy, prm, settings, at_once=self.recipe.at_once, watch=watch)
            for found in engine.run(texts, [self.keys[i] for i in todo]):
                journal.append(self.keys[todo[found.problem]], Done(found, before + engine.state.seconds))

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
        with self.bar("judging", 2 * len(pool.solutions)) as advance:
            return grade_pool(pool, grader, advance)

    def _point(
        self, name: str, how: Choice[str] | None, n: int, graded: GradedPool, found: Sequence[Found], seconds: float
    ) -> Point:
        correct = np.array([self._is_solved(graded, i, how) for i in range(len(found))], dtype=np.float64)
        oracle = np.array([graded.correct(i).any() for i in range(len(found))], dtype=np.float64)
        return Point(
            name, how, n, mean_interval(correct, self.clusters), mean_interval(oracle, self.clusters),
            float(np.mean([entry.policy_tokens for entry in found])),
            float(np.mean([entry.prm_tokens for entry in found])),
            float(np.mean([len(entry.solutions) for entry in found])), seconds, correct,
            graded.pool.num_empty,
        )  # fmt: skip

    def _is_solved(self, graded: GradedPool, problem: int, how: Choice[str] | None) -> bool:
        """Whether the solution that is selected is right."""
        solutions = graded.pool.problems[problem].solutions
        scores = [_log_score(solution.scores, how.value) if how else -np.inf for solution in solutions]
        keys = [None if group < 0 else str(group) for group in graded.groups(problem).tolist()]
        passed = graded.passed(problem) if graded.has_tests else None
        chosen = SELECTORS[self.recipe.selector](Candidates(keys, np.array(scores), passed))
        return chosen is not None and bool(graded.correct(problem)[chosen])

    def _run_independent(
        self, prms: Mapping[str, Callable[[], Scorer]], grader: Grader
    ) -> tuple[list[Point], list[GradedPool]]:
        """Sample once; one pool tells the expected accuracy for every n, and every PRM scores the same solutions."""
        most = self.recipe.ns[-1]
        found, seconds = self._search(None, "", most)
        pool = self._pool(found, "", most)
        graded = self._grade(pool, grader)
        scores: dict[str, StepScores] = {}
        hows: dict[str, Choice[str] | None] = {"": None}
        read: dict[str, float] = {"": 0.0}
        for name, make in prms.items():
            prm = make()
            hows[name] = self._aggregator(prm)
            scores[name] = self._score(prm, name, pool)
            self._pool(found, name, most, scores[name])
            read[name] = sum(map(prm.count_tokens, scorable(prm, pool))) / len(self.problems)
        used = list(dict.fromkeys(how.value for how in hows.values() if how))
        with self.bar("curves", len(self.problems)) as advance:
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
        with self.bar(f"scoring, {name}", len(pool.trees())) as advance:
            return scores_by_prm(ScoreStore(self.store, prm, say=self.say), pool, advance)


def _label(prm: str, n: int) -> str:
    return f"{prm}-n{n}" if prm else f"n{n}"


def _log_score(scores: tuple[float, ...] | None, aggregator: str) -> float:
    return -np.inf if not scores else log_score(scores, aggregator)


def plain_settings(recipe: SearchRecipe) -> dict[str, Any]:
    """The resolved settings, for `metrics.json`."""
    return asdict(recipe) | {"select": recipe.selector, "n": recipe.ns}

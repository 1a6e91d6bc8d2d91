"""`label_task`: from problems with answers to labelled trees and a report, as `prism label` does it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from prism_prm.chosen import card_values, choose_threshold
from prism_prm.config import to_toml
from prism_prm.console import progress, say
from prism_prm.critics.load import is_critic
from prism_prm.data import Reader
from prism_prm.data.inputs import keep_inputs
from prism_prm.errors import ConfigError, DataError
from prism_prm.files import write_text
from prism_prm.graders import unguarded
from prism_prm.label.consensus import keep_agreed, scored_opinion
from prism_prm.label.engine import Labelled, Watch, problem_of_tree
from prism_prm.label.judging import Judging, by_answer
from prism_prm.label.noise import LabelNoise, measure_noise
from prism_prm.label.portions import Hands, LabelWork, hands_on_ray, label_portion, policy_identity
from prism_prm.label.recipe import LabelRecipe
from prism_prm.label.report import LabelRun, make_report
from prism_prm.policies import Policy, PolicySettings, open_policy
from prism_prm.policies.load import check_policy
from prism_prm.records import StepTree, unique_names
from prism_prm.resume import Journal, stoppable
from prism_prm.scorer.opened import check_scorer
from prism_prm.tables import write_trees
from prism_prm.tasks import ProblemIndex, TaskGrader, TaskProblem, load_task
from prism_prm.workers import Here, Workers
from prism_prm.workers.settings import RaySettings
from prism_prm.workers.watching import AllWatched, not_done, run_evenly


@contextlib.contextmanager
def _shown(name: str, total: int, done: int) -> Iterator[Callable[[Watch], None]]:
    """Shows problems or trees, rollouts, and tokens per second."""
    with progress(f"labelling, {name}", total, done=done) as advance:
        shown = 0

        def watch(state: Watch) -> None:
            nonlocal shown
            rate = state.tokens / state.seconds if state.seconds else 0.0
            advance(
                state.num_done - shown, f"{state.rollouts:,} rollouts   {rate:,.0f} tokens/s   {state.rates}".rstrip()
            )
            shown = state.num_done

        yield watch


def label_task(
    recipe: LabelRecipe,
    out: str | Path,
    *,
    policy: Policy | None = None,
    judge: Judging | None = None,
    judges: int | None = None,
    ray: RaySettings | None = None,
    loading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Label the steps of a policy's solutions by rollouts: trees that every other function reads, and a report.

    Writes trees.parquet, metrics.json and the report; returns the metrics. Repeat a stopped call to resume it.

    Args:
        recipe: the task, the policy, and how its steps are labelled: a `LabelRecipe`, not a file.
        out: folder for trees.parquet, metrics.json and the report.
        policy: an open policy to use instead of the recipe's; it stays open.
        judge: says which whole solutions are right; default: by their final answers.
        judges: processes that judge answers; default: all cores.
        ray: the Ray cluster whose workers label; default: this process.
        loading: options of `load_prm` for the recipe's `consensus`; `critic` has the settings of a critic.

    Raises:
        PrismError: a setting, an input or a model cannot be used; the message says what to change.

    Example:
        >>> settings = LabelSettings(rollouts=2, sampling=Sampling(max_tokens=16, stop=" "))
        >>> recipe = LabelRecipe(task="problems.jsonl", policy=PolicySettings("hf:my-lm"), label=settings)
        >>> metrics = label_task(recipe, "labels", judges=1)
        >>> metrics["num_problems"]
        1
    """
    out = Path(out)
    keep_inputs([recipe.task, recipe.task_data, recipe.check], [out / "trees.parquet", out / "metrics.json"])
    second = recipe.second
    for chosen in filter(None, (None if policy else recipe.policy, second)):
        check_policy(chosen)
    if recipe.consensus:
        check_scorer(recipe.consensus, loading)
    task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field)
    known = ProblemIndex(task.problems)
    task = replace(task, problems=task.problems[: recipe.limit])
    exact, left_out = _exact_trees(recipe, known) if recipe.check else ([], Counter[str]())
    if ray is not None and (policy is not None or judge is not None):
        raise ConfigError(
            "workers of a Ray cluster open a policy and a judge themselves: name the policy in the recipe"
        )
    notes = task.notes() + unguarded(recipe.sandbox, task.problems)
    for note in notes:
        say(note)
    stage = _Stage(recipe, out, known)
    consensus: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        if judge is None and ray is None:
            grader = stack.enter_context(TaskGrader(workers=judges, sandbox=recipe.sandbox))
            grader.prepare(task.problems)
            judge = by_answer(grader)

        def hands(chosen: PolicySettings, opened: Policy | None = None) -> AbstractContextManager[Workers[Hands]]:
            if ray is None:
                assert judge is not None
                return _hands_here(chosen, opened, judge)
            has_programs = any(problem.tests is not None for problem in task.problems)
            return hands_on_ray(chosen, ray, judges=judges, sandbox=recipe.sandbox, has_programs=has_programs)

        with hands(recipe.policy, policy) as workers:
            solved = stage.solve(workers, task.problems)
            trees = _numbered(solved)
            noise = stage.check(workers, exact, left_out) if recipe.check else None
        if second is not None:
            with hands(second) as workers:
                asked = [problem for problem, one in zip(task.problems, solved, strict=True) for _ in one.trees]
                trees = stage.agree(workers, trees, asked, consensus)
        critic = None
        if recipe.consensus:
            how = {"on_too_long": "skip", **(loading or {}), "ray": ray}
            trees, critic = _confirmed(trees, recipe.consensus, how, out, consensus)
    if not trees:
        raise DataError(f"{recipe.task}: no solution of {recipe.policy.name} has a whole step; raise --max-tokens")
    stage.write_settings()
    write_trees(out / "trees.parquet", trees, source=recipe.policy.name)
    report = make_report(LabelRun(recipe, task.name, stage.found, trees, consensus, noise, critic, notes))
    report.write(out)
    return report.metrics


@contextlib.contextmanager
def _hands_here(settings: PolicySettings, policy: Policy | None, judge: Judging) -> Iterator[Workers[Hands]]:
    with contextlib.nullcontext(policy) if policy else contextlib.closing(open_policy(settings)) as who:
        yield Here(Hands(who, judge))


def _confirmed(
    trees: Sequence[StepTree], place: str, loading: dict[str, Any], out: Path, counts: Counter[str],
) -> tuple[list[StepTree], dict[str, Any] | None]:  # fmt: skip
    """The trees with the labels that a scorer confirms, and what it has cost if it is a critic."""
    from prism_prm.scorer.opened import opened_prm

    # A critic is asked from here, all trees at once, and keeps replies itself; a PRM's scores are kept in a store.
    store, loading = (None, {**loading, "ray": None}) if is_critic(place) else (out / "journal" / "scores", loading)
    with opened_prm(place, loading) as scorer:
        threshold = choose_threshold(None, card_values(scorer)).value
        with (
            stoppable(lambda: "with the second opinion"),
            progress("second opinion", len(trees), unit="trees") as advance,
        ):
            others = scored_opinion(trees, scorer, threshold, store=store, advance=advance)
        for note in scorer.notes():
            say(note)
        return keep_agreed(trees, others, counts), scorer.summary(trees)


def _numbered(found: Sequence[Labelled]) -> list[StepTree]:
    trees = [tree for one in found for tree in one.trees]
    names = unique_names(tree.name or f"tree-{i}" for i, tree in enumerate(trees))
    return [replace(tree, tree_id=i, name=name) for i, (tree, name) in enumerate(zip(trees, names, strict=True))]


@dataclass(frozen=True, slots=True)
class _Filed:
    """A record of the journal."""

    made_from: str
    """One of `LabelWork.contents`: it is used again only for the same."""
    labelled: Labelled


@dataclass(slots=True)
class _Stage:
    """The parts of a run that ask a policy; each has a journal of what is done."""

    recipe: LabelRecipe
    out: Path
    known: ProblemIndex
    """All problems of the task: how near an answer must be, or which tests, is known of them alone."""
    found: dict[str, list[Labelled]] = field(default_factory=dict)
    """By the name of the part."""

    def write_settings(self) -> None:
        """Write settings.toml; not before they are known to be those of the work that is there."""
        write_text(self.out / "settings.toml", to_toml(self.recipe))

    def solve(self, workers: Workers[Hands], problems: Sequence[TaskProblem]) -> list[Labelled]:
        """Sample solutions and label them."""
        keys = unique_names(problem.text for problem in problems)
        return self._run("labels", "problems", workers, LabelWork(self.recipe.label, problems, None, keys))

    def check(self, workers: Workers[Hands], exact: Sequence[StepTree], left_out: Counter[str]) -> LabelNoise:
        """Label an exactly labelled sample in the same way, and compare."""
        keys = unique_names(tree.problem for tree in exact)
        problems = [problem_of_tree(tree, self.known) for tree in exact]
        found = self._run("check", "trees", workers, LabelWork(self.recipe.label, problems, exact, keys))
        noise = measure_noise(
            exact, [one.trees[0] for one in found], [one.reached[0] for one in found]
        )  # fmt: skip
        noise.counts.update(left_out)
        return noise

    def agree(
        self, workers: Workers[Hands], trees: Sequence[StepTree], problems: Sequence[TaskProblem], counts: Counter[str]
    ) -> list[StepTree]:
        """Ask a second policy about the labels there are; it need not search for them.

        Its noise is its own: two policies that draw the same numbers agree more often than they should.
        """
        settings = self.recipe.label
        if settings.method == "binary":
            settings = replace(settings, method="adaptive")
        keys = [f"second {key}" for key in unique_names(tree.problem for tree in trees)]
        found = self._run("second", "trees", workers, LabelWork(settings, problems, trees, keys))
        return keep_agreed(trees, [one.trees[0] for one in found], counts)

    def _run(self, name: str, what: str, workers: Workers[Hands], work: LabelWork) -> list[Labelled]:
        """Portions that are not in the journal yet are done and filed there."""
        made_with = {"settings": asdict(work.settings), "policy": workers.ask(policy_identity)}
        made_from = dict(zip(work.keys, work.contents(), strict=True))
        with Journal(self.out / "journal" / f"{name}.jsonl", made_with, _Filed) as journal:
            changed = [key for key, one in journal.done.items() if made_from.get(key, one.made_from) != one.made_from]
            for key in changed:
                del journal.done[key]
            if changed:
                say(f"{len(changed):,} {what}, {name}, have other answers, tests or steps now: labelled again")
            is_here = isinstance(workers, Here)
            todo = not_done(work.portions(self.recipe.at_once, what), journal.done, is_here=is_here)
            total = len(work.keys)
            done = total - sum(portion.size for portion in todo)
            if done:
                say(f"Reusing {done:,} of {total:,} labelled {what}, {name}")
            if todo:
                self.write_settings()
            with (
                stoppable(lambda: f"with {len(journal.done):,} of {total:,} {what} labelled, {name}"),
                _shown(name, total, done) as watch,
            ):

                def file(key: str, labelled: Labelled) -> None:
                    if key not in journal.done:
                        journal.append(key, _Filed(made_from[key], labelled))

                all_of_it = AllWatched(watch, Watch())
                act = partial(label_portion, watch=all_of_it.see, file=file) if is_here else label_portion
                for portion, made in run_evenly(workers, act, todo):
                    all_of_it.add(made.watch, workers.rates())
                    for key, labelled in zip(portion.work.keys, made.labelled, strict=True):
                        file(key, labelled)
            self.found[name] = [journal.done[key].labelled for key in work.keys]
            return self.found[name]


def _exact_trees(recipe: LabelRecipe, known: ProblemIndex) -> tuple[list[StepTree], Counter[str]]:
    """The exactly labelled sample: trees about a problem that is known, or with a reference answer of their own."""
    assert recipe.check is not None, "asked for only where there is a sample"
    reader = Reader([recipe.check])
    left_out: Counter[str] = Counter()
    trees: list[StepTree] = []
    for _, draft in reader.drafts():
        tree = draft.tree(len(trees))
        problem = problem_of_tree(tree, known)
        if not problem.is_judged:
            left_out["trees without a reference answer or tests"] += 1
        elif len(trees) == recipe.check_limit:
            left_out["trees over --check-limit"] += 1
        else:
            trees.append(tree)
    left_out.update({f"records dropped: {reason}": count for reason, count in reader.report.dropped.items()})
    if not trees:
        raise DataError(
            f"{recipe.check}: no tree has a reference answer, and none is about a problem of {recipe.task}, so their "
            "rollouts cannot be judged. Name the task whose problems they solve."
        )
    return trees, left_out

"""`label_task`: label the steps of a policy's solutions by rollouts, and write a report. `prism label` calls it."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prism_prm.aggregate import card_values, choose_threshold
from prism_prm.backends.open_critic import is_critic
from prism_prm.backends.open_scorer import PrmOptions, check_scorer, opened_prm
from prism_prm.backends.policy import Policy, PolicySettings, check_policy, open_policy
from prism_prm.console import progress, say
from prism_prm.data.inputs import keep_inputs
from prism_prm.data.pools import read_pool
from prism_prm.data.reader import Reader
from prism_prm.data.tables import write_trees
from prism_prm.data.tasks import ProblemIndex, TaskGrader, TaskProblem, load_task
from prism_prm.errors import ConfigError, DataError
from prism_prm.grading.graders import Level, unguarded
from prism_prm.grading.problems import Packed
from prism_prm.job import Finished, Here, Job, Opening, Workers, content_key, stoppable
from prism_prm.ray import RaySettings, executor_of
from prism_prm.search.engine import RoundStats, Speedometer, policy_identity, policy_workers
from prism_prm.search.label_checks import keep_agreed, label_by_scores, measure_noise
from prism_prm.search.label_engine import Judging, LabelEngine, LabelResult, by_answer, problem_of_tree
from prism_prm.search.label_report import LabelRun, make_report
from prism_prm.search.label_rules import LabelSettings
from prism_prm.search.recipes import LabelRecipe
from prism_prm.tree import StepTree, unique_names

Labeler = tuple[Policy, Judging]
"""The policy and the judge of a worker."""


def label_task(
    recipe: LabelRecipe,
    out: str | Path,
    *,
    policy: Policy | None = None,
    judge: Judging | None = None,
    judges: int | None = None,
    ray: RaySettings | None = None,
    prm_options: PrmOptions | None = None,
) -> dict[str, Any]:
    """Label the steps of a policy's solutions by rollouts.

    Writes trees.parquet, which other functions read, metrics.json and a report. Returns the metrics. Repeat a stopped
    call to resume it.

    Args:
        recipe: the task, the policy, and how its steps are labeled: a `LabelRecipe`, not a file.
        out: folder for trees.parquet, metrics.json and the report.
        policy: an open policy to use instead of the recipe's; it stays open.
        judge: judges complete solutions; default: by their final answers.
        judges: processes that judge answers; default: all cores.
        ray: the Ray cluster to run on; default: this process.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.

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
    keep_inputs(
        [recipe.task, recipe.task_data, recipe.check, recipe.from_search], [out / "trees.parquet", out / "metrics.json"]
    )
    options = (prm_options or PrmOptions()).skipping()
    ray = ray or options.ray
    second = recipe.second
    for policy_settings in filter(None, (None if policy else recipe.policy, second)):
        check_policy(policy_settings)
    if recipe.consensus:
        check_scorer(recipe.consensus, options)
    task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field)
    known = ProblemIndex(task.problems)
    task = replace(task, problems=task.problems[: recipe.limit])
    exact, left_out = _exact_trees(recipe, known) if recipe.check else ([], Counter[str]())
    if ray is not None and (policy is not None or judge is not None):
        raise ConfigError("workers of a Ray cluster open the policy and the judge: name the policy in the recipe")
    notes = task.notes() + unguarded(recipe.sandbox, task.problems)
    for note in notes:
        say(note)
    consensus: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(Job(out, executor=executor_of(ray)))
        if judge is None and ray is None:
            grader = stack.enter_context(TaskGrader(workers=judges, sandbox=recipe.sandbox))
            grader.prepare(task.problems)
            judge = by_answer(grader)

        @contextlib.contextmanager
        def open_workers(settings: PolicySettings, opened: Policy | None = None) -> Iterator[Workers[Labeler]]:
            if ray is None:
                assert judge is not None
                with contextlib.nullcontext(opened) if opened else contextlib.closing(open_policy(settings)) as own:
                    yield Here((own, judge))
                return
            make = functools.partial(
                _open_judge, judges=judges or ray.cpus_per_worker, sandbox=recipe.sandbox,
                has_programs=any(problem.tests is not None for problem in task.problems),
            )  # fmt: skip
            with policy_workers(job, settings, Opening(make, loads=False)) as workers:
                yield workers

        def run(
            name: str, workers: Workers[Labeler], problems: Sequence[TaskProblem], trees: Sequence[StepTree] | None,
            keys: Sequence[str], settings: LabelSettings = recipe.label, grow: bool = False,
        ) -> list[LabelResult]:  # fmt: skip
            """Label problems or trees. Each stage has its own journal."""
            items = list(map(LabelItem, problems, [None] * len(keys) if trees is None else trees))
            mapped = job.map(
                functools.partial(label_chunk, settings=settings, grow=grow), dict(zip(keys, items, strict=True)),
                name=name, verb="labeled", unit="problems" if trees is None else "trees", workers=workers,
                kind=LabelResult, chunk=recipe.at_once,
                made_with={"settings": asdict(settings), "policy": workers.ask(policy_identity)},
                made_from={key: item.content() for key, item in zip(keys, items, strict=True)},
                on_start=lambda _: job.write_settings(recipe), on_event=Speedometer().update,
            )  # fmt: skip
            results[name] = list(mapped.results.values())
            return results[name]

        results: dict[str, list[LabelResult]] = {}
        noise = None
        with open_workers(recipe.policy, policy) as workers:
            keys = unique_names(problem.text for problem in task.problems)
            if recipe.from_search:  # a problem occurs once for each of its solutions
                own = judge or by_answer(stack.enter_context(TaskGrader(workers=1, sandbox=recipe.sandbox)))
                misleading = misleading_solutions(recipe, task.problems, own)
                task = replace(task, problems=tuple(problem for problem, _ in misleading))
                keys = unique_names(problem.text for problem in task.problems)
                solved = run("labels", workers, task.problems, [tree for _, tree in misleading], keys, grow=True)
            else:
                solved = run("labels", workers, task.problems, None, keys)
            trees = [tree for result in solved for tree in result.trees]
            names = unique_names(tree.name or f"tree-{i}" for i, tree in enumerate(trees))
            trees = [replace(tree, tree_id=i, name=names[i]) for i, tree in enumerate(trees)]
            if recipe.check:  # label an exactly labeled sample in the same way, and compare
                problems = [problem_of_tree(tree, known) for tree in exact]
                checked = run("check", workers, problems, exact, unique_names(tree.problem for tree in exact))
                labeled, reached = [result.trees[0] for result in checked], [result.reached[0] for result in checked]
                noise = measure_noise(exact, labeled, reached)
                noise.counts.update(left_out)
        if second is not None:
            # The second policy labels existing steps, so it needs no bisection. It has its own random numbers: two
            # policies that draw the same ones agree more often than they should.
            settings = recipe.label
            if settings.method == "binary":
                settings = replace(settings, method="adaptive")
            problems = [problem for problem, result in zip(task.problems, solved, strict=True) for _ in result.trees]
            keys = [f"second {key}" for key in unique_names(tree.problem for tree in trees)]
            with open_workers(second) as workers:
                others = run("second", workers, problems, trees, keys, settings)
            trees = keep_agreed(trees, [result.trees[0] for result in others], consensus)
        critic = None
        if recipe.consensus:
            trees, critic = _keep_confirmed(trees, recipe.consensus, replace(options, ray=ray), out, consensus)
        if not trees:
            raise DataError(
                f"{recipe.task}: no solution of {recipe.policy.name} has a complete step; raise -P max_tokens=…"
            )
        job.write_settings(recipe)
        write_trees(out / "trees.parquet", trees, source=recipe.policy.name)
        report = make_report(LabelRun(recipe, task.name, results, trees, consensus, noise, critic, notes))
        report.write(out)
    return report.metrics


def _open_judge(_folders: Mapping[str, str], *, judges: int, sandbox: Level, has_programs: bool) -> Judging:
    grader = TaskGrader(workers=judges, sandbox=sandbox)
    if has_programs:
        grader.programs.open()
    return by_answer(grader)


@dataclass(frozen=True, slots=True)
class LabelItem:
    """A problem whose solutions are sampled and labeled or, with a tree, one whose tree is labeled."""

    problem: TaskProblem
    tree: StepTree | None

    def content(self) -> str:
        """A hash of what its labels depend on besides settings and policy: the answer or tests, and the tree."""
        tests = self.problem.tests
        if tests is not None and isinstance(tests.hidden, Packed):  # unpacking LiveCodeBench's would take minutes
            judged_by: Any = tests.public_only().reference(), tests.hidden.payload
        else:
            judged_by = self.problem.reference, self.problem.tolerance
        return content_key(judged_by, None if self.tree is None else self.tree.content_hash())


def label_chunk(
    labeler: Labeler, items: Mapping[str, LabelItem], settings: LabelSettings, *, grow: bool = False
) -> Iterator[Finished[LabelResult] | RoundStats]:
    """Label problems or trees at the same time; `items` are all of one kind."""
    keys, chunk = list(items), list(items.values())
    trees = [item.tree for item in chunk if item.tree is not None] or None
    engine = LabelEngine(*labeler, settings, at_once=len(keys))
    for event in engine.run([item.problem for item in chunk], keys, trees, grow=grow):
        yield event if isinstance(event, RoundStats) else Finished(keys[event[0]], event[1])


def misleading_solutions(
    recipe: LabelRecipe, problems: Sequence[TaskProblem], judge: Judging
) -> list[tuple[TaskProblem, StepTree]]:
    """The solutions of a pool with a wrong answer and a high score, and their problems; equal ones count once."""
    place = Path(str(recipe.from_search))
    pool = read_pool(place / "pools" if (place / "pools").is_dir() else place)
    known, counts = ProblemIndex(problems), Counter[str]()
    found: dict[tuple[str, tuple[str, ...]], tuple[TaskProblem, StepTree]] = {}
    for entry in pool.problems:
        problem = known.find(entry.problem.text, name=entry.problem.name, where=entry.where)
        if problem is None:
            counts["of other problems"] += len(entry.solutions)
            continue
        scored = [one for one in entry.solutions if any(p is not None for p in one.scores or ())]
        high = [one for one in scored if min(p for p in one.scores or () if p is not None) > recipe.min_score]
        wrong = [
            one for one, right in zip(high, judge([(problem, one.text) for one in high]), strict=True) if not right
        ]
        counts["without scores"] += len(entry.solutions) - len(scored)
        counts["with a low score"] += len(scored) - len(high)
        counts["with the right answer"] += len(high) - len(wrong)
        counts["with a wrong answer and a high score"] += len(wrong)
        for one in wrong:
            tree = StepTree.chain(problem.text, one.steps, name=problem.name, answer=problem.answer, ended=True)
            found.setdefault((problem.text, one.steps), (problem, tree))
    say(f"{place}: solutions {', '.join(f'{name}: {count:,}' for name, count in (+counts).items())}")
    if not found:
        raise DataError(
            f"{place}: no solution of a problem of {recipe.task} has a wrong answer and a score above "
            f"{recipe.min_score}; lower it with --set min_score=…"
        )
    return list(found.values())


def _keep_confirmed(
    trees: Sequence[StepTree], place: str, options: PrmOptions, out: Path, counts: Counter[str],
) -> tuple[list[StepTree], dict[str, Any] | None]:  # fmt: skip
    """The trees with only the labels that a scorer confirms, and the cost if it is a critic."""
    # A critic runs in this process and caches its replies itself; a PRM's scores are cached in a store.
    store, options = (None, replace(options, ray=None)) if is_critic(place) else (out / "journal" / "scores", options)
    with opened_prm(place, options) as scorer:
        threshold = choose_threshold(None, card_values(scorer)).value
        with (
            stoppable(lambda: "with the second opinion"),
            progress("second opinion", len(trees), unit="trees") as advance,
        ):
            others = label_by_scores(trees, scorer, threshold, store=store, advance=advance)
        for note in scorer.notes():
            say(note)
        return keep_agreed(trees, others, counts), scorer.summary(trees)


def _exact_trees(recipe: LabelRecipe, known: ProblemIndex) -> tuple[list[StepTree], Counter[str]]:
    """The exactly labeled sample: trees of known problems, or with their own reference answers."""
    assert recipe.check is not None, "the recipe must have a sample"
    reader = Reader([recipe.check])
    left_out: Counter[str] = Counter()
    trees: list[StepTree] = []
    for _, draft in reader.drafts():
        tree = draft.tree(len(trees))
        problem = problem_of_tree(tree, known)
        if not problem.is_judged:
            left_out["trees without a reference answer or tests"] += 1
        elif len(trees) == recipe.check_limit:
            left_out["trees over check_limit"] += 1
        else:
            trees.append(tree)
    left_out.update({f"records dropped: {reason}": count for reason, count in reader.report.dropped.items()})
    if not trees:
        raise DataError(
            f"{recipe.check}: no tree has a reference answer, and none is about a problem of {recipe.task}, so their "
            "rollouts cannot be judged. Use the task that they are from."
        )
    return trees, left_out

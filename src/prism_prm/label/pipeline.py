"""`label_task`: from problems with answers to labelled trees and a report, as `prism label` does it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prism_prm.config import to_toml
from prism_prm.data import Reader
from prism_prm.errors import DataError
from prism_prm.files import write_text
from prism_prm.label.consensus import keep_agreed
from prism_prm.label.engine import Labelled, Labeller, Watch
from prism_prm.label.judging import Judging, by_answer
from prism_prm.label.noise import LabelNoise, measure_noise
from prism_prm.label.recipe import LabelRecipe
from prism_prm.label.report import LabelRun, make_report
from prism_prm.label.settings import LabelSettings
from prism_prm.policies import Policy, open_policy
from prism_prm.policies.load import check_policy
from prism_prm.records import StepTree, unique_names
from prism_prm.resume import Journal, content_key, stoppable
from prism_prm.tables import write_trees
from prism_prm.tasks import Task, TaskGrader, TaskProblem, load_task
from prism_prm.types import Say, silent

Live = Callable[[str, int, int], AbstractContextManager[Callable[[Watch], None]]]
"""(description, problems, already done) → a live display of the labelling."""


def no_live(_label: str, _total: int, _done: int) -> AbstractContextManager[Callable[[Watch], None]]:
    """A `Live` for callers that show nothing."""
    return contextlib.nullcontext(lambda _: None)


def label_task(
    recipe: LabelRecipe,
    out: str | Path,
    *,
    policy: Policy | None = None,
    judge: Judging | None = None,
    workers: int | None = None,
    live: Live = no_live,
    say: Say = silent,
) -> dict[str, Any]:
    """Label the steps of a policy's solutions by rollouts: trees that every other function reads, and a report.

    Writes trees.parquet, metrics.json and the report; returns the metrics. Repeat a stopped call to resume it.

    Args:
        recipe: the task, the policy, and how its steps are labelled: a `LabelRecipe`, not a file.
        out: folder for trees.parquet, metrics.json and the report.
        policy: an open policy to use instead of the recipe's; it stays open.
        judge: says which whole solutions are right; default: by their final answers.
        workers: processes that judge answers; default: all cores.
        live: makes live displays of the labelling; by default none are shown.
        say: called with each status message, e.g. `print`.

    Raises:
        PrismError: a setting, an input or a model cannot be used; the message says what to change.

    Example:
        >>> settings = LabelSettings(rollouts=2, sampling=Sampling(max_tokens=16, stop=" "))
        >>> recipe = LabelRecipe(task="problems.jsonl", policy=PolicySettings("hf:my-lm"), label=settings)
        >>> metrics = label_task(recipe, "labels", workers=1)
        >>> metrics["num_problems"]
        1
    """
    out = Path(out)
    second = replace(recipe.policy, name=recipe.second_policy) if recipe.second_policy else None
    for chosen in filter(None, (None if policy else recipe.policy, second)):
        check_policy(chosen)
    task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field)
    task = replace(task, problems=task.problems[: recipe.limit])
    exact, left_out = _exact_trees(recipe, task) if recipe.check else ([], Counter[str]())
    with contextlib.ExitStack() as stack:
        if judge is None:
            grader = stack.enter_context(TaskGrader(workers=workers, sandbox=recipe.sandbox))
            grader.prepare(task.problems)
            judge = by_answer(grader)
        who = policy or stack.enter_context(contextlib.closing(open_policy(recipe.policy)))
        write_text(out / "settings.toml", to_toml(recipe))
        stage = _Stage(recipe, out, judge, {problem.text: problem for problem in task.problems}, live, say)
        found = stage.solve(who, task.problems)
        noise = stage.check(who, exact, left_out) if recipe.check else None
        trees = _numbered(found)
        consensus: Counter[str] = Counter()
        if second is not None:
            other = stack.enter_context(contextlib.closing(open_policy(second)))
            trees = stage.agree(other, trees, consensus)
    if not trees:
        raise DataError(f"{recipe.task}: no solution of {recipe.policy.name} has a whole step; raise --max-tokens")
    write_trees(out / "trees.parquet", trees, source=recipe.policy.name)
    report = make_report(LabelRun(recipe, task.name, found, trees, consensus, noise))
    report.write(out)
    return report.metrics


def _numbered(found: Sequence[Labelled]) -> list[StepTree]:
    trees = [tree for one in found for tree in one.trees]
    names = unique_names(tree.name or f"tree-{i}" for i, tree in enumerate(trees))
    return [replace(tree, tree_id=i, name=name) for i, (tree, name) in enumerate(zip(trees, names, strict=True))]


@dataclass(slots=True)
class _Stage:
    """The parts of a run that ask a policy; each has a journal of what is done."""

    recipe: LabelRecipe
    out: Path
    judge: Judging
    known: Mapping[str, TaskProblem]
    """The task's problems by their texts: how near an answer must be, or which tests, is known of them alone."""
    live: Live
    say: Say

    def solve(self, policy: Policy, problems: Sequence[TaskProblem]) -> list[Labelled]:
        """Sample solutions and label them."""
        keys = unique_names(problem.text for problem in problems)
        settings = self.recipe.label

        def run(labeller: Labeller, todo: Sequence[int]) -> Iterator[tuple[int, Labelled]]:
            return labeller.solve([problems[i] for i in todo], [keys[i] for i in todo])

        return self._run("labels", "problems", policy, settings, keys, run)

    def check(self, policy: Policy, exact: Sequence[StepTree], left_out: Counter[str]) -> LabelNoise:
        """Label an exactly labelled sample in the same way, and compare."""
        found = self._relabel("check", policy, exact, self.recipe.label)
        noise = measure_noise(
            exact, [one.trees[0] for one in found], [one.reached[0] for one in found]
        )  # fmt: skip
        noise.counts.update(left_out)
        return noise

    def agree(self, policy: Policy, trees: Sequence[StepTree], counts: Counter[str]) -> list[StepTree]:
        """Ask a second policy about the labels there are; it need not search for them."""
        settings = self.recipe.label
        if settings.method == "binary":
            settings = replace(settings, method="adaptive")
        found = self._relabel("second", policy, trees, settings)
        return keep_agreed(trees, [one.trees[0] for one in found], counts)

    def _relabel(self, name: str, policy: Policy, trees: Sequence[StepTree], settings: LabelSettings) -> list[Labelled]:
        keys = unique_names(tree.problem for tree in trees)

        def run(labeller: Labeller, todo: Sequence[int]) -> Iterator[tuple[int, Labelled]]:
            return labeller.relabel([trees[i] for i in todo], [keys[i] for i in todo], self.known)

        content = content_key([tree.content_hash() for tree in trees])
        return self._run(name, "trees", policy, settings, keys, run, {"trees": content})

    def _run(
        self,
        name: str,
        what: str,
        policy: Policy,
        settings: LabelSettings,
        keys: Sequence[str],
        run: Callable[[Labeller, Sequence[int]], Iterator[tuple[int, Labelled]]],
        more: Mapping[str, Any] | None = None,
    ) -> list[Labelled]:
        """What is not in the journal yet is done and filed there."""
        made_with = {"settings": asdict(settings), "policy": policy.identity(), **(more or {})}
        with Journal(self.out / "journal" / f"{name}.jsonl", made_with, Labelled) as journal:
            todo = [i for i, key in enumerate(keys) if key not in journal.done]
            done, total = len(keys) - len(todo), len(keys)
            if done:
                self.say(f"Reusing {done:,} of {total:,} labelled {what}, {name}")
            with (
                stoppable(lambda: f"with {len(journal.done):,} of {total:,} {what} labelled, {name}"),
                self.live(name, total, done) as watch,
            ):
                labeller = Labeller(policy, self.judge, settings, at_once=self.recipe.at_once, watch=watch)
                for i, labelled in run(labeller, todo):
                    journal.append(keys[todo[i]], labelled)
            return [journal.done[key] for key in keys]


def _exact_trees(recipe: LabelRecipe, task: Task) -> tuple[list[StepTree], Counter[str]]:
    """The exactly labelled sample, each tree with a reference answer: its own, or that of the task's equal problem."""
    assert recipe.check is not None, "asked for only where there is a sample"
    reader = Reader([recipe.check])
    answers = {problem.text.strip(): problem.answer for problem in task.problems}
    left_out: Counter[str] = Counter()
    trees: list[StepTree] = []
    for _, draft in reader.drafts():
        answer = draft.answer or answers.get(draft.problem.strip())
        if answer is None:
            left_out["trees without a reference answer"] += 1
        elif len(trees) == recipe.check_limit:
            left_out["trees over --check-limit"] += 1
        else:
            trees.append(replace(draft.tree(len(trees)), answer=answer))
    left_out.update({f"records dropped: {reason}": count for reason, count in reader.report.dropped.items()})
    if not trees:
        raise DataError(
            f"{recipe.check}: no tree has a reference answer, and none is about a problem of {recipe.task}, so its "
            "rollouts cannot be judged"
        )
    return trees, left_out

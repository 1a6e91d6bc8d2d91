"""`search_task`: from a task to pools, accuracy and a report, as `prism search` does it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_prm.console import say
from prism_prm.data.inputs import keep_inputs
from prism_prm.errors import ConfigError
from prism_prm.names import named_places
from prism_prm.policies import Policy, PolicySettings, open_policy
from prism_prm.policies.load import check_policy
from prism_prm.scorer.opened import check_scorer
from prism_prm.search.experiment import Experiment, Point
from prism_prm.search.portions import Searcher, searchers_on_ray
from prism_prm.search.recipe import SearchRecipe
from prism_prm.search.report import make_report
from prism_prm.tasks import TaskGrader, load_task
from prism_prm.workers import Workers

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer


def search_task(
    recipe: SearchRecipe,
    out: str | Path,
    *,
    prms: Mapping[str, Scorer | str | Path] | None = None,
    policy: Policy | None = None,
    loading: Mapping[str, Any] | None = None,
    judges: int | None = None,
    store: str | Path | None = None,
) -> list[Point]:
    """Search for solutions of a task's problems, and measure how many are solved.

    Writes pools that `rerank_pool` reads, metrics.json and a report. Repeat a stopped call to resume it.

    Args:
        recipe: the policy, PRMs, task, method, and the sizes to run it at: a `SearchRecipe`, not a file.
        out: folder for pools, metrics.json and the report.
        prms: name → a PRM, or its folder or hub id; default: those of the recipe.
        policy: an open policy to use instead of the recipe's; it stays open.
        loading: options of `load_prm`, for PRMs given as folders or hub ids; `family` may be a dict by PRM name.
            `on_too_long` is "skip" here by default: a solution too long for a PRM ranks last. With `ray`, workers of a
            Ray cluster search.
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
    given = named_places(recipe.prm) if prms is None else prms
    # A solution that a PRM cannot read to its end is worth less than others, but no reason to stop.
    options = {"on_too_long": "skip", **(loading or {})}
    for name, place in given.items():
        check_scorer(place, options, name)
    if policy is None:
        check_policy(recipe.policy)
    task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field, window=recipe.window)
    if recipe.selector == "public-tests" and not any(one.tests and one.tests.public for one in task.problems):
        raise ConfigError(f"--select public-tests: no problem of {task.name} has public tests; use another rule")
    for note in task.notes():
        say(note)
    ray = options.get("ray")
    if ray is not None and policy is not None:
        raise ConfigError("workers of a Ray cluster open a policy themselves: name it in the recipe, not the policy")
    asked = _asked(recipe)
    here = contextlib.nullcontext(policy) if policy or ray else contextlib.closing(open_policy(asked))
    with here as who, TaskGrader(workers=judges, sandbox=recipe.sandbox) as grader:
        grader.prepare(task.problems)
        opened_prms: dict[str, Scorer] = {}

        def spread(name: str) -> contextlib.AbstractContextManager[Workers[Searcher]]:
            assert ray is not None
            return searchers_on_ray(asked, given[name] if name else None, _without_ray(options), name, ray)

        experiment = Experiment(
            recipe, task.problems[: recipe.limit], who, out, spread=spread if ray else None, store=store,
        )  # fmt: skip
        points, pools = experiment.run(
            {name: partial(_opened, prm, options, name, opened_prms) for name, prm in given.items()}, grader
        )
    for note in [note for scorer in opened_prms.values() for note in scorer.notes()]:
        say(note)
    trees = [tree for graded in pools for tree in graded.pool.trees()]
    summaries = {name: scorer.summary(trees) for name, scorer in opened_prms.items()}
    critics = {name: said for name, said in summaries.items() if said is not None}
    experiment.write_settings()
    make_report(recipe, task.name, points, pools, experiment.clusters, critics).write(out)
    return points


@contextlib.contextmanager
def _opened(
    prm: Scorer | str | Path, loading: Mapping[str, Any], name: str, opened: dict[str, Scorer]
) -> Iterator[Scorer]:
    """A PRM; those that were opened are kept for what they have to say at the end."""
    from prism_prm.scorer.opened import opened_prm

    with opened_prm(prm, loading, name) as scorer:
        opened[name] = scorer
        yield scorer


def _without_ray(loading: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in loading.items() if key != "ray"}


def _asked(recipe: SearchRecipe) -> PolicySettings:
    """A server is asked for log-probabilities only where the search needs them."""
    wanted = recipe.policy.log_likelihood or recipe.search.needs_log_likelihood
    return replace(recipe.policy, log_likelihood=wanted)

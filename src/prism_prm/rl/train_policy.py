"""`train_policy`: train a policy by GRPO with a PRM's reward, and measure it before and after (`prism grpo`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState

from prism_prm.aggregate import calibration_of
from prism_prm.backends.policy import PolicySettings, open_policy
from prism_prm.config import read_settings, to_toml
from prism_prm.console import say, silent_unless
from prism_prm.data.same_problem import Exclusions
from prism_prm.data.tasks import Grader, TaskGrader, TaskProblem, load_problems, load_task
from prism_prm.errors import ConfigError
from prism_prm.files import JsonLines, write_text
from prism_prm.grading.graders import unguarded
from prism_prm.job import Job, content_key
from prism_prm.models.model_files import load_tokenizer, local_folder, plain_folder
from prism_prm.paths import file_name
from prism_prm.rl.alarm import TrainedPolicy
from prism_prm.rl.monitor import AnswerGold, Reward, problem_rows
from prism_prm.rl.recipe import GrpoRecipe
from prism_prm.rl.report import make_report
from prism_prm.rl.reward import PRMReward
from prism_prm.rl.trainer import grpo_config, train_with_reward
from prism_prm.search.methods import SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.search_report import Point
from prism_prm.search.search_task import search_task
from prism_prm.segments import DEFAULT_SEGMENTER
from prism_prm.tree import unique_names

COSTS = "critic-costs-{}.jsonl"
"""A file per process in the run's folder: the costs of a critic, with one line for each run of the command."""
Evaluated = dict[tuple[str, str], Point]
"""By task, and "greedy" or "sampled"."""


def train_policy(
    recipe: GrpoRecipe | str | Path,
    out: str | Path,
    *,
    assignments: Sequence[str] = (),
) -> TrainedPolicy:
    """Train a policy by GRPO with a PRM's scores as its reward. Returns its curve on held-out problems.

    It also solves the tasks of the evaluation before and after training. Repeat a stopped call to resume from the last
    checkpoint. It writes `policy/` (a transformers model), looks.parquet, TRL's log and a report. Under `accelerate
    launch`, all processes must call this.

    Args:
        recipe: a recipe, or the TOML file that holds one.
        out: the run's folder.
        assignments: settings to override, as `--set` takes them: "trainer.max_steps=20".

    Example:
        >>> curve = train_policy("grpo.toml", "trained", assignments=["trainer.max_steps=1"])
        >>> [point.update for point in curve.points]
        [0, 1]
        >>> policy = open_policy("hf:trained/policy")
    """
    if not isinstance(recipe, GrpoRecipe):
        recipe = read_settings(GrpoRecipe, recipe, assignments)
    elif assignments:
        raise ConfigError("assignments apply to a recipe file; change a GrpoRecipe object with dataclasses.replace")
    if recipe.rounds.count:
        raise ConfigError("rounds.count: adversarial rounds are trained by train_rounds, not by train_policy")
    out = Path(out)
    if (out / "round-0").exists():
        raise ConfigError(f"{out} has a run with rounds (rounds.count). Name another --out, or remove it.")
    scale = recipe.reward.scale
    trainer = recipe.trainer | ({} if scale == "group" else {"scale_rewards": scale})  # group is TRL's own default
    grpo_config(trainer, out)  # raises on unknown settings before anything is loaded
    state = PartialState()
    with (
        silent_unless(state.is_main_process),
        Job(out, is_main=state.is_main_process),
        TaskGrader(sandbox=recipe.sandbox) as grader,
    ):
        train, held_out = split_problems(recipe)
        grader.prepare(held_out)
        before: Evaluated = {}

        def begin() -> None:
            if state.is_main_process:
                write_text(out / "recipe.toml", to_toml(recipe))
            before.update(_evaluate(recipe, recipe.policy, out / "evaluation" / "before", state))

        tokenizer = load_tokenizer_of(recipe.policy)
        with _open_reward(recipe, grader, state, out) as (reward, identity):
            curve = train_with_reward(
                recipe.policy, reward, train=problem_rows(train, recipe.prompting, tokenizer),
                held_out=problem_rows(held_out, recipe.prompting, tokenizer), gold=AnswerGold(grader), out=out,
                trainer=trainer, credit=recipe.credit, monitor=recipe.monitor, lora=recipe.lora, identity=identity,
                begin=begin,
            )  # fmt: skip
        after = _evaluate(recipe, str(curve.policy), out / "evaluation" / "after", state)
        if state.is_main_process:
            costs = [line for path in sorted(out.glob(COSTS.format("*"))) for line in JsonLines(path).read()]
            notes = unguarded(recipe.sandbox, [*train, *held_out])
            make_report(recipe, curve, before, after, costs, notes).write(out)
        state.wait_for_everyone()
    return curve


def split_problems(recipe: GrpoRecipe) -> tuple[list[TaskProblem], list[TaskProblem]]:
    """(training, held-out) problems. Training problems are neither held out nor in a task of the evaluation."""
    sets = recipe.problems
    train = list(load_problems(sets.train, sets.train_data).problems[: sets.limit])
    if sets.held_out is None:
        held_out, train = train[-sets.num_held_out :], train[: -sets.num_held_out]
    else:
        held_out = list(load_problems(sets.held_out, sets.held_out_data).problems[: sets.num_held_out])
    excluded = Exclusions()
    for problem in held_out:
        excluded.add(problem.text, "held out")
    for task in recipe.evaluation.tasks:
        for problem in load_task(task, recipe.evaluation.data.get(task)).problems:
            excluded.add(problem.text, task)
    kept = [problem for problem in train if not excluded.match(problem.text)]
    if len(kept) < len(train):
        say(
            f"{len(train) - len(kept):,} of {len(train):,} problems are also held out or used for evaluation, and are "
            "left out."
        )
    if not kept or not held_out:
        raise ConfigError(
            f"{sets.train}: {len(kept):,} problems to train on and {len(held_out):,} held-out problems are left; lower "
            "problems.num_held_out, or use other problems"
        )
    return kept, held_out


def load_tokenizer_of(policy: str) -> Any:
    """Load the tokenizer of a model's folder, which may hold a GGUF file."""
    return load_tokenizer(plain_folder(local_folder(policy)))


@contextlib.contextmanager
def _open_reward(recipe: GrpoRecipe, grader: Grader, state: Any, out: Path) -> Iterator[tuple[Reward, str]]:
    """The reward and its identity. The costs of a critic are written at the end, even after an error."""
    if not recipe.prm:
        yield AnswerReward(grader), "right answers"
        return
    options = recipe.load
    if state.num_processes > 1 and options.device is None:
        options = replace(options, device=str(state.device))
    shaping = {name: value for name, value in asdict(recipe.reward).items() if name != "scale"}
    reward = PRMReward(recipe.prm, **shaping, sandbox=recipe.sandbox, prm_options=options)
    scorer = reward.scorer
    try:
        # The aggregator, the value to clip at and the segmenter may come from the card. Otherwise its threshold affects
        # only what is logged, not the reward. How rewards are scaled is among the trainer's settings.
        shaping |= {"type": "RewardSettings", "aggregator": reward.aggregator, "clip": reward.clip}
        if reward.segmenter != DEFAULT_SEGMENTER:
            shaping["segmenter"] = reward.segmenter
        calibration = calibration_of(scorer)
        yield reward, content_key(scorer.identity(), shaping, *([] if calibration is None else [calibration]))
    finally:
        summary = scorer.summary()
        if summary is not None and summary["verdicts"] | summary["missing"]:
            with contextlib.closing(JsonLines(out / COSTS.format(state.process_index))) as costs:
                costs.append(summary)
            for note in scorer.notes():
                say(note)
        reward.close()


class AnswerReward:
    """1 for a right final answer or program, else 0."""

    __name__ = "AnswerReward"

    def __init__(self, grader: Grader) -> None:
        self.grader = grader

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **columns: Any
    ) -> list[float | None]:
        tolerances = columns.get("tolerance") or [0.0] * len(prompts)
        problems = list(map(TaskProblem.with_reference, prompts, answer, tolerances))
        answers = [
            (problem, self.grader.extract(problem, text).answer)
            for problem, text in zip(problems, completions, strict=True)
        ]
        return [float(verdict.correct) for verdict in self.grader.judge(answers)]


def _evaluate(recipe: GrpoRecipe, policy: str, out: Path, state: Any) -> Evaluated:
    """Solve every task, greedily and by sampling; the main process does it, and the others wait."""
    evaluated: Evaluated = {}
    settings = recipe.evaluation
    if state.is_main_process and settings.tasks:
        policy_settings = PolicySettings(f"hf:{policy}", prompting=recipe.prompting)
        with contextlib.closing(open_policy(policy_settings)) as opened:
            names = unique_names(Path(task).stem for task in settings.tasks)
            for task, name in zip(settings.tasks, names, strict=True):
                greedy = SearchRecipe(
                    task=task, task_data=settings.data.get(task), limit=settings.limit, policy=policy_settings,
                    select="majority", sandbox=recipe.sandbox,
                    search=SearchSettings("greedy", max_steps=settings.max_steps, sampling=settings.sampling),
                )  # fmt: skip
                folder = out / file_name(name)
                (evaluated[task, "greedy"],) = search_task(greedy, folder / "greedy", policy=opened)
                if settings.samples:
                    sampled = replace(greedy, search=replace(greedy.search, method="sample"), n=(1, settings.samples))
                    points = search_task(sampled, folder / "sampled", policy=opened)
                    evaluated[task, "sampled"] = next(point for point in points if point.n == 1)
    state.wait_for_everyone()
    return evaluated

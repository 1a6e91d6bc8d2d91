"""`train_rounds`: adversarial rounds of a policy and the PRM that rewards it (`prism grpo --rounds`).

A policy is trained until the alarm or the end. What it learned to exploit is sampled, labeled (`exploits.py`) and
added to the data of the PRM, which is trained again from its base; then the next policy is trained with the new PRM.
Every stage is a folder, so a stopped run resumes at the stage where it was:

    round-0/            the first training of the policy, as by `prism grpo`
    round-0/exploits/   its labeled steps: trees.parquet, and what was counted
    round-1/prm/        the PRM that was retrained with them, as by `prism train`
    round-1/            the policy trained with that PRM
    …
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState

from prism_prm.aggregate import card_values, choose_threshold
from prism_prm.backends.load_prm import open_prm
from prism_prm.backends.open_critic import is_critic
from prism_prm.backends.open_scorer import named_segmenter
from prism_prm.backends.policy import PolicySettings, open_policy
from prism_prm.config import read_settings
from prism_prm.console import say, silent_unless
from prism_prm.data.inputs import Source
from prism_prm.data.tables import iter_trees, write_trees
from prism_prm.data.tasks import TaskGrader, TaskProblem
from prism_prm.errors import ConfigError
from prism_prm.files import write_text
from prism_prm.job import Job, content_key, stoppable
from prism_prm.report import percent
from prism_prm.rl.alarm import MEASURED, RUN, EvalPoint, TrainedPolicy
from prism_prm.rl.exploits import LABELS, UNSOLVED, Exploits, Labeler, check_segmenter, find_exploits
from prism_prm.rl.recipe import GrpoRecipe, RoundSettings, training_recipe
from prism_prm.rl.report import make_rounds_report
from prism_prm.rl.train_policy import split_problems, train_policy
from prism_prm.scorer import Scorer
from prism_prm.search.label_engine import by_answer
from prism_prm.train.recipe import Recipe
from prism_prm.train.train_prm import train_prm
from prism_prm.tree import StepTree

MOST_FREQUENT = 10
"""How many exploits are shown."""


@dataclass(frozen=True)
class Round:
    """One training of the policy, and what was learned from it."""

    folder: Path
    prm: str
    """The PRM that rewarded the policy."""
    trained: TrainedPolicy
    exploits: dict[str, Any] | None = None
    """What the policy exploited, as in exploits.json, with the FPR of the next PRM if there is one. None after the last
    of `rounds.count` rounds, where no steps are sampled."""


def train_rounds(
    recipe: GrpoRecipe | str | Path,
    out: str | Path,
    *,
    assignments: Sequence[str] = (),
    labeler: Labeler | None = None,
) -> list[Round]:
    """Train a policy in adversarial rounds: after each, the PRM is retrained on what the policy exploited.

    Repeat a stopped call to resume it. It writes a folder per round and one report of all. Under `accelerate launch`,
    all processes must call this.

    Args:
        recipe: a recipe with `rounds.count` and `rounds.train`, or the TOML file that holds one.
        out: the run's folder.
        assignments: settings to override, as `--set` takes them: "rounds.count=2".
        labeler: labels the sampled trees instead of what `rounds.labels` names; returns them with the tokens it took.

    Example:
        >>> rounds = train_rounds("grpo.toml", "rounds", assignments=["rounds.count=1"])  # doctest: +SKIP
        >>> [round.trained.points[-1].mean("answer") for round in rounds]  # doctest: +SKIP
        [0.41, 0.86]
    """
    if not isinstance(recipe, GrpoRecipe):
        recipe = read_settings(GrpoRecipe, recipe, assignments)
    elif assignments:
        raise ConfigError("assignments apply to a recipe file; change a GrpoRecipe object with dataclasses.replace")
    out, settings = Path(out), recipe.rounds
    training = training_recipe(recipe)
    check_segmenter(settings.sampling.segmenter or named_segmenter([recipe.prm], recipe.load))
    if (out / RUN).exists():
        raise ConfigError(f"{out} has a run of `prism grpo` without rounds. Name another --out, or remove it.")
    state = PartialState()
    is_main: bool = state.is_main_process
    with silent_unless(is_main), Job(out, is_main=is_main):
        kept = {"train", training.validation.split}
        if lost := sum(share for part, share in training.data.split.items() if part not in kept):
            say(
                f"{settings.train}: data.split leaves {percent(lost)} % of the problems with exploits unused. To train "
                "on more of them, split into train and validation only."
            )
        prm, policy = recipe.prm, recipe.policy
        rounds: list[Round] = []
        trees: list[Path] = []
        ended = ""
        for number in range(settings.count + 1):
            folder = out / f"round-{number}"
            say(f"Round {number} of {settings.count}: training the policy with {prm}")
            own = replace(recipe, prm=prm, policy=policy, rounds=RoundSettings())
            trained = train_policy(own, folder)
            rounds.append(Round(folder, prm, trained))
            if number == settings.count:
                break
            if is_main:
                untrained = rounds[0].trained.points[0]
                label_exploits(own, settings, number, folder / "exploits", trained, recipe.policy, untrained, labeler)
            state.wait_for_everyone()
            trees.append(folder / "exploits" / "trees.parquet")
            facts = json.loads((folder / "exploits" / "exploits.json").read_text(encoding="utf-8"))
            if ended := reason_to_end(facts["counts"]):
                say(ended)
                rounds[-1] = replace(rounds[-1], exploits=facts)
                break

            say(f"Round {number + 1} of {settings.count}: retraining the PRM with {len(trees)} files of exploits")
            retrained = retrain(training, trees, out / f"round-{number + 1}" / "prm", repeat=settings.repeat)
            if is_main:
                facts = measured_exploits(own, folder / "exploits", prm, str(retrained))
                rounds[-1] = replace(rounds[-1], exploits=facts)
            prm = str(retrained)
            policy = recipe.policy if settings.restart == "reference" else str(trained.policy)
        if is_main:
            make_rounds_report(recipe, rounds, ended).write(out)
        state.wait_for_everyone()
    return rounds


def reason_to_end(counts: Mapping[str, int]) -> str:
    """Why there is nothing to retrain the PRM with, in a sentence; "" if there is something."""
    if counts["problems"] == counts.get(UNSOLVED, 0):
        return (
            f"None of {counts['problems']:,} problems has a right solution that the PRM scores high, so no steps were "
            "sampled and the rounds end. Use more or easier problems: rounds.problems, rounds.tries."
        )
    if not counts["suspects"]:
        return f"None of {counts.get('candidates', 0):,} sampled steps is suspect: no further round is needed."
    if not counts.get("labeled wrong") and not counts["pairs"]:
        return f"None of {counts['suspects']:,} suspect steps was labeled wrong: no further round is needed."
    return ""


def label_exploits(
    recipe: GrpoRecipe,
    settings: RoundSettings,
    number: int,
    out: Path,
    trained: TrainedPolicy,
    reference: str,
    untrained: EvalPoint,
    labeler: Labeler | None = None,
) -> None:
    """Write the labeled steps of a trained policy (trees.parquet), and what they took (exploits.json)."""
    train, _ = split_problems(recipe)
    problems = _part(train, number, settings.problems)
    planned = plan_tokens(settings, len(problems), (untrained, trained.points[-1])) | ({"labels": 0} if labeler else {})
    others = ", besides those of the critic" if settings.judge and is_critic(settings.judge) else ""
    say(
        f"Round {number + 1}: steps of {len(problems):,} problems; at most about {planned['sampling']:,} tokens to "
        f"sample and {planned['labels']:,} to label them{others}"
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(stoppable(lambda: f"of the exploits in round {number + 1}"))
        job = stack.enter_context(Job(out))
        grader = stack.enter_context(TaskGrader(sandbox=recipe.sandbox))
        grader.prepare(problems)
        new, old = (
            stack.enter_context(contextlib.closing(open_policy(PolicySettings(f"hf:{name}", recipe.prompting))))
            for name in (trained.policy, reference)
        )
        prm = open_prm(recipe.prm, recipe.load.skipping())
        second = open_prm(settings.judge, recipe.load.skipping()) if settings.judge else None
        labels = out / LABELS

        def make(folder: Path) -> None:
            found: Exploits = find_exploits(
                job, problems, policy=new, reference=old, prm=prm, judge=by_answer(grader),
                settings=replace(settings, seed=settings.seed + number), second=second, labeler=labeler,
            )  # fmt: skip
            write_trees(folder / "trees.parquet", found.trees, source=f"round-{number}")
            facts = {"planned": planned, "tokens": found.tokens, "counts": found.counts}
            write_text(folder / "exploits.json", json.dumps(facts, indent=2) + "\n")

        job.folder(
            ".", make, settings=asdict(replace(settings, count=0)), policy=new.identity(), reference=old.identity(),
            prm=_judged_by(prm), second=_judged_by(second) if second else None,
            problems=content_key([(problem.text, problem.reference) for problem in problems]),
            labeler=getattr(labeler, "__qualname__", type(labeler).__name__) if labeler else None,
            people=Source(str(labels), "jsonl").sha256() if settings.labels == "file" and labels.exists() else None,
        )  # fmt: skip


def _judged_by(prm: Scorer) -> list[Any]:
    """What a PRM's verdicts depend on: its scores, and the threshold of its card."""
    return [prm.identity(), choose_threshold(None, card_values(prm)).value]


def _part(problems: Sequence[TaskProblem], number: int, count: int) -> list[TaskProblem]:
    """The problems of a round: the next `count`, from the beginning again where they end."""
    count = min(count, len(problems))
    return [problems[(number * count + i) % len(problems)] for i in range(count)]


def plan_tokens(settings: RoundSettings, num_problems: int, points: Sequence[EvalPoint]) -> dict[str, int]:
    """The most tokens that a round may take, by the lengths of the held-out solutions: if every problem has a right
    solution, and every step is suspect.

    Half a solution follows a step on average. Continuations write that step, too.
    """
    old, new = points[0].numbers, points[-1].numbers
    num_steps, half_old, half_new = old["num_steps"], old["num_tokens"] / 2, new["num_tokens"] / 2
    sampling = settings.tries * old["num_tokens"] + (num_steps + 1) * settings.samples * half_new
    labels = num_steps * (1 + settings.samples) * settings.rollouts * half_old if settings.labels == "rollouts" else 0.0
    return {"sampling": round(num_problems * sampling), "labels": round(num_problems * labels)}


def retrain(
    recipe: Recipe, trees: Sequence[Path], out: Path, *, repeat: int = 1, accelerator: Accelerator | None = None
) -> Path:
    """Train a PRM by its recipe, from its base, with more trees in its data, each so many times.

    Returns the folder of its best round.
    """
    if accelerator is None:
        # TRL's trainer is gone, but accelerate remembers its precision, which need not be the PRM's.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        AcceleratorState._reset_state()
    data = replace(recipe.data, inputs=(*recipe.data.inputs, *map(str, [*trees] * repeat)))
    return Path(train_prm(replace(recipe, data=data), out, accelerator=accelerator)["best"])


def measured_exploits(recipe: GrpoRecipe, folder: Path, before: str, after: str) -> dict[str, Any]:
    """What is in exploits.json, the most frequent exploits, and the FPR of both PRMs on the wrong steps."""
    facts: dict[str, Any] = json.loads((folder / "exploits.json").read_text(encoding="utf-8"))
    trees = list(iter_trees(folder / "trees.parquet"))
    with Job(folder) as job:
        prms = [open_prm(prm, recipe.load.skipping()) for prm in (before, after)]
        measured = job.once(
            Path(MEASURED).stem, lambda: measure_exploits(trees, *prms), prms=list(map(_judged_by, prms)),
            trees=content_key([tree.content_hash() for tree in trees]),
        )  # fmt: skip
    return facts | dict(measured)


def measure_exploits(trees: Sequence[StepTree], before: Scorer, after: Scorer) -> dict[str, Any]:
    """The most frequent wrong steps that the first PRM scored high, and both PRMs' FPR on all wrong steps.

    A step counts as passed if its score is above the threshold of its PRM's card.
    """
    thresholds = [choose_threshold(None, card_values(prm)).value for prm in (before, after)]
    passed, num_wrong = [0, 0], 0
    scores: dict[str, list[tuple[float, float]]] = {}  # by text
    examples: dict[str, tuple[str, list[str]]] = {}
    all_scores = [[one.probability for one in prm.score_trees(trees)] for prm in (before, after)]
    for tree, first, second in zip(trees, *all_scores, strict=True):
        for i, step in enumerate(tree.nodes):
            if step.label is None or step.label >= 0.5 or i in tree.trunk:
                continue
            num_wrong += 1
            own = float(first[i]), float(second[i])
            for at in range(2):
                passed[at] += own[at] > thresholds[at]
            if own[0] > thresholds[0]:
                text = " ".join(step.text.split())
                scores.setdefault(text, []).append(own)
                examples.setdefault(text, (tree.problem, tree.texts(tree.path(i))[:-1]))
    most = [
        {
            "step": text, "count": len(own), "problem": examples[text][0], "prefix": examples[text][1],
            "score_before": sum(a for a, _ in own) / len(own), "score_after": sum(b for _, b in own) / len(own),
        }
        for text, own in sorted(scores.items(), key=lambda one: (-len(one[1]), one[0]))[:MOST_FREQUENT]
    ]  # fmt: skip
    return {
        "wrong_steps": num_wrong, "passed_before": passed[0], "passed_after": passed[1], "most_frequent": most,
    }  # fmt: skip

"""`PRMReward`: a PRM as the reward function of a trainer.

It is a plain callable, so any trainer can call it. It can be pickled: a PRM given as a folder or hub id is loaded on
first use, and a loaded PRM is pickled with its weights.
"""

from __future__ import annotations

import asyncio
import logging
import os
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prism_prm.aggregate import card_values, check_aggregator, choose_aggregator, choose_threshold, solution_score
from prism_prm.arrays import Floats
from prism_prm.backends.open_critic import is_critic
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.data.tasks import Grader, Level, TaskGrader, TaskProblem
from prism_prm.errors import ConfigError, DataError
from prism_prm.rl.credit import clip as clipped
from prism_prm.rl.credit import delta as differences
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.steps import STOP, cut_steps
from prism_prm.tree import ROOT, Step, StepTree

log = logging.getLogger(__name__)


def score_solutions(scorer: Scorer, problems: Sequence[str], solutions: Sequence[Sequence[str]]) -> list[Floats]:
    """P(right) of each step of each solution; NaN if the scorer cannot read a step, or it is too long.

    An unreadable step is left out: the next step follows the one before it. A scorer that is `by_sample` may score
    equal solutions differently, so each solution is its own tree.
    """
    owners = [(problem, i if scorer.by_sample else 0) for i, problem in enumerate(problems)]
    nodes: dict[tuple[str, int], dict[tuple[int, str], int]] = defaultdict(dict)  # per tree: (parent, step) → node
    paths: list[dict[int, int]] = []  # per solution: number of a readable step → node
    for owner, steps in zip(owners, solutions, strict=True):
        path, before, tree_nodes = {}, ROOT, nodes[owner]
        for k in _readable_steps(scorer, owner[0], steps):
            path[k] = before = tree_nodes.setdefault((before, steps[k]), len(tree_nodes))
        paths.append(path)
    by_owner = {
        owner: StepTree(i, owner[0], tuple(Step(text) for _, text in own), tuple(parent for parent, _ in own), ())
        for i, (owner, own) in enumerate(nodes.items())
        if own
    }
    trees = list(by_owner.values())
    try:
        scores = scorer.score_trees(trees)
    except DataError as error:
        log.warning("a tree of steps cannot be scored, so the trees of this batch are scored one by one: %s", error)
        scores = []
        for tree in trees:
            try:
                scores += scorer.score_trees([tree])
            except DataError:
                scores.append(TreeScores(scorer.outputs, np.full((len(tree.nodes), len(scorer.outputs)), np.nan)))
    scored = dict(zip(by_owner, scores, strict=True))
    probabilities = []
    for owner, steps, path in zip(owners, solutions, paths, strict=True):
        own = np.full(len(steps), np.nan)
        if path:
            own[list(path)] = scored[owner].probability[list(path.values())]
        probabilities.append(own)
    return probabilities


def _readable_steps(scorer: Scorer, problem: str, steps: Sequence[str]) -> list[int]:
    """The numbers of the steps that the scorer can read, up to the end of its context."""
    numbers: list[int] = []
    for k, step in enumerate(steps):
        if scorer.can_score(step, len(numbers)):
            numbers.append(k)
    if scorer.on_too_long == "skip":  # it returns NaN itself
        return numbers

    def size(count: int) -> int:
        return scorer.count_tokens(StepTree.chain(problem, [steps[k] for k in numbers[:count]]))

    if size(len(numbers)) <= scorer.context:
        return numbers
    if scorer.on_too_long == "drop-left-steps":  # only steps that are too long by themselves are lost
        return [k for k in numbers if scorer.count_tokens(StepTree.chain(problem, [steps[k]])) <= scorer.context]
    return numbers[: max(0, bisect_right(range(len(numbers) + 1), scorer.context, key=size) - 1)]


def problem_text(prompt: Any) -> str:
    """The problem in a prompt: the last user turn of a conversation, or the string itself."""
    if isinstance(prompt, str):
        return prompt.strip()
    turns = [turn for turn in prompt if turn.get("role") == "user"] or list(prompt)
    return _content(turns[-1]).strip() if turns else ""


def reply_text(completion: Any) -> str:
    """The policy's text in a completion: all assistant turns of a conversation, or the string itself."""
    if isinstance(completion, str):
        return completion
    return "".join(_content(turn) for turn in completion if turn.get("role", "assistant") == "assistant")


def _content(turn: Mapping[str, Any]) -> str:
    """The text of a turn, which may be empty (a tool call) or a list of parts."""
    content = turn.get("content") or ""
    if isinstance(content, str):
        return content
    parts: Sequence[Mapping[str, Any]] = content
    return "".join(str(part.get("text") or "") for part in parts)


STATED = ("boxed", "####", "answer is")
"""Ways to state a final answer. A number near the end does not count: a policy would learn to write one and stop."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome for one completion. A blank completion counts as one unreadable step."""

    steps: tuple[str, ...]
    probabilities: tuple[float, ...]
    """P(right) of each step; NaN if the PRM could not read it."""
    scores: tuple[float, ...]
    """Step scores for credit: 0 for unreadable steps, and for all steps of a gated solution."""
    step_rewards: tuple[float, ...]
    """The scores after clip and delta."""
    prm_reward: float
    """The PRM's reward of the whole solution."""
    answer: str | None
    correct: bool | None
    """Whether the answer is right; None if not graded."""
    bonus: float
    """The bonus for a right answer."""
    cut: bool
    """Whether it was cut off."""
    gated: bool
    """Whether it got the worst reward because it was cut off, or states no answer."""

    @property
    def reward(self) -> float:
        return self.prm_reward + self.bonus

    @property
    def num_unreadable(self) -> int:
        return int(np.isnan(self.probabilities).sum())


class PRMReward:
    """A PRM as a reward function: `GRPOTrainer(reward_funcs=[PRMReward("my-prm")])`.

    Completions of one problem are scored as one packed tree, so that common prefixes are computed once. A step that
    the PRM cannot read, or that is too long for it, scores 0 and is counted; it never stops a run.

    Args:
        prm: any `Scorer`, or the folder or hub id of a PRM, which is loaded on first use.
        aggregator: how step scores become a solution's score; default: the PRM's own, else `min`.
        gate: whether a completion that states no final answer, or was cut off, gets the worst reward. Without it,
            policies learn to stop before the answer.
        eos: the token ids that end a completion; any other ending means that it was cut off. `StepGRPOTrainer` sets
            it; for TRL's own trainer, pass `tokenizer.eos_token_id`. Without it, only missing answers are detected.
        verifiable: the bonus for a right answer; reference answers come from the column `reference`.
        clip: caps scores at this value and subtracts it from the reward, which is then never positive.
        delta: step rewards are differences between successive steps, and the last step gets only `verifiable`. Used
            only by the step-level credit `process`.
        stop: the string between two steps.
        problem: the dataset's column with the problem's text; by default the last user turn of the prompt.
        reference: the column with reference answers (default `answer`), or for code with `TaskProblem.reference`.
        grader: finds and judges answers; default: answers that are stated (`\\boxed{}`, `####`, "answer is"), and
            programs, judged by `TaskGrader`.
        sandbox: the sandbox for programs: auto, bubblewrap, landlock or none.
        prm_options: how to load PRMs given as folders or hub ids, the settings of critics, and a Ray cluster.
        name: the name under which trainers log the reward.

    Example:
        >>> reward = PRMReward("my-prm", aggregator="min")
        >>> reward(prompts=["1 + 2?", "1 + 2?"], completions=["1 + 2 = 3\\n\\n#### 3", "I do not know."])[1]
        0.0
    """

    def __init__(
        self,
        prm: Scorer | str | Path,
        aggregator: str | None = None,
        *,
        gate: bool = True,
        eos: int | Collection[int] | None = None,
        verifiable: float = 0.0,
        clip: float | None = None,
        delta: bool = False,
        stop: str = STOP,
        problem: str = "problem",
        reference: str = "answer",
        grader: Grader | None = None,
        sandbox: Level = "auto",
        prm_options: PrmOptions | None = None,
        name: str = "PRMReward",
    ) -> None:
        if aggregator is not None:
            check_aggregator(aggregator)
        if clip is not None and not 0 < clip <= 1:
            raise ConfigError(f"clip = {clip} must be in (0, 1]: scores are probabilities.")
        if delta and not verifiable:
            raise ConfigError(
                "with delta, the last step gets only the bonus for a right answer; set verifiable, e.g. verifiable=1.0."
            )
        if not stop:
            raise ConfigError("the stop string between steps is empty")
        _refuse_gaps(prm, prm_options or PrmOptions())
        self.prm = prm
        self.gate, self.verifiable, self.clip, self.delta, self.stop = gate, verifiable, clip, delta, stop
        self.eos = frozenset([eos]) if isinstance(eos, int) else None if eos is None else frozenset(eos)
        self.problem, self.reference, self.sandbox = problem, reference, sandbox
        self.prm_options = (prm_options or PrmOptions()).skipping()
        self.__name__ = name
        self.counts: Counter[str] = Counter()
        """Totals: `completions`, `steps`, and the numbers of `gated`, `cut`, `unanswered` and `unreadable` ones."""
        self.last: list[Judged] = []
        """The outcomes for the completions of the last call."""
        self._aggregator = aggregator
        self._grader = grader
        self._scorer: Scorer | None = None
        self._own_grader: TaskGrader | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scorer": None, "_own_grader": None, "last": []}

    @property
    def scorer(self) -> Scorer:
        """The PRM, which is loaded on first use."""
        if self._scorer is None:
            from prism_prm.backends.load_prm import open_prm

            self._scorer = open_prm(self.prm, self.prm_options)
        return self._scorer

    @property
    def aggregator(self) -> str:
        """How step scores become a solution's score."""
        return choose_aggregator(self._aggregator, card_values(self.scorer)).value

    @property
    def threshold(self) -> float:
        """The threshold above which a logged step counts as right: that of the PRM's card, else 0.5."""
        return choose_threshold(None, card_values(self.scorer)).value

    @property
    def grader(self) -> Grader:
        """Finds and judges answers."""
        if self._grader is not None:
            return self._grader
        if self._own_grader is None:
            self._own_grader = TaskGrader(methods=STATED, sandbox=self.sandbox)
        return self._own_grader

    def close(self) -> None:
        """Stop the processes that judge answers, if there are any."""
        if self._own_grader is not None:
            self._own_grader.close()
            self._own_grader = None

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """The reward of each completion, with the arguments of TRL: strings or conversations, and dataset columns."""
        cut: list[bool] | None = None
        if self.eos is not None and completion_ids is not None:
            cut = [not len(ids) or int(ids[-1]) not in self.eos for ids in completion_ids]
        elif self.gate and not self._warned:
            log.warning(
                "%s cannot detect completions that were cut off, only those that state no answer: pass "
                "eos=tokenizer.eos_token_id", self.__name__,
            )  # fmt: skip
            self._warned = True
        self.last = self.judge(
            [problem_text(prompt) for prompt in columns.get(self.problem) or prompts],
            [reply_text(completion) for completion in completions],
            cut=cut,
            references=columns.get(self.reference),
        )
        if log_metric is not None:
            for name, value in summary(self.last, self.threshold).items():
                log_metric(f"{self.__name__}/{name}", value)
        return [judged.reward for judged in self.last]

    def async_(self) -> AsyncPRMReward:
        """An async version, which scores in a thread while other reward functions run."""
        return AsyncPRMReward(self)

    def judge(
        self,
        problems: Sequence[str],
        texts: Sequence[str],
        *,
        cut: Sequence[bool] | None = None,
        references: Sequence[object] | None = None,
    ) -> list[Judged]:
        """Score and grade each completion.

        Args:
            problems: the text of each completion's problem.
            texts: the completions.
            cut: whether each was cut off; default: none was.
            references: the right answers; needed with `verifiable`.
        """
        solutions = [cut_steps(text, self.stop) for text in texts]
        probabilities = score_solutions(self.scorer, problems, solutions)
        if references is None:
            tasks = [TaskProblem(problem) for problem in problems]
        else:  # the reference decides whether an answer or a program is judged
            pairs = zip(problems, references, strict=True)
            tasks = [TaskProblem.with_reference(problem, str(reference)) for problem, reference in pairs]
        answers = [self.grader.extract(task, text).answer for task, text in zip(tasks, texts, strict=True)]
        correct: list[bool | None] = [None] * len(texts)
        if self.verifiable:
            if references is None:
                raise ConfigError(
                    f"verifiable = {self.verifiable} needs reference answers, and the dataset has no column "
                    f"{self.reference!r}. Name the column with reference=…"
                )
            correct = [verdict.correct for verdict in self.grader.judge(list(zip(tasks, answers, strict=True)))]
        outcomes = [
            self._outcome(*parts)
            for parts in zip(solutions, probabilities, answers, correct, cut or [False] * len(texts), strict=True)
        ]
        self.counts["completions"] += len(outcomes)
        self.counts["steps"] += sum(len(outcome.steps) for outcome in outcomes)
        self.counts["gated"] += sum(outcome.gated for outcome in outcomes)
        self.counts["cut"] += sum(outcome.cut for outcome in outcomes)
        self.counts["unanswered"] += sum(outcome.answer is None for outcome in outcomes)
        self.counts["unreadable"] += sum(outcome.num_unreadable for outcome in outcomes)
        return outcomes

    def _outcome(
        self, steps: Sequence[str], probabilities: Floats, answer: str | None, correct: bool | None, cut: bool
    ) -> Judged:
        if not steps:
            steps, probabilities = [""], np.array([np.nan])
        gated = self.gate and (cut or answer is None)
        scores = np.zeros(len(probabilities)) if gated else np.nan_to_num(probabilities, nan=0.0)
        rewards, reward = scores, solution_score(scores, self.aggregator)
        if self.clip is not None:
            rewards = clipped(scores, self.clip)
            reward = solution_score(rewards + self.clip, self.aggregator) - self.clip
        if self.delta:
            rewards = differences(rewards)
        bonus = self.verifiable if correct and not gated else 0.0
        return Judged(
            tuple(steps), tuple(probabilities.tolist()), tuple(scores.tolist()), tuple(rewards.tolist()), reward,
            answer, correct, bonus, cut, gated,
        )  # fmt: skip


def _refuse_gaps(prm: Scorer | str | Path, options: PrmOptions) -> None:
    """Raise if a critic skips steps without a verdict: a trainer needs a reward for every step."""
    from prism_prm.backends.critic import Critic

    settings = options.critic if is_critic(prm) else None
    if isinstance(prm, Critic):
        settings = prm.settings
    if settings is not None and settings.on_missing == "skip":
        raise ConfigError(
            'on_missing = "skip": a trainer needs a reward for every completion, and a step without a verdict would '
            'get the worst one. To allow that, set on_missing = "wrong"; to stop instead, "error".'
        )


@dataclass(frozen=True)
class AsyncPRMReward:
    """An async `PRMReward`, for trainers that await rewards."""

    reward: PRMReward

    @property
    def __name__(self) -> str:
        return self.reward.__name__

    async def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return await asyncio.to_thread(self.reward, prompts, completions, **columns)


def summary(judged: Sequence[Judged], threshold: float = 0.5) -> dict[str, float]:
    """Fractions and means over some completions, for a trainer's log."""
    count = max(1, len(judged))
    steps = sum(len(outcome.steps) for outcome in judged)
    return {
        "gated": sum(outcome.gated for outcome in judged) / count,
        "cut": sum(outcome.cut for outcome in judged) / count,
        "unanswered": sum(outcome.answer is None for outcome in judged) / count,
        "unreadable_steps": sum(outcome.num_unreadable for outcome in judged) / max(1, steps),
        "right_steps": sum(p > threshold for outcome in judged for p in outcome.probabilities) / max(1, steps),
        "steps": steps / count,
    }


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no"):
        raise ValueError(f"{text!r} is not 1 or 0")
    return text.lower() in ("1", "true", "yes")


OPTIONS: dict[str, Callable[[str], Any]] = {
    "prm": str, "aggregator": str, "gate": _parse_bool, "verifiable": float, "clip": float, "stop": str,
}  # fmt: skip
"""Options of `PRMReward` that other frameworks can set, and their parsers."""
PREFIX = "PRISM_RL_"
"""The prefix of their environment variables: `PRISM_RL_PRM`, `PRISM_RL_AGGREGATOR`, …"""
END = f"{PREFIX}EOS"
"""The string that ends a completion, such as `<|im_end|>`, if the framework keeps it."""


def configured_reward(options: Mapping[str, Any] | None = None) -> PRMReward:
    """The reward for these options, with defaults from the environment. Equal options share one reward."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise ConfigError(f"Unknown options {unknown} of the reward. Known: {', '.join(OPTIONS)}.")
    for name in OPTIONS:
        if name not in given and (text := os.environ.get(PREFIX + name.upper())):
            given[name] = text
    if "prm" not in given:
        raise ConfigError(f"No PRM: set {PREFIX}PRM to the folder or hub id of one.")
    for name, value in given.items():
        if isinstance(value, str):
            try:
                given[name] = OPTIONS[name](value)
            except ValueError as error:
                raise ConfigError(f"{PREFIX}{name.upper()}: {error}") from None
    return _make_reward(**given)


def without_end(text: str) -> tuple[str, bool]:
    """A completion without its end string, and whether it was cut off; never cut off if PRISM_RL_EOS is not set."""
    end = os.environ.get(END)
    if not end:
        return text, False
    has_end = text.rstrip().endswith(end)
    return (text.rstrip().removesuffix(end), False) if has_end else (text, True)


@lru_cache
def _make_reward(**options: Any) -> PRMReward:
    return PRMReward(**options)

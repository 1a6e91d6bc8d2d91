"""`PRMReward`: a PRM as the reward function of a trainer.

It is a plain callable, so any trainer can call it, from several threads if it likes. It can be pickled: a PRM given as
a folder or hub id is loaded on first use, once per process, and a loaded PRM is pickled with its weights.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prism_prm.aggregate import (
    DEFAULT_THRESHOLD,
    card_values,
    check_aggregator,
    choose_aggregator,
    choose_threshold,
    segmenter_of,
    solution_score,
)
from prism_prm.arrays import Floats
from prism_prm.backends.ensemble import Ensemble
from prism_prm.backends.open_critic import is_critic
from prism_prm.backends.open_scorer import PrmOptions, ensemble_place, remote_place
from prism_prm.backends.remote_prm import open_served
from prism_prm.data.tasks import Grader, Level, TaskGrader, TaskProblem
from prism_prm.errors import ConfigError, DataError
from prism_prm.net import RetryPolicy
from prism_prm.rl.credit import clip as clipped
from prism_prm.rl.credit import delta as differences
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.segments import (
    CLOSE,
    DEFAULT_SEGMENTER,
    SCORED,
    find_segmenter,
    first_response,
    response_of,
    split_text,
)
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
    if scorer.on_too_long == "window":  # only steps that are too long by themselves are lost
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


@dataclass
class _Opened:
    """What a reward opens on first use; its pickled copies in a process share it."""

    lock: Any = field(default_factory=threading.RLock)
    scorer: Scorer | None = None
    grader: TaskGrader | None = None


_OPENED: dict[str, _Opened] = {}
"""What the rewards that were unpickled in this process have opened, by the reward's id, the oldest first."""
_OPENED_LOCK = threading.Lock()
MAX_OPENED = 4
"""How many of them are kept. A process pool unpickles the reward for every call, so the next call needs the last."""


def _opened_by(reward_id: str) -> _Opened:
    """What the copies of this reward share in this process."""
    with _OPENED_LOCK:
        opened = _OPENED.pop(reward_id) if reward_id in _OPENED else _Opened()
        _OPENED[reward_id] = opened
        while len(_OPENED) > MAX_OPENED:
            del _OPENED[next(iter(_OPENED))]
        return opened


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
        clip: caps scores at this value and subtracts it from the reward, which is then never positive; "card" is the
            threshold of the PRM's card.
        delta: step rewards are differences between successive steps, and the last step gets only `verifiable`. Used
            only by the step-level credit `process`.
        stop: the string between two steps, if the segmenter is `paragraph`.
        segmenter: how completions are cut into steps, a key of `SEGMENTERS`; default: as the PRM's card says.
        credit_thinking: whether the steps inside `<think>…</think>` count for the reward and get credit of their own.
            Otherwise, or if the PRM does not score them, they share the credit of the response's first step. Answers
            are looked for in the response only, so one that is stated only in the thinking is gated.
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
        clip: float | Literal["card"] | None = None,
        delta: bool = False,
        stop: str = STOP,
        segmenter: str | None = None,
        credit_thinking: bool = True,
        problem: str = "problem",
        reference: str = "answer",
        grader: Grader | None = None,
        sandbox: Level = "auto",
        prm_options: PrmOptions | None = None,
        name: str = "PRMReward",
    ) -> None:
        if aggregator is not None:
            check_aggregator(aggregator)
        if isinstance(clip, str) and clip != "card":
            raise ConfigError(f'clip = {clip!r} is neither a number nor "card", the threshold of the PRM\'s card.')
        if isinstance(clip, float | int) and not 0 < clip <= 1:
            raise ConfigError(f"clip = {clip} must be in (0, 1]: scores are probabilities.")
        if delta and not verifiable:
            raise ConfigError(
                "with delta, the last step gets only the bonus for a right answer; set verifiable, e.g. verifiable=1.0."
            )
        if segmenter is not None:
            find_segmenter(segmenter)
        if not stop:
            raise ConfigError("the stop string between steps is empty")
        _refuse_gaps(prm, prm_options or PrmOptions())
        self.prm = prm
        self.gate, self.verifiable, self.delta, self.stop = gate, verifiable, delta, stop
        self._clip = clip
        self.eos = frozenset([eos]) if isinstance(eos, int) else None if eos is None else frozenset(eos)
        self.problem, self.reference, self.sandbox = problem, reference, sandbox
        self.prm_options = (prm_options or PrmOptions()).skipping()
        self.__name__ = name
        self.counts: Counter[str] = Counter()
        """Totals: `completions`, `steps`, and the numbers of `gated`, `cut`, `unanswered` and `unreadable` ones."""
        self.last: list[Judged] = []
        """The outcomes for the completions of the last call."""
        self._aggregator, self._segmenter, self._credit_thinking = aggregator, segmenter, credit_thinking
        self._grader = grader
        self._opened = _Opened()
        self._id = uuid.uuid4().hex
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_opened"} | {"last": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_opened": _opened_by(state["_id"])}

    @property
    def scorer(self) -> Scorer:
        """The PRM, which is loaded on first use, once for all threads and for all copies in a process."""
        if isinstance(self.prm, Scorer):
            return self.prm
        with self._opened.lock:
            if self._opened.scorer is None:
                self._opened.scorer = _open(self.prm, self.prm_options)
            return self._opened.scorer

    @property
    def aggregator(self) -> str:
        """How step scores become a solution's score."""
        return choose_aggregator(self._aggregator, card_values(self.scorer)).value

    @property
    def clip(self) -> float | None:
        """The value that scores are capped at; None if they are not."""
        if self._clip != "card":
            return self._clip
        card = card_values(self.scorer)
        if card is None or (card.threshold == DEFAULT_THRESHOLD and card.calibration is None):
            found = (
                "has no card" if card is None else f"has only the default threshold, {DEFAULT_THRESHOLD}, in its card"
            )
            raise ConfigError(
                f'clip = "card": the PRM {found}; calibrate it (`prism train` does so by its validation), or set clip '
                "to a number."
            )
        if not card.threshold:
            raise ConfigError(
                'clip = "card": the threshold in the PRM\'s card is 0, so all scores would count the same; set clip to '
                "a number."
            )
        return card.threshold

    @property
    def segmenter(self) -> str:
        """How completions are cut into steps."""
        return self._segmenter or segmenter_of(self.scorer)

    @property
    def credits_thinking(self) -> bool:
        """Whether thinking steps have scores and credit of their own."""
        card = card_values(self.scorer)
        return self._credit_thinking and (card is None or card.thinking == SCORED)

    @property
    def threshold(self) -> float:
        """The threshold above which a logged step counts as right: that of the PRM's card, else 0.5."""
        return choose_threshold(None, card_values(self.scorer)).value

    @property
    def grader(self) -> Grader:
        """Finds and judges answers."""
        if self._grader is not None:
            return self._grader
        with self._opened.lock:
            if self._opened.grader is None:
                self._opened.grader = TaskGrader(methods=STATED, sandbox=self.sandbox)
            return self._opened.grader

    def close(self) -> None:
        """Stop the processes that judge answers, if there are any."""
        with self._opened.lock:
            grader, self._opened.grader = self._opened.grader, None
        if grader is not None:
            grader.close()

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
        segmenter = self.segmenter
        if segmenter == DEFAULT_SEGMENTER:
            solutions = [cut_steps(text, self.stop) for text in texts]
        else:
            solutions = [split_text(text, segmenter) for text in texts]
        probabilities = score_solutions(self.scorer, problems, solutions)
        if references is None:
            tasks = [TaskProblem(problem) for problem in problems]
        else:  # the reference decides whether an answer or a program is judged
            pairs = zip(problems, references, strict=True)
            tasks = [TaskProblem.with_reference(problem, str(reference)) for problem, reference in pairs]
        # An answer that is stated only in the thinking does not count.
        responses = map(response_of, texts)
        answers = [self.grader.extract(task, text).answer for task, text in zip(tasks, responses, strict=True)]
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
            for parts in zip(
                texts, solutions, probabilities, answers, correct, cut or [False] * len(texts), strict=True
            )
        ]
        with self._opened.lock:
            self.counts["completions"] += len(outcomes)
            self.counts["steps"] += sum(len(outcome.steps) for outcome in outcomes)
            self.counts["gated"] += sum(outcome.gated for outcome in outcomes)
            self.counts["cut"] += sum(outcome.cut for outcome in outcomes)
            self.counts["unanswered"] += sum(outcome.answer is None for outcome in outcomes)
            self.counts["unreadable"] += sum(outcome.num_unreadable for outcome in outcomes)
        return outcomes

    def _outcome(
        self,
        text: str,
        steps: Sequence[str],
        probabilities: Floats,
        answer: str | None,
        correct: bool | None,
        cut: bool,
    ) -> Judged:
        if not steps:
            steps, probabilities = [""], np.array([np.nan])
        gated = self.gate and (cut or answer is None)
        # Thinking without credit of its own shares that of the response's first step.
        first = 0 if self.credits_thinking else first_response(steps)
        if first == len(steps):  # there is no response
            first = 0
        texts, probabilities = steps[first:], probabilities[first:]
        if first:
            end = text.find(steps[first], text.index(CLOSE)) + len(steps[first])
            steps = [text[:end].strip(), *steps[first + 1 :]]
        scores = np.zeros(len(probabilities)) if gated else np.nan_to_num(probabilities, nan=0.0)
        rewards, reward = scores, solution_score(scores, self.aggregator, texts)
        if (clip := self.clip) is not None:
            rewards = clipped(scores, clip)
            reward = solution_score(rewards + clip, self.aggregator, texts) - clip
        if self.delta:
            rewards = differences(rewards)
        bonus = self.verifiable if correct and not gated else 0.0
        return Judged(
            tuple(steps), tuple(probabilities.tolist()), tuple(scores.tolist()), tuple(rewards.tolist()), reward,
            answer, correct, bonus, cut, gated,
        )  # fmt: skip


def _open(prm: str | Path, options: PrmOptions) -> Scorer:
    """Open a PRM; one of `prism serve` without torch and transformers, which a trainer's environment may not have."""
    if (ensemble := ensemble_place(prm)) is not None:
        return Ensemble([_open(member, options) for member in ensemble.members], ensemble.rule)
    remote = remote_place(prm)
    if remote is not None and remote.kind == "prism" and not options.check:
        policy = RetryPolicy(options.prm_timeout, options.prm_retries)
        too_long = options.on_too_long or "skip"
        return open_served(remote.url, remote.model, too_long, policy, options.prm_concurrency)
    from prism_prm.backends.load_prm import open_prm

    return open_prm(prm, options)


def _refuse_gaps(prm: Scorer | str | Path, options: PrmOptions) -> None:
    """Raise if a critic skips steps without a verdict: a trainer needs a reward for every step."""
    from prism_prm.backends.critic import Critic

    ensemble = prm if isinstance(prm, Ensemble) else ensemble_place(prm)
    for member in ensemble.members if ensemble else [prm]:
        settings = options.critic if is_critic(member) else member.settings if isinstance(member, Critic) else None
        if settings is not None and settings.on_missing == "skip":
            raise ConfigError(
                'on_missing = "skip": a trainer needs a reward for every completion, and a step without a verdict '
                'would get the worst one. To allow that, set on_missing = "wrong"; to stop instead, "error".'
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


def _parse_clip(text: str) -> float | str:
    return text if text == "card" else float(text)


OPTIONS: dict[str, Callable[[str], Any]] = {
    "prm": str, "aggregator": str, "gate": _parse_bool, "verifiable": float, "clip": _parse_clip, "stop": str,
    "segmenter": str, "credit_thinking": _parse_bool,
}  # fmt: skip
"""Options of `PRMReward` that other frameworks can set, and their parsers."""
PREFIX = "PRISM_RL_"
"""The prefix of their environment variables: `PRISM_RL_PRM`, `PRISM_RL_AGGREGATOR`, …"""
END = f"{PREFIX}EOS"
"""Strings that end a completion, separated by spaces, such as `<|im_end|>`: set it if the framework keeps them."""
ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>")
"""What the usual chat templates put after a completion."""


_REWARDS: dict[tuple[tuple[str, Any], ...], PRMReward] = {}
_REWARDS_LOCK = threading.Lock()


def configured_reward(options: Mapping[str, Any] | None = None) -> PRMReward:
    """The reward for these options, with defaults from the environment; one reward per process for equal options."""
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
    key = tuple(sorted(given.items()))
    with _REWARDS_LOCK:
        if key not in _REWARDS:
            _REWARDS[key] = PRMReward(**given)
        return _REWARDS[key]


def split_end(text: str, ends: Sequence[str] = ENDS) -> tuple[str, bool]:
    """A completion without the white space and end strings after it, and whether there was an end string."""
    end, has_end = len(text), False
    while end:  # a regular expression could take quadratic time
        if text[end - 1].isspace():
            end -= 1
        elif mark := next((mark for mark in ends if text.endswith(mark, 0, end)), ""):
            end -= len(mark)
            has_end = True
        else:
            break
    return text[:end], has_end


def without_end(text: str) -> tuple[str, bool]:
    """A completion without what ends it, and whether it was cut off; never cut off if PRISM_RL_EOS is not set."""
    own = os.environ.get(END, "").split()
    text, has_end = split_end(text, (*own, *ENDS))
    return text, bool(own) and not has_end

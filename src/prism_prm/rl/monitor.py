"""Monitor a policy while TRL trains it: evaluate it on held-out problems by its reward and by true answers.

    monitor = Monitor(held_out, reward, "run", start=copy.deepcopy(model))
    trainer = GRPOTrainer(model, reward_funcs=[reward], …)
    monitor.attach(trainer)
    trainer.train()
    monitor.points, monitor.alarms

Every evaluation is written to `looks.parquet` and logged by the trainer. `alarm.py` has the rule of the alarm.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import GenerationConfig, Trainer, TrainerCallback

from prism_prm.arrays import Floats
from prism_prm.backends.policy import Prompting, render
from prism_prm.console import say
from prism_prm.data.tasks import Grader, TaskGrader, TaskProblem
from prism_prm.errors import ConfigError
from prism_prm.files import write_text
from prism_prm.rl.alarm import (
    GREEDY,
    NUM_PROBLEMS,
    NUM_SAMPLES,
    POINTS,
    PROXY,
    VOTE,
    Alarm,
    EvalPoint,
    MonitorSettings,
    SamplesFile,
    alarm_at,
    gold_of,
    read_points,
    write_points,
)
from prism_prm.segments import DEFAULT_SEGMENTER, split_text

Row = Mapping[str, Any]
"""A problem for the trainer and its rewards: `prompt`, `problem`, `answer`, and other columns that a reward reads."""

ROWS_AT_ONCE = 1024
"""The maximum number of solutions in a batch."""
TOKENS_AT_ONCE = 2**18
"""The maximum number of tokens in a batch, prompts included, at full length."""


def problem_rows(problems: Sequence[TaskProblem], prompting: Prompting, tokenizer: Any) -> list[dict[str, Any]]:
    """Problems as rows, with the same prompts as in `prism search`."""
    return [
        {
            "prompt": render(problem.text, prompting, tokenizer),
            "problem": problem.text,
            "answer": problem.reference,
            "tolerance": problem.tolerance,
        }
        for problem in problems
    ]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One generated solution."""

    text: str
    ids: tuple[int, ...]
    """Its tokens, including the end token."""
    ended: bool
    """Whether it has an end token; else it was cut off."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The gold judgments of some solutions."""

    right: Mapping[str, Sequence[bool]]
    """By metric; alarms use the first one."""
    answers: Sequence[Any]
    """The key of each solution's answer in a majority vote; None without an answer."""


class Gold(Protocol):
    """Judges solutions by the truth, which the reward does not use."""

    def __call__(self, rows: Sequence[Row], written: Sequence[Rollout]) -> Truth:
        """Judge solutions; `rows` has the problem of each."""


class AnswerGold:
    """A solution is right if its final answer equals the reference, or its program passes the tests."""

    def __init__(self, grader: Grader) -> None:
        self.grader = grader

    def __call__(self, rows: Sequence[Row], written: Sequence[Rollout]) -> Truth:
        problems = [
            TaskProblem.with_reference(row["problem"], row["answer"], row.get("tolerance", 0.0)) for row in rows
        ]
        answers = [
            (problem, self.grader.extract(problem, rollout.text).answer if rollout.ended else None)
            for problem, rollout in zip(problems, written, strict=True)
        ]
        verdicts = self.grader.judge(answers)
        keys = [key.key for key in self.grader.keys(answers)]
        return Truth({"answer": [verdict.correct for verdict in verdicts]}, keys)


@torch.no_grad()
def generate_solutions(
    model: Any, tokenizer: Any, prompts: Sequence[str], end_ids: Sequence[int], *, copies: int, max_tokens: int,
    temperature: float, seed: int = 0,
) -> list[list[Rollout]]:  # fmt: skip
    """Generate `copies` solutions for each prompt, greedily at temperature 0. Restores torch's global random state."""
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    # Everything is set, because defaults would come from the model's own generation config.
    config = GenerationConfig(
        **sampling, max_new_tokens=max_tokens, top_k=0, top_p=1.0, repetition_penalty=1.0, disable_compile=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=list(end_ids), num_return_sequences=copies,
    )  # fmt: skip

    def fits(count: int, length: int) -> bool:
        rows = count * copies
        return rows <= ROWS_AT_ONCE and rows * (length + max_tokens) <= TOKENS_AT_ONCE

    ids = tokenizer(list(prompts))["input_ids"]
    solutions: list[list[Rollout]] = [[]] * len(ids)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for batch in _batches(list(map(len, ids)), fits):
            ids_BS, mask_BS = _pad_left([ids[i] for i in batch], tokenizer.pad_token_id, model.device)
            out_BS = model.generate(input_ids=ids_BS, attention_mask=mask_BS, generation_config=config)
            rows: list[list[int]] = []
            for row in out_BS[:, ids_BS.shape[1] :].tolist():
                end = next((k for k, token in enumerate(row) if token in end_ids), len(row) - 1)
                rows.append(row[: end + 1])
            texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
            written = [
                Rollout(text, tuple(row), bool(row) and row[-1] in end_ids)
                for text, row in zip(texts, rows, strict=True)
            ]
            for b, i in enumerate(batch):
                solutions[i] = written[b * copies : (b + 1) * copies]
    return solutions


def _batches(lengths: Sequence[int], fits: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """Batches of rows of similar length, as large as `fits(number of rows, longest)` allows."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and not fits(len(batch) + 1, lengths[i]):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _pad_left(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of rows, padded on the left."""
    width = max(map(len, rows))
    ids_BS = torch.tensor([[*[pad] * (width - len(row)), *row] for row in rows], device=device)
    return ids_BS, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)


# Shapes: B solutions of a batch, S tokens of a row, T tokens of a solution, V tokens of the vocabulary.

Reward = Callable[..., "Sequence[float | None] | Awaitable[Sequence[float | None]]"]
"""A reward function of TRL."""

VOTES = "votes.json"
LOGITS_AT_ONCE = 2**26
"""The maximum number of logits in memory."""


class Monitor(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Watches the policy of TRL's `GRPOTrainer`, or of a subclass: reward and true accuracy on held-out problems.

    An alarm is raised when true accuracy has fallen and the reward has not. Every evaluation is logged by the trainer
    and written to `looks.parquet`; a resumed training continues it. With several processes, each evaluates its share of
    the problems.

    Args:
        rows: the held-out problems: `prompt` as the policy reads it, `problem`, `answer`, and other columns that the
            reward reads.
        reward: the reward function of the trainer.
        folder: where `looks.parquet`, `samples.jsonl` and `votes.json` are written.
        settings: how often to evaluate, with how many samples, and whether to stop at an alarm.
        gold: judges solutions by the truth; default: their final answers.
        start: a copy of the untrained policy, to measure the divergence from it. Copy it before the trainer is created,
            because trainers wrap a model's `forward`.

    Example:
        >>> monitor = Monitor(held_out, reward, "run", MonitorSettings(stop_on_alarm=True))  # doctest: +SKIP
        >>> monitor.attach(trainer)  # doctest: +SKIP
        >>> trainer.train()  # doctest: +SKIP
        >>> print(monitor.alarms.get("answer", "no alarm"))  # doctest: +SKIP
    """

    def __init__(
        self,
        rows: Sequence[Row],
        reward: Reward,
        folder: str | Path,
        settings: MonitorSettings | None = None,
        *,
        gold: Gold | None = None,
        start: Any = None,
    ) -> None:
        if not rows:
            raise ConfigError("there are no held-out problems to monitor the policy on")
        self.rows = list(rows)
        self.reward = reward
        self._grader = TaskGrader()
        """Judges answers by default; it starts processes only when it is used."""
        self.gold = gold or AnswerGold(self._grader)
        self.folder = Path(folder)
        self.settings = settings or MonitorSettings()
        self.points: list[EvalPoint] = []
        self.alarms: dict[str, Alarm] = {}
        """The first alarm of the first gold metric, and of VOTE."""
        self._votes: list[Any] = []
        self._start = start

    def attach(self, trainer: Any) -> None:
        """Monitor the policy of this trainer, which is not trained yet."""
        if len(self.rows) < (processes := trainer.accelerator.num_processes):
            raise ConfigError(
                f"{len(self.rows)} held-out problems are too few for {processes} processes, each of which solves some; "
                "hold out more, or start fewer processes"
            )
        self.trainer = trainer
        if self._start is not None:
            self._start.to(trainer.accelerator.device).eval().requires_grad_(False)
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.points = [point for point in read_points(self.folder / POINTS) if point.update <= state.global_step]
        if self.points:
            if (self.folder / VOTES).exists():
                self._votes = json.loads((self.folder / VOTES).read_text(encoding="utf-8"))
            for i in range(1, len(self.points) + 1):
                self._raise_alarms(self.points[:i])
        elif not state.global_step:  # only the untrained policy votes
            self._vote()
        if state.is_world_process_zero:
            shown = [row.get("problem", row["prompt"]) for row in self.rows]
            self._samples = SamplesFile(self.folder, shown, up_to=self.points[-1].update if self.points else -1)
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Evaluate the policy before the first update, every few updates, and after the last one."""
        update, every = state.global_step, self.settings.every
        if not (update == 0 or update >= state.max_steps or (every and update % every == 0)):
            return
        if self.points and self.points[-1].update >= update:
            return
        point, samples = self._evaluate(update)
        self.points.append(point)
        if state.is_world_process_zero:
            self._samples.add(update, samples)
            write_points(self.folder / POINTS, self.points)
        # GRPOTrainer's own `log` would also reset the averages of its own metrics.
        Trainer.log(self.trainer, {f"held_out/{name}": value for name, value in point.summary().items()})
        for alarm in self._raise_alarms(self.points):
            if state.is_world_process_zero:
                say(f"Alarm at {alarm}. {alarm.advice}")
            if alarm.gold != VOTE and self.settings.stop_on_alarm:
                control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._grader.close()

    def _raise_alarms(self, points: Sequence[EvalPoint]) -> list[Alarm]:
        """Record and return new alarms at the last point; each kind is raised once."""
        raised = [
            alarm
            for gold in (gold_of(points[0]), VOTE)
            if gold not in self.alarms and (alarm := alarm_at(points, gold)) is not None
        ]
        self.alarms |= {alarm.gold: alarm for alarm in raised}
        return raised

    def _evaluate(self, update: int) -> tuple[EvalPoint, list[list[dict[str, Any]]]]:
        """Solve the held-out problems and measure the solutions. Also returns the first problems' solutions to save."""
        mine, count = self._share(), self.settings.samples
        rows = [self.rows[i] for i in mine]
        sampled, greedy = self._generate(rows, count), self._generate(rows, 1, greedy=True)
        flat = [rollout for rollouts in sampled for rollout in rollouts]
        flat_rows = [row for row in rows for _ in range(count)]
        rewards, logged = self._rewards(flat_rows, flat)
        truth, greedy_truth = self.gold(flat_rows, flat), self.gold(rows, [rollouts[0] for rollouts in greedy])

        def table(values: Sequence[float]) -> Floats:  # (problems, solutions)
            return np.asarray(values, np.float64).reshape(len(rows), -1)

        measures = {PROXY: table(rewards)} | {name: table(right) for name, right in truth.right.items()}
        if self._votes:
            votes = [self._votes[i] for i in mine for _ in range(count)]
            pairs = zip(truth.answers, votes, strict=True)
            measures[VOTE] = table([answer is not None and answer == vote for answer, vote in pairs])
        measures |= {f"{GREEDY}/{name}": table(right) for name, right in greedy_truth.right.items()}
        spread = measures[PROXY].std(axis=1)
        steps = [split_text(rollout.text, getattr(self.reward, "segmenter", DEFAULT_SEGMENTER)) for rollout in flat]
        by_solution: dict[str, Sequence[float]] = {
            "answered": [answer is not None for answer in truth.answers],
            "cut": [not rollout.ended for rollout in flat],
            "num_steps": [len(own) for own in steps],
            "num_tokens": [len(rollout.ids) for rollout in flat],
            "repeated_steps": [1 - len(set(own)) / len(own) if own else 0.0 for own in steps],
        }
        numbers = {name: table(values).mean(axis=1) for name, values in by_solution.items()}
        # One solution per problem is enough for means over problems, and saves work.
        numbers |= self._likelihoods(rows, [rollouts[0] for rollouts in sampled])
        numbers |= {"reward_spread": spread, "groups_without_spread": spread < 1e-6}

        gold = next(iter(truth.right))
        results = []
        for k, i in enumerate(mine):
            samples: list[dict[str, Any]] = []
            if i < NUM_PROBLEMS:
                judged = zip(sampled[k][:NUM_SAMPLES], measures[PROXY][k], measures[gold][k], strict=False)
                samples = [
                    {"text": rollout.text, "reward": float(reward), "right": bool(right)}
                    for rollout, reward, right in judged
                ]
                samples.append({"text": greedy[k][0].text, "right": bool(measures[f"{GREEDY}/{gold}"][k][0])})
            means = {name: float(values[k].mean()) for name, values in measures.items()}
            results.append((i, means, {name: float(values[k]) for name, values in numbers.items()}, samples))
        results = sorted(self._gather(results), key=lambda result: result[0])
        by_problem = {name: [means[name] for _, means, _, _ in results] for name in results[0][1]}
        overall = {name: float(np.mean([own[name] for _, _, own, _ in results])) for name in results[0][2]}
        logs = self._gather([logged])
        for name in sorted({name for log in logs for name in log}):
            overall[f"reward/{name}"] = float(np.mean([log[name] for log in logs if name in log]))
        return EvalPoint(update, by_problem, overall), [samples for *_, samples in results[:NUM_PROBLEMS]]

    def _rewards(self, rows: Sequence[Row], written: Sequence[Rollout]) -> tuple[list[float], dict[str, float]]:
        """The reward of each solution, called as the trainer does, and the metrics that it logs. None counts as 0."""
        logged: dict[str, list[float]] = defaultdict(list)
        returned = self.reward(
            prompts=[row["prompt"] for row in rows],
            completions=[rollout.text for rollout in written],
            completion_ids=[list(rollout.ids) for rollout in written],
            **{name: [row[name] for row in rows] for name in rows[0] if name != "prompt"},
            trainer_state=self.trainer.state,
            log_extra=lambda _name, _values: None,
            log_metric=lambda name, value: logged[name].append(value),
        )

        async def awaited(rewards: Awaitable[Sequence[float | None]]) -> Sequence[float | None]:
            return await rewards

        rewards = asyncio.run(awaited(returned)) if inspect.isawaitable(returned) else returned
        return [reward or 0.0 for reward in rewards], {name: float(np.mean(own)) for name, own in logged.items()}

    def _vote(self) -> None:
        """Find the untrained policy's majority answer to every problem, and save it for resumed runs."""
        if not self.settings.votes:
            return
        mine = self._share()
        rows = [self.rows[i] for i in mine]
        written = self._generate(rows, self.settings.votes)
        answers = self.gold(
            [row for row in rows for _ in range(self.settings.votes)],
            [rollout for rollouts in written for rollout in rollouts],
        ).answers
        majority = []
        for k, i in enumerate(mine):
            own = answers[k * self.settings.votes : (k + 1) * self.settings.votes]
            ((answer, _),) = Counter(answer for answer in own if answer is not None).most_common(1) or [(None, 0)]
            majority.append((i, answer))
        self._votes = [answer for _, answer in sorted(self._gather(majority), key=lambda vote: vote[0])]
        if self.trainer.accelerator.is_main_process:
            write_text(self.folder / VOTES, json.dumps(self._votes) + "\n")

    def _generate(self, rows: Sequence[Row], copies: int, *, greedy: bool = False) -> list[list[Rollout]]:
        """Generate solutions with the current policy and the trainer's sampling settings."""
        from trl.models import unwrap_model_for_generation

        trainer = self.trainer
        training = trainer.model.training
        with unwrap_model_for_generation(
            trainer.model_wrapped, trainer.accelerator,
            gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
        ) as model:  # fmt: skip
            model.eval()
            written = generate_solutions(
                model, trainer.processing_class, [row["prompt"] for row in rows], trainer.eos_token_ids, copies=copies,
                max_tokens=trainer.max_completion_length, temperature=0.0 if greedy else trainer.temperature,
                seed=trainer.args.seed + trainer.accelerator.process_index,
            )  # fmt: skip
        trainer.model.train(training)
        return written

    @torch.no_grad()
    def _likelihoods(self, rows: Sequence[Row], written: Sequence[Rollout]) -> dict[str, Floats]:
        """The mean token entropy of each solution, and its log p / p₀ against the untrained policy.

        The mean of the latter over sampled solutions is the divergence KL(p ‖ p₀).
        """
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        training = model.training
        model.eval()
        entropies, ratios = [0.0] * len(written), [0.0] * len(written)
        prompts = trainer.processing_class([row["prompt"] for row in rows])["input_ids"]
        texts = [[*prompt, *rollout.ids] for prompt, rollout in zip(prompts, written, strict=True)]
        vocabulary = model.config.get_text_config().vocab_size
        for batch in _batches(
            list(map(len, texts)), lambda count, length: count * length <= LOGITS_AT_ONCE // vocabulary
        ):
            width = max(len(written[i].ids) for i in batch)
            if width == 0:
                continue
            log_p_BT, entropy_BT = _token_likelihoods(model, [texts[i] for i in batch], width, trainer.temperature)
            start_BT = None
            if self._start is not None:
                start_BT, _ = _token_likelihoods(self._start, [texts[i] for i in batch], width, trainer.temperature)
            for b, i in enumerate(batch):
                length = len(written[i].ids)
                if length:
                    entropies[i] = float(entropy_BT[b, -length:].mean())
                if length and start_BT is not None:
                    ratios[i] = float((log_p_BT[b, -length:] - start_BT[b, -length:]).sum())
        model.train(training)
        measured = {"entropy": entropies} if self._start is None else {"entropy": entropies, "kl": ratios}
        return {name: np.asarray(values) for name, values in measured.items()}

    def _share(self) -> range:
        """The indices of the held-out problems of this process."""
        accelerator = self.trainer.accelerator
        return range(accelerator.process_index, len(self.rows), accelerator.num_processes)

    def _gather(self, mine: list[Any]) -> list[Any]:
        """The concatenated lists of all processes, on each process."""
        from accelerate.utils import gather_object

        return list(gather_object(mine)) if self.trainer.accelerator.num_processes > 1 else mine


def _token_likelihoods(
    model: Any, texts: Sequence[Sequence[int]], last: int, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy at each of the last `last` tokens of the texts, which are padded on the left."""
    ids_BS, mask_BS = _pad_left(texts, 0, next(model.parameters()).device)
    positions_BS = (mask_BS.cumsum(1) - 1).clamp(min=0)
    logits_BTV = model(
        input_ids=ids_BS, attention_mask=mask_BS, position_ids=positions_BS, logits_to_keep=last + 1
    ).logits[:, :-1]
    log_p_BTV = torch.log_softmax(logits_BTV.float() / temperature, -1)
    chosen_BT = log_p_BTV.gather(-1, ids_BS[:, -last:, None])[..., 0]
    return chosen_BT.cpu(), -(log_p_BTV.exp() * log_p_BTV).sum(-1).cpu()

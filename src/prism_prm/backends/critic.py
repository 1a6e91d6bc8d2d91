"""`Critic`: a scorer that asks a language model to judge steps in words.

A verdict combines votes. A vote is one turn of the critic: one request per stage of the format, with code run in
between if that is allowed. A vote without a verdict is redrawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from prism_prm.aggregate import DEFAULT_THRESHOLD, CardValues
from prism_prm.backends.critic_format import CriticFormat, FormatStage
from prism_prm.backends.critic_ledger import CriticLedger, Replies, VerdictTally
from prism_prm.backends.critic_replies import (
    CriticQuestion,
    Missing,
    Reading,
    Reply,
    Rows,
    Turn,
    is_part,
    read_reply,
    rows_of_index,
)
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError, PrismError, shown
from prism_prm.grading.sandbox import Sandbox
from prism_prm.grading.sandbox_policy import Limits, SandboxError
from prism_prm.net import TooLongError
from prism_prm.scorer import ScorerWithBar, TreeScores
from prism_prm.tree import StepTree

if TYPE_CHECKING:
    from prism_prm.backends.hf import LocalCritic
    from prism_prm.backends.openai import ServedCritic

T = TypeVar("T")

SURE = 30.0
"""The log-odds of a unanimous vote, whose probability is 0 or 1."""
CHARGED_TOGETHER = 100
"""At most this many requests share a line in the ledger's file; a killed process may leave that many uncharged."""
PROBE = "Answer with the word"
LIMITS = Limits(cpu=5.0, wall=10.0)
"""5 seconds, as in GenPRM's code."""
MOST_SHOWN = 4000
"""The maximum number of characters of output to show to a critic."""
STOPPED = {
    "timeout": "The code ran out of time.",
    "memory": "The code ran out of memory.",
    "output": "The code printed too much.",
}
"""Messages to the critic about code that had to be stopped."""
_CODE = re.compile(r"```python\s*(.*?)\s*```", re.DOTALL)


class BudgetError(PrismError):
    """The token budget of a command is spent."""


class CriticError(PrismError):
    """An answer without a verdict, with `on_missing="error"`."""


class StopError(Exception):
    """Ends a call; `CriticCall.problem` has the reason."""


class Critic(ScorerWithBar):
    """Scores steps by a critic's verdicts; usable like a PRM. `run_code` runs the code that the critic writes."""

    on_too_long = "skip"
    bar_label = "asking the critic"

    def __init__(
        self,
        backend: ServedCritic | LocalCritic,
        format: CriticFormat,
        settings: CriticSettings,
        run_code: Callable[[str], str] | None = None,
    ) -> None:
        self.backend, self.format, self.settings, self.run_code = backend, format, settings, run_code
        self.outputs = format.outputs
        self.card = CardValues(format.aggregator, DEFAULT_THRESHOLD, format.redundancy_threshold)
        self.reads_whole_solutions = format.granularity == "solution"
        self.judges_every_step = format.judges_every_step
        self.model = backend.identity()
        self.format_identity = format.identity()
        self.replies = Replies(Path(settings.replies))
        self.ledger = CriticLedger(settings.price_prompt, settings.price_completion)
        self.charged = self.ledger.as_json()
        self._charging = threading.Lock()
        self.by_log_probability = False
        """Whether verdicts are read from the labels' log-probabilities."""
        if format.reads == "label" and settings.log_probabilities == "auto":
            # Sent once and not stored, because another server may serve the same model. Verdicts are read from tokens,
            # so a label must be one token; the longer label is less likely to be one.
            label = max(format.label.yes, format.label.no, key=len)
            probe = CriticQuestion((("user", f"{PROBE} {label}."),), "", "", 0.0, 1.0, 0, 1, (), True, "probe")
            call = CriticCall(self, stores=False)
            (reply,) = call.run([call.ask(probe)])
            self.by_log_probability = reply.tokens is not None and not (
                reply.tokens and is_part(reply.tokens[0].token, label)
            )
        if self.by_log_probability and format.is_direct:
            # The verdict is read from probabilities, not sampled, so one answer is enough.
            self.votes, self.temperature, self.top_p = 1, 0.0, 1.0
        else:
            defaults = format.sampling
            self.votes = settings.votes or defaults.votes
            of_votes = defaults.temperature_of_votes if self.votes > 1 else None
            temperature = of_votes or defaults.temperature
            self.temperature = temperature if settings.temperature is None else settings.temperature
            self.top_p = settings.top_p or defaults.top_p
            if self.votes > 1 and not self.temperature:
                raise ConfigError(
                    f"-C votes={self.votes} at temperature 0 gives the same answer {self.votes} times; set "
                    "-C temperature=…"
                )
        self.redraws = settings.redraws if self.temperature else 0  # a greedy answer would be the same

    # --- identity and cost ---

    def identity(self) -> str:
        """Identify the format, the model, and every setting that changes a score."""
        settings = self.settings
        facts = {
            "format": self.format_identity, "model": self.model, "votes": self.votes,
            "temperature": self.temperature, "top_p": self.top_p, "max_tokens": settings.max_tokens,
            "on_missing": settings.on_missing, "redraws": settings.redraws, "primes": self.backend.primes,
            "log_probabilities": self.by_log_probability, "code": self.run_code is not None,
        }  # fmt: skip
        return f"critic:{json.dumps(facts, sort_keys=True)}"

    def summary(self, trees: Iterable[StepTree] | None = None) -> dict[str, Any]:
        """Return the entries of metrics.json: settings, cost of this process, and counts of verdicts.

        The counts cover all replies behind the scores of `trees`, or without them all replies of this process.
        """
        counts = {} if trees is None else self._tally(trees).as_json()
        return {
            "model": self.backend.model, "format": self.settings.format, "votes": self.votes,
            "by_log_probability": self.by_log_probability, "primed": self.backend.primes,
            "on_missing": self.settings.on_missing, "retried_requests": self.backend.num_retries,
            **self.ledger.as_json(), **counts,
        }  # fmt: skip

    def notes(self) -> list[str]:
        """Describe how verdicts are read, what was spent and what was missing."""
        source = "the labels' log-probabilities" if self.by_log_probability else "what it writes"
        votes = f", mean of {self.votes} answers" if self.votes > 1 else ""
        primed = "is primed" if self.backend.primes else "is not primed, because the server cannot continue a turn"
        priming = f"; its turn {primed}" if any(stage.prime for stage in self.format.stages) else ""
        lines = [f"{self.backend.name}: verdicts from {source}{votes}{priming}", *self.ledger.lines()]
        if self.backend.num_retries:
            lines.append(f"{self.backend.num_retries:,} requests were retried")
        return [f"Critic: {line}" for line in lines]

    def charge(self) -> None:
        """Append the cost of all requests since the last call to the ledger's file, if there were any."""
        with self._charging:  # called from the requests' thread, and at the end of a call from the caller's
            now, before = self.ledger.as_json(), self.charged
            if now["requests"] != before["requests"]:
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                since = {name: now[name] - before[name] for name, value in now.items() if not isinstance(value, dict)}
                about = {"when": when, "model": self.backend.model, "format": self.settings.format}
                self.replies.files()[1].append(about | since)
            self.charged = now

    def close(self) -> None:
        self.replies.close()
        self.backend.close()

    # --- scores ---

    def _score(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], advance: Advance) -> list[TreeScores]:
        call = CriticCall(self)
        judged = call.run([call.judge(tree, own, advance) for tree, own in zip(trees, wanted, strict=True)])
        scores = []
        for log_odds_NO, own in zip(judged, wanted, strict=True):
            unjudged = tuple(node for node in own if math.isnan(log_odds_NO[node, 0]))
            scores.append(TreeScores(self.outputs, log_odds_NO, unjudged=unjudged))
        return scores

    def count_tokens(self, tree: StepTree) -> int:
        """Count the tokens that were read and written to judge a tree, from the stored replies."""
        return self._tally([tree]).tokens

    def _tally(self, trees: Iterable[StepTree]) -> VerdictTally:
        """Count the verdicts on trees in the stored replies, whichever process requested them."""
        call = CriticCall(self, only_stored=True)
        call.run([call.judge(tree, range(len(tree.nodes)), ignore) for tree in trees])
        return call.tally


@dataclass(eq=False, slots=True)
class CriticCall:
    """One call of a critic, such as `score_trees`: sends equal questions once, within the budget."""

    critic: Critic
    only_stored: bool = False
    """Send nothing and count apart from the ledger; questions without a stored reply are left out."""
    stores: bool = True
    """Reuse and store replies; otherwise every question is sent again."""
    problem: PrismError | None = None
    """Why the call stops. Requests in flight still finish and are stored; no new one starts."""
    tally: VerdictTally = field(init=False)
    _asking: dict[str, asyncio.Task[Reply]] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.tally = VerdictTally() if self.only_stored else self.critic.ledger.tally
        self._slots = asyncio.Semaphore(self.critic.settings.concurrency)

    def run(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines, write the cost to the ledger's file, and raise the problem if there is one."""
        results: list[T] = []
        try:
            results = self.critic.backend.run(coroutines)
        except StopError:
            assert self.problem is not None, "_stop sets it"
        finally:
            if not self.only_stored:  # a call of another thread may be running; it charges its own requests
                self.critic.charge()
        if self.problem is not None:
            raise self.problem
        return results

    def _stop(self, problem: PrismError) -> StopError:
        """Record the reason, unless there is an earlier one, and return the error that ends the call."""
        self.problem = self.problem or problem
        return StopError()

    # --- one tree ---

    async def judge(self, tree: StepTree, wanted: Sequence[int], advance: Advance) -> np.ndarray:
        """Compute the log-odds_NO of a tree's nodes; NaN for those not wanted or not judged."""
        log_odds_NO = np.full((len(tree.nodes), len(self.critic.outputs)), np.nan)
        judge = self._judge_solutions if self.critic.reads_whole_solutions else self._judge_nodes
        with contextlib.suppress(StopError):
            for node, row in (await judge(tree, wanted)).items():
                log_odds_NO[node] = [_log_odds(value) for value in row]
            advance(1)
        return log_odds_NO

    async def _judge_solutions(self, tree: StepTree, wanted: Sequence[int]) -> dict[int, tuple[float, ...]]:
        """Judge each solution (a path to a leaf) once; a step of several solutions gets the verdict of the first."""
        inner, needed = set(tree.parents), set(wanted)
        paths = [tree.path(node) for node in range(len(tree.nodes)) if node not in inner]
        paths = [path for path in paths if needed & set(path)]
        verdicts = await _gather([self._verdict(tree, path) for path in paths])
        judged: dict[int, tuple[float, ...]] = {}
        for path, (rows, _) in zip(paths, verdicts, strict=True):
            for node, row in zip(path, rows, strict=True):
                if node in needed:
                    judged.setdefault(node, row)
        return judged

    async def _judge_nodes(self, tree: StepTree, wanted: Sequence[int]) -> dict[int, tuple[float, ...]]:
        """Judge steps one by one; in a conversation, each step after the replies to earlier ones."""
        tasks: dict[int, asyncio.Task[tuple[Rows, str]]] = {}
        format = self.critic.format
        sees_replies = format.granularity == "step" and "{reply}" in format.history

        def task(node: int) -> asyncio.Task[tuple[Rows, str]]:
            if node not in tasks:
                tasks[node] = asyncio.ensure_future(judge(node))
            return tasks[node]

        async def judge(node: int) -> tuple[Rows, str]:
            path = tree.path(node)
            replies = [(await task(earlier))[1] for earlier in path[:-1]] if sees_replies else [""] * (len(path) - 1)
            return await self._verdict(tree, path, replies)

        verdicts = await _gather([task(node) for node in wanted])
        return {node: rows[0] for node, (rows, _) in zip(wanted, verdicts, strict=True)}

    async def _verdict(self, tree: StepTree, path: Sequence[int], replies: Sequence[str] = ()) -> tuple[Rows, str]:
        """Combine all votes on a path (all its steps, or in a conversation the last one) into a verdict.

        Also returns the first critique, which later turns see.
        """
        critic, format = self.critic, self.critic.format
        system = format.fill(format.system, problem=tree.problem)
        turns: list[Turn] = [("system", system)] if system else []
        if format.granularity == "step":
            for at, node in enumerate(path):
                text, step = format.later if at else format.first, tree.nodes[node].text
                turns.append(("user", format.fill(text, problem=tree.problem, step=step, number=at + 1, index=at)))
                if at < len(replies):
                    turns.append(("assistant", format.fill(format.history, reply=replies[at])))
        else:
            solution = format.solution(tree.texts(path))
            turns.append(("user", format.fill(format.user, problem=tree.problem, solution=solution)))
        votes = await _gather([self._vote(tuple(turns), len(path), vote) for vote in range(critic.votes)])
        num_rows = len(path) if format.granularity == "solution" else 1
        used: list[Rows] = []
        on_missing = critic.settings.on_missing
        for reading, text in votes:
            if isinstance(reading, Reading):
                used.append(reading.rows)
            elif on_missing == "error" and not self.only_stored:
                or_words = ", read verdicts from words alone (-C log_probabilities=off)" * critic.by_log_probability
                raise self._stop(
                    CriticError(
                        f"{critic.backend.name}: solution {tree.name or tree.tree_id}, step {len(path)}: an answer has "
                        f"no verdict ({reading}; redrawn {critic.redraws} times). It ends with {shown(text[-60:])}. "
                        f"Count such answers as wrong (-C on_missing=wrong), leave them out (-C on_missing=skip)"
                        f"{or_words}, or change -C format=… or -C max_tokens=…. All replies are stored."
                    )
                )
            elif on_missing == "wrong" and format.reads == "index":
                used.append(rows_of_index(0, num_rows))
            elif on_missing == "wrong":  # also redundant
                used.append(((0.0, *[1.0] * (len(format.outputs) - 1)),) * num_rows)
        rows: Rows = ((math.nan,) * len(format.outputs),) * num_rows
        if used and format.reads != "index":
            rows = tuple(map(tuple, np.mean(used, axis=0).tolist()))
        elif used:  # as published: the most frequent index, on a tie the first
            indices = [next((i for i, (p,) in enumerate(vote) if p < 0.5), -1) for vote in used]
            index, count = Counter(indices).most_common(1)[0]
            rows = rows_of_index(index, num_rows, count / len(indices))
        return rows, votes[0][1]

    # --- one vote ---

    async def _vote(self, turns: tuple[Turn, ...], num_steps: int, vote: int) -> tuple[Reading | Missing, str]:
        """Draw one answer, again while it has no verdict; returns its reading and its text."""
        redraws = self.critic.redraws
        for redraw in range(1 + redraws):
            text, reply, notes = await self._turn(turns, num_steps, f"{vote}.{redraw}")
            reading = read_reply(reply, self.critic.format, num_steps)
            if isinstance(reading, Reading) or redraw == redraws or reply.reason == "too-long":
                break
        self.tally.add((turns, vote), reading, redraw, notes)
        return reading, text or reply.text

    async def _turn(self, turns: tuple[Turn, ...], num_steps: int, draw: str) -> tuple[str, Reply, list[str]]:
        """Run the critic's next turn; returns its text as later turns see it, the reply with the verdict, and notes."""
        critic, format = self.critic, self.critic.format
        primes, max_tokens = critic.backend.primes, critic.settings.max_tokens
        values = {"number": num_steps, "index": num_steps - 1, "next": num_steps + 1}
        last = format.stages[-1]

        async def send(text: str, stage: FormatStage, prime: str, stops: tuple[str, ...]) -> Reply:
            """Request the next part of the turn; a model that cannot continue a turn gets the request in words."""
            messages, begun = turns, text + prime if primes else ""
            if text and not primes:
                messages = (*turns, ("assistant", text), ("user", stage.ask or f"Go on with: {prime.strip()}"))
            elif prime.strip() and not primes:
                role, content = turns[-1]
                messages = (*turns[:-1], (role, f"{content}\n\nBegin your answer with: {prime.strip()}"))
            holds_verdict = stage.code or stage is last
            is_critique = not holds_verdict or (len(format.stages) == 1 and not format.is_direct)
            reply = await self.ask(
                CriticQuestion(
                    messages, begun, format.opening, critic.temperature, critic.top_p, format.sampling.top_k,
                    max_tokens if max_tokens is not None and is_critique else stage.max_tokens, stops,
                    holds_verdict and critic.by_log_probability, draw,
                )
            )  # fmt: skip
            self.tally.tokens += reply.num_tokens
            return reply

        text, reply = "", None
        notes: list[str] = []
        for stage in format.stages:
            prime = format.fill(stage.prime, **values)
            stops = tuple(format.fill(stop, **values) for stop in stage.stops)
            if not stage.code:
                reply = await send(text, stage, prime, stops)
                if reply.has_no_text:
                    break
                if reply.reason == "length" and stage is not last:
                    notes.append("critiques cut off at the limit of tokens")
                # End the part as the format does, whether or not the server leaves the stop string in.
                ends = (*stops, stage.close.strip()) if stage.close else stops
                places = [reply.text.find(end) for end in ends if end in reply.text]
                text += prime * primes + reply.text[: min(places, default=len(reply.text))] + stage.close
            elif critic.run_code is not None:
                # Rounds of code and its output, until the critic gives its judgment.
                earlier, with_code = [content for role, content in turns if role == "assistant"], text
                for begins in (prime, *[""] * (stage.rounds - 1)):
                    judged = await send(with_code, stage, begins, stops)
                    if judged.has_no_text:
                        return with_code, judged, notes
                    with_code += begins * primes + judged.text
                    if judged.stopped_by == stage.ends or "<output>" in judged.text:
                        return with_code.removesuffix(stage.ends) + stage.ends, judged, notes
                    with_code = with_code.removesuffix(stage.close) + stage.close
                    blocks = [block for turn in [*earlier, with_code] for block in _code_blocks(turn)]
                    output = await self._run(critic.run_code, program(blocks)) if blocks else "No code was found."
                    with_code += format.fill(stage.code_output, output=output)
                # As published: the judgment then continues from the text before the code.
                notes.append("critiques whose code rounds gave no judgment")
        assert reply is not None, "a format has a stage without code"
        return text, reply, notes

    async def _run(self, run: Callable[[str], str], code: str) -> str:
        """Run a critic's code. Its output is stored like a reply, so that a rerun sees the same."""
        replies = self.critic.replies
        key = hashlib.blake2b(f"code\0{code}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        if key not in replies.by_key:
            output = Reply(await asyncio.to_thread(run, code), "stop", 0, 0)
            replies.append(key, output, {"format": self.critic.settings.format, "model": "sandbox", "draw": "code"})
        return replies.by_key[key].text

    # --- one question ---

    async def ask(self, question: CriticQuestion) -> Reply:
        """Return the stored reply or request a new one. Raises StopError if the call is over."""
        critic = self.critic
        key = question.key(critic.format_identity, critic.model)
        if self.stores and key in critic.replies.by_key:
            critic.ledger.reused += not self.only_stored
            return critic.replies.by_key[key]
        if self.only_stored:
            raise StopError
        if key not in self._asking:
            self._asking[key] = asyncio.ensure_future(self._request(key, question))
        return await self._asking[key]

    async def _request(self, key: str, question: CriticQuestion) -> Reply:
        critic, ledger, settings = self.critic, self.critic.ledger, self.critic.settings
        async with self._slots:
            if self.problem is not None:
                raise StopError
            budget = settings.budget_tokens
            if budget is not None and ledger.tokens >= budget:
                raise self._stop(
                    BudgetError(
                        f"the token budget is spent ({ledger.tokens:,} new tokens, -C budget_tokens={budget}). All "
                        f"replies are stored in {critic.replies.folder}: rerun the same command to resume."
                    )
                )
            try:
                reply = await critic.backend.ask(question)
            except TooLongError as error:
                if settings.on_missing == "error":
                    remedies = (
                        "Serve the model with more context, lower -C max_tokens=…, count the verdict on such texts as "
                        "wrong (-C on_missing=wrong), or leave it out (-C on_missing=skip)."
                    )
                    raise self._stop(TooLongError(f"{error}\n{remedies}")) from None
                reply = Reply("", "too-long", 0, 0)
            except PrismError as error:
                raise self._stop(error) from None
        ledger.add(reply)
        if self.stores:
            about = {"format": settings.format, "model": critic.backend.model, "draw": question.draw}
            critic.replies.append(key, reply, about)
        if ledger.requests - critic.charged["requests"] >= CHARGED_TOGETHER:
            critic.charge()
        return reply


def _log_odds(probability: float) -> float:
    if math.isnan(probability):
        return math.nan
    if not 0 < probability < 1:
        return SURE if probability >= 1 else -SURE
    return float(np.clip(math.log(probability) - math.log1p(-probability), -SURE, SURE))


async def _gather(work: Sequence[Any]) -> list[Any]:
    """Await all, then raise the first error, so that requests in flight still finish and are stored."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return list(results)


def _code_blocks(text: str) -> list[str]:
    """Return the code blocks in a critic's turn, without those that had to be stopped: rerun, they would stop again."""
    matches = list(_CODE.finditer(text))
    blocks = []
    for number, match in enumerate(matches):
        output = text[match.end() : matches[number + 1].start() if number + 1 < len(matches) else None]
        if not any(message in output for message in STOPPED.values()):
            blocks.append(match[1])
    return blocks


def program(blocks: Sequence[str]) -> str:
    """Write a program that runs the last block after the earlier ones, silently: they may define what it uses."""
    *earlier, last = blocks
    return (
        "import contextlib as _contextlib, io as _io\n"
        f"for _code in {list(earlier)!r}:\n"
        "    with _contextlib.suppress(BaseException), _contextlib.redirect_stdout(_io.StringIO()):\n"
        "        exec(_code, globals())\n"
        f"exec({last!r}, globals())\n"
    )


@functools.cache
def code_runner() -> Callable[[str], str]:
    """Return a function that runs Python code in a sandbox and returns its output. Raises if no sandbox works here."""
    try:
        sandbox = Sandbox(limits=LIMITS)
    except SandboxError as error:
        raise SandboxError(f"-C code=true: {error}\nWithout -C code=true the critic's code is not run.") from None

    def run(code: str) -> str:
        result = sandbox.run(code)
        messages = result.stderr.decode("utf-8", "replace").strip()
        if result.status == "sandbox":
            raise SandboxError(f"-C code=true: the sandbox could not start the critic's code: {messages}")
        parts = [result.stdout.decode("utf-8", "replace").strip()]
        if result.status != "ok":  # the last line of a traceback has the error
            parts.append(STOPPED.get(result.status) or " ".join(messages.splitlines()[-1:]) or "The code failed.")
        shortened = [part if len(part) <= MOST_SHOWN else f"{part[:MOST_SHOWN]} …" for part in parts]
        return "\n".join(filter(None, shortened))

    return run

"""From a question to a verdict: votes are drawn, drawn again if need be, read, and combined.

A vote is one turn of the critic: one request per stage of the format, with code run in between if that is allowed.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.backends.critic_asking import Asker, Question, Tally, Work, gathered
from prism_prm.backends.critic_format import CriticFormat, Stage
from prism_prm.backends.critic_replies import Missing, Reading, Reply, Rows, Turn, is_part, read_reply, rows_of_index
from prism_prm.errors import ConfigError, PrismError, shown
from prism_prm.grading.sandbox import Sandbox
from prism_prm.grading.sandbox_policy import Limits, SandboxError

PROBE = "Answer with the word"
CUT = "critiques cut off at the limit of tokens"
LIMITS = Limits(cpu=5.0, wall=10.0)
"""5 seconds, as in GenPRM's own code."""
MOST_SHOWN = 4000
"""Characters of output that a critic is shown."""
STOPPED = {
    "timeout": "The code ran out of time.",
    "memory": "The code ran out of memory.",
    "output": "The code printed too much.",
}
"""What the critic is told of code that had to be stopped."""
_CODE = re.compile(r"```python\s*(.*?)\s*```", re.DOTALL)

Send = Callable[[str, Stage, str], Awaitable[Reply]]
"""(the critic's turn so far, stage, how the stage begins) → the reply."""


class CriticError(PrismError):
    """An answer without a verdict, where every answer must have one."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How answers are drawn."""

    votes: int
    temperature: float
    top_p: float
    by_log_probability: bool
    """Whether verdicts are read from the labels' log-probabilities."""


class Verdicts:
    """Asks for verdicts in one format; `run_code` gives what a critic's code prints, if it may run."""

    def __init__(self, asker: Asker, format: CriticFormat, run_code: Callable[[str], str] | None = None) -> None:
        self.asker, self.format, self.run_code = asker, format, run_code
        self.primes = asker.backend.primes
        self.drawing = self._drawing()

    def _drawing(self) -> Drawing:
        given, usual = self.asker.settings, self.format.sampling
        by_log_probability = self.format.reads == "label" and self._has_log_probabilities()
        if by_log_probability and self.format.is_direct:
            # The verdict is read and not drawn, so one answer is all of them.
            return Drawing(1, 0.0, 1.0, by_log_probability)
        votes = given.votes or usual.votes
        default = usual.temperature_of_votes if votes > 1 and usual.temperature_of_votes else usual.temperature
        temperature = default if given.temperature is None else given.temperature
        if votes > 1 and not temperature:
            raise ConfigError(
                f"--votes {votes} at temperature 0 gives the same answer {votes} times; give --critic-temperature"
            )
        return Drawing(votes, temperature, given.top_p or usual.top_p, by_log_probability)

    def _has_log_probabilities(self) -> bool:
        """Ask once whether the model gives them, and whether a label is one token: the longer one is less likely to be.
        The answer is not kept, since another server may give the same model.
        """
        if self.asker.settings.log_probabilities == "off":
            return False
        label = max(self.format.label.yes, self.format.label.no, key=len)
        work = Work(keeps=False)
        probe = self.asker.ask(
            work, Question((("user", f"{PROBE} {label}."),), "", "", 0.0, 1.0, 0, 1, (), True, "probe")
        )
        (found,) = self.asker.run(work, [gathered([probe])])
        tokens = found[0].tokens
        return tokens is not None and not (tokens and is_part(tokens[0].token, label))

    async def ask(
        self, work: Work, turns: tuple[Turn, ...], num_steps: int, where: str, tally: Tally
    ) -> tuple[Rows, str]:
        """The verdict of all votes, and the first critique, which later turns see."""
        votes = await gathered([self._vote(work, turns, num_steps, vote, tally) for vote in range(self.drawing.votes)])
        num_rows = num_steps if self.format.granularity == "solution" else 1
        used: list[Rows] = []
        on_missing = self.asker.settings.on_missing
        for reading, text in votes:
            if isinstance(reading, Reading):
                used.append(reading.rows)
            elif on_missing == "error" and not work.only_kept:
                raise work.stop(self._no_verdict(reading, where, text))
            elif on_missing == "wrong" and self.format.reads == "index":
                used.append(rows_of_index(0, num_rows))
            elif on_missing == "wrong":  # and redundant
                used.append(((0.0, *[1.0] * (len(self.format.outputs) - 1)),) * num_rows)
        rows: Rows = ((math.nan,) * len(self.format.outputs),) * num_rows
        if used and self.format.reads != "index":
            rows = tuple(map(tuple, np.mean(used, axis=0).tolist()))
        elif used:  # the most frequent index, as published, and of equally frequent ones the first
            indices = [next((i for i, (p,) in enumerate(one) if p < 0.5), -1) for one in used]
            index, count = Counter(indices).most_common(1)[0]
            rows = rows_of_index(index, num_rows, count / len(indices))
        return rows, votes[0][1]

    async def _vote(
        self, work: Work, turns: tuple[Turn, ...], num_steps: int, vote: int, tally: Tally
    ) -> tuple[Reading | Missing, str]:
        """One answer; it is drawn again while it has no verdict, unless it is greedy and would be the same."""
        values = {"number": num_steps, "index": num_steps - 1, "next": num_steps + 1}
        drawing, most = self.drawing, self.asker.settings.max_tokens
        redraws = self.asker.settings.redraws if drawing.temperature else 0
        for redraw in range(1 + redraws):

            async def send(text: str, stage: Stage, prime: str, draw: str = f"{vote}.{redraw}") -> Reply:
                holds_verdict = stage.code or stage is self.format.stages[-1]
                is_critique = not holds_verdict or (len(self.format.stages) == 1 and not self.format.is_direct)
                asked, begun = self._asked(turns, text, stage, prime)
                question = Question(
                    asked, begun, self.format.opening, drawing.temperature, drawing.top_p, self.format.sampling.top_k,
                    most if most is not None and is_critique else stage.max_tokens, self._stops(stage, values),
                    holds_verdict and drawing.by_log_probability, draw,
                )  # fmt: skip
                reply = await self.asker.ask(work, question)
                tally.tokens += reply.num_tokens
                return reply

            text, reply, notes = await self._turn(turns, values, send)
            reading = read_reply(reply, self.format, num_steps)
            if isinstance(reading, Reading) or redraw == redraws or reply.reason == "too-long":
                break
        for counts in [tally] if work.only_kept else [tally, self.asker.ledger.tally]:
            counts.add((turns, vote), reading, redraw, notes)
        return reading, text or reply.text

    async def _turn(self, turns: tuple[Turn, ...], values: dict[str, int], send: Send) -> tuple[str, Reply, list[str]]:
        """The critic's next turn as later turns see it, the reply that holds the verdict, and notes."""
        text, reply = "", None
        notes: list[str] = []
        for stage in self.format.stages:
            prime = self.format.filled(stage.prime, **values)
            if not stage.code:
                reply = await send(text, stage, prime)
                if reply.has_no_text:
                    break
                if reply.reason == "length" and stage is not self.format.stages[-1]:
                    notes.append(CUT)
                # A part as the format ends it, whether or not the server leaves the stop text in.
                ends = (*self._stops(stage, values), *[stage.close.strip()] * bool(stage.close))
                places = [reply.text.find(end) for end in ends if end in reply.text]
                text += prime * self.primes + reply.text[: min(places, default=len(reply.text))] + stage.close
            elif self.run_code is not None:
                with_code, judged = await self._code_rounds(turns, text, stage, prime, send)
                if judged is not None:
                    return with_code, judged, notes
                # As published: what was written before the code leads to the judgment.
                notes.append("critiques whose code rounds gave no judgement")
        assert reply is not None, "a format has a stage without code"
        return text, reply, notes

    async def _code_rounds(
        self, turns: tuple[Turn, ...], text: str, stage: Stage, prime: str, send: Send
    ) -> tuple[str, Reply | None]:
        """Rounds of code and its output, until the critic gives its judgment; None if it does not."""
        assert self.run_code is not None
        said = [content for role, content in turns if role == "assistant"]
        for number in range(stage.rounds):
            begins = prime if number == 0 else ""
            reply = await send(text, stage, begins)
            if reply.has_no_text:
                return text, reply
            text += begins * self.primes + reply.text
            if reply.stopped_by == stage.ends or "<output>" in reply.text:
                return text.removesuffix(stage.ends) + stage.ends, reply
            text = text.removesuffix(stage.close) + stage.close
            blocks = [block for one in [*said, text] for block in _blocks(one)]
            output = await self.asker.run_code(self.run_code, program(blocks)) if blocks else "No code was found."
            text += self.format.filled(stage.code_output, output=output)
        return text, None

    def _asked(self, turns: tuple[Turn, ...], text: str, stage: Stage, prime: str) -> tuple[tuple[Turn, ...], str]:
        """The turns to send, and the critic's turn so far; a model that cannot continue it is asked in words."""
        if self.primes:
            return turns, text + prime
        if text:
            return (*turns, ("assistant", text), ("user", stage.ask or f"Go on with: {prime.strip()}")), ""
        if not prime.strip():
            return turns, ""
        (role, content) = turns[-1]
        return (*turns[:-1], (role, f"{content}\n\nBegin your answer with: {prime.strip()}")), ""

    def _stops(self, stage: Stage, values: dict[str, int]) -> tuple[str, ...]:
        return tuple(self.format.filled(stop, **values) for stop in stage.stops)

    def _no_verdict(self, missing: Missing, where: str, said: str) -> CriticError:
        redraws = self.asker.settings.redraws if self.drawing.temperature else 0
        by_words = ", read verdicts from words alone (--critic-logprobs off)" * self.drawing.by_log_probability
        return CriticError(
            f"{self.asker.backend.name}: {where}: an answer has no verdict ({missing}; drawn again {redraws} "
            f"times). It ends with {shown(said[-60:])}. Count such answers as wrong (--on-missing wrong), leave them "
            f"out (--on-missing skip){by_words}, or choose another --critic or --critic-max-tokens. All replies are "
            "kept."
        )


def _blocks(text: str) -> list[str]:
    """The code in a critic's turn, but for what had to be stopped: run again, it would stop all that comes after it."""
    found = list(_CODE.finditer(text))
    kept = []
    for number, one in enumerate(found):
        output = text[one.end() : found[number + 1].start() if number + 1 < len(found) else None]
        if not any(message in output for message in STOPPED.values()):
            kept.append(one[1])
    return kept


def program(blocks: Sequence[str]) -> str:
    """The last block of code after the earlier ones, which run in silence: they may define what it uses."""
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
    """Python code → what it prints, or what went wrong; an error if no sandbox works on this machine."""
    try:
        sandbox = Sandbox(limits=LIMITS)
    except SandboxError as error:
        raise SandboxError(f"--critic-code: {error}\nWithout --critic-code the critic's code is not run.") from None

    def run(code: str) -> str:
        found = sandbox.run(code)
        messages = found.stderr.decode("utf-8", "replace").strip()
        if found.status == "sandbox":
            raise SandboxError(f"--critic-code: the sandbox could not start the critic's code: {messages}")
        parts = [found.stdout.decode("utf-8", "replace").strip()]
        if found.status != "ok":  # the last line of a traceback says what went wrong
            parts.append(STOPPED.get(found.status) or " ".join(messages.splitlines()[-1:]) or "The code failed.")
        shortened = [part if len(part) <= MOST_SHOWN else f"{part[:MOST_SHOWN]} …" for part in parts]
        return "\n".join(filter(None, shortened))

    return run

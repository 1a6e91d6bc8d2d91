"""The critic's turn: one request per stage of the format, code run in between where that is allowed."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prism_prm.critics.format import CriticFormat, Stage
from prism_prm.critics.replies import Reply, Turn

_CODE = re.compile(r"```python\s*(.*?)\s*```", re.DOTALL)
CUT = "critiques cut off at the limit of tokens"

Send = Callable[[tuple[Turn, ...], str, Stage, tuple[str, ...]], Awaitable[Reply]]
"""(turns, the critic's turn so far, stage, stop texts) → the reply."""
RunCode = Callable[[str], Awaitable[str]]
"""Python code → what it prints, or what went wrong."""
STOPPED = {
    "timeout": "The code ran out of time.",
    "memory": "The code ran out of memory.",
    "output": "The code printed too much.",
}
"""What the critic is told of code that had to be stopped."""


@dataclass(frozen=True, slots=True)
class Turned:
    """A whole turn of the critic."""

    text: str
    """As later turns see it."""
    last: Reply
    """The reply that holds the verdict."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """How one format talks to one model."""

    format: CriticFormat
    primes: bool
    """Whether the model continues a turn that was begun for it."""
    run_code: RunCode | None = None

    async def turn(self, turns: tuple[Turn, ...], values: dict[str, Any], send: Send) -> Turned:
        """Write the critic's next turn."""
        text, reply = "", None
        notes: list[str] = []
        for stage in self.format.stages:
            if stage.code:
                if self.run_code is None:
                    continue
                with_code, ended = await self._code(turns, text, stage, values, send)
                if ended is not None:
                    return Turned(with_code, ended, tuple(notes))
                notes.append("critiques whose code rounds gave no judgement")
                continue  # as published: what was written before the code goes on to the judgement
            prime = self.format.filled(stage.prime, **values)
            stops = self._stops(stage, values)
            reply = await send(*self._asked(turns, text, stage, prime), stage, stops)
            if reply.has_no_text:
                break
            if reply.reason == "length" and stage is not self.format.stages[-1]:
                notes.append(CUT)
            text += prime * self.primes + _closed(reply.text, stage.close, stops)
        assert reply is not None, "a format has a stage without code"
        return Turned(text, reply, tuple(notes))

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

    def _stops(self, stage: Stage, values: dict[str, Any]) -> tuple[str, ...]:
        return tuple(self.format.filled(stop, **values) for stop in stage.stops)

    async def _code(
        self, turns: tuple[Turn, ...], before: str, stage: Stage, values: dict[str, Any], send: Send
    ) -> tuple[str, Reply | None]:
        """Rounds of code and its output, until the critic gives its judgement; None if it does not."""
        assert self.run_code is not None
        text = before
        prime = self.format.filled(stage.prime, **values)
        said = [content for role, content in turns if role == "assistant"]
        for number in range(stage.rounds):
            begins = prime if number == 0 else ""
            reply = await send(*self._asked(turns, text, stage, begins), stage, self._stops(stage, values))
            if reply.has_no_text:
                return text, reply
            text += begins * self.primes + reply.text
            if reply.stopped_by == stage.ends or "<output>" in reply.text:
                return text.removesuffix(stage.ends) + stage.ends, reply
            text = text.removesuffix(stage.close) + stage.close
            blocks = [block for one in [*said, text] for block in _blocks(one)]
            output = await self.run_code(program(blocks)) if blocks else "No code was found."
            text += self.format.filled(stage.code_output, output=output)
        return text, None


def _closed(text: str, close: str, stops: Sequence[str]) -> str:
    """A part as the format ends it, whether or not the server leaves the stop text in."""
    places = [text.find(end) for end in (*stops, *[close.strip()] * bool(close)) if end in text]
    return text[: min(places, default=len(text))] + close


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

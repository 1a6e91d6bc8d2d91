"""From a question to a verdict: votes are drawn, drawn again if need be, read, and combined."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prism_prm.critics.asking import Asker, Work, gathered
from prism_prm.critics.conversation import Conversation
from prism_prm.critics.format import CriticFormat, Stage
from prism_prm.critics.ledger import Tally
from prism_prm.critics.parse import Missing, Reading, Rows, is_part, read_reply, rows_of_index
from prism_prm.critics.replies import Ask, Reply, Turn
from prism_prm.errors import ConfigError, PrismError, shown

PROBE = "Answer with the word"


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
    """Asks for verdicts in one format."""

    def __init__(self, asker: Asker, format: CriticFormat, talk: Conversation) -> None:
        self.asker, self.format, self.talk = asker, format, talk
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
        """Ask once whether the model gives them, and whether a label is one token: the longer one is likelier not to
        be. The answer is not kept, since another server may give the same model.
        """
        if self.asker.settings.log_probabilities == "off":
            return False
        label = max(self.format.label.yes, self.format.label.no, key=len)
        work = Work(keeps=False)
        probe = self.asker.ask(work, Ask((("user", f"{PROBE} {label}."),), "", "", 0.0, 1.0, 0, 1, (), True, "probe"))
        (found,) = self.asker.run(work, [gathered([probe])])
        tokens = found[0].tokens
        return tokens is not None and not (tokens and is_part(tokens[0].token, label))

    async def ask(
        self, work: Work, turns: tuple[Turn, ...], num_steps: int, where: str, tally: Tally
    ) -> tuple[Rows, str]:
        """The verdict of all votes, and the first critique, which later turns see."""
        votes = await gathered([self._vote(work, turns, num_steps, vote, tally) for vote in range(self.drawing.votes)])
        num_rows = num_steps if self.format.granularity == "solution" else 1
        used: list[Reading] = []
        on_missing = self.asker.settings.on_missing
        for reading, text in votes:
            if isinstance(reading, Reading):
                used.append(reading)
            elif on_missing == "error" and not work.only_kept:
                raise work.stop(self._no_verdict(reading, where, text))
            elif on_missing == "wrong":
                used.append(Reading(self._worst(num_rows)))
        nothing = ((math.nan,) * len(self.format.outputs),) * num_rows
        return (self._combined(used, num_rows) if used else nothing), votes[0][1]

    async def _vote(
        self, work: Work, turns: tuple[Turn, ...], num_steps: int, vote: int, tally: Tally
    ) -> tuple[Reading | Missing, str]:
        """One answer; it is drawn again while it has no verdict, unless it is greedy and would be the same."""
        values = {"number": num_steps, "index": num_steps - 1, "next": num_steps + 1}
        redraws = self.asker.settings.redraws if self.drawing.temperature else 0
        for redraw in range(1 + redraws):
            draw = f"{vote}.{redraw}"

            async def send(
                asked: tuple[Turn, ...], begun: str, stage: Stage, stops: tuple[str, ...], draw: str = draw
            ) -> Reply:
                reply = await self.asker.ask(work, self._question(asked, begun, stage, stops, draw))
                tally.tokens += reply.num_tokens
                return reply

            turned = await self.talk.turn(turns, values, send)
            reading = read_reply(turned.last, self.format, num_steps)
            if isinstance(reading, Reading) or redraw == redraws or turned.last.reason == "too-long":
                break
        for counts in [tally] if work.only_kept else [tally, self.asker.ledger.tally]:
            counts.add((turns, vote), reading, redraw, turned.notes)
        return reading, turned.text or turned.last.text

    def _question(self, turns: tuple[Turn, ...], begun: str, stage: Stage, stops: tuple[str, ...], draw: str) -> Ask:
        drawing, given = self.drawing, self.asker.settings.max_tokens
        holds_verdict = stage.code or stage is self.format.stages[-1]
        is_critique = not holds_verdict or (len(self.format.stages) == 1 and not self.format.is_direct)
        most = given if given is not None and is_critique else stage.max_tokens
        reads = holds_verdict and drawing.by_log_probability
        return Ask(
            turns, begun, self.format.opening, drawing.temperature, drawing.top_p, self.format.sampling.top_k, most,
            stops, reads, draw,
        )  # fmt: skip

    def _worst(self, num_rows: int) -> Rows:
        """What a missing verdict counts as by --on-missing wrong: wrong, and redundant."""
        if self.format.reads == "index":
            return rows_of_index(0, num_rows)
        return ((0.0, *[1.0] * (len(self.format.outputs) - 1)),) * num_rows

    def _combined(self, readings: Sequence[Reading], num_rows: int) -> Rows:
        """The mean of scores; of indices the most frequent, as published, and of equally frequent ones the first."""
        if self.format.reads != "index":
            return tuple(tuple(row) for row in np.mean([reading.rows for reading in readings], axis=0).tolist())
        indices = [next((i for i, (p,) in enumerate(one.rows) if p < 0.5), -1) for one in readings]
        index, count = Counter(indices).most_common(1)[0]
        return rows_of_index(index, num_rows, count / len(indices))

    def _no_verdict(self, missing: Missing, where: str, said: str) -> CriticError:
        redraws = self.asker.settings.redraws if self.drawing.temperature else 0
        by_words = ", read verdicts from words alone (--critic-logprobs off)" * self.drawing.by_log_probability
        return CriticError(
            f"{self.asker.backend.name}: {where}: an answer has no verdict ({missing.kind}; drawn again {redraws} "
            f"times). It ends with {shown(said[-60:])}. Count such answers as wrong (--on-missing wrong), leave them "
            f"out (--on-missing skip){by_words}, or choose another --critic or --critic-max-tokens. All replies are "
            "kept."
        )

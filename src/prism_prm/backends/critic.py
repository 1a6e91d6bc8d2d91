"""`Critic`: a scorer of steps that asks a model in words."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism_prm.aggregate import DEFAULT_THRESHOLD, CardValues
from prism_prm.backends.critic_asking import Asker, Backend, StopError, Tally, Work, gathered
from prism_prm.backends.critic_format import CriticFormat
from prism_prm.backends.critic_replies import Rows, Turn
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.critic_verdicts import Verdicts
from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.scorer import Scorer, StepSession, TreeScores, sigmoid
from prism_prm.tree import StepTree

SURE = 30.0
"""The log-odds of a unanimous vote, whose probability is 0 or 1."""

Judged = tuple[np.ndarray, Tally]
"""The log-odds_NO of a tree's nodes, and what the replies behind them are."""


class Critic(Scorer):
    """Scores steps by a critic's verdicts; usable wherever a PRM is."""

    on_too_long = "skip"

    def __init__(
        self,
        backend: Backend,
        format: CriticFormat,
        settings: CriticSettings,
        run_code: Callable[[str], str] | None = None,
    ) -> None:
        self.backend, self.format, self.settings = backend, format, settings
        self.outputs = format.outputs
        self.card = CardValues(format.aggregator, DEFAULT_THRESHOLD, format.redundancy_threshold)
        self.reads_whole_solutions = format.granularity == "solution"
        self.judges_every_step = format.judges_every_step
        self.asker = Asker(backend, format.identity(), settings)
        self.verdicts = Verdicts(self.asker, format, run_code)

    # --- what it is, and what it has cost ---

    def identity(self) -> str:
        """The format, the model, and every setting that changes a score."""
        given, drawing = self.settings, self.verdicts.drawing
        facts = {
            "format": self.format.identity(), "model": self.asker.model, "votes": drawing.votes,
            "temperature": drawing.temperature, "top_p": drawing.top_p, "max_tokens": given.max_tokens,
            "on_missing": given.on_missing, "redraws": given.redraws, "primes": self.backend.primes,
            "log_probabilities": drawing.by_log_probability, "code": self.verdicts.run_code is not None,
        }  # fmt: skip
        return f"critic:{json.dumps(facts, sort_keys=True)}"

    def described(self) -> str:
        """How verdicts come about, in words."""
        drawing = self.verdicts.drawing
        how = "the labels' log-probabilities" if drawing.by_log_probability else "what it writes"
        times = f", mean of {drawing.votes} answers" if drawing.votes > 1 else ""
        primed = "begun for it" if self.backend.primes else "asked for in words, since the server continues no turn"
        begins = any(stage.prime for stage in self.format.stages)
        return f"{self.backend.name}: verdicts from {how}{times}" + (f"; its turn is {primed}" if begins else "")

    def summary(self, trees: Iterable[StepTree] | None = None) -> dict[str, Any]:
        """For metrics.json: how it was asked and what this process has spent; what was read and what was missing, in
        all replies behind the scores of some trees, or else since it was opened.
        """
        read = {} if trees is None else self.behind(trees).as_json()
        return {
            "model": self.backend.model, "format": self.settings.format, "votes": self.verdicts.drawing.votes,
            "by_log_probability": self.verdicts.drawing.by_log_probability, "primed": self.backend.primes,
            "on_missing": self.settings.on_missing, "retried_requests": self.backend.num_retries,
            **self.asker.ledger.as_json(), **read,
        }  # fmt: skip

    def notes(self) -> list[str]:
        """What was spent and what was missing, in lines."""
        retried = [f"{self.backend.num_retries:,} requests had to be sent again"] * bool(self.backend.num_retries)
        return [f"Critic: {line}" for line in [self.described(), *self.asker.ledger.lines(), *retried]]

    def close(self) -> None:
        """End connections."""
        self.asker.replies.close()
        self.backend.close()

    # --- scores ---

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, or only of the wanted ones; unjudged nodes are NaN."""
        nodes = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        with bar_on_stderr("asking the critic", len(trees), shown=progress) as more:

            def both(done: int, _more: str = "", /) -> None:
                advance(done)
                more(done)

            judged = self.judge(trees, nodes, both)
        found = []
        for (log_odds_NO, _), own in zip(judged, nodes, strict=True):
            unjudged = tuple(node for node in own if math.isnan(log_odds_NO[node, 0]))
            found.append(TreeScores(self.outputs, log_odds_NO, unjudged=unjudged))
        return found

    def session(self, problems: Sequence[str]) -> CriticSession:
        """Growing trees of steps, one per problem."""
        return CriticSession(self, problems)

    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens were read and written to judge a tree, by the kept replies."""
        return self.behind([tree]).tokens

    def behind(self, trees: Iterable[StepTree]) -> Tally:
        """What the kept replies say about trees, whichever process asked for them."""
        work, tally = Work(only_kept=True), Tally()
        self.asker.run(work, [self._tree(work, tree, range(len(tree.nodes)), ignore, tally) for tree in trees])
        return tally

    def judge(
        self, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]], advance: Advance = ignore
    ) -> list[Judged]:
        """What the critic says about nodes of trees, with the tokens that it took."""
        work, pairs = Work(), zip(trees, nodes, strict=True)
        return self.asker.run(work, [self._tree(work, tree, own, advance, Tally()) for tree, own in pairs])

    # --- one tree ---

    async def _tree(self, work: Work, tree: StepTree, wanted: Sequence[int], advance: Advance, tally: Tally) -> Judged:
        log_odds_NO = np.full((len(tree.nodes), len(self.outputs)), np.nan)
        judge = self._solutions if self.reads_whole_solutions else self._nodes
        with contextlib.suppress(StopError):
            for node, row in (await judge(work, tree, wanted, tally)).items():
                log_odds_NO[node] = [_log_odds(value) for value in row]
            advance(1)
        return log_odds_NO, tally

    async def _solutions(
        self, work: Work, tree: StepTree, wanted: Sequence[int], tally: Tally
    ) -> dict[int, tuple[float, ...]]:
        """Judge each solution (a path to a leaf) once; a step of several solutions takes the verdict of the first."""
        inner, needed = set(tree.parents), set(wanted)
        paths = [tree.path(node) for node in range(len(tree.nodes)) if node not in inner]
        paths = [path for path in paths if needed & set(path)]
        verdicts = await gathered([self._verdict(work, tree, path, tally) for path in paths])
        found: dict[int, tuple[float, ...]] = {}
        for path, (rows, _) in zip(paths, verdicts, strict=True):
            for node, row in zip(path, rows, strict=True):
                if node in needed:
                    found.setdefault(node, row)
        return found

    async def _nodes(
        self, work: Work, tree: StepTree, wanted: Sequence[int], tally: Tally
    ) -> dict[int, tuple[float, ...]]:
        """Judge steps one by one; in a conversation, a step after what was written about those before it."""
        tasks: dict[int, asyncio.Task[tuple[Rows, str]]] = {}
        needed = set(wanted)

        def task(node: int) -> asyncio.Task[tuple[Rows, str]]:
            if node not in tasks:
                tasks[node] = asyncio.ensure_future(judge(node))
            return tasks[node]

        async def judge(node: int) -> tuple[Rows, str]:
            path = tree.path(node)
            sees_replies = self.format.granularity == "step" and "{reply}" in self.format.history
            replies = [(await task(one))[1] for one in path[:-1]] if sees_replies else [""] * (len(path) - 1)
            return await self._verdict(work, tree, path, tally if node in needed else Tally(), replies)

        verdicts = await gathered([task(node) for node in wanted])
        return {node: rows[0] for node, (rows, _) in zip(wanted, verdicts, strict=True)}

    async def _verdict(
        self, work: Work, tree: StepTree, path: Sequence[int], tally: Tally, replies: Sequence[str] = ()
    ) -> tuple[Rows, str]:
        """The verdict on all steps of a path at once, or on its last step after the turns about the others."""
        format = self.format
        system = format.filled(format.system, problem=tree.problem)
        turns: list[Turn] = [("system", system)] if system else []
        if format.granularity == "step":
            for at, node in enumerate(path):
                text, step = format.later if at else format.first, tree.nodes[node].text
                turns.append(("user", format.filled(text, problem=tree.problem, step=step, number=at + 1, index=at)))
                if at < len(replies):
                    turns.append(("assistant", format.filled(format.history, reply=replies[at])))
        else:
            solution = format.solution(tree.texts(path))
            turns.append(("user", format.filled(format.user, problem=tree.problem, solution=solution)))
        where = f"solution {tree.name or tree.tree_id}, step {len(path)}"
        return await self.verdicts.ask(work, tuple(turns), len(path), where, tally)


def _log_odds(probability: float) -> float:
    if math.isnan(probability):
        return math.nan
    if not 0 < probability < 1:
        return SURE if probability >= 1 else -SURE
    return float(np.clip(math.log(probability) - math.log1p(-probability), -SURE, SURE))


@dataclass(frozen=True, eq=False, slots=True)
class CriticStep:
    """A step that was judged, or a problem itself (a root)."""

    path: tuple[str, ...]
    """The problem and the steps up to here."""
    log_odds: tuple[float, ...] = ()
    num_tokens: int = 0
    """Tokens read and written to judge it."""

    @property
    def depth(self) -> int:
        """How many steps come before it; -1 for a root."""
        return len(self.path) - 2

    @property
    def probability(self) -> float:
        """P(the step is right); NaN if it was not judged."""
        return float(sigmoid(np.asarray(self.log_odds[0])))


class CriticSession(StepSession[CriticStep]):
    """Growing trees of steps in a search. A step holds all that is known of it, so `keep` and `drop` do nothing."""

    def __init__(self, critic: Critic, problems: Sequence[str]) -> None:
        self.critic = critic
        self.roots = [CriticStep((problem,)) for problem in problems]

    def extend(self, steps: Iterable[tuple[CriticStep, str]]) -> list[CriticStep]:
        """Judge one more step after each given one; equal steps after one share their node."""
        asked = list(steps)
        new = list(dict.fromkeys(asked))
        trees = [
            StepTree.chain(parent.path[0], [*parent.path[1:], text], tree_id=i) for i, (parent, text) in enumerate(new)
        ]
        judged = self.critic.judge(trees, [[len(tree.nodes) - 1] for tree in trees])
        made = {
            (parent, text): CriticStep((*parent.path, text), tuple(log_odds_NO[-1].tolist()), tally.tokens)
            for (parent, text), (log_odds_NO, tally) in zip(new, judged, strict=True)
        }
        return [made[one] for one in asked]

"""The engine: runs a method on many problems side by side, one batch of the policy and one of the PRM per round."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from prism_prm.chosen import card_values, choose_aggregator
from prism_prm.policies import Policy, StepRequest, Written, node_key, write_steps
from prism_prm.records import unique_names
from prism_prm.search.found import Found, found
from prism_prm.search.methods import Children, Expand, Search, SearchSettings, find_method
from prism_prm.search.rounds import Round
from prism_prm.search.scoring import Scoring
from prism_prm.search.tree import SearchNode, Spent, child, root

if TYPE_CHECKING:
    from prism_prm.scorer import Scorer

AT_ONCE = 32
"""Problems that are searched side by side."""


@dataclass(slots=True)
class Watch:
    """How far a run is, told after every round."""

    num_done: int = 0
    num_active: int = 0
    spent: Spent = field(default_factory=Spent)
    seconds: float = 0.0
    best: float = math.nan
    """The highest score of a finished solution so far."""
    rates: str = ""
    """Of each worker, where there are several."""

    def __add__(self, other: Watch) -> Watch:
        scores = [one.best for one in (self, other) if not math.isnan(one.best)]
        return Watch(
            self.num_done + other.num_done, other.num_active, self.spent + other.spent, self.seconds + other.seconds,
            max(scores, default=math.nan),
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class _Running:
    """A problem that is being searched."""

    index: int
    key: str
    search: Search
    wish: Expand
    spent: Spent = field(default_factory=Spent)
    alive: list[SearchNode] = field(default_factory=list)
    """Nodes that hold memory of the policy or the PRM."""
    finished: list[SearchNode] = field(default_factory=list)
    num_written: int = 0
    """Steps so far."""


def problem_keys(problems: Sequence[str]) -> list[str]:
    """What names each problem's noise: its text, numbered among equal texts."""
    return unique_names(problems)


class Engine:
    """Searches with one policy and at most one PRM."""

    def __init__(
        self,
        policy: Policy,
        prm: Scorer | None,
        settings: SearchSettings,
        *,
        at_once: int = AT_ONCE,
        watch: Callable[[Watch], None] = lambda _: None,
        tell: Callable[[Round], None] = lambda _: None,
    ) -> None:
        self.policy = policy
        self.prm = prm
        self.settings = replace(settings, aggregator=choose_aggregator(settings.aggregator, card_values(prm)).value)
        self.method = find_method(settings, prm is not None)
        self.at_once = at_once
        self.watch = watch
        self.tell = tell
        self.state = Watch()

    def run(self, problems: Sequence[str], keys: Sequence[str] | None = None) -> Iterator[Found]:
        """What was found for each problem, as soon as it is; `keys` name their noise."""
        keys = problem_keys(problems) if keys is None else keys
        started = time.monotonic()
        waiting = deque(range(len(problems)))
        active: list[_Running] = []
        with Scoring(self.prm, problems) as scoring:
            while waiting or active:
                while waiting and len(active) < self.at_once:
                    i = waiting.popleft()
                    active.append(self._start(i, problems[i], keys[i], scoring))
                done = self._round(active, scoring)
                active = [running for running in active if running not in done]
                scoring.score_solutions({running.index: nodes for running, nodes in done.items()})
                self.state.seconds = time.monotonic() - started
                self.state.num_active = len(active)
                for running, nodes in done.items():
                    spent = running.spent + scoring.finish(running.index)
                    self._note(nodes, spent)
                    yield found(running.index, nodes, spent)
                self.watch(self.state)

    def _start(self, index: int, problem: str, key: str, scoring: Scoring) -> _Running:
        start = root(self.policy.prompt(problem))
        start.scored = scoring.root(index)
        search = self.method.run(start, self.settings)
        return _Running(index, key, search, next(search), alive=[start])

    def _round(self, active: Sequence[_Running], scoring: Scoring) -> dict[_Running, list[SearchNode]]:
        """Answer every problem's wish; the solutions of those that are done."""
        self._let_go(active, scoring)
        grown = self._write(active)
        new = [
            (running.index, node)
            for running, children in zip(active, grown, strict=True)
            for some in children
            for node in some
            if running.wish.scored
        ]
        scoring.score_steps(new)
        done: dict[_Running, list[SearchNode]] = {}
        for running, children in zip(active, grown, strict=True):
            flat = [node for some in children for node in some]
            running.alive += flat
            running.finished += [node for node in flat if node.is_finished and not running.wish.keep]
            looked_ahead = bool(running.wish.keep)
            result = self._answer(running, children, flat)
            if result is not None:
                done[running] = result
            decided = None if running.wish.keep else [*running.wish.nodes, *running.wish.held]
            kept = decided if result is None else result
            self.tell(Round(running.index, flat, looked_ahead, kept, result is not None))
        return done

    def _answer(self, running: _Running, children: Children, flat: Sequence[SearchNode]) -> list[SearchNode] | None:
        """Hand a wish's children to the search; its solutions if that was its last wish."""
        limit = self.settings.max_policy_tokens
        if limit is not None and running.spent.policy_tokens >= limit:
            running.search.close()
            return list(dict.fromkeys([*running.finished, *running.wish.shown, *flat]))
        try:
            running.wish = running.search.send(children)
        except StopIteration as stop:
            return list(stop.value)
        return None

    def _let_go(self, active: Sequence[_Running], scoring: Scoring) -> None:
        """Free what no wish needs."""
        for running in active:
            needed = {*running.wish.nodes, *running.wish.keep}
            for node in running.alive:
                if node not in needed:
                    node.state = node.scored = None
            running.alive = [node for node in running.alive if node in needed]
        scoring.keep(node for running in active for node in running.alive)

    def _write(self, active: Sequence[_Running]) -> list[Children]:
        """The new children of every wish."""
        settings = self.settings
        asks: list[StepRequest] = []
        places: list[tuple[_Running, SearchNode, int]] = []
        for running in active:
            wish = running.wish
            for node, count in zip(wish.nodes, wish.counts, strict=True):
                # Greedy steps need no noise, so they take no number from those that do.
                first = -count if wish.greedy else node.num_children
                node.num_children += 0 if wish.greedy else count
                room = min(settings.sampling.max_step_tokens, settings.sampling.max_tokens - node.num_tokens)
                for number in range(first, first + count):
                    key = node_key(settings.seed, running.key, (*node.path, number))
                    asks.append(StepRequest(node.text, key, room, wish.greedy, node.state, start=node.start))
                    places.append((running, node, number))
        written = self._write_within(asks)
        children = [child(node, number, one) for (_, node, number), one in zip(places, written, strict=True)]
        for (running, _, _), node in zip(places, children, strict=True):
            running.num_written += 1
            node.number = running.num_written
            running.spent.policy_tokens += node.written.num_tokens
            self.state.spent.policy_tokens += node.written.num_tokens
        flat = iter(children)
        return [[[next(flat) for _ in range(count)] for count in running.wish.counts] for running in active]

    def _write_within(self, asks: Sequence[StepRequest]) -> list[Written]:
        """Ask the policy; a solution that has used up its tokens is cut without asking."""
        able = [ask for ask in asks if ask.max_tokens > 0]
        written = iter(write_steps(self.policy, able, self.settings.sampling))
        return [next(written) if ask.max_tokens > 0 else Written("", "cut", 0, 0.0) for ask in asks]

    def _note(self, nodes: Sequence[SearchNode], spent: Spent) -> None:
        self.state.num_done += 1
        self.state.spent.prm_tokens += spent.prm_tokens
        for node in nodes:
            if node.probabilities() is not None:
                score = math.exp(node.log_score(self.settings.how))
                self.state.best = score if math.isnan(self.state.best) else max(self.state.best, score)

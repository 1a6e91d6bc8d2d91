"""Search many problems at the same time, with one batch of the policy and one of the PRM per round."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from prism_prm.aggregate import card_values, choose_aggregator, segmenter_of
from prism_prm.backends.policy import (
    Policy,
    PolicySettings,
    StepRequest,
    Written,
    node_key,
    policy_for_workers,
    write_steps,
)
from prism_prm.job import Job, Opening, Workers
from prism_prm.scorer import Scorer
from prism_prm.search.methods import Children, Expand, Search, SearchSettings, find_method
from prism_prm.search.rounds import SearchRound
from prism_prm.search.tree import FoundSolution, SearchNode, SearchResult, child, root
from prism_prm.segments import DEFAULT_SEGMENTER
from prism_prm.tree import Step, StepTree, unique_names

Other = TypeVar("Other")
Make = Callable[[Mapping[str, str]], Other]


class Scoring:
    """Scores nodes of many problems; without a PRM it does nothing."""

    def __init__(
        self, prm: Scorer | None, problems: Sequence[str], turn: contextlib.AbstractContextManager[Any] | None = None
    ) -> None:
        self.prm = prm
        self.turn = turn or contextlib.nullcontext()
        """Held while the PRM works; a lock if others use it too."""
        self.problems = problems
        self.session = None if prm is None else prm.session(problems)
        self._tokens: dict[int, int] = {}

    def close(self) -> None:
        """Free the memory of the session."""
        if self.session is not None:
            self.session.close()

    def root(self, problem: int) -> Any:
        """The session's node of a problem."""
        return None if self.session is None else self.session.roots[problem]

    def keep(self, nodes: Iterable[SearchNode]) -> None:
        """Free the key/values of all other nodes."""
        if self.session is not None:
            roots = set(self.session.roots)
            self.session.keep(node.scored for node in nodes if node.scored is not None and node.scored not in roots)

    def finish(self, problem: int) -> int:
        """Free a problem's prompt too. Returns the PRM's tokens for the problem."""
        if self.session is not None:
            self.session.drop([self.session.roots[problem]])
        return self._tokens.pop(problem, 0)

    def score_steps(self, new: Sequence[tuple[int, SearchNode]]) -> None:
        """Score new steps, given as (problem, node). A step after one that could not be scored has no score either."""
        if self.session is None or self.prm is None:
            return
        together = [(problem, node.new_nodes()) for problem, node in new]
        for k in range(max((len(nodes) for _, nodes in together), default=0)):
            self._score_next([(problem, nodes[k]) for problem, nodes in together if k < len(nodes)])

    def _score_next(self, new: Sequence[tuple[int, SearchNode]]) -> None:
        """Score steps whose parents are scored."""
        assert self.session is not None and self.prm is not None, "score_steps checks it"  # noqa: PT018
        scorable = []
        for problem, node in new:
            parent = node.parent
            assert parent is not None, "a root is not scored"
            if not node.step:
                continue
            if parent.scored is None or not self.prm.can_score(node.step, parent.scored.depth + 1):
                node.probability = math.nan
            else:
                scorable.append((problem, node, parent.scored))
        counted: set[Any] = set()
        with self.turn:
            scored = self.session.extend([(parent, node.step) for _, node, parent in scorable])
        for (problem, node, _), result in zip(scorable, scored, strict=True):
            node.scored, node.probability, node.log_odds = result, result.probability, result.log_odds
            if result not in counted:
                counted.add(result)
                self._tokens.setdefault(problem, self.session.roots[problem].num_tokens)
                self._tokens[problem] += result.num_tokens

    def score_solutions(self, solutions: Mapping[int, Sequence[SearchNode]]) -> None:
        """Score solutions that have no scores yet; those of a problem are one packed tree."""
        if self.prm is None:
            return
        trees: list[tuple[int, StepTree, list[SearchNode]]] = []
        for problem, nodes in solutions.items():
            if any(node.probability is None for leaf in nodes for node in leaf.nodes()):
                trees.append((problem, *self._tree(self.prm, problem, nodes)))
        with self.turn:
            found = self.prm.score_trees([tree for _, tree, _ in trees])
        for (problem, tree, nodes), scores in zip(trees, found, strict=True):
            for node, probability, log_odds in zip(
                nodes, scores.probability.tolist(), scores.log_odds_NO.tolist(), strict=True
            ):
                node.probability, node.log_odds = probability, tuple(log_odds)
            self._tokens[problem] = self._tokens.get(problem, 0) + self.prm.count_tokens(tree)

    def _tree(self, prm: Scorer, problem: int, leaves: Sequence[SearchNode]) -> tuple[StepTree, list[SearchNode]]:
        """The steps of solutions as a tree, and the node of each. Ends before a step that cannot be scored."""
        number: dict[SearchNode, int] = {}
        parents: list[int] = []
        for leaf in leaves:
            before = -1
            for depth, node in enumerate(leaf.nodes()):
                if node not in number:
                    if not prm.can_score(node.step, depth):
                        break
                    number[node] = len(number)
                    parents.append(before)
                before = number[node]
        steps = tuple(Step(node.step) for node in number)
        return StepTree(problem, self.problems[problem], steps, tuple(parents), ()), list(number)


AT_ONCE = 32
"""The default number of problems that are searched or labeled at the same time."""


@dataclass(frozen=True, slots=True)
class RoundStats:
    """The cost of one round of all active problems."""

    tokens: int
    """Written by the policy."""
    num_active: int
    best: float = math.nan
    """The highest score of a finished solution so far."""
    rollouts: int = 0


class Speedometer:
    """Sums up rounds into the text beside a progress bar."""

    def __init__(self) -> None:
        self.started, self.tokens, self.rollouts, self.best, self.text = time.monotonic(), 0, 0, math.nan, ""

    def update(self, event: object) -> str:
        """Add a `RoundStats`, and return the text. Other events are ignored."""
        if isinstance(event, RoundStats):
            self.tokens, self.rollouts = self.tokens + event.tokens, self.rollouts + event.rollouts
            self.best = np.fmax(self.best, event.best)
            rate = self.tokens / max(time.monotonic() - self.started, 1e-9)
            shown = [f"{event.num_active} active", f"{rate:,.0f} tokens/s"]
            shown += [f"{self.rollouts:,} rollouts"] * bool(self.rollouts)
            shown += [f"best {self.best:.3f}"] * (not math.isnan(self.best))
            self.text = "   ".join(shown)
        return self.text


@contextlib.contextmanager
def policy_workers(job: Job, policy: PolicySettings, other: Opening[Other]) -> Iterator[Workers[tuple[Policy, Other]]]:
    """Open workers of the job's cluster; each holds the policy, and a PRM or a judge."""
    opening = policy_for_workers(policy)
    make = functools.partial(_make_both, policy=opening.make, other=other.make)
    folders = tuple(dict.fromkeys([*opening.folders, *other.folders]))
    with job.executor.open(Opening(make, folders, opening.loads or other.loads), alike=_identities) as workers:
        yield workers


def _make_both(folders: Mapping[str, str], *, policy: Make[Policy], other: Make[Other]) -> tuple[Policy, Other]:
    return policy(folders), other(folders)


def policy_identity(held: tuple[Policy, Any]) -> str:
    """The identity of the policy that a worker holds."""
    return held[0].identity()


def _identities(held: tuple[Policy, Any]) -> str:
    policy, other = held
    return f"{policy.identity()} {other.identity() if isinstance(other, Scorer) else ''}"


@dataclass(eq=False, slots=True)
class _Running:
    """A problem that is being searched."""

    index: int
    key: str
    search: Search
    expansion: Expand
    tokens: int = 0
    """Written by the policy so far."""
    alive: list[SearchNode] = field(default_factory=list)
    """Nodes that hold memory of the policy or the PRM."""
    finished: list[SearchNode] = field(default_factory=list)
    num_written: int = 0
    """Steps so far."""


class SearchEngine:
    """Searches with one policy, and a PRM or none."""

    def __init__(
        self,
        policy: Policy,
        prm: Scorer | None,
        settings: SearchSettings,
        *,
        at_once: int = AT_ONCE,
        turn: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        self.policy = policy
        self.prm = prm
        sampling = settings.sampling
        if sampling.segmenter is None and (segmenter := segmenter_of(prm)) != DEFAULT_SEGMENTER:
            sampling = replace(sampling, segmenter=segmenter)
        aggregator = choose_aggregator(settings.aggregator, card_values(prm)).value
        self.settings = replace(settings, aggregator=aggregator, sampling=sampling)
        self.method = find_method(settings, prm is not None)
        self.at_once = at_once
        self.turn = turn

    def run(
        self, problems: Sequence[str], keys: Sequence[str] | None = None
    ) -> Generator[SearchResult | SearchRound | RoundStats]:
        """Yield each problem's result as soon as it is done, and every round. `keys` seed the random numbers."""
        keys = unique_names(problems) if keys is None else keys
        waiting = deque(range(len(problems)))
        active: list[_Running] = []
        with contextlib.closing(Scoring(self.prm, problems, self.turn)) as scoring:
            while waiting or active:
                while waiting and len(active) < self.at_once:
                    i = waiting.popleft()
                    start = root(self.policy.prompt(problems[i]))
                    start.scored = scoring.root(i)
                    search = self.method.run(start, self.settings)
                    active.append(_Running(i, keys[i], search, next(search), alive=[start]))
                rounds, done = self._round(active, scoring)
                yield from rounds
                active = [running for running in active if running not in done]
                scoring.score_solutions({running.index: nodes for running, nodes in done.items()})
                best = math.nan
                for running, nodes in done.items():
                    solutions = tuple(map(FoundSolution.of, nodes))
                    yield SearchResult(running.index, solutions, running.tokens, scoring.finish(running.index))
                    aggregator = self.settings.effective_aggregator
                    scored = [node.log_score(aggregator) for node in nodes if node.probabilities() is not None]
                    best = np.fmax(best, math.exp(max(scored))) if scored else best
                tokens = sum(node.written.num_tokens for search_round in rounds for node in search_round.new)
                yield RoundStats(tokens, len(active), best)

    def _round(
        self, active: Sequence[_Running], scoring: Scoring
    ) -> tuple[list[SearchRound], dict[_Running, list[SearchNode]]]:
        """Write and score every problem's expansion. Returns the rounds, and the solutions of finished problems."""
        for running in active:  # free nodes that no expansion needs
            needed = {*running.expansion.nodes, *running.expansion.keep}
            for node in running.alive:
                if node not in needed:
                    node.state = node.scored = None
            running.alive = [node for node in running.alive if node in needed]
        scoring.keep(node for running in active for node in running.alive)
        grown = self._write(active)
        new = [
            (running.index, node)
            for running, children in zip(active, grown, strict=True)
            for siblings in children
            for node in siblings
            if running.expansion.scored
        ]
        scoring.score_steps(new)
        rounds: list[SearchRound] = []
        done: dict[_Running, list[SearchNode]] = {}
        for running, children in zip(active, grown, strict=True):
            flat = [node for siblings in children for node in siblings]
            running.alive += flat
            looked_ahead = running.expansion.ahead
            running.finished += [node for node in flat if node.is_finished and not looked_ahead]
            result = self._advance(running, children, flat)
            if result is not None:
                done[running] = result
            # What comes next is the search's decision, unless it looks ahead before it decides.
            decided = None if running.expansion.ahead else [*running.expansion.nodes, *running.expansion.held]
            kept = decided if result is None else result
            new_nodes = [one for node in flat for one in node.new_nodes()]
            rounds.append(SearchRound(running.index, new_nodes, looked_ahead, kept, result is not None))
        return rounds, done

    def _advance(self, running: _Running, children: Children, flat: Sequence[SearchNode]) -> list[SearchNode] | None:
        """Send an expansion's children to the search. Returns its solutions if that was the last expansion."""
        limit = self.settings.max_policy_tokens
        if limit is not None and running.tokens >= limit:
            running.search.close()
            expansion = running.expansion
            earlier = expansion.held if self.method.independent else running.finished
            new = [node for node in flat if not node.falls_below(expansion.hope)]
            return list(dict.fromkeys([*earlier, *expansion.shown, *new]))
        try:
            running.expansion = running.search.send(children)
        except StopIteration as stop:
            return list(stop.value)
        return None

    def _write(self, active: Sequence[_Running]) -> list[Children]:
        """The new children of every expansion."""
        settings = self.settings
        requests: list[StepRequest] = []
        parents: list[tuple[_Running, SearchNode, int]] = []
        for running in active:
            expansion = running.expansion
            for node, count in zip(expansion.nodes, expansion.counts, strict=True):
                # Greedy steps need no random numbers, so they must not shift the numbering of sampled steps.
                first = -count if expansion.greedy else node.num_children
                node.num_children += 0 if expansion.greedy else count
                whole = expansion.whole and getattr(self.policy, "writes_whole", False)
                room = settings.sampling.max_tokens - node.num_tokens
                room = room if whole else min(settings.sampling.max_step_tokens, room)
                num_steps = len(node.nodes())
                for number in range(first, first + count):
                    key = node_key(settings.seed, running.key, (*node.path, number))
                    request = StepRequest(
                        node.text, key, room, expansion.greedy, node.state, whole, start=node.start, num_steps=num_steps
                    )
                    requests.append(request)
                    parents.append((running, node, number))
        # A solution that has used up its tokens is cut off without a request.
        steps = iter(write_steps(self.policy, [one for one in requests if one.max_tokens > 0], settings.sampling))
        written = [next(steps) if one.max_tokens > 0 else Written("", "cut", 0, 0.0) for one in requests]
        children = [
            child(node, number, step, settings.sampling, whole=request.whole)
            for (_, node, number), step, request in zip(parents, written, requests, strict=True)
        ]
        for (running, _, _), node in zip(parents, children, strict=True):
            for one in node.new_nodes():
                running.num_written += 1
                one.number = running.num_written
            running.tokens += node.written.num_tokens
        flat = iter(children)
        return [[[next(flat) for _ in range(count)] for count in running.expansion.counts] for running in active]


def search_problems(
    policy: Policy, prm: Scorer | None, problems: Sequence[str], settings: SearchSettings, *, at_once: int = AT_ONCE
) -> list[SearchResult]:
    """Search for solutions of each problem. Returns a `SearchResult` per problem, in order.

    Args:
        policy: the policy that writes steps.
        prm: the PRM that scores them; None for methods that need no PRM.
        problems: the texts of the problems.
        settings: the method and its size.
        at_once: the number of problems searched at the same time.

    Example:
        >>> settings = SearchSettings(method="beam", n=4, max_steps=2, sampling=Sampling(max_step_tokens=4))
        >>> [result] = search_problems(open_policy("hf:my-lm"), load_prm("my-prm"), ["1 + 2?"], settings)
        >>> len(result.solutions) <= 4
        True
    """
    engine = SearchEngine(policy, prm, settings, at_once=at_once)
    results = [event for event in engine.run(problems) if isinstance(event, SearchResult)]
    return sorted(results, key=lambda result: result.problem)

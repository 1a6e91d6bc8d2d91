"""Searches behind chat requests: model names such as `my-policy@beam-16`, the threads that search, and the last trees.

An answer is that of `prism search` with the same policy, PRM, settings and seed. A search whose client disconnects
stops within a tenth of a second plus one token of a local policy, or one batch of the PRM.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from urllib.parse import parse_qsl

import numpy as np
from prometheus_client import CollectorRegistry, Gauge, Histogram

from prism_prm.aggregate import card_values, choose_threshold, log_score
from prism_prm.backends.policy import (
    PolicySettings,
    Sampling,
    StepRequest,
    StoppablePolicy,
    Written,
    has_chat_template,
    open_policy,
    render,
    split_name,
)
from prism_prm.errors import ConfigError, DataError, ModelError, PrismError
from prism_prm.grading.extract import extract_answer
from prism_prm.grading.graders import Judge
from prism_prm.models.prm import PRM
from prism_prm.net import RESUME, ServerError, TooLongError
from prism_prm.paths import is_hub_id, own_name
from prism_prm.paths import split_name as split_place
from prism_prm.scorer import Scorer
from prism_prm.search.engine import SearchEngine
from prism_prm.search.methods import SearchSettings
from prism_prm.search.rounds import RecordedSearch, SearchRound, record_round
from prism_prm.search.select import SELECTORS, Candidates
from prism_prm.search.tree import FoundSolution, SearchResult
from prism_prm.serve.admission import Admission, RefusedError, log_failure
from prism_prm.serve.models import ServedModel, ServedPRM
from prism_prm.serve.page_documents import HEAD, Document, tree_content
from prism_prm.serve.settings import ServeSettings

log = logging.getLogger(__name__)

RULES: dict[str, tuple[Literal["best-of-n", "beam", "dvts"], str]] = {
    "best-of": ("best-of-n", "argmax"),
    "vote": ("best-of-n", "weighted"),
    "beam": ("beam", "weighted"),
    "dvts": ("dvts", "weighted"),
}
"""The rule in a model's name → `--method` and `--select` of `prism search`."""
OWNER = "prism-search"
"""`owned_by` of these models in /v1/models: they score nothing."""
POLL_SECONDS = 0.1
POLICY_RETRIES = 2
MOST_VERDICTS = 10_000
"""Answers whose keys are cached."""
UNLIMITED = 2**40
"""More candidates than can wait: searches are limited by number and time."""
_RULE = re.compile(rf"({'|'.join(RULES)})-([1-9]\d{{0,8}})")


class StoppedError(Exception):
    """The client of a search has left."""


@dataclass(frozen=True, slots=True)
class ChatSearch:
    """A search that a client asks for."""

    name: str
    """The model's name, as the client wrote it."""
    rule: str
    prm: str
    system: str | None
    turns: tuple[tuple[str, str], ...]
    """(role, text) of the other turns; the last is the user's."""
    settings: SearchSettings

    @property
    def problem(self) -> str:
        """What the PRM reads, and what random keys depend on: the only turn's text, or all turns with their roles."""
        if len(self.turns) == 1:
            return self.turns[0][1]
        return "\n\n".join(f"{role.capitalize()}: {text}" for role, text in self.turns)


@dataclass(frozen=True, slots=True)
class Searched:
    """The outcome of a search."""

    solutions: tuple[FoundSolution, ...]
    answers: tuple[str | None, ...]
    log_scores: tuple[float, ...]
    chosen: int
    aggregator: str
    prompt_tokens: int
    policy_tokens: int
    prm_tokens: int
    num_rounds: int

    @property
    def ranking(self) -> list[int]:
        """The solutions: the chosen one, then the others by score."""
        return sorted(range(len(self.solutions)), key=lambda i: (i != self.chosen, -self.log_scores[i], i))


@dataclass(frozen=True, slots=True)
class _KeptSearch:
    """A finished search, for the page."""

    number: int
    owner: Hashable
    seen: RecordedSearch
    found: Searched
    how: Mapping[str, Any]


class SearchMetrics:
    """Prometheus metrics of searches."""

    def __init__(self, registry: CollectorRegistry, admission: Admission) -> None:
        waiting = Gauge("prism_waiting_searches", "Searches that wait or run.", registry=registry)
        waiting.set_function(lambda: admission.num_requests)
        self.running = Gauge("prism_running_searches", "Searches that run.", registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"prism_search_{name}", text, ["rule"], registry=registry, buckets=buckets)

        tokens = [10**k * digit for k in range(1, 6) for digit in (1, 3)]
        self.policy_tokens = histogram("policy_tokens", "Tokens that the policy wrote for one answer.", tokens)
        self.prm_tokens = histogram("prm_tokens", "Tokens that the PRM read for one answer.", tokens)
        self.rounds = histogram("rounds", "Rounds of one search.", (1, 2, 4, 8, 16, 32, 64))


class Searches:
    """Searches with one policy and the served PRMs. Methods run in the event loop, except `open` and `_run`."""

    def __init__(
        self,
        policy: PolicySettings | StoppablePolicy,
        settings: ServeSettings,
        search: SearchSettings,
        registry: CollectorRegistry,
        turn: threading.Lock,
    ) -> None:
        given = policy.name if isinstance(policy, PolicySettings) else f"policy={policy.name}"
        self.name, self._place = split_place(given)
        self.settings = settings
        self.search = search
        limits = replace(
            settings, deadline=settings.search_seconds, training_seconds=settings.search_seconds,
            max_requests=settings.max_searches, max_tokens=UNLIMITED,
        )  # fmt: skip
        self.admission = Admission(limits, tokens_per_byte=1.0)
        """Counts candidates as tokens: a search takes time in proportion to its n."""
        self.metrics = SearchMetrics(registry, self.admission)
        self.prms: dict[str, Scorer] = {}
        self._given = policy
        self._policy: StoppablePolicy | None = None
        self._turn = turn
        """Held while a PRM works: the model thread scores with it, too."""
        self._policy_turn = threading.Lock()
        """Held while a local policy works."""
        self._threads = ThreadPoolExecutor(settings.searches, thread_name_prefix="search")
        self._num_running = 0
        self._counting = threading.Lock()
        self._is_closed = False
        self._judge = Judge(workers=1)
        self._judging = threading.Lock()
        self._kept: deque[_KeptSearch] = deque(maxlen=settings.kept_searches)
        self._numbers = itertools.count(1)

    def open(self, models: Sequence[ServedModel]) -> None:
        """Open the policy, and use these models as PRMs."""
        if isinstance(self._given, PolicySettings):
            retry = self._given.retry
            seconds = min(retry.timeout, self.settings.search_seconds)
            retry = replace(retry, timeout=seconds, retries=min(retry.retries, POLICY_RETRIES))
            likelihood = self._given.log_likelihood or self.search.prm_weight < 1
            opened = replace(self._given, name=self._place, retry=retry, log_likelihood=likelihood)
            self._policy = open_policy(opened)
            kind, place = split_name(opened)
            own = place if kind == "hf" else getattr(self._policy, "model", place)
            self.name = self.name or (own if is_hub_id(own) else own_name(own))
        else:
            self._policy = self._given
        self.prms = {model.name: _for_search(model) for model in models}
        self.admission.is_loaded = True

    def close(self) -> None:
        """Stop all searches."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._judge.close()
        if self._policy is not None and isinstance(self._given, PolicySettings):
            self._policy.close()

    def cards(self) -> list[dict[str, Any]]:
        """The models for /v1/models, at the default n; others work, too."""
        n = min(self.search.n, self.settings.max_n)
        return [self.card(f"{self.name}@{rule}-{n}") for rule in RULES]

    def card(self, name: str) -> dict[str, Any]:
        """One model for /v1/models; DataError if there is no such model."""
        rule, prm, settings = self.read_name(name)
        return {
            "id": name, "object": "model", "owned_by": OWNER, "method": settings.method, "select": RULES[rule][1],
            "n": settings.n, "prm": prm,
        }  # fmt: skip

    def read_name(self, name: str) -> tuple[str, str, SearchSettings]:
        """(rule, PRM, settings) of a model's name; DataError if there is no such model."""
        head, _, query = name.partition("?")
        policy, _, rule = head.rpartition("@")
        matched = _RULE.fullmatch(rule)
        if policy != self.name or matched is None:
            raise DataError(
                f"The model {name[:100]!r} does not exist; models are {self.name}@RULE-N with the rules "
                f"{', '.join(RULES)} and N up to {self.settings.max_n}, such as {self.name}@best-of-16."
            )
        n = int(matched[2])
        if n > self.settings.max_n:
            raise DataError(
                f"The model {name[:100]!r} has n = {n:,}, but this server's limit is {self.settings.max_n}."
            )
        given = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := next((key for key in given if key not in ("aggregator", "prm")), None):
            raise DataError(f"The model {name[:100]!r} has the option {unknown[:40]!r}; known: aggregator, prm.")
        prm = given.get("prm", next(iter(self.prms)))
        if prm not in self.prms:
            raise DataError(f"The PRM {prm[:100]!r} does not exist; PRMs are {', '.join(self.prms)}.")
        try:
            settings = replace(
                self.search,
                method=RULES[matched[1]][0],
                n=n,
                aggregator=given.get("aggregator", self.search.aggregator),
            )
        except ConfigError as error:
            raise DataError(f"The model {name[:100]!r}: {error}") from None
        return matched[1], prm, settings

    async def run(self, ask: ChatSearch, owner: Hashable, since: float) -> Searched:
        """Search; RefusedError if there is no room, time is up, or the policy fails. Canceling it stops the work."""
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set() or self._is_closed:
                raise StoppedError

        try:
            async with self.admission.admit("search", since, ask.settings.n):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, self._run, ask, owner, check)
        except TimeoutError:
            raise RefusedError(504, f"Not answered within {self.settings.search_seconds:g} seconds.", 1) from None
        finally:
            stopped.set()

    def documents(self, owner: Hashable) -> dict[str, Document]:
        """The last searches of one key, for the page."""
        kept = [one for one in list(self._kept) if one.owner == owner][::-1]
        if not kept:
            return {}
        ids = [f"requests-{one.number}" for one in kept]
        problems = [
            {"id": name, "text": one.seen.key[:HEAD], "steps": len(one.seen.steps), "rounds": len(one.seen.kept),
             "running": False, "right": None}
            for name, one in zip(ids, kept, strict=True)
        ]  # fmt: skip
        title = f"Last requests to {self.name}"
        overview = Document("search", title, partial(dict, how={}, problems=problems), version=" ".join(ids))
        trees = {
            name: Document("tree", f"{title}, {one.number}", partial(_tree, one), listed=False, version=name)
            for name, one in zip(ids, kept, strict=True)
        }
        return {"requests": overview} | trees

    # The search threads

    def _run(self, ask: ChatSearch, owner: Hashable, check: Callable[[], None]) -> Searched:
        check()
        assert self._policy is not None, "the policy is open"
        policy = _Policy(self._policy, ask, self._policy_turn, check)
        prompt_tokens = policy.count_prompt()
        settings, started = ask.settings, time.monotonic()
        engine = SearchEngine(policy, self.prms[ask.prm], settings, at_once=1, turn=self._turn)
        seen, result, num_rounds = RecordedSearch(ask.problem), None, 0
        self._count_running(1)
        try:
            with contextlib.closing(engine.run([ask.problem])) as events:
                for event in events:
                    check()
                    if isinstance(event, SearchRound):
                        num_rounds += 1
                        seen.add(record_round(event, likelihood=settings.prm_weight < 1))
                    elif isinstance(event, SearchResult):
                        result = event
            seconds = time.monotonic() - started
            self.admission.note_rate("search", self._num_running * settings.n, seconds, is_full=True)
        finally:
            self._count_running(-1)
        assert result is not None, "a search has a result"
        found = self._select(ask, engine.settings.effective_aggregator, result, prompt_tokens, num_rounds)
        self.metrics.policy_tokens.labels(ask.rule).observe(found.policy_tokens)
        self.metrics.prm_tokens.labels(ask.rule).observe(found.prm_tokens)
        self.metrics.rounds.labels(ask.rule).observe(num_rounds)
        how = {
            "method": ask.rule, "n": settings.n, "prm": ask.prm, "aggregator": found.aggregator, "seed": settings.seed,
            "threshold": choose_threshold(None, card_values(self.prms[ask.prm])).value,
        }  # fmt: skip
        self._kept.append(_KeptSearch(next(self._numbers), owner, seen, found, how))
        return found

    def _count_running(self, change: int) -> None:
        with self._counting:
            self._num_running += change
            self.metrics.running.set(self._num_running)

    def _select(
        self, ask: ChatSearch, aggregator: str, result: SearchResult, prompt_tokens: int, num_rounds: int
    ) -> Searched:
        """Select as `prism search` does; if no solution has an answer to vote for, the best-scored one."""
        solutions = result.solutions
        log_scores = [log_score(one.scores, aggregator, one.steps) if one.scores else -np.inf for one in solutions]
        answers = [extract_answer(text_of(one)).answer for one in solutions]
        selector = RULES[ask.rule][1]
        keys: list[str | None] = [None] * len(answers)
        if selector == "weighted":
            with self._judging:
                keys = [key.key for key in self._judge.keys(answers)]
                self._judge.forget(MOST_VERDICTS)
        candidates = Candidates(keys, np.array(log_scores))
        chosen = SELECTORS[selector](candidates)
        chosen = SELECTORS["argmax"](candidates) if chosen is None else chosen
        if chosen is None:
            raise RefusedError(502, "The policy wrote no solution.")
        return Searched(
            solutions, tuple(answers), tuple(log_scores), chosen, aggregator, prompt_tokens, result.policy_tokens,
            result.prm_tokens, num_rounds,
        )  # fmt: skip


class _Policy:
    """The policy as one search sees it: with the client's turns, and stopped when the client is gone."""

    def __init__(
        self, policy: StoppablePolicy, ask: ChatSearch, turn: threading.Lock, check: Callable[[], None]
    ) -> None:
        self.policy, self.ask, self.check = policy, ask, check
        self.name, self.has_log_likelihood = policy.name, policy.has_log_likelihood
        self.context: int | None = getattr(policy, "context", None)
        self.turn = turn if self.context is not None else None
        """Only local policies have a known context, and cannot work for two searches at once."""

    def identity(self) -> str:
        return self.policy.identity()

    def close(self) -> None:
        """Do nothing: other searches use the policy."""

    def prompt(self, problem: str) -> str:
        system, (*earlier, (_, question)) = self.ask.system, self.ask.turns
        if system is None and not earlier:
            return self.policy.prompt(problem)
        prompting, tokenizer = self.policy.prompting, self.policy.tokenizer  # type: ignore[attr-defined]
        if earlier and not has_chat_template(prompting, tokenizer):
            raise DataError(
                f"The policy has no chat template, so it takes one user turn, perhaps after a system's; got "
                f"{len(self.ask.turns)} turns. Send them as one text."
            )
        prompting = prompting if system is None else replace(prompting, system=system)
        try:
            return render(question, prompting, tokenizer, earlier)
        except ModelError as error:
            raise DataError(f"The policy's chat template does not take these turns: {error.__cause__}") from None

    def count_prompt(self) -> int:
        """The tokens of the prompt (estimated without a tokenizer); DataError if they fill the policy's context."""
        text, tokenizer = self.prompt(self.ask.problem), getattr(self.policy, "tokenizer", None)
        count = max(1, len(text) // 4) if tokenizer is None else len(tokenizer(text)["input_ids"])
        if self.context is not None and count >= self.context:
            raise DataError(
                f"The prompt has {count:,} tokens, but the policy's context is {self.context:,}; shorten it."
            )
        return count

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        self.check()
        while self.turn is not None and not self.turn.acquire(timeout=POLL_SECONDS):
            self.check()
        try:
            return self.policy.write(requests, sampling, check=self.check)
        except StoppedError:
            raise
        except TooLongError as error:
            raise DataError(
                f"The prompt, with the steps written so far, is longer than the policy's context ({error}); shorten "
                "it, or ask for fewer max_tokens."
            ) from None
        except ServerError as error:
            busy = error.status == 503
            reason = str(error).removesuffix(RESUME)
            raise RefusedError(503 if busy else 502, f"The policy failed: {reason}", 1 if busy else None) from None
        except PrismError as error:
            raise RefusedError(502, f"The policy failed: {error}") from None
        except Exception as error:
            log_failure("the policy", error)
            raise RefusedError(502, f"The policy failed ({type(error).__name__}); see the server's log.") from None
        finally:
            if self.turn is not None:
                self.turn.release()


def text_of(solution: FoundSolution) -> str:
    """A solution as one text."""
    return "\n\n".join(solution.steps)


def _for_search(model: ServedModel) -> Scorer:
    """The PRM as `prism search` uses it: a step beyond its context has no score, and is no error."""
    if not isinstance(model, ServedPRM):
        return model.scorer
    prm: PRM = copy.copy(model.prm)
    prm.family = model.family  # without a text cache, which would grow without limit
    if prm.on_too_long == "error":
        prm.on_too_long = "skip"
    return prm


def _tree(kept: _KeptSearch) -> dict[str, Any]:
    found = kept.found
    grades = [{"answer": answer, "correct": None, "status": "ok"} for answer in found.answers]
    return tree_content(kept.seen, [one.scores for one in found.solutions], kept.how, found.chosen, grades)

"""What a policy is: it continues a text by one step.

A policy is a function of TEXT. What it keeps between steps (key/values) only saves work: the same text, noise key and
sampling settings give the same step, whatever else is in the batch and whoever wrote the text.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

from prism_prm.errors import PrismError
from prism_prm.ranges import Count, NotNegative, Range, check
from prism_prm.steps import STOP, ends_step

Ending = Literal["stop", "end", "cut"]
"""Why a step is over: the stop string, the end of the solution, or a limit on tokens."""

MAX_BLANKS = 4
"""How often a policy may write nothing but the stop string before its solution counts as cut."""


class PolicyError(PrismError):
    """A policy that cannot be reached, or does not do what a search needs."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How steps are sampled."""

    temperature: NotNegative = 0.8
    """The sampling temperature. 0 is greedy."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    """Nucleus sampling: sample from the likeliest tokens that together have this probability."""
    max_step_tokens: Count = 512
    """A step with more tokens than this ends its solution, which then counts as cut."""
    max_tokens: Count = 2048
    """A solution is cut after this many tokens."""
    stop: str = STOP
    """The text between two steps. Within code it ends a step only where brackets and strings are closed."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Ask:
    """One step to write."""

    text: str
    """The prompt and all that was written so far."""
    key: int
    """Names the noise of sampling: equal keys draw equally."""
    max_tokens: int
    greedy: bool = False
    """Take the likeliest tokens, whatever the temperature."""
    state: Any = None
    """What the policy returned for the text so far, or for a text that begins with it; None is always right, and
    slower."""
    whole: bool = False
    """Write to the end of the solution, over all stop strings."""
    keep: bool = True
    """Whether the state of what is written will be of use; if not, it is not kept."""
    start: int = 0
    """Where in the text the solution begins, behind the prompt."""


@dataclass(frozen=True, slots=True)
class Written:
    """One step as it was written."""

    text: str
    """Where `ending` is "stop", the text so far and this end with the stop string."""
    ending: Ending
    num_tokens: int
    log_likelihood: float | None = None
    """The log-likelihood of all its tokens, at temperature 1; None if the policy does not give it."""
    state: Any = None
    ids: tuple[int, ...] = ()
    """Its tokens but the end of the text, if the policy is local."""


class Policy(Protocol):
    """A policy, which writes steps."""

    name: str
    """As the user named it."""
    has_log_likelihood: bool

    def identity(self) -> str:
        """What decides its texts, for telling whether earlier work can be used."""

    def prompt(self, problem: str) -> str:
        """The text before the first step."""

    def write(self, asks: Sequence[Ask], sampling: Sampling) -> list[Written]:
        """One continuation per ask, up to the stop string (unless it is `whole`), the end, or a limit."""

    def close(self) -> None:
        """Let go of connections and memory."""


def node_key(seed: int, problem: str, path: Sequence[int]) -> int:
    """The noise key of a node: 63 bits of (seed, problem, path of child numbers)."""
    said = repr((seed, problem, tuple(path))).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "big") >> 1


def write_steps(policy: Policy, asks: Sequence[Ask], sampling: Sampling) -> list[Written]:
    """`policy.write`, by whole steps: after a blank text or within an expression the policy is asked to continue.

    A solution that ends right after a stop string gives a blank text with ending "end".
    """
    done: list[Written] = policy.write(asks, sampling)
    for attempt in itertools.count(1):
        again = [i for i, found in enumerate(done) if found.ending == "stop" and not _is_step(asks[i], found)]
        for i in again:
            is_blank = not done[i].text.strip()
            if attempt >= MAX_BLANKS if is_blank else done[i].num_tokens >= asks[i].max_tokens:
                done[i] = replace(done[i], ending="cut", state=None)
        again = [i for i in again if done[i].ending == "stop"]
        if not again:
            break
        more = policy.write([_further(asks[i], done[i], attempt) for i in again], sampling)
        for i, found in zip(again, more, strict=True):
            done[i] = _joined(done[i], found)
    return done


def _is_step(ask: Ask, found: Written) -> bool:
    return bool(found.text.strip()) and ends_step(ask.text[ask.start :] + found.text)


def _further(ask: Ask, so_far: Written, attempt: int) -> Ask:
    left = max(1, ask.max_tokens - so_far.num_tokens)
    return replace(
        ask, text=ask.text + so_far.text, key=ask.key ^ attempt, max_tokens=left, state=so_far.state or ask.state
    )


def _joined(a: Written, b: Written) -> Written:
    total = None
    if a.log_likelihood is not None and b.log_likelihood is not None:
        total = a.log_likelihood + b.log_likelihood
    return Written(a.text + b.text, b.ending, a.num_tokens + b.num_tokens, total, b.state)


def cut_at_stop(text: str, stop: str) -> tuple[str, bool]:
    """The text up to and with the first stop string, and whether there is one; "" stops nothing."""
    at = text.find(stop) if stop else -1
    return (text, False) if at < 0 else (text[: at + len(stop)], True)

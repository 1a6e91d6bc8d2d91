"""What a policy is (it continues a text by one step), how problems become prompts, and how a policy is opened by name.

A policy is a function of TEXT. What it keeps between steps (key/values) only saves work: the same text, random key and
sampling settings give the same step, whatever else is in the batch and whoever wrote the text.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np

from prism_prm.config import Count, NotNegative, Range, check
from prism_prm.errors import ConfigError, ModelError, PrismError, SettingError
from prism_prm.job import Opening
from prism_prm.models.model_files import check_model, load_tokenizer, render_chat
from prism_prm.net import RetryPolicy, Server, server_address
from prism_prm.paths import no_connection
from prism_prm.steps import STOP, ends_step

Ending = Literal["stop", "end", "cut"]
"""Why a step is over: the stop string, the end of the solution, or a limit on tokens."""

MARK = "{problem}"
"""Where in the user turn the problem goes."""
MAX_BLANKS = 4
"""How often a policy may write nothing but the stop string before its solution counts as cut."""


class PolicyError(PrismError):
    """A policy that cannot be reached, or does not do what a search needs."""


@dataclass(frozen=True, slots=True)
class Prompting:
    """How a problem is asked."""

    system: str = ""
    """The system turn of the prompt. By default the chat template decides."""
    user: str = MARK
    """The user turn of the prompt. `{problem}` is replaced by the problem."""
    template: Literal["auto", "none"] = "auto"
    """How problems are sent: with the tokenizer's chat template if it has one (auto), or as plain text (none)."""

    def __post_init__(self) -> None:
        check(self)
        if MARK not in self.user:
            raise SettingError("user", self.user, f"must have {MARK} in it, where the problem goes")


def render(problem: str, prompting: Prompting, tokenizer: Any) -> str:
    """The prompt of a problem as text."""
    user = prompting.user.replace(MARK, problem)
    if prompting.template == "none" or tokenizer is None or not getattr(tokenizer, "chat_template", None):
        return f"{prompting.system}\n\n{user}\n\n" if prompting.system else f"{user}\n\n"
    return chat_text(tokenizer, [*[("system", prompting.system)] * bool(prompting.system), ("user", user)])


def chat_text(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> str:
    """Turns of (role, content) in the chat template, without a beginning-of-sequence token.

    Servers and `tokenizer(text)` add that token themselves; in the text it would occur twice.
    """
    messages = [{"role": role, "content": content} for role, content in turns]
    text = render_chat(tokenizer, messages, add_generation_prompt=True)
    bos = tokenizer.bos_token
    if bos and text.startswith(bos) and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]:
        text = text[len(bos) :]
    return text


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
class StepRequest:
    """One step to write."""

    text: str
    """The prompt and all that was written so far."""
    key: int
    """The key of its random numbers: equal keys draw equally."""
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

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """One continuation per request, up to the stop string (unless it is `whole`), the end, or a limit."""

    def close(self) -> None:
        """Close connections and free memory."""


def node_key(seed: int, problem: str, path: Sequence[int]) -> int:
    """The random key of a node: 63 bits of (seed, problem, path of child numbers)."""
    said = repr((seed, problem, tuple(path))).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "big") >> 1


def rng(key: int) -> np.random.Generator:
    """The random numbers of a key; a step takes one in [0, 1) per token."""
    return np.random.Generator(np.random.Philox(key=key))


def write_steps(policy: Policy, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
    """`policy.write`, by whole steps: after a blank text or within an expression the policy is asked to continue.

    A solution that ends right after a stop string gives a blank text with ending "end".
    """
    done: list[Written] = policy.write(requests, sampling)
    for attempt in itertools.count(1):
        again = []
        for i, (request, found) in enumerate(zip(requests, done, strict=True)):
            is_blank = not found.text.strip()
            if found.ending != "stop" or (not is_blank and ends_step(request.text[request.start :] + found.text)):
                continue
            if attempt >= MAX_BLANKS if is_blank else found.num_tokens >= request.max_tokens:
                done[i] = replace(found, ending="cut", state=None)
            else:
                again.append(i)
        if not again:
            break
        further = []
        for one, so_far in ((requests[i], done[i]) for i in again):
            left = max(1, one.max_tokens - so_far.num_tokens)
            text, state = one.text + so_far.text, so_far.state or one.state
            further.append(replace(one, text=text, key=one.key ^ attempt, max_tokens=left, state=state))
        for i, more in zip(again, policy.write(further, sampling), strict=True):
            both = done[i].log_likelihood, more.log_likelihood
            total = None if both[0] is None or both[1] is None else both[0] + both[1]
            num_tokens = done[i].num_tokens + more.num_tokens
            done[i] = Written(done[i].text + more.text, more.ending, num_tokens, total, more.state)
    return done


def cut_at_stop(text: str, stop: str) -> tuple[str, bool]:
    """The text up to and with the first stop string, and whether there is one; "" stops nothing."""
    at = text.find(stop) if stop else -1
    return (text, False) if at < 0 else (text[: at + len(stop)], True)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Where a policy is and how it is prompted."""

    name: str = ""
    """The policy that writes the steps: `hf:ID_OR_FOLDER` for a local model, or `openai:BASE_URL` for a server."""
    prompting: Prompting = field(default_factory=Prompting)
    dtype: str | None = None
    """The precision of a local model. By default its own on a GPU and float32 on a CPU."""
    device: str | None = None
    """Where a local model runs. By default a GPU if there is one."""
    token_budget: Count | None = None
    """Tokens per batch of a local model, prefixes and padding included. As many are kept from batch to batch at most.
    By default what 2 GB, or a quarter of the GPU's free memory, hold."""
    model: str | None = None
    """Which of the server's models to use. Not needed if it has only one."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer whose chat template is applied. By default that of the served model."""
    concurrency: Count = 16
    """The maximum number of requests in flight."""
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    log_likelihood: bool = False
    """Ask for log-probabilities. A search sets this itself if it needs them."""

    def __post_init__(self) -> None:
        check(self)


def _tokenizer(name: str) -> object:
    from huggingface_hub import snapshot_download

    try:
        wanted = ["tokenizer*", "*.jinja", "special_tokens_map.json", "config.json", "vocab*", "merges.txt"]
        if Path(name).is_dir():
            return load_tokenizer(Path(name))
        offline = bool(no_connection())
        return load_tokenizer(Path(snapshot_download(name, allow_patterns=wanted, local_files_only=offline)))
    except (OSError, ValueError, ModelError) as error:
        raise PolicyError(
            f"No tokenizer {name!r} to apply a chat template with ({type(error).__name__}). Name the served model's "
            "with --tokenizer (of a second policy: --second-tokenizer), or send problems as plain text with --template "
            "none."
        ) from error


KINDS = ("hf", "openai")
"""What may stand before the colon of a policy's name."""


def open_policy(settings: PolicySettings | str) -> Policy:
    """A policy, which writes steps: a local transformers model, or any OpenAI-compatible server.

    Args:
        settings: a name such as `hf:Qwen/Qwen2.5-Math-1.5B-Instruct` or `openai:http://localhost:8000/v1`, or all
            settings of a policy.

    Example:
        >>> policy = open_policy("hf:my-lm")
        >>> policy.close()
    """
    settings = PolicySettings(settings) if isinstance(settings, str) else settings
    kind, place = kind_and_place(settings)
    if kind == "hf":
        from prism_prm.backends.hf import load_hf

        return load_hf(
            place, prompting=settings.prompting, dtype=settings.dtype, device=settings.device,
            token_budget=settings.token_budget,
        )  # fmt: skip
    from prism_prm.backends.openai import API_KEY, OpenAiPolicy, served_model

    model = settings.model
    if model is None:
        with contextlib.closing(Server(place, settings.patience, 1, key_variable=API_KEY)) as server:
            model = served_model(server)
    tokenizer = None if settings.prompting.template == "none" else _tokenizer(settings.tokenizer or model)
    return OpenAiPolicy(
        place, model=model, tokenizer=tokenizer, prompting=settings.prompting, concurrency=settings.concurrency,
        retry=settings.patience, log_likelihood=settings.log_likelihood,
    )  # fmt: skip


def kind_and_place(settings: PolicySettings) -> tuple[str, str]:
    """What stands before the colon of a policy's name, and behind it."""
    kind, colon, place = settings.name.partition(":")
    if not colon or kind not in KINDS or not place:
        known = ", ".join(f"{kind}:…" for kind in KINDS)
        raise ConfigError(
            f"{settings.name!r} is not a policy; expected one of {known}, e.g. hf:folder, openai:http://localhost/v1"
        )
    return kind, place


def check_policy(settings: PolicySettings) -> None:
    """Refuse at once what can be no policy: an unknown kind, a folder without a model, no address. Nothing is asked."""
    kind, place = kind_and_place(settings)
    if kind == "hf":
        check_model(place)
    else:
        server_address(place)


def policy_for_workers(settings: PolicySettings) -> Opening[Policy]:
    """What opens the policy on a cluster's workers, from where its folder is found there; they download hub ids."""
    kind, place = kind_and_place(settings)
    named = place if kind == "hf" else settings.tokenizer
    folder = os.path.abspath(named) if named is not None and os.path.isdir(named) else ""
    opening = functools.partial(_open_from, settings=settings, folder=folder)
    return Opening(opening, (folder,) if folder else (), loads=kind == "hf")


def _open_from(found: Mapping[str, str], *, settings: PolicySettings, folder: str) -> Policy:
    if folder:
        here = found[folder]
        is_local = kind_and_place(settings)[0] == "hf"
        settings = replace(settings, name=f"hf:{here}") if is_local else replace(settings, tokenizer=here)
    return open_policy(settings)

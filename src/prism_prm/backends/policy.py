"""Policies: the protocol (a policy continues a text by one step), prompts, and how to open one by name.

A policy is a function of TEXT. Caching between steps (key/values) only saves work: the same text, random key and
sampling settings give the same step, whatever else is in the batch and whatever wrote the text.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np

from prism_prm.config import SHOWN, Count, NotNegative, Range, check
from prism_prm.errors import ConfigError, ModelError, PrismError, SettingError
from prism_prm.job import Opening
from prism_prm.models.model_files import check_model, layout_folder, load_tokenizer, render_chat
from prism_prm.net import RetryPolicy, Server, server_address
from prism_prm.segments import DEFAULT_SEGMENTER, OPEN, complete_steps, find_segmenter
from prism_prm.steps import STOP, ends_step

Ending = Literal["stop", "end", "cut"]
"""Why a step ended: the stop string, the end of the solution, or a token limit."""

MARK = "{problem}"
"""The placeholder for the problem in the user turn."""
MAX_BLANKS = 4
"""How often a policy may write only the stop string before its solution counts as cut."""


class PolicyError(PrismError):
    """A policy cannot be reached, or lacks what a search needs."""


@dataclass(frozen=True, slots=True)
class Prompting:
    """How to prompt a policy with a problem."""

    system: str = ""
    """The system turn of the prompt. By default the chat template decides."""
    user: str = MARK
    """The user turn of the prompt. `{problem}` is replaced by the problem."""
    template: Literal["auto", "none"] = "auto"
    """How problems are sent: with the tokenizer's chat template if it has one (auto), or as plain text (none)."""
    thinking: Literal["auto", "on", "off"] = "auto"
    """Whether the policy thinks first, if its chat template has a switch. By default the template decides."""

    @property
    def switch(self) -> dict[str, bool]:
        """The switch of chat templates: `enable_thinking` of most, `thinking` of some."""
        return {} if self.thinking == "auto" else dict.fromkeys(("enable_thinking", "thinking"), self.thinking == "on")

    def __post_init__(self) -> None:
        check(self)
        if MARK not in self.user:
            raise SettingError("user", self.user, f"must contain {MARK}, where the problem goes")


def has_chat_template(prompting: Prompting, tokenizer: Any) -> bool:
    """Whether prompts are chats."""
    return prompting.template == "auto" and bool(getattr(tokenizer, "chat_template", None))


def render(problem: str, prompting: Prompting, tokenizer: Any, earlier: Sequence[tuple[str, str]] = ()) -> str:
    """Render the prompt of a problem, in a chat after earlier (role, content) turns."""
    user = prompting.user.replace(MARK, problem)
    if not has_chat_template(prompting, tokenizer):
        assert not earlier, "earlier turns need a chat template"
        return f"{prompting.system}\n\n{user}\n\n" if prompting.system else f"{user}\n\n"
    turns = [*[("system", prompting.system)] * bool(prompting.system), *earlier, ("user", user)]
    text = chat_text(tokenizer, turns, **prompting.switch)
    opposite = {name: not value for name, value in prompting.switch.items()}
    if opposite and text == chat_text(tokenizer, turns, **opposite):
        raise PolicyError(
            f"-P thinking={prompting.thinking}: the chat template has no switch for thinking; the prompt is the same "
            "with it on and off. Leave it out."
        )
    return text


def chat_text(tokenizer: Any, turns: Sequence[tuple[str, str]], **switch: bool) -> str:
    """Render (role, content) turns with the chat template, without a beginning-of-sequence token.

    Servers and `tokenizer(text)` add that token themselves, so it would occur twice.
    """
    messages = [{"role": role, "content": content} for role, content in turns]
    text = render_chat(tokenizer, messages, add_generation_prompt=True, **switch)
    bos = tokenizer.bos_token
    if bos and text.startswith(bos) and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]:
        text = text[len(bos) :]
    return text


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample steps."""

    temperature: NotNegative = 0.8
    """The sampling temperature. 0 is greedy."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    """Nucleus sampling: sample from the most likely tokens that together have this probability."""
    max_step_tokens: Count = 512
    """The maximum number of tokens of a step. A longer step ends its solution, which then counts as cut."""
    max_tokens: Count = 2048
    """The maximum number of tokens of a solution. A longer one is cut."""
    stop: str = STOP
    """The string between two steps. Within code it ends a step only where brackets and strings are closed. With the
    segmenter code it is a line break by default."""
    segmenter: str | None = field(default=None, metadata={SHOWN: "the PRM's card, else paragraph"})
    """How text is cut into steps: paragraph (at the stop string), thinking, marker, sentence, tokens or code."""

    def __post_init__(self) -> None:
        check(self)
        if self.segmenter is not None:
            segmenter, _ = find_segmenter(self.segmenter)
            if self.stop == STOP:
                object.__setattr__(self, "stop", segmenter.stop)

    @property
    def cuts_at_stop(self) -> bool:
        """Whether a step is what the policy writes up to the stop string."""
        return self.segmenter in (None, DEFAULT_SEGMENTER)


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A request to write one step."""

    text: str
    """The prompt and everything written so far."""
    key: int
    """The random key: equal keys sample equally."""
    max_tokens: int
    greedy: bool = False
    """Take the most likely tokens, whatever the temperature."""
    state: Any = None
    """The state that the policy returned for this text or for a text that starts with it. None always works, but is
    slower."""
    whole: bool = False
    """Write to the end of the solution, ignoring stop strings."""
    keep: bool = True
    """Whether the policy should keep the state of the written text, because it will be continued."""
    start: int = 0
    """The offset in the text where the solution begins, after the prompt."""
    num_steps: int = 0
    """The number of steps of the solution so far."""


@dataclass(frozen=True, slots=True)
class Written:
    """One written step."""

    text: str
    """If `ending` is "stop", the request's text and this together end with the stop string."""
    ending: Ending
    num_tokens: int
    log_likelihood: float | None = None
    """The log-likelihood of all its tokens at temperature 1; None if the policy does not return it."""
    state: Any = None
    ids: tuple[int, ...] = ()
    """Its token ids without the end of the text, if the policy is local."""


class Policy(Protocol):
    """A language model that writes steps."""

    name: str
    """The user's name for it, such as `hf:folder`."""
    has_log_likelihood: bool

    def identity(self) -> str:
        """Identify what determines its texts, to decide whether earlier work can be reused."""

    def prompt(self, problem: str) -> str:
        """Return the text before the first step."""

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """Write one continuation per request, up to the stop string (unless it is `whole`), the end, or a limit."""

    def close(self) -> None:
        """Close connections and free memory."""


class StoppablePolicy(Policy, Protocol):
    """A policy whose work can be stopped; all that `open_policy` opens are."""

    def write(
        self, requests: Sequence[StepRequest], sampling: Sampling, *, check: Callable[[], None] | None = None
    ) -> list[Written]:
        """Write one continuation per request. `check` is called often; what it raises ends the work."""


def node_key(seed: int, problem: str, path: Sequence[int]) -> int:
    """Return the random key of a node: 63 bits of (seed, problem, path of child numbers)."""
    facts = repr((seed, problem, tuple(path))).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(facts, digest_size=8).digest(), "big") >> 1


def rng(key: int) -> np.random.Generator:
    """Return the generator of a key; a step draws one number in [0, 1) per token."""
    return np.random.Generator(np.random.Philox(key=key))


def write_steps(policy: Policy, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
    """Call `policy.write` until every text has a further complete step: a blank text or an open one is continued.

    A solution that ends right after a stop string gives a blank text with ending "end".
    """
    done: list[Written] = policy.write(requests, sampling)
    for attempt in itertools.count(1):
        incomplete = []
        for i, (request, step) in enumerate(zip(requests, done, strict=True)):
            is_blank = not step.text.strip()
            if step.ending != "stop" or (not is_blank and _has_step(request, step, sampling)):
                continue
            if attempt >= MAX_BLANKS if is_blank else step.num_tokens >= request.max_tokens:
                done[i] = replace(step, ending="cut", state=None)
            else:
                incomplete.append(i)
        if not incomplete:
            break
        further = []
        for request, step in ((requests[i], done[i]) for i in incomplete):
            left = max(1, request.max_tokens - step.num_tokens)
            text, state = request.text + step.text, step.state or request.state
            further.append(replace(request, text=text, key=request.key ^ attempt, max_tokens=left, state=state))
        for i, more in zip(incomplete, policy.write(further, sampling), strict=True):
            both = done[i].log_likelihood, more.log_likelihood
            total = None if both[0] is None or both[1] is None else both[0] + both[1]
            num_tokens = done[i].num_tokens + more.num_tokens
            done[i] = Written(done[i].text + more.text, more.ending, num_tokens, total, more.state)
    return done


def _has_step(request: StepRequest, written: Written, sampling: Sampling) -> bool:
    """Whether the solution has a complete step after those that it had before."""
    text = request.text[request.start :] + written.text
    if sampling.cuts_at_stop:
        return ends_step(text)
    return len(complete_steps(text, sampling.segmenter or DEFAULT_SEGMENTER)) > request.num_steps


def solution_start(prompt: str) -> int:
    """Where a solution begins: at the end of its prompt, or before a tag there that begins its thinking."""
    end = len(prompt.rstrip())
    return end - len(OPEN) if prompt.endswith(OPEN, 0, end) else len(prompt)


def cut_at_stop(text: str, stop: str) -> tuple[str, bool]:
    """Cut a text after its first stop string; also returns whether there is one. An empty stop string cuts nothing."""
    at = text.find(stop) if stop else -1
    return (text, False) if at < 0 else (text[: at + len(stop)], True)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How to open and prompt a policy."""

    name: str = ""
    """The policy that writes the steps: `hf:ID_OR_FOLDER` for a local model, or `openai:BASE_URL` for a server."""
    prompting: Prompting = field(default_factory=Prompting)
    dtype: str | None = None
    """The precision of a local model, chosen as for a PRM. By default its own on a GPU and float32 on a CPU."""
    device: str | None = None
    """Where a local model runs. By default a GPU if there is one."""
    token_budget: Count | None = None
    """Tokens per batch of a local model, prefixes and padding included; also the size of its KV cache between batches.
    By default as many as fit into a quarter of the GPU's free memory, or into 2 GB on a CPU."""
    model: str | None = None
    """Which of the server's models to use. Not needed if it has only one."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer whose chat template is applied. By default the served model's."""
    api: Literal["completions", "chat"] = "completions"
    """The server's API. Chat works without a tokenizer and reads `reasoning_content` as thinking; tree searches need a
    server that continues a turn (vLLM, SGLang)."""
    concurrency: Count = 16
    """The maximum number of requests in flight."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    log_likelihood: bool = False
    """Request log-probabilities. A search that needs them sets this itself."""

    def __post_init__(self) -> None:
        check(self)


def _load_tokenizer(name: str) -> object:
    try:
        return load_tokenizer(layout_folder(name))
    except (OSError, ValueError, ModelError) as error:
        raise PolicyError(
            f"No tokenizer {name!r} to apply a chat template with ({type(error).__name__}). Name the served model's "
            "with -P tokenizer=… (for a second policy: --set second_tokenizer=…), or send problems as plain text with "
            "-P template=none."
        ) from error


KINDS = ("hf", "openai")
"""The prefixes of policy names."""


def open_policy(settings: PolicySettings | str) -> StoppablePolicy:
    """Open a policy: a local transformers model, or any OpenAI-compatible server.

    Args:
        settings: a name such as `hf:Qwen/Qwen2.5-Math-1.5B-Instruct` or `openai:http://localhost:8000/v1`, or all
            settings of a policy.

    Example:
        >>> policy = open_policy("hf:my-lm")
        >>> policy.close()
    """
    settings = PolicySettings(settings) if isinstance(settings, str) else settings
    kind, place = split_name(settings)
    if kind == "hf":
        from prism_prm.backends.hf import load_hf

        return load_hf(
            place, prompting=settings.prompting, dtype=settings.dtype, device=settings.device,
            token_budget=settings.token_budget,
        )  # fmt: skip
    from prism_prm.backends.openai import API_KEY, ChatPolicy, OpenAiPolicy, served_model

    model = settings.model
    if model is None:
        with contextlib.closing(Server(place, settings.retry, 1, key_variable=API_KEY)) as server:
            model = served_model(server)
    is_plain = settings.prompting.template == "none" or settings.api == "chat"
    tokenizer = None if is_plain else _load_tokenizer(settings.tokenizer or model)
    kind_of_policy = ChatPolicy if settings.api == "chat" else OpenAiPolicy
    return kind_of_policy(
        place, model=model, tokenizer=tokenizer, prompting=settings.prompting, concurrency=settings.concurrency,
        retry=settings.retry, log_likelihood=settings.log_likelihood,
    )  # fmt: skip


def split_name(settings: PolicySettings) -> tuple[str, str]:
    """Split a policy's name into its kind and its folder or URL."""
    kind, colon, place = settings.name.partition(":")
    if not colon or kind not in KINDS or not place:
        known = ", ".join(f"{kind}:…" for kind in KINDS)
        raise ConfigError(
            f"{settings.name!r} is not a policy; expected one of {known}, e.g. hf:folder, openai:http://localhost/v1"
        )
    return kind, place


def check_policy(settings: PolicySettings) -> None:
    """Raise early if it cannot be a policy: unknown kind, folder without a model, no address. Sends no request."""
    kind, place = split_name(settings)
    if kind == "hf":
        check_model(place)
    else:
        server_address(place)


def policy_for_workers(settings: PolicySettings) -> Opening[Policy]:
    """Describe how a cluster's workers open the policy, from their copy of its folder; they download hub ids."""
    kind, place = split_name(settings)
    source = place if kind == "hf" else settings.tokenizer
    folder = os.path.abspath(source) if source is not None and os.path.isdir(source) else ""
    opening = functools.partial(_open_from, settings=settings, folder=folder)
    return Opening(opening, (folder,) if folder else (), loads=kind == "hf")


def _open_from(folders: Mapping[str, str], *, settings: PolicySettings, folder: str) -> Policy:
    if folder:
        copy = folders[folder]
        is_local = split_name(settings)[0] == "hf"
        settings = replace(settings, name=f"hf:{copy}") if is_local else replace(settings, tokenizer=copy)
    return open_policy(settings)

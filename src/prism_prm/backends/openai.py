"""Policies and critics behind any server with OpenAI's API (vLLM, SGLang, llama.cpp, `transformers serve`).

Policies (`openai:<base url>`) use the completions API, or with `-P api=chat` the chat API; critics
(`critic:openai:<base url>`) use the chat API.

The first of these rules that applies decides whether a policy's step ended the solution:

1. The text contains the stop string, or completes one that the prompt began (on servers that do not remove it): the
   step stopped there.
2. The finish reason is "length", or "content_filter" (the server withholds the rest): cut.
3. The server reports what stopped it (`stop_reason` of vLLM, `matched_stop` of SGLang): our stop string, or the end.
4. The server left the stop string in some text of this batch or an earlier one, so it would have left it here, too:
   the solution ended.
5. The finish reason alone cannot tell. The text is sent again without a stop string, for one greedy token: if nothing
   comes back, the solution ended; otherwise it continues.

Any other finish reason ("abort", or none) means that the answer is incomplete, and the request is retried.

A critic's server is identified by its list of models (`owned_by`). vLLM, SGLang and llama.cpp continue a last turn of
the assistant; for other servers this is unknown, so the user turn requests the format's words instead.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from prism_prm.backends.critic_replies import CriticQuestion, Reply, TokenChoice
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.policy import (
    MARK,
    Ending,
    PolicyError,
    Prompting,
    Sampling,
    StepRequest,
    Written,
    cut_at_stop,
    render,
)
from prism_prm.errors import ConfigError
from prism_prm.job import content_key
from prism_prm.models.model_files import tokenizer_text
from prism_prm.net import RetryPolicy, Server, ServerError, server_address
from prism_prm.segments import CLOSE, OPEN

T = TypeVar("T")

API_KEY = "OPENAI_API_KEY"
SEEDS = 2**31 - 1
"""Servers accept 31-bit seeds."""
MOST_TOKENS = 10**9
"""A larger token count for one answer is an error."""
REASONS = ("stop", "length", "content_filter")
"""Finish reasons of a complete answer."""
TOP = 20
"""The number of log-probabilities to request per token; the maximum of most servers."""
CONTINUES = ("vllm", "sglang", "llamacpp")
"""`owned_by` of servers that continue a turn."""
OPENS = ("sglang", "llamacpp")
"""Those that add the chat template's opening (`<think>`) before the turn that they continue."""
THOUGHTS = ("reasoning_content", "reasoning")
"""The fields in which chat servers return thinking."""
_PROMPT_END = "\0"
"""Between the problem and the solution in the text of a chat policy, which the server's template separates."""
_CLOSED = f"{CLOSE}\n\n"
"""Between thinking and content; a chat policy writes it itself."""
CHAT_REASONS = {"stop": "stop", "length": "length", "content_filter": "content_filter", "eos": "stop"}


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a server."""

    text: str
    reason: str
    """One of REASONS."""
    num_tokens: int
    stopped_by: tuple[Any, ...] = ()
    """What stopped it, if the server reports it: the stop string, a token id, or None for the end."""
    token_log_likelihoods: tuple[float, ...] | None = None
    """None if they were not requested, or the server returns none."""


class OpenAiPolicy:
    """A policy behind a server."""

    writes_whole = False
    """Whether methods without scores ask for a whole solution at once, since not every server continues a text."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        tokenizer: Any = None,
        prompting: Prompting | None = None,
        concurrency: int = 16,
        retry: RetryPolicy | None = None,
        log_likelihood: bool = False,
    ) -> None:
        self.server = Server(url, retry or RetryPolicy(), concurrency, key_variable=API_KEY)
        self.name = f"openai:{self.server.shown}"
        self.model = model
        self.tokenizer = tokenizer
        self.prompting = prompting or Prompting()
        self.has_log_likelihood = log_likelihood
        """Whether to request log-probabilities; a server that returns none is then an error."""
        self._leaves_stop = False

    def identity(self) -> str:
        """Identify the server, the model's name and the prompt with its chat template; weights are not visible here."""
        identity = f"{self.name}:{self.model}:{self.prompting!r}"
        if self.tokenizer is None:
            return identity
        return f"{identity}:{content_key(tokenizer_text(self.tokenizer))}"

    def prompt(self, problem: str) -> str:
        """Apply the model's chat template to a problem; the server does not apply it."""
        return render(problem, self.prompting, self.tokenizer)

    def close(self) -> None:
        self.server.close()

    def write(
        self, requests: Sequence[StepRequest], sampling: Sampling, *, check: Callable[[], None] | None = None
    ) -> list[Written]:
        """Write one continuation per request, at most `concurrency` at a time.

        `check` is called meanwhile; what it raises cancels all requests.
        """
        completions = self.server.together([self._complete(request, sampling) for request in requests], check)
        # All answers are read before the first decision, so that it does not depend on their order. A stop string that
        # the prompt began does not show whether the server leaves whole ones in.
        pairs = list(zip(requests, completions, strict=True))
        self._leaves_stop |= any(
            sampling.stop in completion.text.replace(_CLOSED, "") for request, completion in pairs if not request.whole
        )
        return self.server.together([self._to_step(*pair, sampling.stop) for pair in pairs], check)

    async def _complete(self, request: StepRequest, sampling: Sampling) -> Completion:
        body = {**self._body(request, sampling), "prompt": request.text}
        if self.has_log_likelihood:
            body["logprobs"] = 1
        return await self.server.ask("POST", "/completions", self._read, body)

    def _body(self, request: StepRequest, sampling: Sampling) -> dict[str, Any]:
        """Return the fields of a request that both APIs have."""
        greedy = request.greedy or sampling.temperature == 0
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if greedy else sampling.temperature,
            "top_p": 1.0 if greedy else sampling.top_p,
        }
        if not request.whole:
            body["stop"] = [sampling.stop]
        if not greedy:
            body["seed"] = request.key % SEEDS
        return body

    async def _to_step(self, request: StepRequest, completion: Completion, stop: str) -> Written:
        """Convert a completion to a step; the rules above decide how it ended."""
        num_tokens = completion.num_tokens
        log_likelihood = None
        if self.has_log_likelihood:
            if completion.token_log_likelihoods is None:
                raise PolicyError(
                    f"{self.name} returns no log-probabilities, but this search uses the policy's likelihood. Use "
                    f"another server, or rank by the PRM alone: --set prm_weight=1."
                )
            log_likelihood = sum(completion.token_log_likelihoods)
        if request.whole:
            ending: Ending = "end" if completion.reason == "stop" else "cut"
            return Written(completion.text, ending, num_tokens, log_likelihood)
        text, has_stop = cut_at_stop(completion.text, stop)
        if has_stop or (text and (request.text + text).endswith(stop)):
            return Written(text, "stop", num_tokens, log_likelihood)
        if completion.reason != "stop":
            return Written(text, "cut", num_tokens, log_likelihood)
        if completion.stopped_by:
            has_stopped = completion.stopped_by[0] == stop
        elif self._leaves_stop:
            has_stopped = False
        else:
            has_ended, num_read = await self._has_ended(request, completion.text)
            has_stopped, num_tokens = not has_ended, num_tokens + num_read
        if has_stopped:
            return Written(text + stop, "stop", num_tokens, log_likelihood)
        return Written(text, "end", num_tokens, log_likelihood)

    async def _has_ended(self, request: StepRequest, text: str) -> tuple[bool, int]:
        """Whether the solution ends after this text, and the number of tokens that it took to find out."""
        body = {"model": self.model, "prompt": request.text + text, "max_tokens": 1, "temperature": 0.0}
        probe = await self.server.ask("POST", "/completions", self._read, body)
        return not probe.text, probe.num_tokens

    def _read(self, answer: dict[str, Any]) -> Completion:
        """Read the first choice of an answer. Raises ValueError if the answer is invalid."""
        choice = first_choice(answer)
        if not isinstance(choice.get("text"), str):
            raise ValueError(
                f"the answer has no choices[0].text; is this a completions API? Its fields: {sorted(answer)}"
            )
        reason = choice.get("finish_reason")
        if reason not in REASONS:
            raise ValueError(f"the answer is incomplete: finish_reason is {reason!r}, not one of {', '.join(REASONS)}")
        text = _replace_surrogates(choice["text"])
        usage = answer.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if type(counted) is int:
            num_tokens = counted
        elif self.tokenizer is not None:
            num_tokens = len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        else:  # an estimate
            num_tokens = max(1, len(text) // 4)
        if not 0 <= num_tokens <= MOST_TOKENS:
            raise ValueError(f"the answer claims to have {num_tokens} tokens")
        stopped_by = [choice[field] for field in ("stop_reason", "matched_stop") if field in choice]
        logprobs = choice.get("logprobs") if self.has_log_likelihood else None
        return Completion(text, reason, num_tokens, tuple(stopped_by[:1]), _log_probabilities(logprobs))


class ChatPolicy(OpenAiPolicy):
    """A policy behind a chat API, which applies the chat template itself and may return thinking in its own field.

    The text of a solution is `<think>`, the field's content, `</think>` and the message's content. To continue a text,
    it is sent as the beginning of the assistant's turn.
    """

    writes_whole = True

    def identity(self) -> str:
        return f"chat:{super().identity()}"

    def prompt(self, problem: str) -> str:
        return f"{problem}{_PROMPT_END}"

    async def _complete(self, request: StepRequest, sampling: Sampling) -> Completion:
        problem, _, begun = request.text.partition(_PROMPT_END)
        prompting = self.prompting
        turns = [("system", prompting.system)] * bool(prompting.system)
        turns += [("user", prompting.user.replace(MARK, problem)), *[("assistant", begun)] * bool(begun)]
        messages = [{"role": role, "content": content} for role, content in turns]
        body = {**self._body(request, sampling), "messages": messages}
        if begun:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if prompting.switch:
            body["chat_template_kwargs"] = prompting.switch
        if self.has_log_likelihood:
            body["logprobs"] = True
        return await self.server.ask("POST", "/chat/completions", lambda answer: self._read_chat(answer, begun), body)

    async def _has_ended(self, request: StepRequest, text: str) -> tuple[bool, int]:
        asked = StepRequest(request.text + text, 0, 1, greedy=True, whole=True)
        probe = await self._complete(asked, Sampling(temperature=0))
        return not probe.text, probe.num_tokens

    def _read_chat(self, answer: dict[str, Any], begun: str) -> Completion:
        """Read an answer as the continuation of `begun`. Raises ValueError if it is invalid."""
        choice, message = _first_message(answer)
        thought = next((text for name in THOUGHTS if isinstance(text := message.get(name), str) and text), "")
        content = message.get("content") or ""
        if not isinstance(content, str):
            raise ValueError("the answer's message has no text")
        is_thinking = OPEN in begun and CLOSE not in begun
        text = content.removeprefix(begun)  # some servers return the whole turn
        if thought:
            text = thought if is_thinking else f"{OPEN}\n{thought}"
            text += f"\n{_CLOSED}{content}" if content else ""
        return self._read({**answer, "choices": [{**choice, "text": text}]})


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the first choice of an answer; an empty one if there is none."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    return choice if isinstance(choice, dict) else {}


def _first_message(answer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first choice of a chat API's answer and its message. Raises ValueError if there is none."""
    choice = first_choice(answer)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ValueError(f"the answer has no choices[0].message; is this a chat API? Its fields: {sorted(answer)}")
    return choice, message


def _log_probabilities(logprobs: Any) -> tuple[float, ...] | None:
    """Read `logprobs` of an answer: `token_logprobs`, or `content[].logprob` (llama.cpp); None if it has neither."""
    if not isinstance(logprobs, dict):
        return None
    values = logprobs.get("token_logprobs")
    if values is None and isinstance(content := logprobs.get("content"), list):
        values = [token["logprob"] if isinstance(token, dict) and "logprob" in token else token for token in content]
    if values is None:
        return None
    # A token without a log-probability is null.
    known = [value for value in values if value is not None] if isinstance(values, list) else [values]
    if bad := [value for value in known if type(value) not in (int, float) or not math.isfinite(value)]:
        raise ValueError(f"the log-probability {str(bad[0])[:40]} is not a finite number")
    return tuple(map(float, known))


def served_model(server: Server) -> str:
    """Return the model of a server. Raises if it lists none or several."""

    def read(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
        models = _models(answer)
        if len(models) < len(answer["data"]):
            raise ValueError(f"the answer is not a list of models; its fields: {sorted(answer)}")
        return models

    (models,) = server.together([server.ask("GET", "/models", read)])
    if len(models) != 1:
        names = ", ".join(list(models)[:8]) or "no model by name"
        raise PolicyError(
            f"{server.shown} serves {names}; choose one with -P model=NAME (for a second policy: --set second_model=…)"
        )
    return next(iter(models))


def _models(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    entries = answer.get("data")
    if not isinstance(entries, list):
        raise ValueError(f"the answer is not a list of models; its fields: {sorted(answer)}")
    return {entry["id"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)}


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can hold but UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ServedCritic:
    """A critic's model behind a server."""

    def __init__(self, url: str, settings: CriticSettings) -> None:
        policy = RetryPolicy(timeout=settings.timeout, retries=settings.retries)
        self.server = Server(url, policy, settings.concurrency, key_variable=API_KEY)
        try:
            self.model, about = self._find_model(settings.model)
        except BaseException:  # also Ctrl-C, so that no connection stays open
            self.server.close()
            raise
        self.name = f"{self.model} at {self.server.shown}"
        self.kind = str(about.get("owned_by") or "unknown")
        self.primes = self.kind in CONTINUES if settings.priming == "auto" else settings.priming == "on"
        """Whether it can continue the assistant's turn."""
        meta = about.get("meta")
        if isinstance(meta, dict):  # llama.cpp's facts about the model file, and the context it was started with
            meta = {name: value for name, value in meta.items() if name != "n_ctx"}
        self._facts = {"kind": self.kind, "root": about.get("root"), "meta": meta}

    def identity(self) -> str:
        """Identify the model's name, the kind of server, and what it reports about the weights."""
        return f"openai:{self.model}:{json.dumps(self._facts, sort_keys=True)}"

    def run(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines together; returns their results in order."""
        return self.server.together(work)

    def close(self) -> None:
        self.server.close()

    @property
    def num_retries(self) -> int:
        return self.server.num_retries

    async def ask(self, question: CriticQuestion) -> Reply:
        messages = [{"role": role, "content": content} for role, content in question.turns]
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
        }
        begun = question.begun if not question.begun or self.kind in OPENS else question.opening + question.begun
        if begun:
            messages.append({"role": "assistant", "content": begun})
            if self.kind != "llamacpp":
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        body["messages"] = messages
        if question.temperature:
            body |= {"top_p": question.top_p, "seed": question.seed}
            if question.top_k and self.kind in CONTINUES:  # OpenAI's own API has no such field
                body["top_k"] = question.top_k
        if question.stops:
            body["stop"] = list(question.stops)
        if question.log_probabilities:
            body |= {"logprobs": True, "top_logprobs": TOP}
        length = sum(len(content) for _, content in question.turns) + len(question.begun)
        start = time.monotonic()
        reply = await self.server.ask("POST", "/chat/completions", lambda answer: read_answer(answer, length), body)
        return msgspec.structs.replace(
            reply,
            text=reply.text.removeprefix(begun),  # some servers return the whole turn
            tokens=reply.tokens if question.log_probabilities else None,
            seconds=round(time.monotonic() - start, 3),
        )

    def _find_model(self, wanted: str | None) -> tuple[str, dict[str, Any]]:
        """Return the model to use, and what the server reports about it."""
        try:
            (models,) = self.server.together([self.server.ask("GET", "/models", _models)])
        except ServerError:
            if wanted is None:
                raise
            return wanted, {}
        if wanted is None and len(models) != 1:
            names = ", ".join(list(models)[:8]) or "no model by name"
            raise ConfigError(f"{self.server.shown} serves {names}; choose one with -C model=NAME")
        model = wanted or next(iter(models))
        return model, models.get(model, {})


def check_address(url: str) -> None:
    """Raise if a server's address is invalid, or has a password or a query, because addresses are stored."""
    if "@" in url or "?" in url:
        raise ConfigError(
            f"critic:openai: the address must not contain a password or a query; put the key into ${API_KEY}"
        )
    server_address(url)


def read_answer(answer: dict[str, Any], length: int) -> Reply:
    """Read the first choice of an answer to a question of `length` characters. Raises ValueError if it is invalid."""
    choice, message = _first_message(answer)
    content, refusal = message.get("content"), message.get("refusal")
    # A model may spend all its tokens on reasoning, in a separate field, before it writes any content.
    has_thought = any(isinstance(message.get(name), str) for name in THOUGHTS)
    if not isinstance(content, str | None) or (content is None and not refusal and not has_thought):
        raise ValueError("the answer's message has no text")
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or reason not in CHAT_REASONS:
        raise ValueError(f"the answer is incomplete: finish_reason is {reason!r}, not one of {', '.join(CHAT_REASONS)}")
    text = _replace_surrogates(content or "")
    usage = answer.get("usage")
    counts = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    known = [count for count in counts if type(count) is int]
    estimated = len(known) < len(counts)
    prompt, completion = (length // 4, max(1, len(text) // 4)) if estimated else known
    if not 0 <= prompt <= MOST_TOKENS or not 0 <= completion <= MOST_TOKENS:
        raise ValueError(f"the answer claims to have {prompt} and {completion} tokens")
    stopped = choice.get("stop_reason", choice.get("matched_stop"))
    return Reply(
        text, CHAT_REASONS[reason], prompt, completion, estimated, bool(refusal),  # type: ignore[arg-type]
        _replace_surrogates(stopped) if isinstance(stopped, str) else None, _choices(choice.get("logprobs")),
    )  # fmt: skip


def _choices(logprobs: Any) -> tuple[TokenChoice, ...] | None:
    """Read `logprobs.content[].top_logprobs[]`; None if there are none."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return None
    choices = []
    for entry in content:
        if not isinstance(entry, dict) or not isinstance(entry.get("top_logprobs"), list):
            return None
        items = [entry, *entry["top_logprobs"]]
        if not all(isinstance(item, dict) and isinstance(item.get("token"), str) for item in items):
            raise ValueError("the answer's log-probabilities have no tokens")
        values: dict[str, float] = {}
        for item in entry["top_logprobs"]:
            value = item.get("logprob")
            if type(value) not in (int, float) or math.isnan(value) or value > 1e-3:
                raise ValueError(f"the log-probability {str(value)[:40]} is not a number of 0 or less")
            values[_replace_surrogates(item["token"])] = float(max(value, -10_000))
        choices.append(TokenChoice(_replace_surrogates(entry["token"]), tuple(values.items())))
    # Without a request for alternatives, or if the server ignores it, there are none, or only the token itself.
    return tuple(choices) if any(len(choice.top) > 1 for choice in choices) else None

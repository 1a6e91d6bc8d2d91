"""Any server with OpenAI's API (vLLM, SGLang, llama.cpp, `transformers serve`): policies (`openai:<base url>`) use its
completions, critics (`critic:openai:<base url>`) its chat.

Whether a step of a policy ended the solution, by the first of these rules that applies:

1. The text has the stop string in it, or ends it together with the end of the prompt (servers that do not take it
   off): the step stopped there.
2. The finish reason is "length", or "content_filter" (the server withholds the rest): cut.
3. The server says what stopped it (`stop_reason` of vLLM, `matched_stop` of SGLang): our stop string, or else the end.
4. The server left the stop string in some text of this batch or an earlier one, so it would have left it here, too:
   the solution ended.
5. The finish reason alone cannot tell. The text is sent once more, without a stop string, for one greedy token: if
   nothing comes, the end; otherwise the solution continues.

Any other finish reason ("abort", none at all) means that the answer is incomplete: it is requested again.

A critic's server is known by what its list of models says (`owned_by`). vLLM, SGLang and llama.cpp continue a last turn
that is the assistant's; of others this is not known, so the format's words are then asked for in the user's turn.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from prism_prm.backends.critic_replies import CriticQuestion, Reply, TokenChoice
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.policy import (
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

T = TypeVar("T")

API_KEY = "OPENAI_API_KEY"
SEEDS = 2**31 - 1
"""Servers take seeds of 31 bits."""
MOST_TOKENS = 10**9
"""The limit for one answer; a larger count is nonsense."""
REASONS = ("stop", "length", "content_filter")
"""Finish reasons of a whole completion."""
TOP = 20
"""Log-probabilities asked for at each token; the most that servers give."""
CONTINUES = ("vllm", "sglang", "llamacpp")
"""`owned_by` of servers that continue a turn."""
OPENS = ("sglang", "llamacpp")
"""Those that write what the chat template begins a turn with (`<think>`) before the turn that they continue."""
CHAT_REASONS = {"stop": "stop", "length": "length", "content_filter": "content_filter", "eos": "stop"}


@dataclass(frozen=True, slots=True)
class Completion:
    """What a server wrote."""

    text: str
    reason: str
    """One of REASONS."""
    num_tokens: int
    stopped_by: tuple[Any, ...] = ()
    """What stopped it, if the server reports it: the stop string, the id of a token, or None for the end."""
    token_log_likelihoods: tuple[float, ...] | None = None
    """None where the server gives none, or was not asked."""


class OpenAiPolicy:
    """A policy behind a server."""

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
        """Whether log-probabilities are asked for; a server that gives none is then an error."""
        self._leaves_stop = False

    def identity(self) -> str:
        """The server, the model's name and the prompt with its chat template; weights cannot be seen from here."""
        said = f"{self.name}:{self.model}:{self.prompting!r}"
        if self.tokenizer is None:
            return said
        return f"{said}:{content_key(tokenizer_text(self.tokenizer))}"

    def prompt(self, problem: str) -> str:
        """The problem in the model's chat template, applied here and not by the server."""
        return render(problem, self.prompting, self.tokenizer)

    def close(self) -> None:
        self.server.close()

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """One continuation per request; as many at a time as `concurrency` says."""
        found = self.server.together([self._complete(request, sampling) for request in requests])
        # All answers are read before the first decision, so that it does not depend on which of them came first. A
        # server that stops at a stop string which the prompt began has not shown what it does with whole ones.
        pairs = list(zip(requests, found, strict=True))
        self._leaves_stop |= any(sampling.stop in one.text for request, one in pairs if not request.whole)
        return self.server.together([self._written(request, one, sampling.stop) for request, one in pairs])

    async def _complete(self, request: StepRequest, sampling: Sampling) -> Completion:
        greedy = request.greedy or sampling.temperature == 0
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": request.text,
            "max_tokens": request.max_tokens,
            "temperature": 0.0 if greedy else sampling.temperature,
            "top_p": 1.0 if greedy else sampling.top_p,
        }
        if not request.whole:
            body["stop"] = [sampling.stop]
        if not greedy:
            body["seed"] = request.key % SEEDS
        if self.has_log_likelihood:
            body["logprobs"] = 1
        return await self.server.ask("POST", "/completions", self._read, body)

    async def _written(self, request: StepRequest, found: Completion, stop: str) -> Written:
        """A completion as a step: how it ended, by the rules above."""
        num_tokens = found.num_tokens
        log_likelihood = None
        if self.has_log_likelihood:
            if found.token_log_likelihoods is None:
                raise PolicyError(
                    f"{self.name} gives no log-probabilities, but this search uses the policy's likelihood. Use "
                    f"another server, or rank by the PRM alone: --prm-weight 1."
                )
            log_likelihood = sum(found.token_log_likelihoods)
        if request.whole:
            over: Ending = "end" if found.reason == "stop" else "cut"
            return Written(found.text, over, num_tokens, log_likelihood)
        text, has_stop = cut_at_stop(found.text, stop)
        if has_stop or (text and (request.text + text).endswith(stop)):
            return Written(text, "stop", num_tokens, log_likelihood)
        if found.reason != "stop":
            return Written(text, "cut", num_tokens, log_likelihood)
        if found.stopped_by:
            has_stopped = found.stopped_by[0] == stop
        elif self._leaves_stop:
            has_stopped = False
        else:
            body = {"model": self.model, "prompt": request.text + found.text, "max_tokens": 1, "temperature": 0.0}
            probe = await self.server.ask("POST", "/completions", self._read, body)
            has_stopped, num_tokens = bool(probe.text), num_tokens + probe.num_tokens
        if has_stopped:
            return Written(text + stop, "stop", num_tokens, log_likelihood)
        return Written(text, "end", num_tokens, log_likelihood)

    def _read(self, answer: dict[str, Any]) -> Completion:
        """The first choice of an answer; a ValueError where it makes no sense."""
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
            raise ValueError(
                f"the answer has no choices[0].text; is this a completions API? Its fields: {sorted(answer)}"
            )
        reason = choice.get("finish_reason")
        if reason not in REASONS:
            raise ValueError(f"the answer is incomplete: finish_reason is {reason!r}, not one of {', '.join(REASONS)}")
        text = _whole(choice["text"])
        used = answer.get("usage")
        counted = used.get("completion_tokens") if isinstance(used, dict) else None
        if type(counted) is int:
            num_tokens = counted
        elif self.tokenizer is not None:
            num_tokens = len(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        else:  # a guess
            num_tokens = max(1, len(text) // 4)
        if not 0 <= num_tokens <= MOST_TOKENS:
            raise ValueError(f"the answer claims to have {num_tokens} tokens")
        said = [choice[field] for field in ("stop_reason", "matched_stop") if field in choice]
        logged = choice.get("logprobs") if self.has_log_likelihood else None
        return Completion(text, reason, num_tokens, tuple(said[:1]), _log_probabilities(logged))


def _log_probabilities(logged: Any) -> tuple[float, ...] | None:
    """What an answer says under `logprobs`: `token_logprobs`, or `content[].logprob` (llama.cpp); None: nothing."""
    if not isinstance(logged, dict):
        return None
    values = logged.get("token_logprobs")
    if values is None and isinstance(content := logged.get("content"), list):
        values = [token["logprob"] if isinstance(token, dict) and "logprob" in token else token for token in content]
    if values is None:
        return None
    # A null is a token that has none.
    known = [value for value in values if value is not None] if isinstance(values, list) else [values]
    if bad := [value for value in known if type(value) not in (int, float) or not math.isfinite(value)]:
        raise ValueError(f"the log-probability {str(bad[0])[:40]} is not a finite number")
    return tuple(map(float, known))


def served_model(server: Server) -> str:
    """The one model that a server names; an error where it names none or several."""

    def read(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
        models = _models(answer)
        if len(models) < len(answer["data"]):
            raise ValueError(f"the answer is not a list of models; its fields: {sorted(answer)}")
        return models

    (found,) = server.together([server.ask("GET", "/models", read)])
    if len(found) != 1:
        listed = ", ".join(list(found)[:8]) or "no model by name"
        raise PolicyError(
            f"{server.shown} serves {listed}; choose one with --model (of a second policy: --second-model)"
        )
    return next(iter(found))


def _models(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    entries = answer.get("data")
    if not isinstance(entries, list):
        raise ValueError(f"the answer is not a list of models; its fields: {sorted(answer)}")
    return {entry["id"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)}


def _whole(text: str) -> str:
    """A text without half characters (lone surrogates, which JSON can hold): they could not be written down."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ServedCritic:
    """A model behind a server."""

    def __init__(self, url: str, settings: CriticSettings) -> None:
        policy = RetryPolicy(timeout=settings.timeout, retries=settings.retries)
        self.server = Server(url, policy, settings.concurrency, key_variable=API_KEY)
        try:
            self.model, about = self._find(settings.model)
        except BaseException:  # Ctrl-C too: no connection stays open
            self.server.close()
            raise
        self.name = f"{self.model} at {self.server.shown}"
        self.kind = str(about.get("owned_by") or "unknown")
        self.primes = self.kind in CONTINUES if settings.priming == "auto" else settings.priming == "on"
        meta = about.get("meta")
        if isinstance(meta, dict):  # what llama.cpp says of a model's file, and the context that it was started with
            meta = {name: value for name, value in meta.items() if name != "n_ctx"}
        self._facts = {"kind": self.kind, "root": about.get("root"), "meta": meta}

    def identity(self) -> str:
        """The model's name, the kind of server, and what it says of the weights, which cannot be seen from here."""
        return f"openai:{self.model}:{json.dumps(self._facts, sort_keys=True)}"

    def run(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
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
        asked = sum(len(content) for _, content in question.turns) + len(question.begun)
        start = time.monotonic()
        reply = await self.server.ask("POST", "/chat/completions", lambda answer: read_answer(answer, asked), body)
        return msgspec.structs.replace(
            reply,
            text=reply.text.removeprefix(begun),  # some servers give the whole turn
            tokens=reply.tokens if question.log_probabilities else None,
            seconds=round(time.monotonic() - start, 3),
        )

    def _find(self, wanted: str | None) -> tuple[str, dict[str, Any]]:
        """The model to ask, and what the server says of it."""
        try:
            (found,) = self.server.together([self.server.ask("GET", "/models", _models)])
        except ServerError:
            if wanted is None:
                raise
            return wanted, {}
        if wanted is None and len(found) != 1:
            listed = ", ".join(list(found)[:8]) or "no model by name"
            raise ConfigError(f"{self.server.shown} serves {listed}; choose one with --critic-model")
        model = wanted or next(iter(found))
        return model, found.get(model, {})


def check_address(url: str) -> None:
    """The address of a server; one with a password or a query is refused, since addresses are written down."""
    if "@" in url or "?" in url:
        raise ConfigError(
            f"critic:openai: the address must not contain a password or a query; put the key into ${API_KEY}"
        )
    server_address(url)


def read_answer(answer: dict[str, Any], asked: int) -> Reply:
    """The first choice of an answer to a question of `asked` characters; a ValueError if it makes no sense."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ValueError(f"the answer has no choices[0].message; is this a chat API? Its fields: {sorted(answer)}")
    content, refusal = message.get("content"), message.get("refusal")
    # A model may use up its tokens in a separate field before it writes anything.
    has_thought = any(isinstance(message.get(name), str) for name in ("reasoning_content", "reasoning"))
    if not isinstance(content, str | None) or (content is None and not refusal and not has_thought):
        raise ValueError("the answer's message has no text")
    reason = choice.get("finish_reason")
    if not isinstance(reason, str) or reason not in CHAT_REASONS:
        raise ValueError(f"the answer is incomplete: finish_reason is {reason!r}, not one of {', '.join(CHAT_REASONS)}")
    text = _whole(content or "")
    used = answer.get("usage")
    counts = [used.get(name) if isinstance(used, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    known = [count for count in counts if type(count) is int]
    estimated = len(known) < len(counts)
    prompt, completion = (asked // 4, max(1, len(text) // 4)) if estimated else known
    if not 0 <= prompt <= MOST_TOKENS or not 0 <= completion <= MOST_TOKENS:
        raise ValueError(f"the answer claims to have {prompt} and {completion} tokens")
    stopped = choice.get("stop_reason", choice.get("matched_stop"))
    return Reply(
        text, CHAT_REASONS[reason], prompt, completion, estimated, bool(refusal),  # type: ignore[arg-type]
        _whole(stopped) if isinstance(stopped, str) else None, _choices(choice.get("logprobs")),
    )  # fmt: skip


def _choices(logged: Any) -> tuple[TokenChoice, ...] | None:
    """Log-probabilities as `logprobs.content[].top_logprobs[]` has them; None where there are none."""
    content = logged.get("content") if isinstance(logged, dict) else None
    if not isinstance(content, list):
        return None
    found = []
    for entry in content:
        if not isinstance(entry, dict) or not isinstance(entry.get("top_logprobs"), list):
            return None
        own = [entry, *entry["top_logprobs"]]
        if not all(isinstance(one, dict) and isinstance(one.get("token"), str) for one in own):
            raise ValueError("the answer's log-probabilities have no tokens")
        values: dict[str, float] = {}
        for one in entry["top_logprobs"]:
            value = one.get("logprob")
            if type(value) not in (int, float) or math.isnan(value) or value > 1e-3:
                raise ValueError(f"the log-probability {str(value)[:40]} is not a number of 0 or less")
            values[_whole(one["token"])] = float(max(value, -10_000))
        found.append(TokenChoice(_whole(entry["token"]), tuple(values.items())))
    # A server that was not asked for alternatives, or ignores it, gives none, or only the token itself.
    return tuple(found) if any(len(choice.top) > 1 for choice in found) else None

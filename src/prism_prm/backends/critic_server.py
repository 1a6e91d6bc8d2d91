"""`critic:openai:<base url>`: a critic behind a server with OpenAI's chat API.

A server is known by what its list of models says (`owned_by`). vLLM, SGLang and llama.cpp continue a last turn that is
the assistant's; of others this is not known, so the format's words are then asked for in the user's turn.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from prism_prm.backends.critic_replies import CriticQuestion, Reply, TokenChoice
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.errors import ConfigError
from prism_prm.net import RetryPolicy, Server, ServerError, server_address

T = TypeVar("T")

API_KEY = "OPENAI_API_KEY"
MOST_TOKENS = 10**9
TOP = 20
"""Log-probabilities asked for at each token; the most that servers give."""
CONTINUES = ("vllm", "sglang", "llamacpp")
"""`owned_by` of servers that continue a turn."""
OPENS = ("sglang", "llamacpp")
"""Those that write what the chat template begins a turn with (`<think>`) before the turn that they continue."""
_REASONS = {"stop": "stop", "length": "length", "content_filter": "content_filter", "eos": "stop"}


class ServedCritic:
    """A model behind a server."""

    def __init__(self, url: str, settings: CriticSettings) -> None:
        policy = RetryPolicy(timeout=settings.timeout, retries=settings.retries)
        self.server = Server(url, policy, settings.concurrency, key_variable=API_KEY)
        try:
            self.model, about = self._served(settings.model)
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
        """The results of all, in order."""
        return self.server.together(work)

    def close(self) -> None:
        """End all connections."""
        self.server.close()

    @property
    def num_retries(self) -> int:
        """Requests that had to be sent again."""
        return self.server.num_retries

    async def ask(self, question: CriticQuestion) -> Reply:
        """One reply."""
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

    def _served(self, wanted: str | None) -> tuple[str, dict[str, Any]]:
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


def _models(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    entries = answer.get("data")
    if not isinstance(entries, list):
        raise ValueError(f"the answer is not a list of models; its fields: {sorted(answer)}")
    return {entry["id"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)}


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
    if not isinstance(reason, str) or reason not in _REASONS:
        raise ValueError(f"the answer is incomplete: finish_reason is {reason!r}, not one of {', '.join(_REASONS)}")
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
        text, _REASONS[reason], prompt, completion, estimated, bool(refusal),  # type: ignore[arg-type]
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
        values = {_whole(one["token"]): _log_probability(one.get("logprob")) for one in entry["top_logprobs"]}
        found.append(TokenChoice(_whole(entry["token"]), tuple(values.items())))
    # A server that was not asked for alternatives, or ignores it, gives none, or only the token itself.
    return tuple(found) if any(len(choice.top) > 1 for choice in found) else None


def _log_probability(value: Any) -> float:
    if type(value) not in (int, float) or math.isnan(value) or value > 1e-3:
        raise ValueError(f"the log-probability {str(value)[:40]} is not a number of 0 or less")
    return float(max(value, -10_000))


def _whole(text: str) -> str:
    """A text without half characters (lone surrogates, which JSON can hold): they could not be written down."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

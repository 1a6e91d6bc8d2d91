"""`openai:<base url>`: any server with OpenAI's completions API (vLLM, SGLang, llama.cpp, `transformers serve`).

Whether a step ended the solution, by the first of these rules that applies:

1. The text has the stop string in it, or ends it together with the end of the prompt (servers that do not take it
   off): the step stopped there.
2. The finish reason is "length", or "content_filter" (the server withholds the rest): cut.
3. The server says what stopped it (`stop_reason` of vLLM, `matched_stop` of SGLang): our stop string, or else the end.
4. The server has left a whole stop string in a text of this batch or before, so it would have done so here: the end.
5. The finish reason alone cannot tell. The text is sent once more, without a stop string, for one greedy token: if
   nothing comes, the end; otherwise the solution continues.

Any other finish reason ("abort", none at all) means that the answer is incomplete: it is requested again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

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
from prism_prm.job import content_key
from prism_prm.models.model_files import tokenizer_text
from prism_prm.net import RetryPolicy, Server

API_KEY = "OPENAI_API_KEY"
SEEDS = 2**31 - 1
"""Servers take seeds of 31 bits."""
MOST_TOKENS = 10**9
"""The limit for one answer; a larger count is nonsense."""
REASONS = ("stop", "length", "content_filter")
"""Finish reasons of a whole answer."""


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
        patience: RetryPolicy | None = None,
        log_likelihood: bool = False,
    ) -> None:
        self.server = Server(url, patience or RetryPolicy(), concurrency, key_variable=API_KEY)
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
        """End all connections."""
        self.server.close()

    def write(self, requests: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        """One continuation per request; as many at a time as `concurrency` says."""
        found = self.server.together([self._complete(self._body(request, sampling)) for request in requests])
        # All answers are read before the first decision, so that it does not depend on which of them came first. A
        # server that stops at a stop string which the prompt began has not shown what it does with whole ones.
        pairs = list(zip(requests, found, strict=True))
        self._leaves_stop |= any(sampling.stop in one.text for request, one in pairs if not request.whole)
        return self.server.together([self._written(request, one, sampling.stop) for request, one in pairs])

    def _body(self, request: StepRequest, sampling: Sampling) -> dict[str, Any]:
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
        return body

    async def _written(self, request: StepRequest, found: Completion, stop: str) -> Written:
        """A completion as a step: how it ended, by the rules above."""
        if request.whole:
            over: Ending = "end" if found.reason == "stop" else "cut"
            return Written(found.text, over, found.num_tokens, self._log_likelihood(found))
        text, has_stop = cut_at_stop(found.text, stop)
        num_tokens, log_likelihood = found.num_tokens, self._log_likelihood(found)
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
            probe = await self._complete(body)
            has_stopped, num_tokens = bool(probe.text), num_tokens + probe.num_tokens
        if has_stopped:
            return Written(text + stop, "stop", num_tokens, log_likelihood)
        return Written(text, "end", num_tokens, log_likelihood)

    async def _complete(self, body: dict[str, Any]) -> Completion:
        return await self.server.ask("POST", "/completions", self._read, body)

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
        # Half a character (a lone surrogate, which JSON can hold) could neither be sent back nor written down.
        text = choice["text"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
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

    def _log_likelihood(self, found: Completion) -> float | None:
        if not self.has_log_likelihood:
            return None
        if found.token_log_likelihoods is None:
            raise PolicyError(
                f"{self.name} gives no log-probabilities, but this search uses the policy's likelihood. Use another "
                f"server, or rank by the PRM alone: --prm-weight 1."
            )
        return sum(found.token_log_likelihoods)


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


class _ServedModel(msgspec.Struct):
    id: str


def served_model(server: Server) -> str:
    """The one model that a server names; an error where it names none or several."""

    def read(answer: dict[str, Any]) -> list[str]:
        try:
            return [entry.id for entry in msgspec.convert(answer["data"], list[_ServedModel])]
        except (KeyError, msgspec.ValidationError):
            raise ValueError(f"the answer is not a list of models; its fields: {sorted(answer)}") from None

    (names,) = server.together([server.ask("GET", "/models", read)])
    if len(names) != 1:
        listed = ", ".join(names[:8]) or "no model by name"
        raise PolicyError(
            f"{server.shown} serves {listed}; choose one with --model (of a second policy: --second-model)"
        )
    return names[0]

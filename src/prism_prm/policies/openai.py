"""`openai:<base url>`: any server with OpenAI's completions API (vLLM, SGLang, llama.cpp, `transformers serve`).

Whether a step ended the solution, by the first of these rules that applies:

1. The text has the stop string in it, or ends it together with the end of the prompt (servers that do not take it
   off): the step stopped there.
2. The finish reason is "length": cut.
3. The server says what stopped it (`stop_reason` of vLLM, `matched_stop` of SGLang): our stop string, or else the end.
4. The server has left a stop string in a text before, so it would have done so here: the end.
5. The finish reason alone cannot tell. The text is sent once more, without a stop string, for one greedy token: if
   nothing comes, the end; otherwise the solution goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prism_prm.policies.base import Ask, Ending, PolicyError, Sampling, Written, cut_at_stop
from prism_prm.policies.http import Patience, Server
from prism_prm.policies.prompts import Prompting, render

SEEDS = 2**31 - 1
"""Servers take seeds of 31 bits."""


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
        patience: Patience | None = None,
        log_likelihood: bool = False,
    ) -> None:
        self.server = Server(url, patience or Patience(), concurrency)
        self.name = f"openai:{self.server.shown}"
        self.model = model
        self.tokenizer = tokenizer
        self.prompting = prompting or Prompting()
        self.has_log_likelihood = log_likelihood
        """Whether log-probabilities are asked for; a server that gives none is then an error."""
        self._leaves_stop = False

    def identity(self) -> str:
        """The model's name and the prompt; the server's weights cannot be seen from here."""
        return f"openai:{self.model}:{self.prompting!r}"

    def prompt(self, problem: str) -> str:
        """The problem in the model's chat template, applied here and not by the server."""
        return render(problem, self.prompting, self.tokenizer)

    def close(self) -> None:
        """End all connections."""
        self.server.close()

    def write(self, asks: Sequence[Ask], sampling: Sampling) -> list[Written]:
        """One continuation per ask; as many requests at a time as `concurrency` says."""
        return self.server.together([self._write_one(ask, sampling) for ask in asks])

    async def _write_one(self, ask: Ask, sampling: Sampling) -> Written:
        greedy = ask.greedy or sampling.temperature == 0
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": ask.text,
            "max_tokens": ask.max_tokens,
            "temperature": 0.0 if greedy else sampling.temperature,
            "top_p": 1.0 if greedy else sampling.top_p,
            "stop": [sampling.stop],
        }
        if not greedy:
            body["seed"] = ask.key % SEEDS
        if self.has_log_likelihood:
            body["logprobs"] = 1
        choice, num_tokens = await self._complete(body)
        text, stopped = cut_at_stop(choice["text"], sampling.stop)
        spans = bool(text) and (ask.text + text).endswith(sampling.stop)
        ending, probed = await self._ending(ask, choice, text, stopped or spans, sampling.stop)
        if ending == "stop" and not stopped and not spans:
            text += sampling.stop
        return Written(text, ending, num_tokens + probed, self._log_likelihood(choice))

    async def _ending(
        self, ask: Ask, choice: dict[str, Any], text: str, stopped: bool, stop: str
    ) -> tuple[Ending, int]:
        """How a step ended, by the rules above, and how many tokens finding out took."""
        if stopped:
            self._leaves_stop = True
            return "stop", 0
        if choice.get("finish_reason") == "length":
            return "cut", 0
        for field in ("stop_reason", "matched_stop"):
            if field in choice:
                return "stop" if choice[field] == stop else "end", 0
        if self._leaves_stop:
            return "end", 0
        body = {"model": self.model, "prompt": ask.text + text, "max_tokens": 1, "temperature": 0.0}
        probe, num_tokens = await self._complete(body)
        return "stop" if probe["text"] else "end", num_tokens

    async def _complete(self, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The first choice of an answer, and how many tokens it took."""
        return await self.server.ask("POST", "/completions", self._read, body)

    def _read(self, answer: dict[str, Any]) -> tuple[dict[str, Any], int]:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
            raise ValueError(
                f"the answer has no choices[0].text; is this a completions API? Its fields: {sorted(answer)}"
            )
        used = answer.get("usage")
        counted = used.get("completion_tokens") if isinstance(used, dict) else None
        return choice, counted if isinstance(counted, int) else self._count(choice["text"])

    def _count(self, text: str) -> int:
        """Tokens of a text, where the server does not say; a guess without a tokenizer."""
        if self.tokenizer is None:
            return max(1, len(text) // 4)
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _log_likelihood(self, choice: dict[str, Any]) -> float | None:
        if not self.has_log_likelihood:
            return None
        found = choice.get("logprobs")
        values = found.get("token_logprobs") if isinstance(found, dict) else None
        if not isinstance(values, list):
            raise PolicyError(
                f"{self.name} gives no log-probabilities, and this search weighs the policy's likelihood. Use another "
                "server, or rank by the PRM alone: --prm-weight 1."
            )
        return float(sum(value for value in values if value is not None))


def served_model(server: Server) -> str:
    """The one model that a server names; an error where it names none or several."""
    (names,) = server.together([server.ask("GET", "/models", _names)])
    if len(names) != 1:
        listed = ", ".join(names[:8]) or "no model by name"
        raise PolicyError(f"{server.shown} serves {listed}; say which one with --model")
    return names[0]


def _names(answer: dict[str, Any]) -> list[str]:
    entries = answer.get("data")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"the answer is no list of models; its fields: {sorted(answer)}")
    return [str(entry.get("id")) for entry in entries]

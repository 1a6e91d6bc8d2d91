"""A scripted chat server, and critics that ask it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loopback import Answer, serve
from prism_prm.backends.critic import Critic
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.open_critic import open_critic

PROBLEM = "What is 2 + 3 * 4?"
STEPS = ["3 * 4 = 12", "2 + 12 = 15", "The answer is 15."]
LLAMA_CPP = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
SGLANG = {"data": [{"id": "m", "owned_by": "sglang"}]}
VLLM = {"data": [{"id": "m", "owned_by": "vllm"}]}
OTHER = {"data": [{"id": "m", "owned_by": "someone"}]}
PROBE = "Answer with the word"


def chat(
    text: str | None,
    *,
    reason: Any = "stop",
    top: list[dict[str, float]] | None = None,
    usage: bool = True,
    **more: Any,
) -> Answer:
    """An answer; `top` gives for each token its alternatives' probabilities, the first of which was written."""
    choice: dict[str, Any] = {"message": {"role": "assistant", "content": text} | more, "finish_reason": reason}
    if top is not None:
        choice["logprobs"] = {"content": [_token(one) for one in top]}
    body: dict[str, Any] = {"choices": [choice]}
    return 200, body | ({"usage": {"prompt_tokens": 10, "completion_tokens": 5}} if usage else {})


def _token(shares: dict[str, float]) -> dict[str, Any]:
    entries = [{"token": token, "logprob": math.log(share)} for token, share in shares.items()]
    return entries[0] | {"top_logprobs": entries}


def is_probe(body: dict[str, Any]) -> bool:
    return str(body["messages"][-1]["content"]).startswith(PROBE)


@contextmanager
def critic(
    folder: Path,
    answer: Callable[[dict[str, Any]], Answer],
    *,
    models: Any = OTHER,
    top: bool = False,
    timeout: float = 300.0,
    **settings: Any,
) -> Iterator[tuple[Critic, list[dict[str, Any]]]]:
    """A critic behind a server that gives `answer(body)`, and what was asked but the probe; `top`: the server has
    log-probabilities.
    """

    def probed(body: dict[str, Any]) -> Answer:
        if is_probe(body):
            return chat("Yes", top=[{"Yes": 0.9, "No": 0.1}] if top else None)
        return answer(body)

    given = CriticSettings(replies=str(folder / "replies"), timeout=timeout, **settings)
    with serve(probed, models=models) as (url, asked):
        found = open_critic(f"critic:openai:{url}", given)
        asked[:] = [body for body in asked if not is_probe(body)]
        try:
            yield found, asked
        finally:
            found.close()


def said(body: dict[str, Any]) -> str:
    """The last turn of a request."""
    return str(body["messages"][-1]["content"])

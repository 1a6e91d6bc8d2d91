"""`critic:hf:<id or folder>`: a critic that runs here, through the code of local policies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from prism_prm.critics.replies import Ask, Reply, TokenChoice
from prism_prm.critics.server import TOP
from prism_prm.policies.base import Ask as PolicyAsk
from prism_prm.policies.base import Sampling, Written
from prism_prm.policies.hf import HfPolicy, load_hf

T = TypeVar("T")

SECONDS_TO_GATHER = 0.005
"""Questions that come within this time are answered in one batch."""
NO_STOP = "\x00"
"""A stop text that no model writes."""


class LocalCritic:
    """A language model of transformers. It continues turns, and gives the log-probabilities of a first token."""

    primes = True
    kind = "local"
    num_retries = 0

    def __init__(self, place: str, *, dtype: str | None = None, device: str | None = None) -> None:
        self.policy: HfPolicy = load_hf(place, dtype=dtype, device=device)
        self.name = self.model = place
        self._waiting: list[tuple[Ask, asyncio.Future[Reply]]] = []

    def identity(self) -> str:
        """The weights, the config and the tokenizer."""
        return self.policy.identity()

    def run(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of all, in order; in a thread, since a notebook has a loop of its own."""

        async def together() -> list[T]:
            return list(await asyncio.gather(*work))

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, together()).result()

    def close(self) -> None:
        """Nothing is held."""

    async def ask(self, ask: Ask) -> Reply:
        """One reply, made together with others that are asked at the same time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        if not self._waiting:
            loop.call_later(SECONDS_TO_GATHER, self._answer)
        self._waiting.append((ask, future))
        return await future

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple[Any, ...], list[tuple[Ask, asyncio.Future[Reply]]]] = {}
        for ask, future in waiting:
            how = (ask.temperature, ask.top_p, ask.stops[:1], ask.log_probabilities)
            groups.setdefault(how, []).append((ask, future))
        for some in groups.values():
            try:
                replies = self._write([ask for ask, _ in some])
            except Exception as error:  # whatever it is, it is for those who asked; Ctrl-C ends the loop itself
                for _, future in some:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), reply in zip(some, replies, strict=True):
                if not future.done():
                    future.set_result(reply)

    def _write(self, asks: Sequence[Ask]) -> list[Reply]:
        start, one = time.monotonic(), asks[0]
        texts = [self._text(ask) for ask in asks]
        sampling = Sampling(temperature=one.temperature, top_p=one.top_p, stop=(one.stops or (NO_STOP,))[0])
        written = self.policy.write(
            [PolicyAsk(text, ask.seed, ask.max_tokens) for text, ask in zip(texts, asks, strict=True)], sampling
        )
        choices = [self._choices(text) if one.log_probabilities else None for text in texts]
        seconds = round((time.monotonic() - start) / len(asks), 3)
        return [
            self._reply(ask, text, found, choice, seconds)
            for ask, text, found, choice in zip(asks, texts, written, choices, strict=True)
        ]

    def _reply(self, ask: Ask, text: str, found: Written, choice: TokenChoice | None, seconds: float) -> Reply:
        # The first stop text ended it; at the others it is cut here.
        places = {stop: found.text.find(stop) for stop in ask.stops if stop in found.text}
        stop = min(places, key=lambda one: places[one]) if places else None
        said = found.text if stop is None else found.text[: places[stop]]
        reason = "length" if found.ending == "cut" and stop is None else "stop"
        num_read = len(self.policy.tokenizer(text)["input_ids"])
        tokens = None if choice is None else (choice,)
        return Reply(said, reason, num_read, found.num_tokens, stopped_by=stop, tokens=tokens, seconds=seconds)  # type: ignore[arg-type]

    def _text(self, ask: Ask) -> str:
        """The chat as text, up to where the critic goes on; without a beginning-of-sequence token written twice."""
        tokenizer = self.policy.tokenizer
        if not getattr(tokenizer, "chat_template", None):
            begun = ask.opening + ask.begun if ask.begun else ""
            return "\n\n".join([*(content for _, content in ask.turns), begun])
        messages = [{"role": role, "content": content} for role, content in ask.turns]
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        bos = tokenizer.bos_token
        if bos and text.startswith(bos) and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]:
            text = text[len(bos) :]
        lacks_opening = ask.begun and not text.endswith(ask.opening)
        return text + (ask.opening if lacks_opening else "") + ask.begun

    @torch.no_grad()
    def _choices(self, text: str) -> TokenChoice | None:
        """The likeliest first tokens after a text."""
        model, tokenizer = self.policy.model, self.policy.tokenizer
        ids = tokenizer(text, return_tensors="pt")["input_ids"].to(model.device)
        if ids.shape[1] >= self.policy.context:
            return None
        logits = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        values, tokens = torch.log_softmax(logits, -1).topk(min(TOP, len(logits)))
        shown = [tokenizer.decode([token]) for token in tokens.tolist()]
        best: dict[str, float] = {}
        for token, value in zip(shown, values.tolist(), strict=True):
            best.setdefault(token, value)
        return TokenChoice(shown[0], tuple(best.items()))

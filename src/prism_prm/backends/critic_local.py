"""`critic:hf:<id or folder>`: a critic that runs here, through the code of local policies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

import msgspec
import torch

from prism_prm.backends.critic_replies import CriticQuestion, Reply, TokenChoice
from prism_prm.backends.critic_server import TOP
from prism_prm.backends.hf_policy import HfPolicy, load_hf
from prism_prm.backends.policy import Sampling, StepRequest
from prism_prm.models.model_files import render_chat

T = TypeVar("T")

SECONDS_TO_GATHER = 0.005
"""Questions that come within this time are answered in one batch."""
ROWS_AT_ONCE = 64
"""Tokens whose log-probabilities are ranked together: each has one per word of the vocabulary."""


class LocalCritic:
    """A language model of transformers. It continues turns, and gives log-probabilities."""

    primes = True
    kind = "local"
    num_retries = 0

    def __init__(self, place: str, *, dtype: str | None = None, device: str | None = None) -> None:
        self.policy: HfPolicy = load_hf(place, dtype=dtype, device=device)
        self.name = self.model = place
        self._waiting: list[tuple[CriticQuestion, asyncio.Future[Reply]]] = []

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

    async def ask(self, question: CriticQuestion) -> Reply:
        """One reply, made together with others that are asked at the same time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        if not self._waiting:
            loop.call_later(SECONDS_TO_GATHER, self._answer)
        self._waiting.append((question, future))
        return await future

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple[Any, ...], list[tuple[CriticQuestion, asyncio.Future[Reply]]]] = {}
        for one, future in waiting:
            how = (one.temperature, one.top_p, one.top_k, one.stops, one.log_probabilities)
            groups.setdefault(how, []).append((one, future))
        for some in groups.values():
            try:
                replies = self._write([question for question, _ in some])
            except Exception as error:  # whatever it is, it is for those who asked; Ctrl-C ends the loop itself
                for _, future in some:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), reply in zip(some, replies, strict=True):
                if not future.done():
                    future.set_result(reply)

    def _write(self, questions: Sequence[CriticQuestion]) -> list[Reply]:
        start, first = time.monotonic(), questions[0]
        texts = list(map(self._text, questions))
        written = self.policy.write(
            [
                StepRequest(text, one.seed, one.max_tokens, keep=False)
                for text, one in zip(texts, questions, strict=True)
            ],
            Sampling(temperature=first.temperature, top_p=first.top_p),
            stops=first.stops,
            top_k=first.top_k,
        )
        replies = []
        for text, found in zip(texts, written, strict=True):
            tokens = self._choices(text, found.ids) if first.log_probabilities else None
            places = {stop: found.text.find(stop) for stop in first.stops if stop in found.text}
            stop = min(places, key=places.__getitem__, default=None)
            said = found.text if stop is None else found.text[: places[stop]]
            num_read = len(self.policy.tokenizer(text)["input_ids"])
            reason: Literal["length", "stop"] = "length" if found.ending == "cut" and stop is None else "stop"
            replies.append(Reply(said, reason, num_read, found.num_tokens, stopped_by=stop, tokens=tokens))
        seconds = round((time.monotonic() - start) / len(questions), 3)
        return [msgspec.structs.replace(reply, seconds=seconds) for reply in replies]

    def _text(self, question: CriticQuestion) -> str:
        """The chat as text, up to where the critic continues; without a beginning-of-sequence token written twice."""
        tokenizer, opening, begun = self.policy.tokenizer, question.opening, question.begun
        if not getattr(tokenizer, "chat_template", None):
            return "\n\n".join([*(content for _, content in question.turns), opening + begun if begun else ""])
        messages = [{"role": role, "content": content} for role, content in question.turns]
        text = render_chat(tokenizer, messages, add_generation_prompt=True)
        bos = tokenizer.bos_token
        if bos and text.startswith(bos) and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]:
            text = text[len(bos) :]
        return text + (opening if begun and not text.endswith(opening) else "") + begun

    @torch.no_grad()
    def _choices(self, text: str, written: tuple[int, ...]) -> tuple[TokenChoice, ...] | None:
        """The likeliest tokens in the place of each one written after a text; of nothing, in the place of the first."""
        model, tokenizer = self.policy.model, self.policy.tokenizer
        ids = [*tokenizer(text)["input_ids"], *written[:-1]]
        if len(ids) >= self.policy.context:
            return None
        num_places = max(1, len(written))
        logits_NV = model(
            input_ids=torch.tensor([ids], device=model.device), use_cache=False, logits_to_keep=num_places
        ).logits[0, -num_places:]
        found: list[TokenChoice] = []
        for part_NV in logits_NV.split(ROWS_AT_ONCE):
            best = torch.log_softmax(part_NV.float(), -1).topk(min(TOP, part_NV.shape[-1]))
            for values, tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                top: dict[str, float] = {}
                for token, value in zip(tokens, values, strict=True):
                    top.setdefault(tokenizer.decode([token]), value)
                said = tokenizer.decode([written[len(found)]]) if written else ""
                found.append(TokenChoice(said, tuple(top.items())))
        return tuple(found)

"""Local transformers models: the policy `hf:<id or folder>`, batched over problems with a KV cache, and the critic
`critic:hf:<id or folder>`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import msgspec
import torch

from prism_prm.backends.critic_replies import CriticQuestion, Reply, TokenChoice
from prism_prm.backends.decode import CachedPrefix, DecodeContext, Decoder, DecodeRow, check_decoding
from prism_prm.backends.openai import TOP
from prism_prm.backends.policy import (
    Ending,
    Prompting,
    Sampling,
    StepRequest,
    Written,
    chat_text,
    cut_at_stop,
    render,
)
from prism_prm.errors import ModelError
from prism_prm.models.attention import SHARED, attention_windows, set_kernel
from prism_prm.models.gguf_files import find_gguf
from prism_prm.models.load_lm import halving, hash_tensors, language_model, pick_device, pick_dtype, plain_config
from prism_prm.models.model_files import local_folder, tokenizer_text

T = TypeVar("T")

SHARE_OF_MEMORY = 0.25
CPU_BYTES = 2 * 10**9
TAIL = 8
"""Tokens before a step to decode with it: some tokenizers decode a token differently at the start of a text."""
SECONDS_TO_GATHER = 0.005
"""Questions that arrive within this time are answered in one batch."""
ROWS_AT_ONCE = 64
"""Tokens whose log-probabilities are ranked together; each has one per vocabulary entry."""


class HfPolicy:
    """A local policy.

    Like a server, it tokenizes the whole text before every step. Key/values are reused as far as the tokens agree with
    those that were written.
    """

    has_log_likelihood = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "",
        prompting: Prompting | None = None,
        token_budget: int | None = None,
    ) -> None:
        self.name = name
        self.model = model.eval()
        set_kernel(model.config, SHARED)  # SDPA, except for decoding
        self.tokenizer = tokenizer
        self.prompting = prompting or Prompting()
        self.token_budget = token_budget or _tokens_in_memory(model)
        """Tokens per batch (context and new ones, padding included); by default what memory allows. Also the limit of
        tokens kept for callers: beyond it, states are not kept, and those texts are read again."""
        self.windows = attention_windows(model.base_model)
        self.context: int = model.config.max_position_embeddings
        self.end_ids = _end_ids(model, tokenizer)
        self.num_read = 0
        """The number of context tokens that were not cached and went through the model."""
        self._kept: WeakSet[CachedPrefix] = WeakSet()
        """Key/values that callers still reference."""
        self._may_stop: dict[tuple[int, str], bool] = {}

    def identity(self) -> str:
        """Identify the weights with their config, the tokenizer, and the prompt."""
        facts = plain_config(self.model.config), repr(self.prompting), sorted(self.end_ids)
        texts = json.dumps(facts, sort_keys=True, default=str), tokenizer_text(self.tokenizer)
        return f"hf:{hash_tensors(texts, self.model.state_dict().items())}"

    def prompt(self, problem: str) -> str:
        """Apply the model's chat template to a problem."""
        return render(problem, self.prompting, self.tokenizer)

    def close(self) -> None:
        """Do nothing: all state belongs to the caller."""

    def write(
        self,
        requests: Sequence[StepRequest],
        sampling: Sampling,
        *,
        stops: Sequence[str] | None = None,
        top_k: int = 0,
        check: Callable[[], None] | None = None,
    ) -> list[Written]:
        """Write one continuation per request, in batches of similar length that fit the token budget.

        For critics: `stops` replace the stop string, and `top_k` samples from that many of the most likely tokens.
        `check` is called before every token; what it raises ends the work.
        """

        def is_over(row: DecodeRow) -> bool:
            if check is not None:
                check()
            return self._is_over(row)

        ends = (sampling.stop,) if stops is None else tuple(stops)
        states = {request.text: request.state for request in requests}
        token_ids = self.tokenizer(list(states))["input_ids"] if states else []
        contexts = {text: self._context(ids, states[text]) for text, ids in zip(states, token_ids, strict=True)}
        lengths = [len(contexts[request.text].ids) for request in requests]

        def run(batch: Sequence[int]) -> list[DecodeRow]:
            rows = []
            has_room = sum(piece.keys_values.shape[-2] for piece in self._kept) < self.token_budget
            for request, length in ((requests[i], lengths[i]) for i in batch):
                key = None if request.greedy or sampling.temperature == 0 else request.key
                max_tokens = min(request.max_tokens, self.context - length)
                row_stops = () if request.whole else ends
                keeps = request.keep and has_room
                rows.append(DecodeRow(contexts[request.text], key, max_tokens, keeps, row_stops))
            distinct = list(dict.fromkeys(row.context for row in rows))
            Decoder(self.model, self.windows).run(
                distinct, rows, is_over,
                temperature=sampling.temperature, top_p=sampling.top_p, top_k=top_k,
            )  # fmt: skip
            self.num_read += sum(len(context.ids) - context.shared for context in distinct)
            for row in rows:
                piece = row.kept
                while piece is not None and piece not in self._kept:
                    self._kept.add(piece)
                    piece = piece.base
            return rows

        # A text that already fills the context cannot be continued.
        steps = [Written("", "cut", 0, 0.0) for _ in requests]
        order = sorted(range(len(requests)), key=lambda i: (lengths[i], requests[i].text))
        batches: list[list[int]] = []
        longest = 0
        for i in (i for i in order if lengths[i] < self.context):
            length = lengths[i] + requests[i].max_tokens
            if not batches or max(longest, length) * (len(batches[-1]) + 1) > self.token_budget:
                batches.append([])
                longest = 0
            batches[-1].append(i)
            longest = max(longest, length)
        for batch in batches:
            for part, rows in halving(batch, run, lambda _: "one solution"):
                for i, row in zip(part, rows, strict=True):
                    steps[i] = self._to_step(row)
        return steps

    def _context(self, ids: list[int], known: CachedPrefix | None) -> DecodeContext:
        if not ids:
            raise ModelError(f"{self.name}: the prompt has no tokens")
        if known is None:
            return DecodeContext(tuple(ids), None, 0)
        # The last token always goes through the model, because the logits after it are needed.
        shared = min(len(known.ids), len(ids) - 1)
        if tuple(ids[:shared]) != known.ids[:shared]:
            shared = next(i for i in range(shared) if ids[i] != known.ids[i])
        return DecodeContext(tuple(ids), known if shared else None, shared)

    def _is_over(self, row: DecodeRow) -> bool:
        token = row.tokens[-1]
        if token in self.end_ids:
            return True
        for stop in row.stops:
            if (token, stop) not in self._may_stop:
                # Only a token with the stop string's last character can complete it; partial characters decode as �.
                text = self._decode([token])
                self._may_stop[token, stop] = stop[-1] in text or "�" in text
            if self._may_stop[token, stop] and stop in self._text(row):
                return True
        return False

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _text(self, row: DecodeRow) -> str:
        before = row.context.ids[-TAIL:]
        head, text = self._decode(before), self._decode([*before, *row.tokens])
        return text[len(head) :] if text.startswith(head) else self._decode(row.tokens)

    def _to_step(self, row: DecodeRow) -> Written:
        ended, decoded = row.tokens[-1] in self.end_ids, self._text(row)
        first = min((stop for stop in row.stops if stop in decoded), key=decoded.find, default="")
        text, stopped = cut_at_stop(decoded, first)
        ending: Ending = "stop" if stopped else "end" if ended else "cut"
        ids = tuple(row.tokens[:-1] if ended else row.tokens)
        return Written(text, ending, len(row.tokens), row.log_likelihood, row.kept, ids)


def _tokens_in_memory(model: Any) -> int:
    """Compute the batch size in tokens: key/values get a part of free memory; attention and the PRM need the rest."""
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * heads * head_size * model.dtype.itemsize
    is_gpu = model.device.type == "cuda"
    num_bytes = SHARE_OF_MEMORY * torch.cuda.mem_get_info(model.device)[0] if is_gpu else CPU_BYTES
    return max(1, int(num_bytes) // int(token_bytes))


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text, according to the model, its generation config and the tokenizer."""
    generation = getattr(model, "generation_config", None)
    sources = [tokenizer.eos_token_id, model.config.eos_token_id, getattr(generation, "eos_token_id", None)]
    end_ids: set[int] = set()
    for ids in sources:
        end_ids |= set(ids) if isinstance(ids, list | tuple) else {ids} if ids is not None else set()
    return frozenset(end_ids)


def load_hf(
    name: str | Path,
    *,
    prompting: Prompting | None = None,
    dtype: str | None = None,
    device: str | None = None,
    token_budget: int | None = None,
) -> HfPolicy:
    """Load a policy from a hub id, a folder, or a folder with one GGUF file."""
    target = pick_device(device)
    folder = local_folder(str(name))
    if not (folder / "config.json").exists() and find_gguf(folder) is None:
        raise ModelError(f"{folder}: neither config.json nor a .gguf file, so this is not a model folder")
    model, tokenizer = language_model(folder, pick_dtype(dtype, target, str(name)), target)
    check_decoding(model)
    return HfPolicy(model, tokenizer, name=f"hf:{name}", prompting=prompting, token_budget=token_budget)


class LocalCritic:
    """A critic's model in this process. It continues turns and returns log-probabilities."""

    primes = True
    num_retries = 0

    def __init__(self, place: str, *, dtype: str | None = None, device: str | None = None) -> None:
        self.policy: HfPolicy = load_hf(place, dtype=dtype, device=device)
        self.name = self.model = place
        self._waiting: list[tuple[CriticQuestion, asyncio.Future[Reply]]] = []

    def identity(self) -> str:
        """Identify the weights, the config and the tokenizer."""
        return self.policy.identity()

    def run(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Run coroutines together, in a thread, because a notebook has its own event loop."""

        async def together() -> list[T]:
            self._waiting = []  # a run that ended with an error may have left some
            return list(await asyncio.gather(*work))

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, together()).result()

    def close(self) -> None:
        """Do nothing: there are no connections."""

    async def ask(self, question: CriticQuestion) -> Reply:
        """Answer one question, in a batch with others that arrive at the same time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        if not self._waiting:
            loop.call_later(SECONDS_TO_GATHER, self._answer)
        self._waiting.append((question, future))
        return await future

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        groups: dict[tuple[Any, ...], list[tuple[CriticQuestion, asyncio.Future[Reply]]]] = {}
        for question, future in waiting:
            sampling = (
                question.temperature, question.top_p, question.top_k, question.stops, question.log_probabilities
            )  # fmt: skip
            groups.setdefault(sampling, []).append((question, future))
        for group in groups.values():
            try:
                replies = self._write([question for question, _ in group])
            except Exception as error:  # raised to the callers; Ctrl-C ends the loop itself
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), reply in zip(group, replies, strict=True):
                if not future.done():
                    future.set_result(reply)

    def _write(self, questions: Sequence[CriticQuestion]) -> list[Reply]:
        start, first = time.monotonic(), questions[0]
        texts = list(map(self._text, questions))
        written = self.policy.write(
            [
                StepRequest(text, question.seed, question.max_tokens, keep=False)
                for text, question in zip(texts, questions, strict=True)
            ],
            Sampling(temperature=first.temperature, top_p=first.top_p),
            stops=first.stops,
            top_k=first.top_k,
        )
        replies = []
        for text, step in zip(texts, written, strict=True):
            tokens = self._choices(text, step.ids) if first.log_probabilities else None
            positions = {stop: step.text.find(stop) for stop in first.stops if stop in step.text}
            stop = min(positions, key=positions.__getitem__, default=None)
            answer = step.text if stop is None else step.text[: positions[stop]]
            num_read = len(self.policy.tokenizer(text)["input_ids"])
            reason: Literal["length", "stop"] = "length" if step.ending == "cut" and stop is None else "stop"
            replies.append(Reply(answer, reason, num_read, step.num_tokens, stopped_by=stop, tokens=tokens))
        seconds = round((time.monotonic() - start) / len(questions), 3)
        return [msgspec.structs.replace(reply, seconds=seconds) for reply in replies]

    def _text(self, question: CriticQuestion) -> str:
        """Render the chat, up to where the critic continues."""
        opening, begun = question.opening, question.begun
        if not getattr(self.policy.tokenizer, "chat_template", None):
            return "\n\n".join([*(content for _, content in question.turns), opening + begun if begun else ""])
        text = chat_text(self.policy.tokenizer, question.turns)
        return text + (opening if begun and not text.endswith(opening) else "") + begun

    @torch.no_grad()
    def _choices(self, text: str, written: tuple[int, ...]) -> tuple[TokenChoice, ...] | None:
        """Return the most likely tokens at each position written after a text; if none was, at the first position."""
        model, tokenizer = self.policy.model, self.policy.tokenizer
        ids = [*tokenizer(text)["input_ids"], *written[:-1]]
        if len(ids) >= self.policy.context:
            return None
        num_positions = max(1, len(written))
        logits_NV = model(
            input_ids=torch.tensor([ids], device=model.device), use_cache=False, logits_to_keep=num_positions
        ).logits[0, -num_positions:]
        choices: list[TokenChoice] = []
        for part_NV in logits_NV.split(ROWS_AT_ONCE):
            best = torch.log_softmax(part_NV.float(), -1).topk(min(TOP, part_NV.shape[-1]))
            for values, tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                top: dict[str, float] = {}
                for token, value in zip(tokens, values, strict=True):
                    top.setdefault(tokenizer.decode([token]), value)
                token = tokenizer.decode([written[len(choices)]]) if written else ""
                choices.append(TokenChoice(token, tuple(top.items())))
        return tuple(choices)

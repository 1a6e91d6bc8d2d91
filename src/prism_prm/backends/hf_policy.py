"""`hf:<id or folder>`: a causal language model of transformers, batched over problems, with key/values kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from prism_prm.backends.decode import Context, Decoder, DecodeRow, Kept, check_decoding
from prism_prm.backends.policy import Ending, Prompting, Sampling, StepRequest, Written, cut_at_stop, render
from prism_prm.errors import ModelError
from prism_prm.models.attention import SHARED, attention_windows, set_kernel
from prism_prm.models.load_lm import halving, hash_tensors, language_model, pick_device, pick_dtype, plain_config
from prism_prm.models.model_files import local_folder, tokenizer_text

SHARE_OF_MEMORY = 0.25
CPU_BYTES = 2 * 10**9
TAIL = 8
"""Tokens before a step that are decoded with it: some tokenizers write a token differently at the start of a text."""


class HfPolicy:
    """A local policy. Its text so far is tokenized as a whole before every step, as a server does it; key/values are
    reused as far as the tokens agree with those that were written.
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
        set_kernel(model.config, SHARED)  # SDPA, save for decoding
        self.tokenizer = tokenizer
        self.prompting = prompting or Prompting()
        self.token_budget = token_budget or _tokens_in_memory(model)
        """Tokens of one batch (context and new ones, padding included); by default what memory allows. While more than
        these are kept for callers, nothing further is: their texts are read again."""
        self.windows = attention_windows(model.base_model)
        self.context: int = model.config.max_position_embeddings
        self.end_ids = _end_ids(model, tokenizer)
        self.num_read = 0
        """Tokens of contexts that went through the model: what was not kept."""
        self._kept: WeakSet[Kept] = WeakSet()
        """Key/values that somebody still points to."""
        self._may_stop: dict[tuple[int, str], bool] = {}

    def identity(self) -> str:
        """The weights with their config, the tokenizer, and the prompt."""
        facts = plain_config(self.model.config), repr(self.prompting), sorted(self.end_ids)
        texts = json.dumps(facts, sort_keys=True, default=str), tokenizer_text(self.tokenizer)
        return f"hf:{hash_tensors(texts, self.model.state_dict().items())}"

    def prompt(self, problem: str) -> str:
        """The problem in the model's chat template."""
        return render(problem, self.prompting, self.tokenizer)

    def close(self) -> None:
        """Nothing is held between calls but what the caller holds."""

    def write(
        self, requests: Sequence[StepRequest], sampling: Sampling, *, stops: Sequence[str] | None = None, top_k: int = 0
    ) -> list[Written]:
        """One continuation per request; contexts of similar length together, as many as the token budget allows.

        `stops` replace the stop string, and `top_k` samples from so many of the likeliest tokens, as critics need it.
        """
        ends = (sampling.stop,) if stops is None else tuple(stops)
        states = {request.text: request.state for request in requests}
        token_ids = self.tokenizer(list(states))["input_ids"] if states else []
        contexts = {text: self._context(ids, states[text]) for text, ids in zip(states, token_ids, strict=True)}
        lengths = [len(contexts[request.text].ids) for request in requests]

        def run(some: Sequence[int]) -> list[DecodeRow]:
            """One continuation per request, all together."""
            rows = []
            has_room = sum(piece.keys_values.shape[-2] for piece in self._kept) < self.token_budget
            for i in some:
                key = None if requests[i].greedy or sampling.temperature == 0 else requests[i].key
                most = min(requests[i].max_tokens, self.context - lengths[i])
                row_stops = () if requests[i].whole else ends
                rows.append(DecodeRow(contexts[requests[i].text], key, most, requests[i].keep and has_room, row_stops))
            distinct = list(dict.fromkeys(row.context for row in rows))
            Decoder(self.model, self.windows).run(
                distinct, rows, self._is_over,
                temperature=sampling.temperature, top_p=sampling.top_p, top_k=top_k,
            )  # fmt: skip
            self.num_read += sum(len(context.ids) - context.shared for context in distinct)
            for row in rows:
                piece = row.kept
                while piece is not None and piece not in self._kept:
                    self._kept.add(piece)
                    piece = piece.base
            return rows

        # A text that fills the context already cannot be continued.
        found = [Written("", "cut", 0, 0.0) for _ in requests]
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
            for some, rows in halving(batch, run, lambda _: "one solution"):
                for i, row in zip(some, rows, strict=True):
                    found[i] = self._written(row)
        return found

    def _context(self, ids: list[int], known: Kept | None) -> Context:
        if not ids:
            raise ModelError(f"{self.name}: the prompt has no tokens")
        if known is None:
            return Context(tuple(ids), None, 0)
        # The last token always goes through the model: the logits behind it are needed.
        shared = min(len(known.ids), len(ids) - 1)
        if tuple(ids[:shared]) != known.ids[:shared]:
            shared = next(i for i in range(shared) if ids[i] != known.ids[i])
        return Context(tuple(ids), known if shared else None, shared)

    def _is_over(self, row: DecodeRow) -> bool:
        token = row.tokens[-1]
        return token in self.end_ids or any(self._stops(row, token, stop) for stop in row.stops)

    def _stops(self, row: DecodeRow, token: int, stop: str) -> bool:
        seen = self._may_stop.get((token, stop))
        if seen is None:
            # Only a token with the stop string's last character can complete it; bytes of one character show as �.
            text = self._decode([token])
            seen = self._may_stop[token, stop] = stop[-1] in text or "�" in text
        return seen and stop in self._text(row)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _text(self, row: DecodeRow) -> str:
        before = row.context.ids[-TAIL:]
        head, whole = self._decode(before), self._decode([*before, *row.tokens])
        return whole[len(head) :] if whole.startswith(head) else self._decode(row.tokens)

    def _written(self, row: DecodeRow) -> Written:
        ended, whole = row.tokens[-1] in self.end_ids, self._text(row)
        first = min((stop for stop in row.stops if stop in whole), key=whole.find, default="")
        text, stopped = cut_at_stop(whole, first)
        ending: Ending = "stop" if stopped else "end" if ended else "cut"
        ids = tuple(row.tokens[:-1] if ended else row.tokens)
        return Written(text, ending, len(row.tokens), row.log_likelihood, row.kept, ids)


def _tokens_in_memory(model: Any) -> int:
    """How many tokens a batch may have: key/values take a part of free memory, attention and the PRM need theirs."""
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    token_bytes = 2 * config.num_hidden_layers * heads * head_size * model.dtype.itemsize
    is_gpu = model.device.type == "cuda"
    num_bytes = SHARE_OF_MEMORY * torch.cuda.mem_get_info(model.device)[0] if is_gpu else CPU_BYTES
    return max(1, int(num_bytes) // int(token_bytes))


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a text, as the model, its generation settings and the tokenizer name them."""
    generation = getattr(model, "generation_config", None)
    named = [tokenizer.eos_token_id, model.config.eos_token_id, getattr(generation, "eos_token_id", None)]
    found: set[int] = set()
    for ids in named:
        found |= set(ids) if isinstance(ids, list | tuple) else {ids} if ids is not None else set()
    return frozenset(found)


def load_hf(
    name: str | Path,
    *,
    prompting: Prompting | None = None,
    dtype: str | None = None,
    device: str | None = None,
    token_budget: int | None = None,
) -> HfPolicy:
    """A policy from a hub id, a folder, or a folder with one GGUF file."""
    target = pick_device(device)
    folder = local_folder(str(name))
    if not (folder / "config.json").exists() and not any(folder.glob("*.gguf")):
        raise ModelError(f"{folder}: neither config.json nor a .gguf file, so this is not a model folder")
    model, tokenizer = language_model(folder, pick_dtype(dtype, target), target)
    check_decoding(model)
    return HfPolicy(model, tokenizer, name=f"hf:{name}", prompting=prompting, token_budget=token_budget)

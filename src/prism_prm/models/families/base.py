"""The base class of PRM families: the few facts in which published PRMs differ.

A family defines the ids before the first step, the ids of a step and the offset where its score is read, and how the
head's output there becomes named log-odds. Packing, sessions, training and evaluation need nothing else.
"""

from __future__ import annotations

import copy
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from prism_prm.errors import ConfigError, DataError, ModelError, shown
from prism_prm.models.model_files import render_chat

if TYPE_CHECKING:
    from torch import Tensor, nn

    from prism_prm.models.module import PrmModule

CACHE_BYTES = 64 * 2**20
"""The size of a tokenizer's cache of texts and their ids; candidates of one prefix return as lookaheads of others."""
_MAX_SHARE = 1 / 64
"""The share of the cache that one text may take; longer texts rarely repeat."""
_ID_BYTES, _TEXT_BYTES = 40, 200
"""Approximate bytes per id, and per text besides its characters."""
_MARKS = "\u2460\u2461\u2462\u2463"
"""Markers that locate turns in a rendered chat; no template writes circled digits itself."""
_DATE = "26 Jul 2024"
"""Llama 3.1's template states a date; published scores use its default, not today's."""

log = logging.getLogger(__name__)
_TOKENIZER_LOCK = threading.Lock()
"""Whether text may become control tokens is a state of the tokenizer, which threads may share."""


def quote_parts(parts: Sequence[str]) -> str:
    """List the first five distinct parts of a text for a message."""
    distinct = list(dict.fromkeys(parts))
    return ", ".join(map(shown, distinct[:5])) + ", …" * (len(distinct) > 5)


class TextEncoder:
    """A tokenizer with a cache that never turns text into control tokens, and looks up tokens by their text."""

    def __init__(self, tokenizer: Any, new_tokens: tuple[str, ...] = (), cache_bytes: int = CACHE_BYTES) -> None:
        self.tokenizer = tokenizer
        self.cache_bytes = cache_bytes
        self._new_tokens = new_tokens
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._recent: dict[str, tuple[int, ...]] = {}
        self._earlier: dict[str, tuple[int, ...]] = {}
        self._recent_bytes = 0
        self._characters: dict[str, bool] = {}
        self.num_unread = 0
        """The number of characters so far that the tokenizer dropped or did not know."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tokenizer, self._new_tokens, self.cache_bytes)  # without the cache's content

    def plain(self, text: str) -> tuple[int, ...]:
        """Encode a text in which nothing is a control token."""
        ids = self._recent.get(text)
        if ids is not None:
            return ids
        ids = self._earlier.get(text) or self._plain(text)
        size = _TEXT_BYTES + len(text) + _ID_BYTES * len(ids)
        if size <= _MAX_SHARE * self.cache_bytes:
            # Stored in the newer of two halves; when that is full, the older one is evicted.
            if self._recent_bytes + size > self.cache_bytes / 2:
                self._earlier, self._recent, self._recent_bytes = self._recent, {}, 0
            self._recent[text] = ids
            self._recent_bytes += size
        return ids

    def _plain(self, text: str) -> tuple[int, ...]:
        if self._backend is None:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
        encoding = self._encoding(text)
        if lost := self._lost(text, encoding):
            if not self.num_unread:
                log.warning("the tokenizer cannot read %s; scores ignore what it does not know", quote_parts(lost))
            self.num_unread += sum(len(part.strip()) for part in lost)
        return tuple(encoding.ids)

    def _encoding(self, text: str, *, as_plain: bool = True) -> Any:
        with _TOKENIZER_LOCK:
            self._backend.encode_special_tokens = as_plain
            try:
                return self._backend.encode(text, add_special_tokens=False)
            finally:
                self._backend.encode_special_tokens = False

    def unread(self, text: str, *, as_plain: bool = True) -> list[str]:
        """Return the parts of a text, except white space, that the tokenizer drops or does not know.

        The example PRMs raise an error for such a text. Slow tokenizers report nothing.
        """
        return [] if self._backend is None else self._lost(text, self._encoding(text, as_plain=as_plain))

    @cached_property
    def _unknown(self) -> set[int | None] | None:
        """The ids that stand for unknown text; None for byte-level tokenizers, which know all text.

        Only they encode two characters that are in no vocabulary differently.
        """
        one, other = (self._encoding(character).ids for character in "\ue000\U0010fffd")
        return {*one[-1:], self.tokenizer.unk_token_id} if one == other else None

    @cached_property
    def _has_only_words(self) -> bool:
        """Whether the vocabulary has only whole words, like that of the example PRMs."""
        return set(self._backend.get_vocab(with_added_tokens=False)) <= set(self.tokenizer.get_added_vocab())

    def _lost(self, text: str, encoding: Any) -> list[str]:
        """Return the parts of a text that its ids do not cover. Raises if the tokenizer has only words."""
        if self._unknown is None:
            return []
        left = list(text)
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._unknown:
                left[start:end] = "\0" * (end - start)
        lost = [part for part in "".join(left).split("\0") if part.strip()]
        if not lost:
            return []
        if self._has_only_words:
            raise DataError(
                f"the tokenizer cannot read {quote_parts(lost)}: the example PRMs read only their own language, such "
                "as 1+1=2 and #### 2; score other texts with a PRM made from a language model",
                reason="unread-text",
            )
        # After a BPE tokenizer drops a character, its offsets are wrong, so test each character.
        for character in set(text) - self._characters.keys():
            ids = self._encoding(character).ids
            self._characters[character] = not character.isspace() and {*ids} <= self._unknown
        return [character for character in text if self._characters[character]] or lost

    def step(self, text: str) -> tuple[int, ...]:
        """Encode a step's text. Raises if it has no tokens."""
        ids = self.plain(text)
        if not ids:
            raise DataError(f"the step {shown(text)} has no tokens, so it cannot be scored", reason="empty-step")
        return ids

    def layout(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encode the family's own layout text, which may contain control tokens."""
        with _TOKENIZER_LOCK:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def token(self, text: str) -> int:
        """Return the id of the single token `text`. Raises if the tokenizer splits it."""
        ids = self.layout(text)
        if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
            # init_prm adds these tokens itself, so it never fails here.
            or_add = ", or make the PRM with init_prm, which adds this token" if text in self._new_tokens else ""
            raise ModelError(
                f"{text!r} is not one token of this tokenizer (it gives {ids}), so the family does not fit it. Name "
                f"another family (token-classification needs no special token){or_add}."
            )
        return ids[0]

    def bos(self) -> list[int]:
        """Return the beginning-of-sequence id, if the tokenizer has one."""
        return [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]


class Family(ABC):
    """One way to lay out a problem and its steps, and to read a head."""

    name: ClassVar[str]
    """The name in prism.json and for --family. Custom families get it from their package or file."""
    sha256: ClassVar[str] = ""
    """The SHA-256 of a custom family's file; like the weights, it determines the scores."""
    outputs: ClassVar[tuple[str, ...]] = ("correct",)
    """Names of the log-odds; the first means that the step is right."""
    head_name: ClassVar[str]
    """The name of the head's weights in a checkpoint."""
    uses_lm_head: ClassVar[bool] = False
    """Whether the head is the language model's own output layer."""
    new_tokens: ClassVar[tuple[str, ...]] = ()
    """Tokens that the layout needs as single ids; `init_prm` adds them to a tokenizer that lacks them."""
    architectures: ClassVar[Mapping[str, str]] = {}
    """model_type → the published architecture name of such a checkpoint."""
    known: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Published models of this family → their settings, where they differ from the defaults."""
    config_extras: ClassVar[Mapping[str, Any]] = {}
    """Entries of config.json that describe the head."""
    labels: ClassVar[tuple[str, ...]] = ()
    """The meanings of the head's outputs, in order; for model cards, and for config.json of classifiers."""
    names_labels: ClassVar[bool] = False
    """Whether `id2label` in config.json may reverse the order of the classes."""
    aggregator: ClassVar[str] = "min"
    """How the family's published code combines step scores into a solution's score."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Settings of the layout with their defaults; prism.json may change them."""

    def __init__(self, tokenizer: Any, *, compat: bool = False, settings: Mapping[str, str] | None = None) -> None:
        unknown = sorted(set(settings or {}) - set(self.settings))
        if unknown:
            raise ConfigError(f"Unknown settings {unknown} of family {self.name!r}. Known: {sorted(self.settings)}.")
        self.text = TextEncoder(tokenizer, self.new_tokens)
        self.compat = compat
        """Whether to reproduce the published code's quirk, if it has one."""
        self.chosen = {**self.settings, **(settings or {})}

    def with_cache(self, num_bytes: int) -> Self:
        """Return the same layout with its own cache of texts and their ids."""
        other = copy.copy(self)
        other.text = TextEncoder(self.text.tokenizer, self.new_tokens, num_bytes)
        return other

    @abstractmethod
    def prompt_ids(self, problem: str) -> list[int]:
        """Return the ids before the first step."""

    @abstractmethod
    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
        """Return the ids of the step at position `index` (from 0), and the offset in them where its score is read."""

    def can_read(self, text: str, index: int) -> bool:
        """Whether the family can lay out this step at this position; it cannot if the step has no tokens."""
        try:
            self.step_ids(text, index)
        except DataError:
            return False
        return True

    @abstractmethod
    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        """Make a new head whose parameters have the names of the published checkpoints."""

    def make_module(self, backbone: Any, head: nn.Module) -> PrmModule:
        """Combine backbone and head."""
        from prism_prm.models.module import PrmModule

        return PrmModule(backbone, head, self)

    @staticmethod
    @abstractmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        """Convert the head's outputs at R read positions to (R, number of outputs) log-odds."""

    def architecture(self, config: Any) -> str:
        """Return the architecture name for config.json: the published one, or our own if there is none."""
        return self.architectures.get(config.model_type, "PrismProcessRewardModel")


class LabelTokens(Family):
    """A family of plain language models: a step's score is the log-odds of one label token against another.

    It reads the language model's own output layer at the rows of the two labels, `+` and `-` unless a family differs.
    """

    head_name = "lm_head"
    labels = ("right: the token `+`", "wrong: the token `-`")
    uses_lm_head = True

    rows: tuple[int, int]
    """The ids of the two labels: right, wrong."""

    def plus_and_minus(self) -> tuple[int, int]:
        return self.text.token("+"), self.text.token("-")

    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        from prism_prm.models.module import LabelRows

        head = LabelRows(hidden_size, config.vocab_size, bias=False)
        head.rows = self.rows
        return head

    @staticmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        return logits_RC[:, 0:1] - logits_RC[:, 1:2]

    def architecture(self, config: Any) -> str:
        return causal_lm(config) or super().architecture(config)


def causal_lm(config: Any) -> str:
    """Return the architecture name of a complete language model, so that others can load it as one; "" if unknown."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ""))


def chat_turns(tokenizer: Any, family: str) -> tuple[str, str, str]:
    """Return the template's texts before the first user turn, from user to assistant, and from assistant to user."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"family {family!r} needs a tokenizer with a chat template; this one has none")
    before, ask, answered, again, _ = split_chat(tokenizer, family, ["user", "assistant"] * 2)
    if again != ask:
        raise ModelError(f"family {family!r}: the chat template formats later turns differently from the first")
    return before, ask, answered


def split_chat(tokenizer: Any, family: str, roles: Sequence[str], system: str = "") -> list[str]:
    """Return the template's texts before, between and after turns of these roles."""
    turns = list(zip(roles, _MARKS, strict=False))
    chat = [{"role": role, "content": content} for role, content in [("system", system)] * bool(system) + turns]
    text = render_chat(tokenizer, chat, date_string=_DATE)
    if any(text.count(mark) != 1 for _, mark in turns):
        raise ModelError(f"family {family!r}: the tokenizer's chat template must contain each turn exactly once")
    return re.split("|".join(mark for _, mark in turns), text)

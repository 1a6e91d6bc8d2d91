"""What a PRM family is: the few facts in which published PRMs differ.

A family says which ids come before the first step, which ids one step has and where in them it is read, and how the
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

REMEMBERED = 64 * 2**20
"""Bytes of texts and their ids that a tokenizer keeps: candidates of one prefix return as lookaheads of others."""
_LARGEST = 1 / 64
"""The part of these that one text may take; longer ones seldom come again."""
_ID_BYTES, _TEXT_BYTES = 40, 200
"""What an id takes, and a text beside its characters, roughly."""
_TURNS = {"\u2460": "user", "\u2461": "assistant", "\u2462": "user", "\u2463": "assistant"}
"""Contents by which turns are found in a rendered chat; no template writes circled digits itself."""
_DATE = "26 Jul 2024"
"""Llama 3.1's template states a date; published scores were made with its default, not with today's."""

log = logging.getLogger(__name__)
_ONE_AT_A_TIME = threading.Lock()
"""Whether text may become control tokens is a state of the tokenizer, which several threads may share."""


def listed(parts: Sequence[str]) -> str:
    """The first five of some parts of a text, each once, for a message."""
    distinct = list(dict.fromkeys(parts))
    return ", ".join(map(shown, distinct[:5])) + ", …" * (len(distinct) > 5)


class TextEncoder:
    """A tokenizer as the families use it: text never turns into control tokens, and tokens are found by their text."""

    def __init__(self, tokenizer: Any, new_tokens: tuple[str, ...] = (), remembered: int = REMEMBERED) -> None:
        self.tokenizer = tokenizer
        self.remembered = remembered
        """Bytes of texts and ids that are kept."""
        self._new_tokens = new_tokens
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._recent: dict[str, tuple[int, ...]] = {}
        self._earlier: dict[str, tuple[int, ...]] = {}
        self._recent_bytes = 0
        self._characters: dict[str, bool] = {}
        self.num_unread = 0
        """Characters, of all texts so far, that the tokenizer dropped or did not know."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tokenizer, self._new_tokens, self.remembered)  # without the cache

    def plain(self, text: str) -> tuple[int, ...]:
        """The ids of a text in which nothing is a control token."""
        ids = self._recent.get(text)
        if ids is not None:
            return ids
        ids = self._earlier.get(text) or self._plain(text)
        size = _TEXT_BYTES + len(text) + _ID_BYTES * len(ids)
        if size <= _LARGEST * self.remembered:
            # Kept in the newer of two halves; when that is full, the older one is evicted.
            if self._recent_bytes + size > self.remembered / 2:
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
                log.warning(
                    "the tokenizer cannot read %s: what it does not know is left out of what is scored", listed(lost)
                )
            self.num_unread += sum(len(part.strip()) for part in lost)
        return tuple(encoding.ids)

    def _encoding(self, text: str, *, as_plain: bool = True) -> Any:
        with _ONE_AT_A_TIME:
            self._backend.encode_special_tokens = as_plain
            try:
                return self._backend.encode(text, add_special_tokens=False)
            finally:
                self._backend.encode_special_tokens = False

    def unread(self, text: str, *, as_plain: bool = True) -> list[str]:
        """The parts of a text, white space aside, that the tokenizer drops or does not know. The example PRMs refuse
        such a text; without a fast tokenizer, none are found.
        """
        return [] if self._backend is None else self._lost(text, self._encoding(text, as_plain=as_plain))

    @cached_property
    def _unknown(self) -> set[int | None] | None:
        """The ids that stand for unknown text; None for tokenizers that know all text, byte by byte: they tell apart
        two characters that are in no vocabulary.
        """
        one, other = (self._encoding(character).ids for character in "\ue000\U0010fffd")
        return {*one[-1:], self.tokenizer.unk_token_id} if one == other else None

    @cached_property
    def _has_only_words(self) -> bool:
        """Whether it has no alphabet, as the tokenizer of the example PRMs."""
        return set(self._backend.get_vocab(with_added_tokens=False)) <= set(self.tokenizer.get_added_vocab())

    def _lost(self, text: str, encoding: Any) -> list[str]:
        """The parts of an encoded text that are not in its ids; an error for a tokenizer that has only words."""
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
                f"the tokenizer cannot read {listed(lost)}: the example PRMs read only their own language, such as "
                "1+1=2 and #### 2; score other texts with a PRM made from a language model",
                reason="unread-text",
            )
        # Where a BPE tokenizer drops a character, it counts wrongly from there on: ask for each character.
        for character in set(text) - self._characters.keys():
            ids = self._encoding(character).ids
            self._characters[character] = not character.isspace() and {*ids} <= self._unknown
        return [character for character in text if self._characters[character]] or lost

    def step(self, text: str) -> tuple[int, ...]:
        """The ids of a step's text, which must be some."""
        ids = self.plain(text)
        if not ids:
            raise DataError(f"the step {shown(text)} has no tokens, so it cannot be scored", reason="empty-step")
        return ids

    def layout(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of our own layout text, in which control tokens are meant."""
        with _ONE_AT_A_TIME:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def token(self, text: str) -> int:
        """The id of the one token that `text` is."""
        ids = self.layout(text)
        if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
            # Where init_prm adds the token, it is not init_prm that misses it.
            adding = ", or make the PRM with init_prm, which adds this token" if text in self._new_tokens else ""
            raise ModelError(
                f"{text!r} is not one token of this tokenizer (it gives {ids}), so the family does not fit it. Name "
                f"another family (token-classification needs no token of its own){adding}."
            )
        return ids[0]

    def bos(self) -> list[int]:
        """The beginning-of-sequence id, where the tokenizer has one."""
        return [] if self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]


class Family(ABC):
    """One way to lay out a problem and its steps, and to read a head."""

    name: ClassVar[str]
    """As it is named in prism.json and for --family; for a family of another package or a file, that sets it."""
    sha256: ClassVar[str] = ""
    """The SHA-256 of the file of a family that is not ours, which determines its scores as the weights do."""
    outputs: ClassVar[tuple[str, ...]] = ("correct",)
    """Names of the log-odds; the first is that the step is right."""
    head_name: ClassVar[str]
    """The name of the head's weights in a checkpoint."""
    uses_lm_head: ClassVar[bool] = False
    """Whether the head is the language model's own output layer."""
    new_tokens: ClassVar[tuple[str, ...]] = ()
    """Tokens that the layout needs as one id each; `init_prm` adds them to a tokenizer without them."""
    architectures: ClassVar[Mapping[str, str]] = {}
    """model_type → the architecture name under which others know this kind of checkpoint."""
    known: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Published models of this family → the settings in which they differ from its defaults."""
    config_extras: ClassVar[Mapping[str, Any]] = {}
    """What config.json of such a checkpoint says about its head."""
    labels: ClassVar[tuple[str, ...]] = ()
    """What the head's outputs stand for, in order: for model cards, and for config.json of classifiers."""
    names_labels: ClassVar[bool] = False
    """Whether `id2label` in config.json may say that the classes are in the opposite order."""
    aggregator: ClassVar[str] = "min"
    """How the family's own code makes one score of a solution."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Settings of the layout that prism.json may change, with their defaults."""

    def __init__(self, tokenizer: Any, *, compat: bool = False, settings: Mapping[str, str] | None = None) -> None:
        unknown = sorted(set(settings or {}) - set(self.settings))
        if unknown:
            raise ConfigError(f"Unknown settings {unknown} of family {self.name!r}. Known: {sorted(self.settings)}.")
        self.text = TextEncoder(tokenizer, self.new_tokens)
        self.compat = compat
        """Reproduce the published code's quirk, where it has one."""
        self.chosen = {**self.settings, **(settings or {})}

    def remembering(self, num_bytes: int) -> Self:
        """The same layout, with a memory of its own for texts and their ids."""
        other = copy.copy(self)
        other.text = TextEncoder(self.text.tokenizer, self.new_tokens, num_bytes)
        return other

    @abstractmethod
    def prompt_ids(self, problem: str) -> list[int]:
        """The ids before the first step."""

    @abstractmethod
    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
        """The ids of the step at position `index` (0 is the first), and the offset in them where it is read."""

    def can_read(self, text: str, index: int) -> bool:
        """Whether a step fits the layout at this position; one without a token does not."""
        try:
            self.step_ids(text, index)
        except DataError:
            return False
        return True

    @abstractmethod
    def make_head(self, hidden_size: int, config: Any) -> nn.Module:
        """A fresh head; its parameters are named as in the published checkpoints."""

    @staticmethod
    @abstractmethod
    def log_odds(logits_RC: Tensor) -> Tensor:
        """The head's outputs at R read positions → (R, number of outputs) log-odds."""

    def architecture(self, config: Any) -> str:
        """The name for config.json: the one others know, or our own where there is none."""
        return self.architectures.get(config.model_type, "PrismProcessRewardModel")


class LabelTokens(Family):
    """A family that is a plain language model: a step is as right as one label is likelier than the other.

    It reads the language model's own output layer at the rows of two labels: `+` and `-`, unless a family differs.
    """

    head_name = "lm_head"
    labels = ("right: the token `+`", "wrong: the token `-`")
    uses_lm_head = True

    rows: tuple[int, int]
    """The ids of the labels: that of a right step, that of a wrong one."""

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
        """A complete language model, for others to load as one."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, super().architecture(config)))


def chat_turns(tokenizer: Any, family: str) -> tuple[str, str, str]:
    """The chat template's texts: before the first user's words, from user to assistant, from assistant to user."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"family {family!r} needs a tokenizer with a chat template; this one has none")
    chat = [{"role": role, "content": mark} for mark, role in _TURNS.items()]
    text = render_chat(tokenizer, chat, date_string=_DATE)
    if any(text.count(mark) != 1 for mark in _TURNS):
        raise ModelError(f"family {family!r}: the tokenizer's chat template must contain each turn exactly once")
    before, ask, answered, again, _ = re.split("|".join(_TURNS), text)
    if again != ask:
        raise ModelError(f"family {family!r}: the chat template formats later turns differently from the first")
    return before, ask, answered

"""Steps and tokens: every token of a completion is one step's, for tokenizers of all kinds."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from prism_prm.lab.world.policy import make_tokenizer
from prism_prm.rl.spans import TokenSpans
from prism_prm.steps import cut_steps
from tiny import llama_tokenizer, mistral_tokenizer, qwen_tokenizer


def merging_tokenizer(joins_next: bool = True) -> PreTrainedTokenizerFast:
    """`.\\n\\n` is one token, and if asked for even `.\\n\\nS`."""
    merges = [(".", "Ċ"), (".Ċ", "Ċ"), ("Ċ", "Ċ")] + [(".ĊĊ", "S")] * joins_next
    words = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """With the decoder that real ones have: bytes become characters, and the space at the beginning goes."""
    tokenizer = mistral_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


TOKENIZERS = {
    "qwen": qwen_tokenizer, "llama": llama_tokenizer, "sentencepiece": sentencepiece_tokenizer,
    "merging": lambda: merging_tokenizer(joins_next=False), "merging more": merging_tokenizer,
    "world": lambda: make_tokenizer(7),
}  # fmt: skip


@lru_cache
def tokenizer_of(name: str) -> Any:
    return TOKENIZERS[name]()


def owners(name: str, ids: list[int]) -> tuple[list[int], list[str]]:
    tokenizer = tokenizer_of(name)
    steps = cut_steps(tokenizer.decode(ids, skip_special_tokens=True))
    return TokenSpans(tokenizer).owners(ids, steps or [""]), steps


def test_tokens_that_merge_a_full_stop_and_the_separator() -> None:
    tokenizer = tokenizer_of("merging more")
    ids = tokenizer.encode("a.\n\nSo.\n\n3")
    pieces = [tokenizer.decode([token]) for token in ids]
    assert any("\n\nS" in piece for piece in pieces), f"one token is a separator and a beginning: {pieces}"
    found, steps = owners("merging more", ids)
    assert steps == ["a.", "So.", "3"]
    starts = [0, 4, 9]  # of the steps' first characters
    at = 0
    for piece, owner in zip(pieces, found, strict=True):
        assert owner == sum(start <= at for start in starts[1:]), "the step in which its first character stands"
        at += len(piece)


def test_a_full_stop_and_separator_in_one_token_end_the_step() -> None:
    tokenizer = tokenizer_of("merging")
    dot, a, three, end = (tokenizer.encode(text) for text in (".\n\n", "a", "3", "<end>"))
    assert len(dot) == 1
    assert TokenSpans(tokenizer).owners([*a, *dot, *three, *dot, *end], ["a.", "3."]) == [0, 0, 1, 1, 1]


def naive_owners(tokenizer: Any, ids: list[int], steps: list[str]) -> list[int]:
    """The same from whole prefixes, decoded one by one."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    begins, at = [], 0
    for step in steps:
        begins.append(text.index(step, at))
        at = begins[-1] + len(step)
    found = []
    start = 0
    for i in range(len(ids)):
        # Half a character may unmake those before it, until its other half comes: the text never shrinks in truth.
        start = max(start, len(tokenizer.decode(ids[:i], skip_special_tokens=True).rstrip("\ufffd")))
        found.append(max(0, sum(begin <= start for begin in begins) - 1))
    return found


WORDS = [
    "x = 1.", "So", "3", "\n\n", "\n", ".", " ", "é", "ки", "答", "😀", "<|im_end|>", "+1", "=3", "#### ",
]  # fmt: skip
texts = st.lists(st.sampled_from(WORDS), max_size=25).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60)
@given(text=texts)
def test_every_token_has_one_owner(name: str, text: str) -> None:
    tokenizer = tokenizer_of(name)
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    found, steps = owners(name, ids)
    assert len(found) == len(ids), "each token once"
    assert found == sorted(found), "in the order of the steps"
    assert set(found) <= set(range(max(1, len(steps))))
    assert found == naive_owners(tokenizer, ids, steps)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60)
@given(data=st.data())
def test_tokens_that_no_text_would_give(name: str, data: st.DataObject) -> None:
    """A policy draws any tokens: halves of characters, control tokens, spellings that no encoder chooses."""
    tokenizer = tokenizer_of(name)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=40))
    found, steps = owners(name, ids)
    assert len(found) == len(ids)
    assert found == sorted(found)
    assert set(found) <= set(range(max(1, len(steps))))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_step_has_tokens_where_it_is_written(name: str) -> None:
    tokenizer = tokenizer_of(name)
    text = "1+1=2\n\n2+1=3\n\n#### 3"
    ids = tokenizer.encode(text, add_special_tokens=False)
    found, steps = owners(name, ids)
    assert sorted(set(found)) == [0, 1, 2]
    if name != "world":  # whose words are no numbers with two operators
        spans = [[token for token, own in zip(ids, found, strict=True) if own == k] for k in range(3)]
        assert [tokenizer.decode(span).strip() for span in spans] == steps


def test_a_reply_that_was_taken_apart() -> None:
    """Where a template's parser keeps only a part of the text, what comes before belongs to the first step."""
    tokenizer = tokenizer_of("qwen")
    ids = tokenizer.encode("think.\n\nabout\n\nx = 1.\n\n#### 3")
    found = TokenSpans(tokenizer).owners(ids, ["x = 1.", "#### 3"])
    second = [token for token, owner in zip(ids, found, strict=True) if owner == 1]
    assert tokenizer.decode(second) == "#### 3"
    assert TokenSpans(tokenizer).owners(ids, ["not there"]) == [0] * len(ids)


def test_plain_texts_are_decoded_once() -> None:
    """Pieces are remembered: a text of known tokens costs one more decoding, not one per token."""

    class Counting:
        def __init__(self) -> None:
            self.own, self.calls = qwen_tokenizer(), 0

        def decode(self, ids: list[int], **options: Any) -> str:
            self.calls += 1
            return str(self.own.decode(ids, **options))

    counting = Counting()
    spans = TokenSpans(counting)
    ids = counting.own.encode("x = 1. So\n\n" * 50)
    spans.owners(ids, ["x = 1. So"] * 50)
    before = counting.calls
    spans.owners(ids, ["x = 1. So"] * 50)
    assert counting.calls - before <= 2

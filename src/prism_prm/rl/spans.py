"""Assign the tokens of a completion to its steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

_UNFINISHED = "�"
"""The replacement character, which decoders write for an incomplete character."""
_LONGEST = 8
"""More tokens than this are not an incomplete character, but invalid bytes."""


class TokenSpans:
    """Assigns each token of a completion to the step that its first character is in.

    A separator belongs to the step before it. So does a token such as `.\\n\\n`, and a token that has the end of a
    separator and the beginning of the next step: a search would have ended the step with it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def owners(self, ids: Sequence[int], steps: Sequence[str]) -> list[int]:
        """The number of each token's step. Tokens before the first step belong to it.

        The decoded completion has the `steps` in this order. A step that is not found starts where the one before it
        ends.
        """
        text = self._decode(ids)
        step_starts, position = [], 0
        for step in steps:
            index = text.find(step, position)
            step_starts.append(max(index, position))
            position = position if index < 0 else index + len(step)
        return [max(0, bisect_right(step_starts, start) - 1) for start in self.starts(ids)]

    def starts(self, ids: Sequence[int]) -> list[int]:
        """The index of each token's first character in the decoded text."""
        whole = self._decode(ids)
        for token in set(ids).difference(self._pieces):  # decoded after itself: some decoders drop a leading space
            self._pieces[token] = self._decode([token, token])[len(self._decode([token])) :]
        pieces = [self._pieces[token] for token in ids]
        # Most texts are the concatenation of their tokens' texts, perhaps without a leading space.
        joined = "".join(pieces)
        missing = len(joined) - len(whole)
        if missing in (0, 1) and joined.endswith(whole) and joined[:missing].isspace() == bool(missing):
            ends = list(accumulate(map(len, pieces), initial=0))
            return [max(0, end - missing) for end in ends[:-1]]
        # Some characters are spread over several tokens: count the characters that each token adds to those before it.
        starts, length = [], 0
        before = read = 0
        for i in range(len(ids)):
            starts.append(length)
            known, more = self._decode(ids[before:read]), self._decode(ids[before : i + 1])
            if len(more) > len(known) and (not more.endswith(_UNFINISHED) or i + 1 - read > _LONGEST):
                length += len(more) - len(known)
                before, read = read, i + 1
        return starts

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

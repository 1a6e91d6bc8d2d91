"""Which tokens belong to which step of a completion: its text is cut into steps, and every token assigned to one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

_UNFINISHED = "�"
"""What decoders write for bytes that are not yet a whole character."""
_LONGEST = 8
"""More tokens than this are not an incomplete character, but invalid bytes."""


class TokenSpans:
    """Gives each token of a completion to the step in which its first character stands.

    A separator belongs to the step before it, so a token such as `.\\n\\n` does too, and so does one that holds the
    separator's end and the next step's beginning: a search would have ended the step with it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def owners(self, ids: Sequence[int], steps: Sequence[str]) -> list[int]:
        """For each token the number of its step; what stands before the first step is the first step's.

        `steps` are texts that the decoded completion holds in this order; in place of one that it does not hold stands
        whatever it has there.
        """
        text = self._decode(ids)
        begins, at = [], 0
        for step in steps:
            found = text.find(step, at)
            begins.append(max(found, at))
            at = at if found < 0 else found + len(step)
        return [max(0, bisect_right(begins, start) - 1) for start in self.starts(ids)]

    def starts(self, ids: Sequence[int]) -> list[int]:
        """Where in the decoded text the first character of each token stands."""
        whole = self._decode(ids)
        pieces = [self._piece(token) for token in ids]
        # Most texts are their tokens' texts, one after the other, maybe without a space at the very beginning.
        joined = "".join(pieces)
        missing = len(joined) - len(whole)
        if missing in (0, 1) and joined.endswith(whole) and joined[:missing].isspace() == bool(missing):
            ends = list(accumulate(map(len, pieces), initial=0))
            return [max(0, end - missing) for end in ends[:-1]]
        return self._streamed(ids)

    def _streamed(self, ids: Sequence[int]) -> list[int]:
        """The same where characters are spread over tokens: what each token adds to the text of a few before it."""
        starts, length = [], 0
        before = read = 0
        for i in range(len(ids)):
            starts.append(length)
            known, more = self._decode(ids[before:read]), self._decode(ids[before : i + 1])
            if len(more) > len(known) and (not more.endswith(_UNFINISHED) or i + 1 - read > _LONGEST):
                length += len(more) - len(known)
                before, read = read, i + 1
        return starts

    def _piece(self, token: int) -> str:
        """The text of a token within a text; some decoders drop the space at the beginning of one."""
        if token not in self._pieces:
            twice, once = self._decode([token, token]), self._decode([token])
            self._pieces[token] = twice[len(once) :]
        return self._pieces[token]

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

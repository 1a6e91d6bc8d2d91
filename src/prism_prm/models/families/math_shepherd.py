"""Math-Shepherd: a language model that predicts `+` or `-` at each tag `ки`."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from prism_prm.models.families.base import LabelTokens

_NUMBERED = re.compile(r"Step \d+:")


class MathShepherd(LabelTokens):
    """`{question} Step 1: … ки\\nStep 2: … ки`; read at `ки` from the rows of `+` and `-`."""

    name = "math-shepherd"
    known: ClassVar = {"peiyi9979/math-shepherd-mistral-7b-prm": {}}

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.rows = self.plus_and_minus()
        self._tag = self.text.token("ки")

    def prompt_ids(self, problem: str) -> list[int]:
        return [*self.text.bos(), *self.text.plain(problem)]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
        self.text.step(text)
        numbered = text if _NUMBERED.match(text) else f"Step {index + 1}: {text}"
        # Later steps start on a new line after a tag, and are encoded together with it: alone, a SentencePiece
        # tokenizer would insert a space before the line break that the published text does not have.
        ids = self.text.step(numbered if index == 0 else f"ки\n{numbered}")
        if index:
            ids = ids[1:] if ids[0] == self._tag else self.text.step(f"\n{numbered}")
        return [*ids, self._tag], len(ids)

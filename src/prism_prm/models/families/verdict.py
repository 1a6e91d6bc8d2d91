"""A language model that answers after each step whether it is right; it writes no critique."""

from __future__ import annotations

from typing import Any, ClassVar

from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.families.base import LabelTokens, chat_turns


class VerdictFamily(LabelTokens):
    """`Problem: … Step 1: … Is it right?` → log-odds of `yes` against `no`, at the first token where they differ.

    Later steps see the `yes` of earlier ones. With a chat template, a step is a user turn and the verdict is the
    assistant's; without one, everything is plain text.
    """

    name = "verdict"
    labels = ("right: the setting `yes`, by default the word Yes", "wrong: the setting `no`, by default the word No")
    settings: ClassVar = {
        "instruction": "You check the steps of a solution to a math problem, one after the other.",
        "question": "Is this step correct? Answer Yes or No.",
        "yes": "Yes",
        "no": "No",
        "template": "auto",
    }
    """An empty instruction or question is left out. `template`: auto (the tokenizer's chat template, if it has one) or
    none (plain text)."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        if self.chosen["template"] not in ("auto", "none"):
            raise ConfigError(f"template = {self.chosen['template']!r} of family 'verdict' must be auto or none")
        is_chat = self.chosen["template"] == "auto" and bool(getattr(tokenizer, "chat_template", None))
        # Before the instruction, from a question to its verdict, and from a verdict to the next step.
        opening, turn, answered = chat_turns(tokenizer, self.name) if is_chat else ("", "\nAnswer:", "\n\n")
        asked = self.text.layout(turn)
        verdicts = []
        for label in (self.chosen["yes"], self.chosen["no"]):
            # As it is written after the assistant's header, or after a colon and a space.
            ids = self.text.layout(f"{turn}{label if is_chat else f' {label}'}")
            if not label or ids[: len(asked)] != asked:
                raise ModelError(
                    f"family 'verdict': the label {label!r} has no tokens of its own after the question in this "
                    f"tokenizer; set another label (settings yes and no) or another question"
                )
            verdicts.append(ids[len(asked) :])
        yes, no = verdicts
        shared = next((i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
        if shared is None:
            raise ModelError(
                f"family 'verdict': one of the labels {self.chosen['yes']!r} and {self.chosen['no']!r} begins with the "
                f"other in this tokenizer, so they cannot be distinguished; set other labels (settings yes and no)"
            )
        self.rows = yes[shared], no[shared]
        self._before = self.text.layout(opening) if is_chat else self.text.bos()
        self._ask = [*asked, *yes[:shared]]
        self._answered = [*yes[shared:], *self.text.layout(answered)]

    def prompt_ids(self, problem: str) -> list[int]:
        instruction = self.chosen["instruction"]
        opening = f"{instruction}\n\n" if instruction else ""
        # Ends within the heading of the first step: tokenizers differ in which tokens they merge line breaks into.
        return [*self._before, *self.text.plain(f"{opening}Problem: {problem}\n\nStep")]

    def step_ids(self, text: str, index: int) -> tuple[list[int], int]:
        self.text.step(text)
        # Step and question are encoded together, as a server does: a period and line breaks may be one token.
        question = f"\n\n{self.chosen['question']}" if self.chosen["question"] else ""
        heading = f"Step {index + 1}" if index else " 1"
        asked = [*self.text.plain(f"{heading}: {text}{question}"), *self._ask]
        return [*asked, *self._answered], len(asked) - 1

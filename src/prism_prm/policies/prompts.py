"""From a problem to the text before its first step: chat templates for instruct models, plain text for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from prism_prm.errors import SettingError
from prism_prm.lm.chat import render_chat
from prism_prm.ranges import check

MARK = "{problem}"


@dataclass(frozen=True, slots=True)
class Prompting:
    """How a problem is asked."""

    system: str = ""
    """The system turn of the prompt. By default the chat template decides."""
    user: str = MARK
    """The user turn of the prompt. `{problem}` is replaced by the problem."""
    template: Literal["auto", "none"] = "auto"
    """How problems are sent: with the tokenizer's chat template if it has one (auto), or as plain text (none)."""

    def __post_init__(self) -> None:
        check(self)
        if MARK not in self.user:
            raise SettingError("user", self.user, f"must have {MARK} in it, where the problem goes")


def render(problem: str, prompting: Prompting, tokenizer: Any) -> str:
    """The prompt as text, without a beginning-of-sequence token that the tokenizer itself puts first.

    Servers and `tokenizer(text)` add that token; in the text it would occur twice.
    """
    user = prompting.user.replace(MARK, problem)
    if prompting.template == "none" or tokenizer is None or not getattr(tokenizer, "chat_template", None):
        return f"{prompting.system}\n\n{user}\n\n" if prompting.system else f"{user}\n\n"
    messages = [{"role": "user", "content": user}]
    if prompting.system:
        messages.insert(0, {"role": "system", "content": prompting.system})
    text = render_chat(tokenizer, messages, add_generation_prompt=True)
    bos = tokenizer.bos_token
    if bos and text.startswith(bos) and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]:
        text = text[len(bos) :]
    return text

"""What trainers pass to a reward function, as texts: prompts and completions, plain or as conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def problem_text(prompt: Any) -> str:
    """The problem in a prompt: its last user turn, or the text that it is."""
    if isinstance(prompt, str):
        return prompt.strip()
    turns = [turn for turn in prompt if turn.get("role") == "user"] or list(prompt)
    return _content(turns[-1]).strip() if turns else ""


def reply_text(completion: Any) -> str:
    """What the policy wrote in a completion: all its turns, or the text that it is."""
    if isinstance(completion, str):
        return completion
    return "".join(_content(turn) for turn in completion if turn.get("role", "assistant") == "assistant")


def _content(turn: Mapping[str, Any]) -> str:
    """A turn's text; turns that only call tools have none, others are lists of parts."""
    content = turn.get("content") or ""
    if isinstance(content, str):
        return content
    parts: Sequence[Mapping[str, Any]] = content
    return "".join(str(part.get("text") or "") for part in parts)

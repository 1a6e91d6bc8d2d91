"""A tokenizer's chat template, which is code of the model's author and may fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prism_prm.errors import ModelError, first_sentence


def render_chat(tokenizer: Any, messages: Sequence[Mapping[str, str]], **options: Any) -> str:
    """The messages as text, as the tokenizer's chat template writes them."""
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        where = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise ModelError(
            f"{where}: its chat template fails ({first_sentence(error)}); correct it in chat_template.jinja or "
            "tokenizer_config.json"
        ) from error
    return text

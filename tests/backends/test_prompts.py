"""How a problem becomes the text before its first step."""

from __future__ import annotations

import pytest
from tokenizers.processors import TemplateProcessing

from prism_prm import PrismError
from prism_prm.backends.policy import Prompting, render
from tiny import llama_tokenizer, qwen_tokenizer


def test_plain_text_without_a_template() -> None:
    tokenizer = qwen_tokenizer()
    assert render("1 + 1?", Prompting(), tokenizer) == "1 + 1?\n\n"
    told = Prompting(system="Be brief.", user="Solve: {problem}")
    assert render("1 + 1?", told, tokenizer) == "Be brief.\n\nSolve: 1 + 1?\n\n"


def test_chat_template() -> None:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    told = Prompting(system="Be brief.", user="Solve: {problem}")
    assert render("x{problem}", told, tokenizer) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nSolve: x{problem}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render("x", Prompting(template="none"), tokenizer) == "x\n\n"


def test_the_first_token_stands_there_once() -> None:
    """Llama 3's template writes the beginning-of-sequence token, and its tokenizer adds one."""
    tokenizer = llama_tokenizer()
    text = render("x", Prompting(), tokenizer)
    assert text.startswith("<|begin_of_text|>"), "this tokenizer adds none"
    assert tokenizer(text)["input_ids"].count(tokenizer.bos_token_id) == 1
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", tokenizer.bos_token_id)]
    )
    shorter = render("x", Prompting(), tokenizer)
    assert shorter == text.removeprefix("<|begin_of_text|>")
    assert tokenizer(shorter)["input_ids"].count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("wrong", [{"user": "no mark"}, {"template": "chatml"}])
def test_wrong_settings(wrong: dict[str, str]) -> None:
    with pytest.raises(PrismError):
        Prompting(**wrong)

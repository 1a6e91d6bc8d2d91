"""Tiny random language models of the real architectures, with tokenizers that have the real special tokens."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

CORPUS = [
    "Let x be 1. Then x + 2 = 3, so the answer is 3.",
    "Step 1: We compute 12 * 4 = 48 ки Step 2: we divide 48 / 6 = 8 ки + - + - ки",
    "Question: Answer: Let's think step by step. system user assistant",
    "then z = x + y - 3 done, so y = 2 and x = 2 + 1 - 0",
    "Please reason step by step, and put your final answer within \\boxed{}.",
]
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 and Llama 3 cut text before merging."""

LLAMA3_CHAT = (
    "{%- if not date_string is defined %}{%- set date_string = '1 Jan 1999' %}{%- endif %}{{- bos_token }}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' }}"
    "{{- date_string + '\n\n<|eot_id|>' }}"
    "{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' "
    "+ message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
)


def _byte_level(special: list[str], **named: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([*CORPUS, "a\n\nb\n\nc"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """ChatML, `<extra_0>`, no beginning-of-sequence token."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"]
    return _byte_level(special, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Llama 3's control tokens and chat layout."""
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = _byte_level(special, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", pad_token="<|eot_id|>")
    tokenizer.chat_template = LLAMA3_CHAT
    return tokenizer


def mistral_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece style: a space is written before a text, unknown characters are bytes; `▁ки`, `▁+`, `▁-` exist."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=tokens, show_progress=False, max_token_length=6, limit_alphabet=100
    )
    words = [word for line in CORPUS for word in line.split()] * 3 + ["ки", "+", "-"] * 9
    tokenizer.train_from_iterator(words, trainer)
    # Training marks every listed token as special; the bytes are ordinary ones.
    definition = Tokenizer.from_str(tokenizer.to_str())
    fresh = Tokenizer(definition.model)
    fresh.normalizer = definition.normalizer
    fresh.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=fresh, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.25,
}
MODELS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, qwen_tokenizer, {}),
    "qwen2-window": (
        Qwen2ForCausalLM, Qwen2Config, qwen_tokenizer,
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "mistral": (MistralForCausalLM, MistralConfig, mistral_tokenizer, {"sliding_window": 12}),
    "llama": (LlamaForCausalLM, LlamaConfig, llama_tokenizer, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, qwen_tokenizer, {"head_dim": 8}),
    "stablelm": (StableLmForCausalLM, StableLmConfig, qwen_tokenizer, {}),
}  # fmt: skip
"""Name → model class, config class, tokenizer, settings. `qwen2-window` mixes full and sliding layers."""


FAMILY_MODELS = [
    ("qwen", "qwen2"),
    ("qwen", "qwen2-window"),
    ("qwen", "llama"),
    ("token-classification", "llama"),
    ("token-classification", "mistral"),
    ("math-shepherd", "mistral"),
    ("rlhflow", "llama"),
    ("skywork", "qwen2"),
    ("reasoneval", "mistral"),
    ("verdict", "qwen2"),
    ("verdict", "llama"),
]
"""(family, architecture): the published ones, and some that `init_prm` makes possible."""


def language_model(kind: str, folder: Path, **settings: Any) -> Path:
    """Write a tiny random language model; its folder."""
    model_class, config_class, make_tokenizer, own = MODELS[kind]
    tokenizer = make_tokenizer()
    torch.manual_seed(1)
    config = config_class(**{**_SIZES, **own, **settings, "vocab_size": len(tokenizer)})
    config.bos_token_id, config.eos_token_id, config.pad_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id, None
    model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def exact_norms(module: torch.nn.Module) -> None:
    """Norms in the tensors' own precision: transformers' compute in 32 bits, which alone costs 1e-8."""

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * (hidden * scale)

    for part in module.modules():
        if type(part).__name__.endswith("RMSNorm"):
            part.forward = types.MethodType(forward, part)


SOLVED = {
    "3+4-2": ["3 + 4 = 7", "7 - 2 = 5", "#### 5"],
    "1-2": ["1 - 2 = -1", "#### -1"],
    "4-3+2": ["4 - 3 = 1", "1 + 2 = 3", "#### 3"],
    "0+3-1+4": ["0 + 3 = 3", "3 - 1 = 2", "2 + 4 = 6", "#### 6"],
}
"""Problem → the steps of its solution, as the policy below has learned them by heart."""


def memorising_policy(folder: Path, updates: int = 120, solved: Mapping[str, list[str]] = SOLVED) -> Path:
    """A tiny Qwen2 that has learned solutions by heart: it writes steps with blank lines between them, and ends."""
    tokenizer = qwen_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(**{**_SIZES, "initializer_range": 0.1, "vocab_size": len(tokenizer)})
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, None
    model = Qwen2ForCausalLM(config)
    texts = [f"{problem}\n\n" + "\n\n".join(steps) + tokenizer.eos_token for problem, steps in solved.items()]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(updates):
        loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def gguf_model(folder: Path, *, without: str = "") -> dict[str, torch.Tensor]:
    """Write a tiny Qwen2 as a GGUF file, but for one tensor; its weights as transformers names them."""
    import gguf

    tokenizer = qwen_tokenizer()
    definition = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(**{**_SIZES, "vocab_size": len(tokenizer)}))
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "model.gguf", "qwen2")
    writer.add_context_length(_SIZES["max_position_embeddings"])
    writer.add_embedding_length(_SIZES["hidden_size"])
    writer.add_block_count(_SIZES["num_hidden_layers"])
    writer.add_feed_forward_length(_SIZES["intermediate_size"])
    writer.add_head_count(_SIZES["num_attention_heads"])
    writer.add_head_count_kv(_SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokenizer))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    writer.add_token_merges([" ".join(pair) for pair in definition["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, _SIZES["num_hidden_layers"])
    for key, value in model.state_dict().items():
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if name != without:
            writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model.state_dict()

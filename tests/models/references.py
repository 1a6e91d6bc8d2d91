"""Each family's published way to score the last step of a solution, written out on its own: one whole sequence, the
model's own causal attention, and the head's weights taken by name. It shares no code with prism_prm.models.families.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def hidden_states(prm: Any, ids: list[int]) -> Tensor:
    """(1, L, H), by the backbone's own defaults: no mask, no positions, no cache."""
    return prm.module.backbone(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state


def _weights(prm: Any) -> dict[str, Tensor]:
    return dict(prm.module.named_parameters(remove_duplicate=False))


def _two_way(logits: Tensor, good: int, bad: int) -> Tensor:
    log_p = torch.log_softmax(logits, dim=-1)
    return (log_p[good] - log_p[bad])[None]


def qwen(prm: Any, problem: str, steps: Sequence[str]) -> Tensor:
    tokenizer, weights = prm.tokenizer, _weights(prm)
    text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
    text += "".join(f"{step}<extra_0>" for step in steps) + "<|im_end|>\n"
    ids = tokenizer(text)["input_ids"]
    at = [i for i, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids("<extra_0>")]
    assert len(at) == len(steps)
    hidden = hidden_states(prm, ids)[0, at[-1]]
    inner = torch.relu(weights["score.0.weight"] @ hidden + weights["score.0.bias"])
    return _two_way(weights["score.2.weight"] @ inner + weights["score.2.bias"], 1, 0)


def token_classification(prm: Any, problem: str, steps: Sequence[str]) -> Tensor:
    tokenizer, weights = prm.tokenizer, _weights(prm)
    ids = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    ids += tokenizer.encode(problem, add_special_tokens=False)
    for step in steps:
        ids += tokenizer.encode(step, add_special_tokens=False) + tokenizer.encode("\n", add_special_tokens=False)
    hidden = hidden_states(prm, ids)[0, -1]
    return _two_way(weights["score.weight"] @ hidden + weights["score.bias"], 1, 0)


def math_shepherd(prm: Any, problem: str, steps: Sequence[str]) -> Tensor:
    tokenizer, weights = prm.tokenizer, _weights(prm)
    solution = "\n".join(f"Step {i + 1}: {step} ки" for i, step in enumerate(steps))
    ids = [tokenizer.bos_token_id, *tokenizer.encode(f"{problem} {solution}", add_special_tokens=False)]
    tag = tokenizer.encode("ки", add_special_tokens=False)[-1]
    plus, minus = tokenizer.encode("+ -", add_special_tokens=False)
    at = [i for i, token in enumerate(ids) if token == tag]
    assert len(at) == len(steps)
    logits = weights["lm_head.weight"] @ hidden_states(prm, ids)[0, at[-1]]
    return _two_way(logits, plus, minus)


def rlhflow(prm: Any, problem: str, steps: Sequence[str]) -> Tensor:
    tokenizer, weights = prm.tokenizer, _weights(prm)
    chat = []
    for i, step in enumerate(steps):
        chat.append({"role": "user", "content": f"{problem} {step}" if i == 0 else step})
        chat.append({"role": "assistant", "content": "+"})
    text = tokenizer.apply_chat_template(chat, tokenize=False, date_string="26 Jul 2024")
    ids = tokenizer.encode(text, add_special_tokens=False)
    plus, minus = (tokenizer.encode(sign, add_special_tokens=False)[-1] for sign in "+-")
    logits = weights["lm_head.weight"] @ hidden_states(prm, ids)[0, -3]  # …, header, "+", end of turn
    return _two_way(logits, plus, minus)


def skywork(prm: Any, problem: str, steps: Sequence[str]) -> Tensor:
    tokenizer, weights = prm.tokenizer, _weights(prm)
    ids = tokenizer.encode((tokenizer.bos_token or "") + problem + "\n", add_special_tokens=False)
    newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
    for line in "\n".join(steps).split("\n"):
        ids += [*(tokenizer.encode(line, add_special_tokens=False) if line else []), newline]
    return weights["v_head.summary.weight"] @ hidden_states(prm, ids)[0, -1] + weights["v_head.summary.bias"]


def reasoneval(prm: Any, problem: str, steps: Sequence[str]) -> Tensor:
    tokenizer, weights = prm.tokenizer, _weights(prm)
    prompt = f"Question:\n{problem}\nAnswer:\nLet's think step by step.\n"
    ids = [tokenizer.bos_token_id, *tokenizer.encode(prompt, add_special_tokens=False)]
    for step in steps:
        ids += tokenizer.encode(step, add_special_tokens=False)
    at = -2 if prm.family.compat else -1
    logits = weights["score_head.weight"] @ hidden_states(prm, ids)[0, at] + weights.get("score_head.bias", 0)
    _, neutral, positive = torch.softmax(logits, -1)
    validity, redundancy = neutral + positive, neutral
    return torch.logit(torch.stack([validity, redundancy]))


def verdict(prm: Any, problem: str, steps: Sequence[str]) -> Tensor:
    tokenizer, weights, chosen = prm.tokenizer, _weights(prm), prm.family.chosen
    is_chat = tokenizer.chat_template is not None and chosen["template"] == "auto"
    instruction = "You check the steps of a solution to a math problem, one after the other."
    question = "\n\nIs this step correct? Answer Yes or No." if chosen["question"] else ""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    turn = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n" if is_chat else "\nAnswer:"
    opening = tokenizer.apply_chat_template(
        [{"role": "user", "content": "@"}], tokenize=False, date_string="26 Jul 2024"
    ).split("@")[0] if is_chat else ""  # fmt: skip
    after = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n" if is_chat else "\n\n"
    yes = "Yes" if is_chat else " Yes"
    begin = encode(opening) if is_chat else [i for i in [tokenizer.bos_token_id] if i is not None]
    ids = begin + encode(f"{instruction}\n\nProblem: {problem}\n\nStep")
    for i, step in enumerate(steps):
        if i:
            ids += encode(yes) + encode(after)
        ids += encode(f"{'Step' if i else ''} {i + 1}: {step}{question}") + encode(turn)
    space, (yes_id, *_), (no_id, *_) = encode(" ") * (not is_chat), encode("Yes"), encode("No")
    logits = weights["lm_head.weight"] @ hidden_states(prm, ids + space)[0, -1]
    return _two_way(logits, yes_id, no_id)


REFERENCES: dict[str, Callable[[Any, str, Sequence[str]], Tensor]] = {
    "qwen": qwen,
    "token-classification": token_classification,
    "math-shepherd": math_shepherd,
    "rlhflow": rlhflow,
    "skywork": skywork,
    "reasoneval": reasoneval,
    "verdict": verdict,
}


def separate_scores(prm: Any, tree: Any) -> Tensor:
    """(nodes, outputs): each node's (prefix, step) as its own sequence."""
    return torch.stack(
        [REFERENCES[prm.family.name](prm, tree.problem, tree.texts(tree.path(n))) for n in range(len(tree.nodes))]
    )

"""The reward file for OpenRLHF: `reward_func(queries, prompts, labels)`.

    PRISM_RL_PRM=my-prm PRISM_RL_EOS='<|im_end|>' python -m openrlhf.cli.train_ppo_ray … \\
        --remote_rm_url $(python -c 'import prism_prm.rl.openrlhf as f; print(f.__file__)')

Options of the reward are environment variables: PRISM_RL_PRM, PRISM_RL_AGGREGATOR, PRISM_RL_GATE, PRISM_RL_VERIFIABLE,
PRISM_RL_CLIP, PRISM_RL_STOP. With PRISM_RL_EOS, a completion that does not end with that string counts as cut off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prism_prm.errors import DataError
from prism_prm.rl.reward import configured_reward, without_end

_USER_TURNS = (
    ("<|im_start|>user\n", "<|im_end|>"),
    ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    ("<start_of_turn>user\n", "<end_of_turn>"),
    ("[INST]", "[/INST]"),
)
"""The markers of chat templates before and after the problem."""
_SPECIAL = re.compile(r"<[^<>\s]*>|\[[A-Z]+\]|\s")
"""Tokens that a tokenizer adds before a prompt: `<s>`, `<|begin_of_text|>`, `[CLS]`, padding."""


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None = None, **_: Any
) -> dict[str, Any]:
    """The reward of each query (a prompt and its completion). `scores` is clamped to [0, 1], for filtering."""
    texts, cut = [], []
    for number, (query, prompt) in enumerate(zip(queries, prompts, strict=True)):
        text, is_cut = without_end(completion_in(query, prompt, number))
        texts.append(text)
        cut.append(is_cut)
    judged = configured_reward().judge([problem_in(prompt) for prompt in prompts], texts, cut=cut, references=labels)
    rewards = torch.tensor([outcome.reward for outcome in judged], dtype=torch.float32)
    logs: dict[str, Tensor] = {
        "gated": torch.tensor([float(outcome.gated) for outcome in judged]),
        "cut": torch.tensor([float(outcome.cut) for outcome in judged]),
        "unreadable_steps": torch.tensor([float(outcome.num_unreadable) for outcome in judged]),
    }
    return {"rewards": rewards, "scores": rewards.clamp(0, 1), "extra_logs": logs}


def problem_in(prompt: str) -> str:
    """The problem in a prompt: the last user turn if it has a chat template, else all of it."""
    starts = [(_last_turn(prompt, before, after), after) for before, after in _USER_TURNS]
    start, after = max(starts)
    return (prompt if start < 0 else prompt[start : prompt.index(after, start)]).strip()


def _last_turn(prompt: str, before: str, after: str) -> int:
    """The index of the text of the last complete turn between these markers; -1 if there is none."""
    start = prompt.rfind(before, 0, max(0, prompt.rfind(after)))
    return start if start < 0 else start + len(before)


def completion_in(query: str, prompt: str, number: int) -> str:
    """The text after the prompt in a query, which may begin with special tokens."""
    start = query.find(prompt)
    if start < 0 or _SPECIAL.sub("", query[:start]):
        raise DataError(
            f"query {number} does not begin with its prompt, so its completion cannot be found; decode both with the "
            "same tokenizer, and keep special tokens in both or in neither",
            reason="wrong-value",
        )
    return query[start + len(prompt) :]

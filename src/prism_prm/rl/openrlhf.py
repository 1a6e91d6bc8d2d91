"""The reward file for OpenRLHF: `reward_func(queries, prompts, labels)`.

    PRISM_RL_PRM=my-prm PRISM_RL_EOS='<|im_end|>' python -m openrlhf.cli.train_ppo_ray … \\
        --remote_rm_url $(python -c 'import prism_prm.rl.openrlhf as f; print(f.__file__)')

Options of the reward are environment variables: PRISM_RL_PRM, PRISM_RL_AGGREGATOR, PRISM_RL_GATE, PRISM_RL_VERIFIABLE,
PRISM_RL_CLIP, PRISM_RL_STOP. With PRISM_RL_EOS a completion that does not end with that text counts as cut off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prism_prm.rl.configured import configured_reward, without_end

_USER_TURN = re.compile(
    r"<\|im_start\|>user\n(.*?)<\|im_end\|>"
    r"|<\|start_header_id\|>user<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>"
    r"|<start_of_turn>user\n(.*?)<end_of_turn>"
    r"|\[INST\](.*?)\[/INST\]",
    re.DOTALL,
)
"""Where chat templates put the problem."""


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None = None, **_: Any
) -> dict[str, Any]:
    """The reward of each query (a prompt and its completion); `scores` is the same within [0, 1], for filtering."""
    texts, cut = [], []
    for query, prompt in zip(queries, prompts, strict=True):
        text, is_cut = without_end(query.removeprefix(prompt))
        texts.append(text)
        cut.append(is_cut)
    judged = configured_reward().judge([problem_in(prompt) for prompt in prompts], texts, cut=cut, references=labels)
    rewards = torch.tensor([one.reward for one in judged], dtype=torch.float32)
    logs: dict[str, Tensor] = {
        "gated": torch.tensor([float(one.gated) for one in judged]),
        "cut": torch.tensor([float(one.cut) for one in judged]),
        "unreadable_steps": torch.tensor([float(one.num_unreadable) for one in judged]),
    }
    return {"rewards": rewards, "scores": rewards.clamp(0, 1), "extra_logs": logs}


def problem_in(prompt: str) -> str:
    """The problem in a prompt: the last user turn, where a chat template was applied, else all of it."""
    turns = _USER_TURN.findall(prompt)
    return ("".join(turns[-1]) if turns else prompt).strip()

"""Policies, which write steps: a local transformers model, or any OpenAI-compatible server."""

from __future__ import annotations

from prism_prm.policies.base import Ask, Policy, PolicyError, Sampling, Written, node_key, write_steps
from prism_prm.policies.load import POLICIES, PolicySettings, open_policy
from prism_prm.policies.prompts import Prompting

__all__ = [
    "POLICIES", "Ask", "Policy", "PolicyError", "PolicySettings", "Prompting", "Sampling", "Written", "node_key",
    "open_policy", "write_steps",
]  # fmt: skip

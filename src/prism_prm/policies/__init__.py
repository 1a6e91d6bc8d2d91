"""Policies, which write steps: a local transformers model, or any OpenAI-compatible server."""

from __future__ import annotations

from prism_prm.policies.base import (
    POLICIES,
    Policy,
    PolicyError,
    PolicySettings,
    Prompting,
    Sampling,
    StepRequest,
    Written,
    node_key,
    open_policy,
    write_steps,
)

__all__ = [
    "POLICIES", "Policy", "PolicyError", "PolicySettings", "Prompting", "Sampling", "StepRequest", "Written",
    "node_key", "open_policy", "write_steps",
]  # fmt: skip

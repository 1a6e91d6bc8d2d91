"""Open a policy by its name: `hf:<id or folder>` or `openai:<base url>`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.errors import ConfigError, ModelError
from prism_prm.http import Patience, Server
from prism_prm.policies.base import Policy, PolicyError
from prism_prm.policies.prompts import Prompting


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How a policy is reached and asked."""

    name: str = ""
    """`hf:<id or folder>` or `openai:<base url>`."""
    prompting: Prompting = field(default_factory=Prompting)
    dtype: str | None = None
    """Of a local model; default: its own on a GPU, float32 on a CPU."""
    device: str | None = None
    token_budget: int | None = None
    """Tokens of one batch of a local model."""
    model: str | None = None
    """Which of a server's models; default: the only one."""
    tokenizer: str | None = None
    """Whose chat template a server's model has: hub id or folder; default: the model's own name."""
    concurrency: int = 16
    """Requests to a server at a time."""
    patience: Patience = field(default_factory=Patience)
    log_likelihood: bool = False
    """Whether log-probabilities are needed."""


def _open_hf(place: str, settings: PolicySettings) -> Policy:
    from prism_prm.policies.hf import load_hf

    return load_hf(
        place, prompting=settings.prompting, dtype=settings.dtype, device=settings.device,
        token_budget=settings.token_budget,
    )  # fmt: skip


def _open_openai(url: str, settings: PolicySettings) -> Policy:
    from prism_prm.policies.openai import API_KEY, OpenAiPolicy, served_model

    model = settings.model
    if model is None:
        with contextlib.closing(Server(url, settings.patience, 1, key_variable=API_KEY)) as server:
            model = served_model(server)
    tokenizer = None if settings.prompting.template == "none" else _tokenizer(settings.tokenizer or model)
    return OpenAiPolicy(
        url, model=model, tokenizer=tokenizer, prompting=settings.prompting, concurrency=settings.concurrency,
        patience=settings.patience, log_likelihood=settings.log_likelihood,
    )  # fmt: skip


def _tokenizer(name: str) -> object:
    from huggingface_hub import snapshot_download

    from prism_prm.lm.load import load_tokenizer

    try:
        wanted = ["tokenizer*", "*.jinja", "special_tokens_map.json", "config.json", "vocab*", "merges.txt"]
        folder = Path(name) if Path(name).is_dir() else Path(snapshot_download(name, allow_patterns=wanted))
        return load_tokenizer(folder)
    except (OSError, ValueError, ModelError) as error:
        raise PolicyError(
            f"No tokenizer {name!r} to apply a chat template with ({type(error).__name__}). Name the served model's "
            "with --tokenizer, or send problems as plain text with --template none."
        ) from error


POLICIES: dict[str, Callable[[str, PolicySettings], Policy]] = {"hf": _open_hf, "openai": _open_openai}
"""What stands before the colon → how to open what stands behind it."""


def open_policy(settings: PolicySettings | str) -> Policy:
    """Who writes steps: a local model of transformers, or any OpenAI-compatible server.

    Args:
        settings: a name such as `hf:Qwen/Qwen2.5-Math-1.5B-Instruct` or `openai:http://localhost:8000/v1`, or all
            settings of a policy.

    Example:
        >>> policy = open_policy("hf:my-lm")
        >>> policy.close()
    """
    settings = PolicySettings(settings) if isinstance(settings, str) else settings
    name = settings.name
    kind, colon, place = name.partition(":")
    if not colon or kind not in POLICIES or not place:
        known = ", ".join(f"{kind}:…" for kind in POLICIES)
        raise ConfigError(f"{name!r} is no policy; expected one of {known}, e.g. hf:folder, openai:http://localhost/v1")
    return POLICIES[kind](place, settings)

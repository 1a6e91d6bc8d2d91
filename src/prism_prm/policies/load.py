"""Open a policy by its name: `hf:<id or folder>` or `openai:<base url>`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prism_prm.errors import ConfigError, ModelError
from prism_prm.http import RetryPolicy, Server, server_address
from prism_prm.lm.place import check_model
from prism_prm.places import no_connection
from prism_prm.policies.base import Policy, PolicyError
from prism_prm.policies.prompts import Prompting
from prism_prm.ranges import Count, check


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Where a policy is and how it is prompted."""

    name: str = ""
    """The policy that writes the steps: `hf:ID_OR_FOLDER` for a local model, or `openai:BASE_URL` for a server."""
    prompting: Prompting = field(default_factory=Prompting)
    dtype: str | None = None
    """The precision of a local model. By default its own on a GPU and float32 on a CPU."""
    device: str | None = None
    """Where a local model runs. By default a GPU if there is one."""
    token_budget: Count | None = None
    """Tokens per batch of a local model, prefixes and padding included. As many are kept from batch to batch at most.
    By default what 2 GB, or a quarter of the GPU's free memory, hold."""
    model: str | None = None
    """Which of the server's models to use. Not needed if it has only one."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer whose chat template is applied. By default that of the served model."""
    concurrency: Count = 16
    """The maximum number of requests in flight."""
    patience: RetryPolicy = field(default_factory=RetryPolicy)
    log_likelihood: bool = False
    """Ask for log-probabilities. A search sets this itself if it needs them."""

    def __post_init__(self) -> None:
        check(self)


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
        folder = (
            Path(name)
            if Path(name).is_dir()
            else Path(snapshot_download(name, allow_patterns=wanted, local_files_only=bool(no_connection())))
        )
        return load_tokenizer(folder)
    except (OSError, ValueError, ModelError) as error:
        raise PolicyError(
            f"No tokenizer {name!r} to apply a chat template with ({type(error).__name__}). Name the served model's "
            "with --tokenizer (of a second policy: --second-tokenizer), or send problems as plain text with --template "
            "none."
        ) from error


POLICIES: dict[str, Callable[[str, PolicySettings], Policy]] = {"hf": _open_hf, "openai": _open_openai}
"""What stands before the colon → how to open what stands behind it."""


def open_policy(settings: PolicySettings | str) -> Policy:
    """A policy, which writes steps: a local transformers model, or any OpenAI-compatible server.

    Args:
        settings: a name such as `hf:Qwen/Qwen2.5-Math-1.5B-Instruct` or `openai:http://localhost:8000/v1`, or all
            settings of a policy.

    Example:
        >>> policy = open_policy("hf:my-lm")
        >>> policy.close()
    """
    settings = PolicySettings(settings) if isinstance(settings, str) else settings
    kind, place = kind_and_place(settings)
    return POLICIES[kind](place, settings)


def kind_and_place(settings: PolicySettings) -> tuple[str, str]:
    """What stands before the colon of a policy's name, and behind it."""
    kind, colon, place = settings.name.partition(":")
    if not colon or kind not in POLICIES or not place:
        known = ", ".join(f"{kind}:…" for kind in POLICIES)
        raise ConfigError(
            f"{settings.name!r} is not a policy; expected one of {known}, e.g. hf:folder, openai:http://localhost/v1"
        )
    return kind, place


def check_policy(settings: PolicySettings) -> None:
    """Refuse at once what can be no policy: an unknown kind, a folder without a model, no address. Nothing is asked."""
    kind, place = kind_and_place(settings)
    if kind == "hf":
        check_model(place)
    elif kind == "openai":
        server_address(place)

"""Open a critic by its name: `critic:openai:<base url>` or `critic:hf:<id or folder>`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prism_prm.backends.critic_format import CriticFormat, read_format
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.openai import ServedCritic, check_address
from prism_prm.errors import ConfigError

if TYPE_CHECKING:
    from prism_prm.backends.critic import Critic

PREFIX = "critic:"


def is_critic(place: object) -> bool:
    """Whether a PRM's name refers to a critic."""
    return isinstance(place, str) and place.startswith(PREFIX)


def check_critic(place: str, settings: CriticSettings) -> CriticFormat:
    """Raise early if `place` cannot be a critic: unknown kind, wrong address, no such format. Sends no request."""
    kind, target = _split_place(place)
    if kind == "openai":
        check_address(target)
    else:
        from prism_prm.models.model_files import check_model

        check_model(target)
    format = read_format(settings.format, settings.prompt)
    if settings.code:
        if not any(stage.code for stage in format.stages):
            raise ConfigError(f"-C code=true: the format {settings.format} has no part with code")
        from prism_prm.backends.critic import code_runner

        code_runner()
    return format


def open_critic(
    place: str, settings: CriticSettings | None = None, *, dtype: str | None = None, device: str | None = None
) -> Critic:
    """Open a critic: a local or served language model that judges steps in words.

    Args:
        place: `critic:openai:http://localhost:8000/v1` or `critic:hf:my-folder`. A server's key is read from
            $OPENAI_API_KEY.
        settings: the format, votes, what to do about missing verdicts, and the budget.
        dtype: the precision of a local model.
        device: the device of a local model.

    Example:
        >>> critic = open_critic("critic:hf:my-lm", CriticSettings(on_missing="skip", votes=2))
        >>> len(critic.score("What is 1 + 2?", ["1 + 2 = 3"]))
        1
    """
    from prism_prm.backends.critic import Critic, code_runner

    settings = settings or CriticSettings()
    settings = replace(settings, on_missing=settings.on_missing or "error")
    format = check_critic(place, settings)
    kind, target = _split_place(place)
    run_code = code_runner() if settings.code else None
    if kind == "openai":
        return Critic(ServedCritic(target, settings), format, settings, run_code)
    from prism_prm.backends.hf import LocalCritic

    local = LocalCritic(target, dtype=dtype, device=device)
    return Critic(local, format, settings, run_code)


def _split_place(place: str) -> tuple[str, str]:
    kind, colon, target = place.removeprefix(PREFIX).partition(":")
    if not is_critic(place) or not colon or kind not in ("openai", "hf") or not target:
        raise ConfigError(
            f"{place!r} is not a critic; expected critic:openai:BASE_URL or critic:hf:FOLDER, "
            f"e.g. critic:openai:http://localhost:8000/v1"
        )
    return kind, target

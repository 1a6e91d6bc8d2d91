"""Errors for users. Each message gives the place, the finding and the remedy."""

from __future__ import annotations


class PrismError(Exception):
    """An error that the user can fix. The command line prints it and exits with status 2."""


class DataError(PrismError):
    """A file or record that cannot be read as what it should be.

    `reason` is a short, stable name used for counting (`--on-bad-record skip`).
    """

    def __init__(self, message: str, *, reason: str = "bad-record") -> None:
        super().__init__(message)
        self.reason = reason


class ConfigError(PrismError):
    """A setting that is unknown, out of range, or contradicts another."""


class SettingError(ConfigError):
    """A setting with an invalid value. The command line replaces its name by the option that set it."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name} = {shown(value)}: {reason}")
        self.name, self.value, self.reason = name, value, reason


class ModelError(PrismError):
    """A model folder, tokenizer or forward pass that does not fit its family."""


class MissingExtraError(PrismError):
    """An optional dependency is not installed; the message gives the exact pip command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs {package}. Install it with: pip install 'prism-prm[{extra}]'")


_SHOWN = 80


def shown(value: object) -> str:
    """A value as it appears in messages: one line, cut to a limit."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def first_sentence(error: BaseException) -> str:
    """The type and the first sentence of another library's error."""
    return f"{type(error).__name__}: {str(error).split('. ')[0]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device. torch's error is recognized by name, so that torch is not imported."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text

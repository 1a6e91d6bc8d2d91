"""Convert Python values to JSON and back: tuples, sets and numbers that JSON cannot represent keep their type.

The source of this file also runs inside the sandbox, so it uses only the standard library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it from typing would slow every run
if TYPE_CHECKING:
    from typing import Any

_MAX_JSON = 2**53
"""Larger integers are written as strings, because some JSON readers round them."""


class Unknown:
    """Stands for a value that cannot be encoded; it is equal to nothing, not even to itself."""

    def __init__(self, shown: object, is_true: bool = False) -> None:
        self.shown = shown
        self.is_true = is_true

    def __bool__(self) -> bool:
        return self.is_true is True

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        raise TypeError("not a value")

    def __repr__(self) -> str:
        return f"Unknown({self.shown!r})"


def encode(value: Any) -> Any:
    """Convert a value to JSON: lists stay lists; every other container becomes its type and items."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < _MAX_JSON else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if value - value == 0 else {"float": repr(float(value))}
    if isinstance(value, list):
        return [encode(item) for item in value]
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            items = [encode(item) for item in value]
            # The order of sets differs between processes, but equal sets must have equal encodings.
            return {kind.__name__: items if kind is tuple else sorted(items, key=repr)}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    return {"unknown": [repr(value)[:200], bool(value)]}


def decode(value: Any) -> Any:
    """Invert `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](decode(item) for item in items)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in items}
    if kind == "complex":
        return complex(*map(decode, items))
    readers: dict[str, Any] = {
        "int": lambda text: int(text, 16),
        "float": float,
        "bytes": bytes.fromhex,
        "unknown": lambda parts: Unknown(*parts),
    }
    return readers[kind](items)

"""Numbers as people read them in tables: shares in percent, differences with their sign, "–" where there is none."""

from __future__ import annotations

import math
import re

NO_DATA = "–"
"""What a table shows where there is nothing to compute from."""


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` decimals; whole numbers get thousands separators; "–" where there is none."""
    if value is None or math.isnan(value):
        return NO_DATA
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def percent(value: float | None, low: float | None = None, high: float | None = None, *, digits: int = 1) -> str:
    """A share as percent without the sign, with its interval where one is given: `61.1 [59.2, 63.0]`."""
    if value is None or math.isnan(value):
        return NO_DATA
    text = f"{100 * value:.{digits}f}"
    if low is not None and high is not None and not _missing(low) and not _missing(high):
        text += f" [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"
    return re.sub(r"-(0\.0*)(?![0-9])", r"\1", text).replace("-", "−")


def signed_percent(value: float | None, low: float | None = None, high: float | None = None, *, digits: int = 1) -> str:
    """A difference of shares in percentage points, with its sign and interval: `−8.2 [−9.1, −7.3]`."""
    text = percent(value, low, high, digits=digits)
    if value is not None and round(100 * value, digits) > 0:
        text = "+" + text
    return text


def p_value(value: float | None) -> str:
    """A p-value as people write it."""
    if value is None or math.isnan(value):
        return NO_DATA
    return "< 0.01" if value < 0.01 else f"{value:.2f}"

"""Says how many cases the fuzzers ran."""

from __future__ import annotations

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    from cases import ran

    if ran:
        by_name = ", ".join(f"{name} {count:,}" for name, count in sorted(ran.items()))
        terminalreporter.write_line(f"fuzz: {sum(ran.values()):,} cases ({by_name})")

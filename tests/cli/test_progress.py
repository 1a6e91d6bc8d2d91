"""Progress where there is no terminal: lines in a log."""

from __future__ import annotations

import pytest

from prism_prm.cli import ui


def test_a_log_gets_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(ui.time, "monotonic", lambda: clock[-1])
    with ui.Terminal().progress("scoring", 2000, unit="trees") as advance:
        for seconds in (10.0, 31.0, 40.0, 50.0):
            clock.append(seconds)
            advance(500)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 1,000 of 2,000 trees, 0:00:31",
        "scoring: 2,000 of 2,000 trees, 0:00:50",
    ]

"""The page works in a real browser: `make test` runs this alone, `make test-all` also every view on every screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from screens import HOSTILE, SCREENS

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.parametrize("visit", SCREENS[:1], ids=str, indirect=True)
def test_the_page_scores_and_shows_results(served: str, visit: Callable[..., Page]) -> None:
    page = visit(served)
    page.get_by_label("Problem").fill("1+1+2-1")
    page.get_by_label("Solution").fill("1+1=2\n\n2+2=3\n\n#### 2")
    page.get_by_role("button", name="Score").click()
    numbers = page.locator(".steps .number")
    numbers.nth(3).wait_for(state="detached")  # the example, which the page has scored, has four steps
    numbers.nth(2).wait_for()
    assert sorted(numbers.all_text_contents()) == ["Step 1", "Step 2", "Step 3"]
    results = visit(f"{served}#errors")
    first = results.locator(".item").first
    first.get_by_role("button", name="Show all").click()
    assert first.locator(".words").all_text_contents() == [HOSTILE[0], *HOSTILE]

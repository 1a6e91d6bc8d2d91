"""The page as people use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx
import pytest

from screens import HOSTILE, SCREENS

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
Visit = Callable[..., "Page"]
one_screen = pytest.mark.parametrize("visit", [SCREENS[1]], ids=str, indirect=True)
PROBLEM, SOLUTION = "1+1+2-1", "1+1=2\n\n2+2=3\n\n3-1=2\n\n#### 2"


def score(page: Page, problem: str, solution: str) -> None:
    page.get_by_label("Problem").fill(problem)
    page.get_by_label("Solution").fill(solution)
    page.get_by_role("button", name="Score").click()
    page.locator(".results:not([aria-busy]) .steps").wait_for()


def numbers(page: Page, of: str = ".steps") -> list[str]:
    """The steps in the order in which they are shown."""
    return [text.removeprefix("Step ") for text in page.locator(f"{of} .number").all_text_contents()]


def test_the_first_screen_shows_an_example_that_is_scored(served: str, visit: Visit) -> None:
    page = visit(served)
    page.locator(".steps").wait_for()
    assert page.get_by_label("Problem").input_value() == PROBLEM
    assert page.locator(".steps .words").all_text_contents() == SOLUTION.split("\n\n")
    note = page.locator("main .note").first
    assert "estimate of the probability that a step is right" in (note.text_content() or "")
    key = page.locator(".results .legend li").all_text_contents()
    assert key == ["bar: probability, from 0 to 100 %", "vertical line: threshold"]
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".results").text_content() == ""
    assert [page.get_by_label(name).input_value() for name in ("Problem", "Solution")] == ["", ""]
    page.get_by_role("button", name="Example").click()
    page.locator(".steps").wait_for()
    assert page.get_by_label("Solution").input_value() == SOLUTION


def test_a_solution_is_scored_by_two_prms(served: str, visit: Visit) -> None:
    page = visit(served)
    score(page, PROBLEM, SOLUTION)
    answers = [
        httpx.post(
            f"{served}/v1/steps", json={"model": model, "items": [{"problem": PROBLEM, "solution": SOLUTION}]}
        ).json()
        for model in ("base", "owner/prism")
    ]
    for answer in answers:
        [found] = answer["items"]
        card = page.get_by_role("region", name=answer["model"])
        first = found["first_error"]
        assert card.locator("dd").all_text_contents() == [
            f"{100 * found['score']:.1f} %",
            "none" if first is None else f"step {first + 1}",
        ]
        assert card.locator("dt").all_text_contents() == ["Score (min)", "First below threshold"]
    assert numbers(page) == ["1", "2", "3", "4"], "as the solution is read"
    assert numbers(page, ".steps .apart") == ["2"], "where they disagree is marked"
    cells = page.locator(".score .value").all_text_contents()
    both = zip(*(answer["items"][0]["probabilities"] for answer in answers), strict=True)
    assert cells == [f"{100 * one:.1f} %" for pair in both for one in pair]
    assert page.locator(".flagged .flag").all_text_contents() == [
        "first below threshold of owner/prism",
        "PRMs disagree",
    ]
    assert page.locator(".step").nth(1).locator(".score .mark").all_text_contents() == ["✓", "✗"]

    slider = page.get_by_role("region", name="base").get_by_label("Threshold")
    slider.focus()
    slider.press("End")  # 100 %: nothing is above
    card = page.get_by_role("region", name="base")
    assert card.locator("dd").all_text_contents()[1] == "step 1"
    card.get_by_role("button", name="Reset").click()
    assert card.locator("dd").all_text_contents()[1] == "none"
    page.get_by_label("Steps").select_option("Where they disagree first")
    assert numbers(page)[0] == "2"


def test_hostile_texts_are_scored_and_shown(served: str, visit: Visit) -> None:
    page = visit(served)
    texts = [text.strip() for text in HOSTILE]
    page.get_by_label("PRM").select_option("one")
    page.get_by_label("Compare with").select_option("other")
    score(page, HOSTILE[0], "\n\n".join(texts))
    page.get_by_role("button", name="Show all 100,000 characters").click()
    assert page.locator(".steps .words").all_text_contents() == texts


@one_screen
def test_a_text_that_the_prm_cannot_read_is_refused(served: str, visit: Visit) -> None:
    page = visit(served, "400")
    page.get_by_label("Problem").fill("1+1")
    page.get_by_label("Solution").fill("1 + 1 = 2")
    page.get_by_role("button", name="Score").click()
    page.get_by_text("the tokenizer cannot read ' + ', ' = '").wait_for()
    assert page.locator(".steps").count() == 0


@one_screen
def test_what_was_not_scored_is_said(served: str, visit: Visit) -> None:
    page = visit(served)
    page.route(
        "**/v1/steps", lambda route: route.fulfill(json=route.fetch().json() | {"warnings": ["<b>é</b> is lost"]})
    )
    score(page, PROBLEM, SOLUTION)
    assert page.locator(".results .problem").all_text_contents() == ["<b>é</b> is lost."] * 2


@one_screen
def test_it_is_used_from_the_keyboard(served: str, visit: Visit) -> None:
    page = visit(served)
    page.get_by_label("Problem").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("3+2")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.insert_text("3+2=5\n\n#### 5")
    page.keyboard.press("Control+Enter")
    page.locator(".steps .words", has_text="3+2=5").wait_for()
    assert numbers(page) == ["1", "2"]


@pytest.mark.parametrize("where", ["static", "served"])
def test_solutions_are_sorted_by_disagreement(where: str, visit: Visit, request: pytest.FixtureRequest) -> None:
    page = visit(request.getfixturevalue(where) + "#scores")
    page.locator(".item").first.wait_for()
    said = page.locator(".item header .note").all_text_contents()
    apart = [("opposite" in text, float(text.rpartition(", ")[2].partition(" %")[0])) for text in said]
    assert len(apart) == 5
    assert apart == sorted(apart, reverse=True), "opposite verdicts, then differences"
    page.get_by_label("Order").select_option("As given")
    assert page.locator(".question").first.text_content() == "1+1+2-1"
    page.get_by_role("button", name="Next").click()
    assert "6–10 of 32" in (page.locator(".pager").text_content() or "")


@pytest.mark.parametrize("where", ["static", "served"])
def test_errors_are_shown_with_their_texts(where: str, visit: Visit, request: pytest.FixtureRequest) -> None:
    page = visit(request.getfixturevalue(where) + "#errors")
    titles = page.locator(".item h2")
    titles.first.wait_for()
    assert set(titles.all_text_contents()) == {"False positive"}
    assert page.locator(".card dd").all_text_contents() == [
        "97.1 % 33 of 34 wrong steps",
        "3.0 % 2 of 67 right steps",
        "100.0 % 1 of 1 wrong steps",
        "0.0 % 0 of 1 right steps",
    ]
    assert "1–10 of 36" in (page.locator(".pager").text_content() or "")
    first = page.locator(".item").first
    assert "P(right) 99.0 %" in (first.locator("header").text_content() or "")
    assert page.locator(".card .note").first.text_content() == "Passed: P(right) above 50.0 %"
    assert first.locator(".flagged .number").all_text_contents() == ["Step 7"]
    assert first.locator(".flag").all_text_contents() == ["wrong, but passed"]
    first.get_by_role("button", name="Show all").click()
    assert first.locator(".words").all_text_contents() == [HOSTILE[0], *HOSTILE]

    page.get_by_label("Errors").select_option("False negatives (2)")
    page.get_by_text("1–2 of 2").wait_for()
    assert set(titles.all_text_contents()) == {"False negative"}
    page.get_by_label("Class").select_option("data.jsonl (2)")
    page.get_by_label("Errors").select_option("Both kinds")
    page.get_by_text("1–10 of 35").wait_for()
    page.get_by_label("Class").select_option("All classes")
    page.get_by_label("Benchmark").select_option("processbench (1)")
    page.get_by_text("1–1 of 1").wait_for()
    assert page.locator(".item .words").all_text_contents() == ["problem 7", "1+1=2", "2+7=8"]


@one_screen
def test_a_server_with_keys_asks_for_one(keyed: str, visit: Visit) -> None:
    assert httpx.get(f"{keyed}/v1/documents").status_code == 401
    page = visit(keyed, "401")
    for key in ("wrong", "secret"):
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Open").click()
        if key == "wrong":
            page.get_by_text("The server does not accept this key.").wait_for()
    score(page, PROBLEM, SOLUTION)
    kept = "[sessionStorage.length, localStorage.length, document.cookie]"
    assert page.evaluate(kept) == [1, 0, ""]

"""Searches, training and programs on the page, as people look at them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shown_results
from prism_prm.search.rounds import outline, read_rounds
from prism_prm.serve.page_html import view_results
from screens import HOSTILE, SCREENS
from serving_prms import running, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
Visit = Callable[..., "Page"]
HERE = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two searches, a run of training and re-ranked programs, and page.html, which shows them."""
    folder = tmp_path_factory.mktemp("shown")
    shown_results.search(folder / "beam", shown_results.BEAM)
    shown_results.search(folder / "ahead", shown_results.AHEAD, num_problems=2)
    shown_results.search(folder / "sampled", shown_results.SAMPLED, num_problems=2)
    shown_results.train(folder / "run")
    shown_results.programs(folder / "rerank")
    view_results([folder / name for name in ("beam", "ahead", "sampled", "run", "rerank")], folder / "page.html")
    return folder


@pytest.fixture
def page(shown: Path, visit: Visit) -> Callable[[str], Page]:
    return lambda place: visit((shown / "page.html").as_uri() + place)


def fact(page: Page, term: str) -> str:
    return page.locator(f".facts div:has(dt:text-is('{term}')) dd").inner_text()


def test_a_search_is_walked_through_round_by_round(page: Callable[[str], Page], shown: Path) -> None:
    view = page("#search/0-jars-n12")
    view.locator(".map svg").wait_for()
    seen = read_rounds(shown / "beam" / "rounds" / "jars-n12.jsonl")[0]
    written = [[(step.parent, step.text) for step in seen.steps if step.round == at] for at in range(len(seen.kept))]
    per_round = [len(set(steps)) for steps in written]
    assert fact(view, "Selected") == "✓ right"
    assert view.locator(".rounds output").inner_text() == f"{len(per_round)} of {len(per_round)}"
    assert view.locator(".candidate.chosen .words").inner_text() == "The answer is \\boxed{79}."
    steps = [seen.steps[number - 1].text for number in seen.path(seen.result[0])]  # type: ignore[index]
    assert view.locator(".path .steps .words").all_inner_texts() == steps

    view.get_by_role("slider", name="Round").focus()
    view.keyboard.press("Home")
    assert view.locator(".rounds output").inner_text() == f"1 of {len(per_round)}"
    assert view.locator(".dot").count() == per_round[0] < len(written[0]) == 12
    times = [int(text.removeprefix("×")) for text in view.locator(".dot .times").all_text_contents()]
    assert sum(times) + per_round[0] - len(times) == 12, "each step once, with how often it was written"
    assert int(fact(view, "Kept")) == view.locator(".dot.kept").count() == len(seen.kept[0] or [])
    assert view.locator(".dot.dropped").count() == int(fact(view, "Dropped")) > 0
    shown_fates = view.locator(".candidate .fate").all_inner_texts()
    assert shown_fates == sorted(shown_fates, key=lambda text: "dropped" in text), "kept ones first"
    dropped = view.locator(".candidate.dropped").last
    assert "7 + 12 = 19" in dropped.inner_text()
    assert "11.0 %" in dropped.inner_text()
    dropped.get_by_role("button", name="Show the path to step").click()
    assert "dropped" in view.locator(".path .note").inner_text()
    assert view.locator(".path .flag").inner_text() == "first below threshold"
    box = "(one) => [one.getBoundingClientRect().top >= 0, one.getBoundingClientRect().bottom <= innerHeight]"
    assert view.locator(".path h2").evaluate(box) == [True, True], "it is in sight"
    beyond = "(all) => all.filter((one) => one.getBoundingClientRect().right > innerWidth).length"
    assert view.locator("nav a").evaluate_all(beyond) == 0, "all tabs are"

    view.locator(".map").focus()
    for number in range(2, len(per_round) + 1):
        view.keyboard.press("ArrowRight")
        assert view.locator(".rounds output").inner_text().startswith(f"{number} of")
        assert view.locator(".dot").count() == sum(per_round[:number]), "it grows"
    view.keyboard.press("ArrowRight")
    view.keyboard.press("ArrowLeft")
    assert view.locator(".dot").count() == sum(per_round[:-1])


def test_a_search_plays_by_itself(page: Callable[[str], Page]) -> None:
    view = page("#search/0-jars-n12")
    view.locator(".map svg").wait_for()
    view.get_by_role("button", name="Play").click()
    view.get_by_text("2 of 4").wait_for()
    view.get_by_role("button", name="Pause").click()
    view.locator(".dot").first.click()
    assert view.locator(".path h2").inner_text() == "Path to step 1"


def test_candidates_that_were_looked_at_ahead_are_marked(page: Callable[[str], Page]) -> None:
    view = page("#search/1-jars-n8")
    view.locator(".map svg").wait_for()
    view.get_by_role("slider", name="Round").focus()
    view.keyboard.press("Home")
    assert set(view.locator(".candidate .fate").all_inner_texts()) == {"…not decided yet"}
    view.keyboard.press("ArrowRight")
    assert "looking ahead" in view.locator(".candidates h2").inner_text()
    assert view.locator(".dot.ahead").count() > 0
    assert view.locator(".dot.kept").count() == 2


def test_hostile_steps_are_text(page: Callable[[str], Page]) -> None:
    view = page("#search/0-jars-n12")
    view.get_by_label("Problem").select_option("2")
    view.locator(".question", has_text="<script>").wait_for()
    assert view.locator(".question").inner_text() == HOSTILE[0]
    view.get_by_role("slider", name="Round").focus()
    view.keyboard.press("Home")
    kept = view.locator(".candidate .words").all_text_contents()
    assert kept
    assert all(any(text.rstrip("…") in one for one in HOSTILE) for text in kept)


def test_sampled_solutions_have_the_scores_of_their_prm(page: Callable[[str], Page]) -> None:
    view = page("#search/2-n6")
    view.locator(".map svg").wait_for()
    assert fact(view, "Search").startswith("best-of-n")
    assert view.locator(".path .score .value").count() == 4
    assert "path score" in view.locator(".path .note").inner_text()


def test_reward_and_truth_of_a_run(page: Callable[[str], Page]) -> None:
    view = page("#grpo")
    view.locator(".chart svg").first.wait_for()
    assert "Alarm by true answers: update" in view.locator(".alarm.raised").inner_text()
    label = view.locator(".chart > svg").first.get_attribute("aria-label") or ""
    assert "mean reward: " in label
    assert "solved, sampled: " in label
    assert view.locator(".chart .interval").count() == 3
    assert "Greedy after update 40" in view.locator(".item").last.inner_text()
    view.get_by_role("slider").focus()
    view.keyboard.press("Home")
    assert "Greedy after update 0:" in view.locator(".item").last.inner_text()
    assert view.locator(".item .verdict").all_inner_texts() == ["✓right", "✗wrong", "✓right", "✓right"]
    view.get_by_label("Held-out problem", exact=True).select_option("3")
    view.get_by_role("button", name="Show all").click()
    assert view.locator(".item > .words").all_text_contents() == [*HOSTILE[1:], HOSTILE[0]]
    view.get_by_text("All numbers").click()
    assert view.locator("tbody tr").count() == 9


def test_programs_with_the_verdict_on_every_test(page: Callable[[str], Page]) -> None:
    view = page("#programs")
    view.locator(".item").first.wait_for()
    assert view.locator(".item h2").count() == 5
    second = view.locator(".item").nth(1)
    assert second.locator(".tests .note").all_inner_texts() == [
        "2 of 2 passed",
        "6 of 12 passed, test 7: failed, 5 not run",
    ]
    assert second.locator(".marks").last.inner_text().split() == ["✓"] * 6 + ["✗"] + ["·"] * 5
    assert "selected by majority" in view.locator(".item").first.inner_text()
    assert view.locator(".code", has_text="window.broken").inner_text() == HOSTILE[1]
    view.get_by_label("Programs").select_option("fooled")
    assert view.locator(".item h2").all_inner_texts() == ["Program 2"]
    view.get_by_label("Problem").select_option("1")
    view.get_by_text("(2)").first.wait_for()


@dataclass
class Watched:
    """A process that searches as far as it may, and a server that shows what it has done."""

    url: str
    process: subprocess.Popen[bytes]
    gate: Path

    def let(self, rounds: int) -> None:
        aside = self.gate.with_suffix(".aside")
        aside.write_text(str(rounds))
        aside.replace(self.gate)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    line = [sys.executable, str(HERE / "shown_results.py"), str(tmp_path / "live"), str(tmp_path / "gate")]
    rounds = tmp_path / "live" / "rounds" / "jars-n12.jsonl"
    (tmp_path / "gate").write_text("1")
    with subprocess.Popen(line, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as process:
        try:
            until(lambda: rounds.exists() and outline(rounds) and outline(rounds)[0].num_rounds == 1, seconds=300)
            with running({}, results=[str(tmp_path / "live")]) as server:
                yield Watched(server.url, process, tmp_path / "gate")
        finally:
            process.kill()


@pytest.mark.parametrize("visit", SCREENS[:1], indirect=True, ids=["1280"])
def test_a_running_search_grows_on_the_page(watched: Watched, visit: Visit) -> None:
    view = visit(f"{watched.url}/#search")
    view.locator(".dot").first.wait_for()
    assert fact(view, "Steps written") == "12"
    assert fact(view, "State") == "running"
    watched.let(2)
    view.get_by_text("2 of 2").wait_for()
    assert fact(view, "Steps written") == "24"
    assert watched.process.poll() is None, "it still runs"
    view.get_by_role("slider", name="Round").focus()
    view.keyboard.press("Home")
    watched.let(100)
    view.locator(".facts", has_text="✓ right").wait_for()
    assert view.locator(".rounds output").inner_text() == "1 of 4", "who looks at another round stays there"
    assert view.get_by_label("Problem").locator("option").count() == 3
    assert watched.process.wait(300) == 0

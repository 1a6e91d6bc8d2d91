"""The page while things change, fail, and come late: the answers of its server are made here, and so is the time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from prism_prm.serve.page_html import own_file, served_page
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow
URL = "http://prism.test/"


class Server:
    """Answers a page with its documents; those that are down fail, and those that are held wait to be let go."""

    def __init__(self, page: Page, listed: dict[str, tuple[str, Any]], **more: Any) -> None:
        self.listed = listed
        self.bodies = {name: body for name, (_, body) in listed.items()} | more
        self.down: set[str] = set()
        self.held: set[str] = set()
        self.waiting: list[Route] = []
        self.asked: list[str] = []
        self.models: list[str] = []
        self.page = page
        page.route(f"{URL}**", self.answer)
        page.clock.install()

    def open(self, place: str = "") -> None:
        self.page.goto(URL + place)

    def look_again(self) -> None:
        """Let the page look twice: it begins its second look only when it has drawn what it heard at the first."""
        for number in range(self.asked.count("documents"), self.asked.count("documents") + 2):
            until(lambda number=number: self.page.clock.run_for(2100) or self.asked.count("documents") > number)

    def answer(self, route: Route) -> None:
        name = route.request.url.removeprefix(URL).partition("#")[0]
        last = name.rpartition("/")[2]
        self.asked.append(last)
        if last in self.held:
            self.held.remove(last)
            self.waiting.append(route)
        else:
            self.fulfil(route, name, last)

    def let_go(self) -> None:
        route = self.waiting.pop(0)
        name = route.request.url.removeprefix(URL)
        with self.page.expect_event("requestfinished", lambda request: request == route.request):
            self.fulfil(route, name, name.rpartition("/")[2])
        self.page.evaluate("fetch('/page/app.js').then((found) => found.text())")  # what comes after it was drawn

    def fulfil(self, route: Route, name: str, last: str) -> None:
        if last in self.down:
            route.fulfill(status=500, json={"error": {"message": f"{last} is down"}})
        elif not name:
            route.fulfill(body=served_page()[0], content_type="text/html")
        elif name.startswith("page/"):
            kind = "text/css" if last.endswith("css") else "text/javascript"
            route.fulfill(body=own_file(last), content_type=f"{kind}; charset=utf-8")
        elif name == "v1/models":
            route.fulfill(json={"data": [{"id": model} for model in self.models]})
        elif name == "v1/documents":
            route.fulfill(json={"data": [entry(key, kind) for key, (kind, _) in self.listed.items()]})
        elif name == "v1/steps":
            route.fulfill(json=scored(json.loads(route.request.post_data or "")))
        else:
            tag = str(hash(json.dumps(self.bodies[last])))
            same = route.request.headers.get("if-none-match") == tag
            route.fulfill(status=304) if same else route.fulfill(json=self.bodies[last], headers={"ETag": tag})


Serve = Callable[..., tuple["Page", Server]]


@pytest.fixture
def serve(browser: Browser) -> Iterator[Serve]:
    """A page and its server, before it is opened; what its script fails to catch is an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    failed: list[str] = []

    def serve(listed: dict[str, tuple[str, Any]], **more: Any) -> tuple[Page, Server]:
        page = context.new_page()
        page.on("pageerror", lambda error: failed.append(str(error)))
        return page, Server(page, listed, **more)

    yield serve
    context.close()
    assert failed == []


def entry(name: str, kind: str) -> dict[str, str]:
    return {"id": name, "kind": kind, "title": f"title {name}", "note": ""}


def scored(asked: dict[str, Any]) -> dict[str, Any]:
    """The step "b" gets opposite verdicts though "c" is further apart; all others are right."""
    steps = asked["items"][0]["solution"].split("\n\n")
    of = {"one": {"a": 0.9, "b": 0.6, "c": 0.95}, "two": {"a": 0.85, "b": 0.4, "c": 0.65}}[asked["model"]]
    probabilities = [of.get(step, 0.9) for step in steps]
    item = {"steps": steps, "probabilities": probabilities, "score": min(probabilities), "first_error": None}
    return {"model": asked["model"], "threshold": 0.5, "aggregator": "min", "items": [item]}


def programs(*names: str) -> dict[str, Any]:
    return {"problems": [{"id": name, "name": name, "solutions": 1, "right": 1} for name in names]}


def program(text: str) -> dict[str, Any]:
    one = {"program": text, "correct": True, "status": "ok", "public": ["passed"], "hidden": [], "selected": []}
    return {"name": text, "problem": text, "solutions": [one | {"times": 1}]}


def searches(*names: str, running: bool = False) -> dict[str, Any]:
    one = {"steps": 2, "rounds": 1, "running": running, "right": None}
    return {"how": {}, "problems": [one | {"id": name, "text": name} for name in names]}


def tree(*steps: list[Any], kept: list[Any] | None = None, problem: str = "p") -> dict[str, Any]:
    """Steps as the page gets them, with the number of their text as the text."""
    how = {"method": "beam", "n": 2, "prm": "mine", "aggregator": "min"}
    texts = ["first", "second", "third"]
    found = {"problem": problem, "how": how, "texts": texts, "steps": steps, "kept": kept or [[1]]}
    return found | {"result": None, "chosen": None, "grades": []}


STEPS = [[0, 0, 0.9, 0.9, "", 0, 0], [0, 1, 0.2, 0.2, "", 0, 0]]


def test_what_cannot_be_loaded_is_said_in_its_place_until_it_can_be(serve: Serve) -> None:
    page, server = serve({"bad": ("broken", {"message": "one"})})
    server.models = ["one"]
    server.open()
    page.get_by_role("button", name="Score").wait_for()
    server.down = {"bad"}
    page.get_by_role("link", name="Problems").click()
    page.get_by_text("bad is down").wait_for()
    assert page.locator("form").count() == 0, "nothing of the view before"
    server.look_again()
    assert page.locator(".problem").all_inner_texts() == ["bad is down"]
    server.down = set()
    server.look_again()
    assert page.locator(".problem").all_inner_texts() == ["one"]


def test_it_looks_again_though_the_first_look_failed(serve: Serve) -> None:
    page, server = serve({"a": ("broken", {"message": "here"})})
    server.down = {"documents"}
    server.open()
    page.get_by_text("documents is down").wait_for()
    server.down = set()
    server.look_again()
    assert page.locator(".problem").all_inner_texts() == ["here"]
    server.down = {"documents"}
    server.look_again()
    assert page.locator("#stale").inner_text() == "Not up to date: documents is down"
    server.down = set()
    server.look_again()
    assert page.locator("#stale").count() == 0


def test_a_message_stays_when_something_else_works(serve: Serve) -> None:
    bodies = {"p1": program("first"), "p2": program("second")}
    page, server = serve({"a": ("programs", programs("p1", "p2"))}, **bodies)
    server.open()
    page.locator(".question", has_text="first").wait_for()
    server.down = {"p2"}
    page.get_by_label("Problem").select_option("1")
    page.locator("#problem", has_text="p2 is down").wait_for()
    assert page.get_by_label("Problem").input_value() == "0", "as what is shown"
    server.look_again()
    assert page.locator("#problem").inner_text() == "p2 is down"
    server.down = set()
    page.get_by_label("Problem").focus()
    page.get_by_label("Problem").select_option("1")
    page.locator(".question", has_text="second").wait_for()
    assert page.locator("#problem").count() == 0
    assert page.evaluate("document.activeElement.tagName") == "SELECT"


def test_a_search_that_could_not_be_read_again_is_read_once_more(serve: Serve) -> None:
    bodies = {"p": tree(*STEPS)}
    page, server = serve({"a": ("search", searches("p", running=True))}, **bodies)
    server.open()
    page.locator(".dot").nth(1).wait_for()
    server.down = {"p"}
    server.bodies |= {"a": searches("p"), "p": tree(*STEPS, [1, 2, 0.5, 0.5, "", 1, 0], kept=[[1], [3]])}
    server.look_again()
    assert page.locator("#stale").inner_text() == "Not up to date: p is down"
    server.down = set()
    server.look_again()
    assert page.locator(".dot").count() == 3
    assert page.locator("#stale").count() == 0


def test_a_round_of_another_problem_leaves_the_one_being_read(serve: Serve) -> None:
    bodies = {"p": tree(*STEPS), "q": tree(*STEPS)}
    page, server = serve({"a": ("search", searches("p", "q", running=True))}, **bodies)
    server.open()
    page.get_by_role("button", name="Show the path to step 2").focus()
    page.evaluate("document.querySelector('.candidate').mark = document.querySelector('.map svg').mark = 1")
    server.bodies["a"] = searches("p", "q")
    server.look_again()
    assert "1 round" in page.get_by_label("Problem").locator("option").nth(1).inner_text()
    assert page.evaluate("[document.querySelector('.candidate').mark, document.querySelector('.map svg').mark]") == [
        1,
        1,
    ]
    assert page.evaluate("document.activeElement.dataset.step") == "2"


def test_an_answer_that_comes_late_changes_nothing(serve: Serve) -> None:
    listed = {"slow": ("broken", {"message": "slow"}), "fast": ("broken", {"message": "fast"})}
    page, server = serve(listed)
    server.open("#broken/fast")
    page.get_by_text("fast", exact=True).wait_for()
    server.held = {"slow"}
    page.get_by_label("Show").select_option("slow")
    page.get_by_label("Show").select_option("fast")
    until(lambda: page.evaluate("1") and server.waiting)
    server.let_go()
    assert page.locator(".problem").all_inner_texts() == ["fast"]


def test_a_problem_that_comes_late_changes_nothing(serve: Serve) -> None:
    bodies = {"p1": program("first"), "p2": program("second"), "p3": program("third")}
    page, server = serve({"a": ("programs", programs(*bodies))}, **bodies)
    server.open()
    page.locator(".question", has_text="first").wait_for()
    server.held = {"p2"}
    page.get_by_label("Problem").select_option("1")
    page.get_by_label("Problem").select_option("2")
    page.locator(".question", has_text="third").wait_for()
    server.let_go()
    assert page.locator(".question").inner_text() == "third"
    assert page.get_by_label("Problem").input_value() == "2"


def test_scores_are_asked_for_once_shown_in_order_and_kept(serve: Serve) -> None:
    page, server = serve({"a": ("broken", {"message": "other"})})
    server.models = ["one", "two"]
    server.open()
    page.locator(".steps .words", has_text="#### 2").wait_for()
    server.asked.clear()
    page.get_by_label("Problem").fill("p")
    page.get_by_label("Solution").fill("a\n\nb\n\nc")
    server.held = {"steps"}
    for _ in range(3):
        page.keyboard.press("Control+Enter")
    until(lambda: page.evaluate("1") and server.asked.count("steps") >= 2)
    assert server.asked.count("steps") == 2, "one for each PRM"
    server.let_go()
    page.locator(".results:not([aria-busy])").wait_for()

    def order(of: str = ".step") -> list[str]:
        return page.locator(f".steps {of} .words").all_inner_texts()

    assert order() == ["a", "b", "c"]
    assert order(".apart") == ["b"]
    page.get_by_label("Steps").select_option("Where they disagree first")
    assert order() == ["b", "c", "a"], "opposite verdicts, then the difference"
    slider = page.get_by_role("region", name="two").get_by_label("Threshold")
    slider.fill("0.7")
    assert order() == ["c", "b", "a"], "both are opposite now"
    assert order(".apart") == ["c", "b"]
    page.get_by_role("link", name="Problems").click()
    page.get_by_text("other", exact=True).wait_for()
    page.get_by_role("link", name="Score").click()
    page.locator(".steps").wait_for()
    assert order() == ["c", "b", "a"], "still there"


def test_an_error_leaves_no_earlier_results(serve: Serve) -> None:
    page, server = serve({"a": ("broken", {"message": "other"})})
    server.models = ["one"]
    server.open()
    page.locator(".steps").wait_for()
    server.down = {"steps"}
    page.get_by_label("Solution").fill("a")
    page.get_by_role("button", name="Score").click()
    page.locator("#problem", has_text="steps is down").wait_for()
    assert page.locator(".results").inner_text() == ""
    assert page.locator(".results[aria-busy]").count() == 0
    page.get_by_role("link", name="Problems").click()
    page.get_by_text("other", exact=True).wait_for()
    page.get_by_role("link", name="Score").click()
    page.get_by_role("button", name="Score").wait_for()
    assert page.locator(".results").inner_text() == ""
    server.down = set()
    page.get_by_role("button", name="Score").click()
    page.locator(".steps").wait_for()
    assert page.locator("#problem").count() == 0


def test_scores_that_come_late_change_nothing(serve: Serve) -> None:
    page, server = serve({})
    server.models = ["one"]
    server.held = {"steps"}
    server.open()
    page.get_by_label("Solution").fill("a")
    page.keyboard.press("Control+Enter")  # while the example is being scored
    page.locator(".steps").wait_for()
    server.let_go()
    assert page.locator(".steps .words").all_inner_texts() == ["a"]


def test_kept_steps_are_never_called_equal_to_others(serve: Serve) -> None:
    """A search tells apart texts that are equal once trimmed."""
    steps = [[0, 0, 0.9, 0.9, "", 0, 0], [0, 0, 0.8, 0.8, "", 0, 0, -1.25], [0, 0, 0.8, 0.8, "", 0, 0]]
    page, server = serve({"a": ("search", searches("p"))}, p=tree(*steps, kept=[[1, 2]]))
    server.open()
    page.locator(".dot").nth(1).wait_for()
    assert [page.locator(f".dot.{fate}").count() for fate in ("kept", "dropped")] == [2, 0]
    assert page.locator(".dot").locator(".times").all_text_contents() == ["×2"]
    assert page.locator(".candidate .fate").all_inner_texts() == ["✓kept", "✓kept"]
    assert "log-likelihood -1.25" in page.locator(".candidate").nth(1).inner_text()


def test_equal_samples_are_drawn_once(serve: Serve) -> None:
    """Five samples write "first" twice and "second" three times; one of the latter ends as "third" and is selected."""
    first, second, end = [[0, text, 0.9, 0.9, "", 0, 0] for text in (0, 1)] + [[0, 0, 0.9, 0.9, "end", 1, 0]]
    steps = [first, second, second, first, second]
    steps += [[parent, 2 if parent == 5 else 1, *end[2:]] for parent in range(1, 6)]
    found = tree(*steps, kept=[[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    found |= {"result": [6, 7, 8, 9, 10], "chosen": 4, "grades": [{"answer": "1", "correct": False}] * 4}
    found["grades"] = [*found["grades"], {"answer": "2", "correct": True}]
    found["how"] = found["how"] | {"method": "best-of-n", "n": 5}
    page, server = serve({"a": ("search", searches("p"))}, p=found)
    server.open()
    page.locator(".dot").nth(4).wait_for()
    assert page.locator(".dot").count() == 5
    titles = page.locator(".dot title").all_text_contents()
    assert titles == [
        "Step 1, 90.0 %, kept, written 2 times",
        "Step 2, 90.0 %, kept, written 3 times",
        "Step 6, 90.0 %, a solution, written 2 times",
        "Step 7, 90.0 %, a solution, written 2 times",
        "Step 10, 90.0 %, selected",
    ]
    assert page.locator(".dot .times").all_text_contents() == ["×2", "×3", "×2", "×2"]
    assert page.locator(".map .row-name").all_text_contents() == ["Problem", "Round 1", "Round 2"]
    inside = "(one) => one.getBBox().x + one.getBBox().width <= one.ownerSVGElement.viewBox.baseVal.width"
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.locator(".times").evaluate_all(f"(all) => all.every({inside})"), "none is cut off"
    assert page.locator(".edge.alive").count() == 2, "from the problem over step 2 to step 10"
    assert page.locator(".path .words").all_inner_texts() == ["second", "third"]
    assert "answer 2 · ✓ right" in page.locator(".path .note").inner_text()
    assert "threshold 50.0 %" in page.locator(".of-search .legend").inner_text()
    facts = page.locator(".facts div").all_inner_texts()
    assert [fact.replace("\n", " ") for fact in facts[1:5]] == [
        "Steps written 10", "Kept 5", "Dropped 0", "Equal to others 5"
    ]  # fmt: skip
    assert page.locator(".candidates h2").inner_text() == "Round 2: 3 candidates, written 5 times"


def test_axes_and_the_vertical_line_have_names(serve: Serve) -> None:
    page, server = serve({"a": ("grpo", run([0.2, 0.3, 0.4], [0.0, 0.1, 0.2]))})
    server.open()
    page.locator(".chart svg").first.wait_for()

    def names(of: int) -> list[str]:
        return page.locator(".chart").nth(of).locator(".axis-name, .now-name").all_text_contents()

    assert names(0) == ["reward and share solved", "update", "shown below: update 20"]
    assert names(1) == ["nats per solution", "update", "shown below: update 20"]
    page.get_by_role("slider").focus()
    page.keyboard.press("Home")
    assert names(0)[-1] == "shown below: update 0"
    inside = """(all) => all.every((one) => {
        const [own, room] = [one.getBBox(), one.ownerSVGElement.viewBox.baseVal];
        return own.x >= 0 && own.y >= 0 && own.x + own.width <= room.width && own.y + own.height <= room.height;
    })"""
    assert page.locator(".chart text").evaluate_all(inside), "all within the drawing"


def test_errors_are_judged_by_the_score_that_decides(serve: Serve) -> None:
    item = {
        "name": "x",
        "group": "circular",
        "problem": "p",
        "contaminated": -1,
        "texts": ["a", "b"],
        "parents": [-1, 0],
    }
    found = {
        "prm": "mine", "errors": [{"bench": "prmbench", "kind": "fp", "item": 0, "step": 1}],
        "benchmarks": [{"name": "prmbench", "thresholds": {"right": 0.5, "not redundant": 0.85},
                        "counts": {"right": 1, "wrong": 1, "fp": 1, "fn": 0}}],
        "items": [item | {"labels": [1, 0], "scores": [0.7, 0.9], "decides": "not redundant"}],
    }  # fmt: skip
    page, server = serve({"a": ("errors", found)})
    server.open()
    page.locator(".item").wait_for()
    assert "P(not redundant) 90.0 %" in page.locator(".item header").inner_text()
    assert page.locator(".steps-head .who").all_inner_texts() == ["not redundant"]
    assert page.locator(".score .mark").all_inner_texts() == ["✗", "✓"]
    assert page.locator(".card .note").inner_text() == (
        "Passed: P(right) above 50.0 %; in redundancy classes, P(not redundant) above 85.0 %"
    )


def run(rewards: list[float], kl: list[float | None]) -> dict[str, Any]:
    updates = [10 * number for number in range(len(rewards))]
    lines = {"mean reward": rewards, "solved, sampled": [0.5] * len(rewards)}
    sample = [{"text": "text", "reward": rewards[0], "right": True}]
    return {
        "updates": updates, "numbers": {"kl": kl}, "num_problems": 1, "alarms": [], "problems": ["p"],
        "lines": [{"name": title, "title": title, "points": [[one, one, one] for one in points]}
                  for title, points in lines.items()],
        "samples": [{"update": 0, "solutions": [sample]}],
    }  # fmt: skip


def test_what_a_round_exploited(serve: Serve) -> None:
    one = {"step": "<b>3-1=1</b>", "count": 2, "score_before": 0.9, "score_after": 0.25}
    found = {"wrong_steps": 4, "passed_before": 4, "passed_after": 1, "most_frequent": [one]}
    page, server = serve({"a": ("grpo", run([0.1], [None]) | {"exploits": found})})
    server.open()
    assert page.get_by_text("labeled wrong steps").inner_text() == (
        "Of 4 labeled wrong steps, the PRM of this round passes 100.0 %, the retrained one 25.0 %."
    )
    rows = page.get_by_role("region", name="Most frequent exploits").locator("tbody tr")
    assert rows.all_inner_texts() == ["<b>3-1=1</b>\t2\t90.0 %\t25.0 %"]


def test_without_wrong_steps_a_round_has_no_share_of_them(serve: Serve) -> None:
    none = {"wrong_steps": 0, "passed_before": 0, "passed_after": 0, "most_frequent": []}
    page, server = serve({"a": ("grpo", run([0.1], [None]) | {"exploits": none})})
    server.open()
    assert page.get_by_text("labeled wrong steps").inner_text().endswith("passes –, the retrained one –.")


def test_rewards_beyond_0_and_1_are_numbers_on_the_chart(serve: Serve) -> None:
    listed = {"a": ("grpo", run([-2.0, -0.5, 1.5], [None] * 3)), "b": ("grpo", run([0.2, 0.3, 0.4], [0.0, 0.1, 0.2]))}
    page, server = serve(listed)
    server.open()
    page.locator(".chart svg").first.wait_for()
    bottom = page.evaluate(
        "Math.max(...[...document.querySelectorAll('.chart .grid')].map((one) => one.y1.baseVal.value))"
    )
    heights = page.evaluate("[...document.querySelectorAll('.line-0 .point')].map((one) => one.cy?.baseVal.value ?? 0)")
    assert all(0 < height <= bottom for height in heights[-3:]), "within the frame"
    assert page.locator(".tick-text").first.text_content() == "-2"
    assert page.locator(".facts dd").all_inner_texts()[:2] == ["1.5 1.5 to 1.5", "50.0 % 50 % to 50 %"]
    assert page.locator(".item .note").inner_text() == "reward -2"
    assert page.locator(".chart:visible").count() == 1, "no empty frame of a divergence"
    page.get_by_label("Show").select_option("b")
    page.locator(".item .note", has_text="reward 20.0 %").wait_for()
    assert page.locator(".chart:visible").count() == 2


def test_the_focus_stays_where_it_is(serve: Serve) -> None:
    listed = {"s": ("search", searches("p", "q")), "r": ("grpo", run([0.1, 0.2], [0.1, 0.2]))}
    page, server = serve(listed, p=tree(*STEPS, problem="p"), q=tree(*STEPS, problem="q"))
    server.open()
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    page.get_by_role("button", name="Show the path to step 2").press("Enter")
    page.get_by_role("heading", name="Path to step 2").wait_for()
    assert page.evaluate(focused) == "Show the path to step 2"
    page.get_by_role("button", name="Next").press("Enter")
    page.locator(".question", has_text="q").wait_for()
    assert page.evaluate(focused) == "Next"
    assert page.get_by_role("button", name="Next").get_attribute("aria-disabled") == "true"
    page.get_by_label("Problem").focus()
    page.get_by_label("Problem").select_option("0")
    page.locator(".question", has_text="p").wait_for()
    assert page.evaluate("document.activeElement.tagName") == "SELECT"

    page.get_by_role("link", name="Skip to the content").press("Enter")
    assert page.evaluate("[document.activeElement.id, location.hash]") == ["view", ""]
    page.get_by_role("link", name="Training").click()
    page.get_by_text("All numbers").click()
    page.set_viewport_size({"width": 320, "height": 900})
    table = page.get_by_role("region", name="All numbers")
    table.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".rounds output").inner_text() == "10", "the arrows scroll the table"

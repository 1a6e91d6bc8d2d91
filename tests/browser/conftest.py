"""A real browser, a real server with two PRMs, and the same results as one file.

`visit` opens pages on every screen: two widths, light and dark. Whatever a test did, it then looks at the page as it
was left: nothing in the console, nothing wider than the screen, nothing that axe finds serious.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from prism_prm import EvalSettings, evaluate_prm, example_folder, example_prm, init_prm, score_files
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.serve.page_html import view_results
from prism_prm.tree import StepTree
from screens import HOSTILE, SCHEMES, SCREENS
from serving_prms import command, running, wait_ready

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PRMS = {"base": example_folder("base"), "owner/prism": example_folder("prism")}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium; where it or playwright is missing, every test that needs it is skipped, and says so."""
    api = pytest.importorskip("playwright.sync_api", reason="NO BROWSER TEST WAS RUN: pip install playwright")
    pytest.importorskip("axe_playwright_python", reason="NO BROWSER TEST WAS RUN: pip install axe-playwright-python")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("NO BROWSER TEST WAS RUN: install chromium (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        # Without its sandbox, which needs rights that containers lack; the pages are ours.
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(params=SCREENS, ids=lambda screen: f"{screen[0]}-{screen[1]}")
def visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """Open an address on a screen; pages are checked as the test leaves them. The console may say what is expected."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(120_000)
    pages: list[tuple[Page, list[str], tuple[str, ...]]] = []

    def visit(url: str, *expected: str) -> Page:
        page, said = context.new_page(), list[str]()
        page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        pages.append((page, said, expected))
        return page

    yield visit
    for page, said, expected in pages:
        check(page)
        assert [text for text in said if not any(part in text for part in expected)] == []
    context.close()


def check(page: Page) -> None:
    """No text became code, nothing is wider than the screen, and nothing is hard to use for anyone, light or dark."""
    from axe_playwright_python.sync_playwright import Axe

    assert page.evaluate("window.broken") is None
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        found = Axe().run(page).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert serious == [], f"{scheme}: {json.dumps(serious, indent=1)[:4000]}"


@pytest.fixture(scope="session")
def readers(tiny_lm: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two PRMs that read any text, as the example PRMs do not."""
    root = tmp_path_factory.mktemp("readers")
    for seed, name in enumerate(("one", "other")):
        init_prm(tiny_lm("qwen2"), family="qwen", seed=seed).save(root / name)
    return {name: root / name for name in ("one", "other")}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, readers: dict[str, Path]) -> Path:
    """A folder with an evaluation on two benchmarks (eval) and the scores of two PRMs (one.parquet, other.parquet)."""
    folder = tmp_path_factory.mktemp("results")
    right = ["1+1=2", "2+2=4", "4-1=3", "#### 3"]
    lines = [{"prompt": "1+1+2-1", "completions": right, "labels": [True] * 4}]
    lines += [
        {"prompt": f"problem {i}", "completions": ["1+1=2", f"2+{i}=9", "#### 9"], "labels": [True, False, True]}
        for i in range(30)
    ]
    lines.append({"prompt": HOSTILE[0], "completions": HOSTILE, "labels": [True] * 3 + [False] * 4})
    _write(folder / "data" / "labeled" / "data.jsonl", lines)
    first = {"id": "gsm8k-0", "problem": "problem 7", "steps": ["1+1=2", "2+7=8"], "label": 1}
    _write(folder / "data" / "processbench" / "gsm8k.jsonl", [first | {"final_answer_correct": False}])
    settings = EvalSettings(threshold=0.5, num_draws=100)
    benches = ["labeled", "processbench"]
    evaluate_prm(Known(), benches, folder / "eval", data=folder / "data", name="mine", settings=settings)
    for name, place in readers.items():
        score_files(
            place, folder / "data" / "labeled", folder / f"{name}.parquet", prm_options=PrmOptions(on_too_long="skip")
        )
    return folder


class Known(Scorer):
    """A scorer whose errors are known: of both kinds in the hostile solution, and every second step elsewhere."""

    def identity(self) -> str:
        return "known"

    def count_tokens(self, tree: StepTree) -> int:
        return len(tree.nodes)

    def score_trees(self, trees: Sequence[StepTree], wanted: Any = None, **_: Any) -> list[TreeScores]:  # noqa: ARG002
        return [TreeScores(self.outputs, np.log(p / (1 - p))[:, None]) for p in map(self._scores, trees)]

    def _scores(self, tree: StepTree) -> Any:
        if tree.problem == HOSTILE[0]:
            return np.array([0.1, 0.9, 0.1, 0.9, 0.1, 0.95, 0.99])
        number = int(tree.problem.removeprefix("problem ")) if tree.problem.startswith("problem ") else 0
        return np.array([0.9, 0.6 + number / 100, 0.8, 0.8][: len(tree.nodes)])


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="session")
def static(results: Path) -> str:
    """The address of one file with all results."""
    view_results([results / "eval", f"one={results}/one.parquet", results / "other.parquet"], results / "page.html")
    return (results / "page.html").as_uri()


@pytest.fixture(scope="session")
def served(results: Path, readers: dict[str, Path]) -> Iterator[str]:
    """The address of `prism serve` with the example PRMs, two that read any text, and the results."""
    prms = [word for name, place in (PRMS | readers).items() for word in ("--prm", f"{name}={place}")]
    shown = [word for name in ("eval", "one.parquet", "other.parquet") for word in ("--results", str(results / name))]
    with command(*prms[2:], *shown, "--port", "0", prm=prms[1]) as (_, url):
        wait_ready(url)
        yield url


@pytest.fixture(scope="module")
def keyed() -> Iterator[str]:
    """The address of a server that takes the key "secret" alone."""
    with running({"m": example_prm("prism")}, ("secret",)) as server:
        yield server.url

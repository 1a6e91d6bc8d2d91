"""What the page shows: results joined with their texts, and written so that no text becomes code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from gated_scorer import GatedScorer
from prism_prm import EvalSettings, PairRecipe, build_pairs, evaluate_prm, view_results
from prism_prm.cli import app
from prism_prm.data.same_problem import Splits
from prism_prm.data.tables import iter_trees
from prism_prm.errors import DataError
from prism_prm.serve.page_documents import Document, ShownResults, encode, find_documents
from prism_prm.serve.page_html import FOLDER, NAMES, bundle, own_file, served_page, static_page

HOSTILE = "</script><script>x</script> <!-- ]]> & \u2028\u2029 \ud800 שלום \x00"


def test_no_text_can_end_the_block_that_holds_it() -> None:
    written = encode({"text": HOSTILE, HOSTILE: [float("nan"), 1.5]})
    assert not set(written) & set(b"<>&")
    assert written.isascii()
    assert json.loads(written) == {"text": HOSTILE, HOSTILE: [None, 1.5]}


def test_a_static_page_allows_its_own_script_and_style_alone() -> None:
    page = static_page({"0": Document("errors", HOSTILE, lambda: {"text": HOSTILE}, note=HOSTILE)})
    [script] = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; connect-src 'none'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    blocks = dict(re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL))
    assert {name: json.loads(text) for name, text in blocks.items()} == {
        "documents": [{"id": "0", "kind": "errors", "title": HOSTILE, "note": HOSTILE}],
        "document-0": {"text": HOSTILE},
    }
    assert len(re.findall("<script", page)) == 3
    assert page.index("Content-Security-Policy") < page.index("<script")


def test_the_served_page_loads_its_own_files_alone() -> None:
    page, policy = served_page()
    assert re.findall(r'(?:src|href)="([^"]+)"', page) == ["data:,", "page/page.css", "page/app.js", "#view"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")


def test_nothing_parses_html_or_calls_elsewhere() -> None:
    for name in NAMES:
        text = own_file(name)
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function", text
        )
        assert found == [], name
        assert [url for url in re.findall(r"https?://[^\s\"']+", text) if "www.w3.org/2000/svg" not in url] == [], name


def test_all_modules_are_in_the_bundle() -> None:
    script = bundle()
    modules = sorted(name.removesuffix(".js") for name in NAMES if name.endswith(".js"))
    assert sorted(re.findall(r"^const \$(\w+) = ", script, re.MULTILINE)) == modules
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    for name in modules:  # what is imported is exported there, also in a browser
        for names, module in re.findall(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', own_file(f"{name}.js"), re.M):
            exported = re.findall(r"^export (?:async )?(?:const|function|class) (\w+)", own_file(f"{module}.js"), re.M)
            assert set(names.split(", ")) <= set(exported), f"{name}.js"
    assert (FOLDER / "index.html").is_file()


def write(path: Path, lines: list[object]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A folder with labeled data and its evaluation: one false positive, one false negative."""
    lines = [
        {"prompt": "p0", "completions": ["a", "b"], "labels": [True, True]},
        {"prompt": "p1", "completions": ["c", "<d>"], "labels": [True, False]},
        {"prompt": "p2", "completions": ["e"], "labels": [False]},
    ]
    scores = [[0.9, 0.2], [0.9, 0.8], [0.1]]
    data = write(tmp_path / "data.jsonl", lines)
    given = write(tmp_path / "own.jsonl", [{"id": f"tree-{i}", "scores": own} for i, own in enumerate(scores)])
    settings = EvalSettings(threshold=0.5, num_draws=100)
    evaluate_prm(None, "labeled", tmp_path / "eval", data=data, predictions=given, name="mine", settings=settings)
    return tmp_path


def test_errors_come_with_their_texts(measured: Path) -> None:
    [document] = find_documents(ShownResults.named([measured / "eval"])).values()
    assert (document.kind, document.title, document.note) == ("errors", "mine on labeled", "labeled: 3 items")
    found = json.loads(encode(document.body()))
    assert found["benchmarks"] == [
        {
            "name": "labeled",
            "thresholds": {"right": 0.5},
            "counts": {"right": 3, "wrong": 2, "fp": 1, "fn": 1},
        }
    ]
    assert [(item["name"], item["texts"], item["labels"], item["parents"]) for item in found["items"]] == [
        ("tree-0", ["a", "b"], [1, 1], [-1, 0]),
        ("tree-1", ["c", "<d>"], [1, 0], [-1, 0]),
    ]
    assert found["errors"] == [
        {"bench": "labeled", "kind": "fn", "item": 0, "step": 1},
        {"bench": "labeled", "kind": "fp", "item": 1, "step": 1},
    ]
    assert [(item["decides"], item["scores"]) for item in found["items"]] == [
        ("right", [0.9, 0.2]),
        ("right", [0.9, 0.8]),
    ]


def test_classes_of_redundancy_are_shown_by_the_score_that_decides(tmp_path: Path) -> None:
    """The threshold itself is not redundant; P(right), which plays no part there, is the opposite."""
    one = {"original_question": "q", "modified_question": "q", "original_process": ["a", "b", "c"],
           "modified_process": ["a", "b", "c"], "reason": "r"}  # fmt: skip
    data = write(
        tmp_path / "data.jsonl",
        [
            one | {"idx": "p0", "classification": "redundency", "error_steps": [3]},
            one | {"idx": "p0", "classification": "confidence", "error_steps": [3]},
        ],
    )
    own = [
        {"id": "redundency_p0", "scores": [0.9, 0.9, 0.1], "redundancy": [0.3, 0.25, 0.1]},
        {"id": "confidence_p0", "scores": [0.9, 0.2, 0.8], "redundancy": [0.9, 0.9, 0.9]},
    ]
    settings = EvalSettings(threshold=0.5, redundancy_threshold=0.25, num_draws=100)
    given = write(tmp_path / "own.jsonl", list(own))
    evaluate_prm(None, "prmbench", tmp_path / "eval", data=data, predictions=given, name="mine", settings=settings)
    [document] = find_documents(ShownResults.named([tmp_path / "eval"])).values()
    found = json.loads(encode(document.body()))
    [bench] = found["benchmarks"]
    assert bench["thresholds"] == {"right": 0.5, "not redundant": pytest.approx(0.75, abs=1e-9)}
    items = [(item["decides"], item["scores"]) for item in found["items"]]
    assert items == [("not redundant", [0.7, 0.75, 0.9]), ("right", [0.9, 0.2, 0.8])]
    assert [(error["item"], error["step"], error["kind"]) for error in found["errors"]] == [
        (0, 0, "fn"), (0, 2, "fp"), (1, 1, "fn"), (1, 2, "fp"),
    ]  # fmt: skip
    for item in found["items"]:  # what the page calls right is what the evaluation does
        errors = {error["step"] for error in found["errors"] if found["items"][error["item"]] is item}
        passes = [score > bench["thresholds"][item["decides"]] for score in item["scores"]]
        wrong = {at for at, (label, good) in enumerate(zip(item["labels"], passes, strict=True)) if label != good}
        assert wrong == errors


def test_the_split_that_was_measured_is_read_again(tmp_path: Path) -> None:
    """Items without names are numbered within their split."""
    lines = [{"prompt": f"p{i}", "completions": [f"a{i}", f"b{i}"], "labels": [True, False]} for i in range(12)]
    recipe = PairRecipe(splits=Splits({"train": 0.5, "validation": 0.5}))
    build_pairs(write(tmp_path / "data.jsonl", list(lines)), tmp_path / "pairs", recipe)
    settings = EvalSettings(threshold=0.5, num_draws=100)
    out = tmp_path / "eval"
    evaluate_prm(GatedScorer(), "labeled", out, data=tmp_path / "pairs", split="validation", settings=settings)
    [document] = find_documents(ShownResults.named([out])).values()
    items = document.body()["items"]
    measured = {tree.problem for tree in iter_trees(tmp_path / "pairs", split="validation")}
    assert 0 < len(measured) < 12
    assert {item["problem"] for item in items} == measured
    assert all(item["texts"] == [f"{letter}{item['problem'][1:]}" for letter in "ab"] for item in items)


def test_other_data_is_refused(measured: Path) -> None:
    other = write(measured / "other.jsonl", [{"prompt": "p", "completions": ["a"], "labels": [True]}])
    with pytest.raises(DataError, match=r"other\.jsonl: the item tree-0 is missing, or differs from what was measured"):
        view_results(measured / "eval", measured / "page.html", data=other)
    assert not (measured / "page.html").exists()
    (measured / "data.jsonl").unlink()
    with pytest.raises(DataError, match=r"data\.jsonl: no such file.*name their files with --data"):
        view_results(measured / "eval", measured / "page.html")


@pytest.mark.parametrize("is_old", [False, True])
def test_scores_are_not_joined_to_the_texts_of_another_item(measured: Path, is_old: bool) -> None:
    """Unnamed items are numbered, so another order is other data; older tables have only labels to tell by."""
    if is_old:
        table = measured / "eval" / "labeled.steps.parquet"
        pq.write_table(pq.read_table(table).drop_columns("content_hash"), table)
        view_results(measured / "eval", measured / "page.html")
    lines = (measured / "data.jsonl").read_text().splitlines()
    (measured / "data.jsonl").write_text("\n".join([lines[1], lines[0], lines[2]]))
    with pytest.raises(DataError, match=r"data\.jsonl: the item tree-0 is missing, or differs from what was measured"):
        view_results(measured / "eval", measured / "page.html")
    if not is_old:
        (measured / "data.jsonl").write_text("\n".join([lines[0].replace('"b"', '"other"'), *lines[1:]]))
        with pytest.raises(DataError, match="differs from what was measured"):
            view_results(measured / "eval", measured / "page.html")


def test_a_changed_file_makes_another_document(measured: Path) -> None:
    [document] = find_documents(ShownResults.named([measured / "eval"])).values()
    before = document.stamp()
    assert document.stamp() == before
    table = measured / "eval" / "labeled.steps.parquet"
    table.write_bytes(table.read_bytes() + b"x")
    assert document.stamp() != before


def test_a_large_page_is_said_to_be_one(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["view", str(measured / "eval"), "--out", str(measured / "page.html")]
    assert "browsers open slowly" not in CliRunner().invoke(app, words).output
    monkeypatch.setattr("prism_prm.cli.view.LARGE", 1000)
    assert "page.html has 0 MB, which browsers open slowly; name fewer results" in CliRunner().invoke(app, words).output


def test_a_place_that_is_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, said in (("empty", "no results to show; expected an evaluation"), ("nosuch", "no such file or folder")):
        with pytest.raises(DataError, match=said):
            view_results(tmp_path / place, tmp_path / "page.html")


@pytest.mark.parametrize(
    "text", ["[]", "{}", "null", '{"benchmarks": [1]}', '{"benchmarks": {"labeled": {}}, "run": {}}']
)
def test_a_broken_metrics_file_is_named(measured: Path, text: str) -> None:
    (measured / "eval" / "metrics.json").write_text(text)
    with pytest.raises(DataError, match=r"metrics\.json: not written by `prism eval`"):
        find_documents(ShownResults.named([measured / "eval"]))


def test_two_tables_of_scores_are_one_document(tmp_path: Path) -> None:
    from prism_prm import example_prm, score_files

    lines = [{"problem": "1+1", "steps": ["1+1=2", "#### 2"]}, {"problem": "2+1", "steps": ["2+1=4", "#### 4"]}]
    data = write(tmp_path / "solutions.jsonl", list(lines))
    prms = {name: example_prm(name) for name in ("base", "prism")}
    for name, prm in prms.items():
        score_files(prm, data, tmp_path / f"{name}.parquet")
    places = [f"first={tmp_path / 'base.parquet'}", tmp_path / "prism.parquet"]
    [document] = find_documents(ShownResults.named(places)).values()
    found = json.loads(encode(document.body()))
    assert [prm["name"] for prm in found["prms"]] == ["first", "prism"]
    assert [prm["threshold"] for prm in found["prms"]] == [prm.card.threshold for prm in prms.values()]
    assert [(one["problem"], one["texts"]) for one in found["solutions"]] == [
        (line["problem"], line["steps"]) for line in lines
    ]
    for which, prm in enumerate(prms.values()):
        for solution, line in zip(found["solutions"], lines, strict=True):
            scores = prm.score(str(line["problem"]), list(line["steps"]))
            assert solution["prms"][which]["probabilities"] == pytest.approx(list(scores), abs=1e-6)
            expected = prm.solution_score(str(line["problem"]), list(line["steps"]))
            assert solution["prms"][which]["score"] == pytest.approx(expected, abs=1e-6)

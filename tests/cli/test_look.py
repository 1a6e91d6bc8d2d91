"""`prism score --show`: solutions as lines of a terminal, whatever is written in them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console

from prism_prm import init_prm
from prism_prm.cli import app
from prism_prm.cli.step_lines import harmless, show
from prism_prm.evaluate.look_at import JudgedSolution, LookedAt
from prism_prm.tree import Step, StepTree

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def lines(*found: LookedAt, width: int = 80, encoding: str = "utf-8", **options: object) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=file, width=width, **{"highlight": False, "markup": False, "emoji": False, **options})  # type: ignore[arg-type]
    show(console, found)
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def solution(*steps: str) -> StepTree:
    return StepTree.chain("What is 2 + 3 * 4?", steps, name="first")


MINE = JudgedSolution("mine", 0.5, "min", (0.9312, 0.12, None), 1, None)
OTHER = JudgedSolution("other", 0.3, "product", (0.8, 0.4, 0.9), None, 0.288)
STEPS = ("3 * 4 = 12.", "2 + 12 = 15.", "The answer is 15.")


def test_one_prm() -> None:
    shown = lines(LookedAt(solution(*STEPS), (MINE,)), width=100)
    assert [line.rstrip() for line in shown] == [
        "1 of 1 · first",
        "What is 2 + 3 * 4?",
        "1  ✓ 0.931  3 * 4 = 12.",
        "2  ✗ 0.120  2 + 12 = 15.  <- first below threshold",
        "3  ?     –  The answer is 15.",
        "score – (min) · first below threshold: step 2 · 1 of 3 steps without a score · threshold 0.5",
    ]


def test_two_prms_side_by_side() -> None:
    shown = lines(LookedAt(solution(*STEPS), (MINE, OTHER)), width=68)
    assert [line.rstrip() for line in shown[2:7]] == [
        "   mine     other",
        "1  ✓ 0.931  ✓ 0.800  3 * 4 = 12.",
        "2  ✗ 0.120  ✓ 0.400  2 + 12 = 15.  <- first below threshold of mine",
        "3  ?     –  ✓ 0.900  The answer is 15.",
        "mine: score – (min) · first below threshold: step 2 · 1 of 3 steps",
    ]
    assert shown[-1].rstrip() == "other: score 0.288 (product) · all above threshold · threshold 0.3"


def test_with_little_room_scores_stand_below_the_text() -> None:
    many = tuple(JudgedSolution(f"prm {i}", 0.5, "min", (0.5 + i / 100,), None, 0.9) for i in range(12))
    shown = [line.rstrip() for line in lines(LookedAt(solution("3 * 4 = 12."), many), width=80)]
    assert shown[2:5] == ["1  3 * 4 = 12.", "   ✗ 0.500  prm 0", "   ✓ 0.510  prm 1"]
    assert shown[14] == "   ✓ 0.610  prm 11"
    beside = [line.rstrip() for line in lines(LookedAt(solution("x " * 30), many[:6]), width=80)]
    assert beside[3] == "1  ✗ 0.500  ✓ 0.510  ✓ 0.520  ✓ 0.530  ✓ 0.540  ✓ 0.550  x x x x x x x x x x x x"
    alone = [line.rstrip() for line in lines(LookedAt(solution("3 * 4 = 12."), many[1:2]), width=24)]
    assert alone[2:4] == ["1  3 * 4 = 12.", "   ✓ 0.510"]


def test_colours_are_those_of_the_verdicts_and_can_be_left_out() -> None:
    one = LookedAt(solution(*STEPS), (MINE,))
    coloured = lines(one, force_terminal=True, color_system="standard")
    assert ["\x1b[32m✓ 0.931\x1b[0m" in coloured[2], "\x1b[31m✗ 0.120\x1b[0m" in coloured[3]] == [True, True]
    assert "\x1b[33m?     –\x1b[0m" in coloured[4]
    assert [ESCAPE.sub("", line).rstrip() for line in coloured] == [line.rstrip() for line in lines(one)]
    plain = "\n".join(lines(one, force_terminal=True, color_system="standard", no_color=True))
    assert "✗ 0.120" in plain
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_long_texts_are_wrapped(width: int) -> None:
    texts = ("word " * 300, "x" * 1000, "数学" * 200, "\n".join(["a line"] * 5), "")
    scores = JudgedSolution("mine", 0.5, "min", (0.9,) * 5, None, 0.9)
    shown = lines(LookedAt(solution(*texts), (scores,)), width=width)
    assert all(cell_len(line) <= width for line in shown)
    letters = "".join("".join(shown).split())
    for text in texts:
        assert "".join(text.split())[:5] in letters
    assert letters.count("x") == 1000
    assert letters.count("数") == 200


def test_what_a_model_writes_cannot_steer_the_terminal() -> None:
    hostile = (
        "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b1m\x7f\b\r\u202egnirts\u2028\u2066\ud800 [bold]no mark-up[/] :smile:"
    )
    shown = lines(
        LookedAt(
            StepTree.chain(hostile, (hostile,), name=hostile), (JudgedSolution(hostile, 0.5, "min", (0.9,), None, 0.9),)
        )
    )
    said = "\n".join(shown)
    assert not [one for one in said if one != "\n" and not one.isprintable()]
    assert "␛]0;title␇␛[2J␛[31mred\\u009b1m\\u007f␈␍\\u202egnirts\\u2028\\u2066\\ud800" in harmless(hostile)
    assert "[bold]no mark-up[/] :smile:" in said
    assert harmless("a\r\nb\tc\nd\u200de שלום") == "a\nb   c\nd\u200de שלום"


def test_an_encoding_without_marks() -> None:
    shown = lines(LookedAt(solution("ž ≤ 2"), (JudgedSolution("mine", 0.5, "min", (0.1,), 0, 0.1),)), encoding="ascii")
    assert shown[2].startswith(r"1  x 0.100  \u017e \u2264 2")
    assert shown[0] == "1 of 1 - first"


def test_candidates_that_share_a_prefix_say_what_they_follow() -> None:
    tree = StepTree(0, "p", (Step("a"), Step("b"), Step("c"), Step("d")), (-1, 0, 0, -1), ())
    shown = lines(LookedAt(tree, (JudgedSolution("mine", 0.5, "min", (0.9, 0.9, 0.1, 0.9), None, None),)))
    assert [line.rstrip() for line in shown[4:6]] == [
        "3  ✗ 0.100  c  (after step 1)", "4  ✓ 0.900  d  (another first step)",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_lm: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("look")
    records = [{"problem": f"What is {i} + 1?", "steps": [f"{i} + 1", f"it is {i + 1}"]} for i in range(12)]
    (folder / "own.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for seed in (0, 1):
        init_prm(tiny_lm("qwen2"), family="qwen", seed=seed).save(folder / f"prm{seed}")
    return folder


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prism_prm import load_prm

    monkeypatch.chdir(folder)
    words = ["score", "own.jsonl", "--show", "--prm", "a=prm0", "--prm", "b=prm1", "--limit", "3", "--threshold", "0.4"]
    shown = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    found = json.loads(shown.stdout)["solutions"]
    assert [one["problem"] for one in found] == ["What is 0 + 1?", "What is 1 + 1?", "What is 2 + 1?"]
    for which, name in enumerate(["prm0", "prm1"]):
        expected = load_prm(name).score(found[2]["problem"], found[2]["steps"])
        own = found[2]["prms"][which]
        assert own["probabilities"] == pytest.approx(expected, abs=1e-6)
        assert own["threshold"] == 0.4
        wrong = [i for i, one in enumerate(expected) if one <= 0.4]
        assert own["first_error"] == (wrong[0] if wrong else None)
    printed = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    assert "1 of 3" in printed
    assert "\x1b" not in printed, "a pipe gets no colours"
    for judged in found[0]["prms"]:
        assert f"{judged['probabilities'][0]:.3f}" in printed

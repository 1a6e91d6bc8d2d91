"""The reference answers of public tasks: each is itself in any spelling, and no other one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prism_prm.data.tasks import load_task
from prism_prm.grading.graders import Judge
from prism_prm.grading.plain_answers import normalize

pytestmark = pytest.mark.real_data
TASKS = {"math-500": "math500", "gsm8k": "gsm8k", "aime-2024": "aime24", "amc-2023": "amc23",
         "olympiadbench": "olympiadbench", "minerva": "minerva_math"}  # fmt: skip
RESPELLINGS: dict[str, Callable[[str], str]] = {
    "dollars": lambda t: f"${t}$",
    "display": lambda t: f"$$ {t} $$",
    "brackets": lambda t: rf"\({t}\)",
    "box": lambda t: rf"\boxed{{{t}}}",
    "stop": lambda t: f" {t}.\n",
    "style": lambda t: rf"\displaystyle {t}",
    "dfrac": lambda t: t.replace(r"\frac", r"\dfrac"),
    "no sizes": lambda t: re.sub(r"\\(left|right)(?![A-Za-z])\s*", "", t),
    "sizes": lambda t: re.sub(r"(?<!left)(?<!right)[()]", lambda m: {"(": r"\left(", ")": r"\right)"}[m[0]], t),
    "minus": lambda t: t.replace("-", "−"),
    "powers": lambda t: re.sub(r"\^(\d)(?!\d)", r"^{\1}", t),
    "text": lambda t: re.sub(r"\\(text|mbox)\{", r"\\mathrm{", t),
    "spaces": lambda t: re.sub(r"(?<=[=+<>&])|(?=[=+<>&])", " ", t),
    "thin spaces": lambda t: t if re.search(r"\d,\d{3}|\\!", t) else re.sub(r", ?", r",\\,", t),
}


@pytest.fixture(scope="module")
def answers(real_data: Path) -> list[str]:
    files = [(task, real_data / folder / "test.jsonl") for task, folder in TASKS.items()]
    found = [problem.answer for task, file in files for problem in load_task(task, file).problems]
    return list(dict.fromkeys(answer for answer in found if answer))


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(workers=1) as judge:
        yield judge


def test_every_spelling_is_right(answers: list[str], judge: Judge) -> None:
    pairs = [(answer, respell(answer)) for answer in answers for respell in RESPELLINGS.values()]
    pairs = [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]
    assert len(pairs) > 8_000
    assert [pair for pair, verdict in zip(pairs, judge.judge(pairs), strict=True) if not verdict.correct] == []


def test_other_answers_are_wrong(answers: list[str], judge: Judge) -> None:
    """Pairs of answers that look alike: both numbers, both lists, both formulas."""
    kinds: dict[str, list[str]] = {"number": [], "list": [], "formula": []}
    for answer in answers:
        is_number = re.fullmatch(r"-?[\d.,/]+", normalize(answer))
        kinds["number" if is_number else "list" if "," in answer else "formula"].append(answer)
    draw = random.Random(0)
    pairs = [tuple(draw.sample(kind, 2)) for kind in kinds.values() for _ in range(1_000)]
    right = [pair for pair, verdict in zip(pairs, judge.judge(pairs), strict=True) if verdict.correct]  # type: ignore[arg-type]
    assert right == []


def test_a_changed_digit_is_wrong(answers: list[str], judge: Judge) -> None:
    draw = random.Random(0)
    pairs = []
    for answer in answers:
        digits = [match.start() for match in re.finditer(r"\d", answer)]
        for at in draw.sample(digits, min(2, len(digits))):
            digit = (int(answer[at]) + draw.randint(1, 9)) % 10
            pairs.append((answer, f"{answer[:at]}{digit}{answer[at + 1 :]}"))
    assert len(pairs) > 2_000
    assert [pair for pair, verdict in zip(pairs, judge.judge(pairs), strict=True) if verdict.correct] == []

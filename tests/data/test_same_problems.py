from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from prism_prm import read_trees
from prism_prm.data.same_problem import Exclusions, Splits, normalize_problem, split_by_problem
from prism_prm.errors import ConfigError, DataError


def test_the_same_problem_in_other_clothes() -> None:
    assert normalize_problem("What is $\\frac{1}{2}$ of 7?") == normalize_problem("what  is \\frac{1}{2} of 7 ?")
    assert normalize_problem("What is 1 + 2?") != normalize_problem("What is 1 - 2?")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"Find $\dfrac{1}{2}$", r"Find $\frac{1}{2}$"),
        (r"Find $\tfrac12$", r"Find $\frac{1}{2}$"),
        (r"Find $\frac1{2}$", r"Find $\frac{1}2$"),
        (r"Find $\dbinom{5}{2}$", r"Find $\binom52$"),
        (r"Let $f\left(x\right) = \left\{1\right.$", r"Let $f(x) = \{1$"),
        (r"Let $\bigl(x\Bigr)$", r"Let $(x)$"),
        (r"Let \(x\) and \[y.\]", r"Let $x$ and $$y$$."),
        (r"$x \le 1$ and $y \geq 2$, $z \neq 3$", r"$x\leq1$ and $y\ge2$, $z\ne3$"),
        (r"$x \leqslant 1$", "x ≤ 1"),
        (r"$1{,}000$ and $2,\!500,\!000$ and $3\,000$", "1,000 and 2500000 and 3000"),
        (r"$5 \text{ cm}$", r"$5~\mathrm{cm}$"),
        (r"$x = .5$", r"$x = 0.5$"),
        (r"$1, 2, \ldots, 9$", r"$1,2,\dots,9$"),
        (r"$a\quad b\;c\,d$", "$a b c d$"),
        (r"$x_{1} + x^{2}$", r"$x_1+x^2$"),
        (r"$a − b$", r"$a - b$"),
        (r"Evaluate $\log_264$.", r"Evaluate \log_2 64."),
        (r"Solve $2 \times 3 \cdot x \div 4$", "Solve 2 × 3·x ÷ 4"),
        ("Solve 2*x^2 * 3", r"Solve $2\cdot x^{2} \times 3$"),
        ("the *area* of the **big** square", "the area of the big square"),
        (r"Find $x^2 + x^{10} - x_1$", "Find x² + x¹⁰ − x₁"),
        (r"Find $\frac{x+1}{2x}$", "Find (x+1)/(2x)"),
        (r"Find $\frac{1}{(x+1)(x-1)} + 1$", "Find 1/((x+1)(x-1)) + 1"),
        (r"Find $\frac{\sqrt{\frac{a}{b}}}{2}$", "Find √(a/b)/2"),
        (r"Find $3\frac{1}{2}$", "Find 3½"),
        (r"Find $\sqrt{x + 1} + \sqrt[3]{2}$", "Find √(x+1) + ∛2"),
        (r"Find $x^{n+1}$ for $n \in \mathbb{N}$", "Find x^(n+1) for n ∈ ℕ"),
        (r"Angle $\theta = \pi/3 \approx 60^\circ$", "Angle θ = π/3 ≈ 60°"),
        (r"Let $\varphi \neq \infty$", "Let φ ≠ ∞"),
        ("She said ``Jen's''", "She said “Jen’s”"),
        ("from 1 -- 2", "from 1–2"),
        ("What is\u200b 5\u2060+6?", "What is 5+6?"),
        ("Problem: What is 5+6?", "What is 5+6?"),
        ("**Question.** What is 5+6?", "What is 5+6?"),
        ("Ｗｈａｔ\u00a0is 𝑥", "What is x"),
        (r"Simplify\n\[x\]\nThen stop. $\nu$", "Simplify\n$$x$$ then stop. $\\nu$"),
    ],
)  # fmt: skip
def test_one_problem_typeset_in_two_ways(one: str, other: str) -> None:
    assert normalize_problem(one) == normalize_problem(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 1.5 + 2?", "What is 15 + 2?"),
        ("What is 0.5?", "What is 5?"),
        ("What is .5?", "What is 5?"),
        ("Is f(1,5) or f(1, 5) less?", "Is f(15) or f(15) less?"),
        (r"$\frac{1}{23}$", r"$\frac{12}{3}$"),
        ("rows of 2 34 seats", "rows of 23 4 seats"),
        (r"$x \le 1$", r"$x \ge 1$"),
        (r"$x \left(y\right)$", r"$x y$"),
        (r"$\leftarrow$", r"$\rightarrow$"),
        ("from 1.2 to 3", "from 1 to 2.3"),
        ("Problem 1: go on", "Problem 2: go on"),
        ("Find q) or r)", "Find r)"),
        ("What is x²?", "What is x2?"),
        ("What is 3½?", "What is 31/2?"),
        ("What is 2/3?", "What is 23?"),
        ("What is f(x)/2?", "What is fx/2?"),
    ],
)  # fmt: skip
def test_other_problems_stay_apart(one: str, other: str) -> None:
    assert normalize_problem(one) != normalize_problem(other)


def test_runs_of_words_do_not_hang_on_the_typesetting() -> None:
    one = r"Given that $f\left(x\right) \le \dfrac{1}{2}$ for all \(x\), so that \(f\left(0\right) = 1{,}000\) too."
    other = r"Now: given that $f(x)\leq\frac12$ for all $x$, so that $f(0)=1000$ too."
    exclusions = Exclusions()
    exclusions.add(one, "a")
    assert exclusions.match(other)
    assert exclusions.counts == {"a": {"ngram_overlap": 1}}


def test_splits_follow_from_the_problem_and_the_seed() -> None:
    splits = split_by_problem(Splits({"train": 0.8, "test": 0.2}))
    found = {f"problem {i}": splits(f"problem {i}") for i in range(2000)}
    assert 0.17 < Counter(found.values())["test"] / 2000 < 0.23
    assert all(splits(f"Problem  {i}!") == found[f"problem {i}"] for i in range(50))
    backwards = split_by_problem(Splits({"train": 0.8, "test": 0.2}))
    assert {problem: backwards(problem) for problem in reversed(found)} == found
    other = split_by_problem(Splits({"train": 0.8, "test": 0.2}, seed=1))
    assert sum(other(problem) != split for problem, split in found.items()) > 300


def test_problems_that_share_most_of_their_words_are_in_one_split() -> None:
    splits = split_by_problem(Splits({"a": 0.5, "b": 0.5}))
    first = splits(LONG)
    assert [splits(f"Number {i}. {LONG} Show your work.") for i in range(20)] == [first] * 20
    told = "Think step by step, check your work, and put nothing but the final answer as a number on the last line."
    halves = Counter(splits(f"What is {i} plus one? {told}") for i in range(1000))
    assert 450 < halves["a"] < 550, "a common instruction makes them no copies of each other"


@pytest.mark.parametrize("shares", [{"train": 0.9}, {"train": 0.9, "test": 0.2}, {"": 1.0}, {"a": 0.0, "b": 1.0}])
def test_bad_splits_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="split"):
        Splits(shares)


LONG = "A train leaves town at 9 and goes 60 miles an hour for three hours, then stops. How far has it gone?"


def test_exclusions_find_equal_and_overlapping_problems(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text(json.dumps({"question": "What is 1+1?"}) + "\n" + json.dumps({"input": "q? Step 1: a ки"}))
    second.write_text(json.dumps({"question": {"problem": LONG}, "label": {}}))
    exclusions = Exclusions.read([first, second])
    assert exclusions.match("what is 1+1")
    assert exclusions.match("Q?")
    assert exclusions.match(f"On Monday, {LONG.lower()}")
    assert not exclusions.match("What is 1-1?")
    assert not exclusions.match(" ".join(LONG.split()[:10]))
    assert not exclusions.match(
        f"{LONG[:60]} Then Ann wonders whether her dog, which is quite old, likes the other "
        "one, since it barked when they met in the park near the lake, on the way to school."
    )
    assert exclusions.counts == {str(first): {"same_problem": 2}, str(second): {"ngram_overlap": 1}}
    assert not Exclusions.read([second], ngram=0).match(f"On Monday, {LONG}")


@pytest.mark.parametrize("record", ['{"text": "x"}', '{"task": "MATH", "query": "What is 1 + 1?"}'])
def test_a_file_without_problems_is_refused(tmp_path: Path, record: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(record + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl:1: no problem in any of the fields"):
        Exclusions.read([file])


def test_bug_fixes_are_excluded_by_their_task(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"task": 7, "buggy": "a", "fixed": "b"}\n{"task": "sum of all", "faulty": "a", "correct": "b"}\n')
    exclusions = Exclusions.read([file])
    assert exclusions.match("7")
    assert exclusions.match("sum of all")
    assert not exclusions.match("8")


def test_real_overlaps(real_data: Path) -> None:
    def matched(folder: str) -> tuple[int, Counter[str]]:
        exclusions = Exclusions.read([real_data / "math500" / "test.jsonl"])
        trees = list(read_trees(real_data / folder))
        twins = [tree for tree in trees if tree.name.startswith("correct_")]
        assert all(exclusions.match(tree.problem) for tree in twins)
        exclusions.counts.clear()
        found = sum(exclusions.match(tree.problem) for tree in trees)
        return found, sum(exclusions.counts.values(), Counter())

    assert matched("prm800k/phase1_train.jsonl")[1]["same_problem"] == 0
    found, reasons = matched("prm800k/phase1_train.jsonl")
    assert found == reasons.total() < 10
    assert matched("processbench/math.json")[1]["same_problem"] == 112
    assert matched("prmbench")[0] > 2400

"""`label_task` with a policy whose chances are known: what is labeled again, by whom, and what that costs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from branching import Branching, judging

from contents import contents
from loopback import Answer, serve
from payloads import OWN, packed, stdin_record
from prism_prm import PrismError
from prism_prm.backends.policy import PolicySettings, Prompting, Sampling, StepRequest, Written
from prism_prm.console import Console, shown_on
from prism_prm.data.tables import iter_trees
from prism_prm.data.tasks import TaskProblem, problem_of
from prism_prm.search import label_task as run
from prism_prm.search.label_engine import Judging
from prism_prm.search.label_rules import LabelSettings
from prism_prm.search.label_task import LabelItem, label_task
from prism_prm.search.recipes import LabelRecipe
from prism_prm.tree import StepTree

SETTINGS = LabelSettings(rollouts=4, alternatives=2, sampling=Sampling(max_step_tokens=8, max_tokens=40))


class Noted(Branching):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[int] = []
        self.problems: set[str] = set()

    def write(self, asks: Sequence[StepRequest], sampling: Sampling) -> list[Written]:
        self.keys += [ask.key for ask in asks]
        self.problems |= {ask.text.split("\n\n")[0] for ask in asks}
        return super().write(asks, sampling)


def write_task(path: Path, answers: Sequence[str]) -> str:
    lines = [json.dumps({"problem": f"p{i}", "answer": answer}) for i, answer in enumerate(answers)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def label(task: str, out: Path, judge: Judging = judging, **changes: Any) -> tuple[Noted, list[str], dict[str, Any]]:
    """The policy that was asked, what was said, and the metrics."""
    policy, said = Noted(), list[str]()
    recipe = LabelRecipe(task=task, policy=PolicySettings("hf:first"), label=SETTINGS, **changes)
    with shown_on(Console(said.append)):
        metrics = label_task(recipe, out, policy=policy, judge=judge)
    return policy, said, metrics


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> list[Noted]:
    """The policies that were opened by name, each the same as the first."""
    opened: list[Noted] = []

    def open_policy(_settings: PolicySettings) -> Noted:
        opened.append(Noted())
        return opened[-1]

    monkeypatch.setattr(run, "open_policy", open_policy)
    return opened


SECOND = "openai:http://localhost:1/v1"


def test_corrected_answers_are_labelled_again(tmp_path: Path) -> None:
    write_task(tmp_path / "task.jsonl", ["1"] * 4)
    label(str(tmp_path / "task.jsonl"), tmp_path / "out")
    task = write_task(tmp_path / "task.jsonl", ["1", "0", "0", "1"])
    policy, said, _ = label(task, tmp_path / "out")
    assert policy.problems == {"p1", "p2"}
    assert said == [
        "2 problems, labels, have new answers, tests or steps: labeled again",
        "Reusing 2 of 4 labeled problems, labels",
    ]
    label(task, tmp_path / "new")
    assert list(iter_trees(tmp_path / "out")) == list(iter_trees(tmp_path / "new"))
    policy, said, _ = label(task, tmp_path / "out")
    assert (policy.keys, said) == ([], ["Reusing 4 of 4 labeled problems, labels"])


def test_a_second_policy_draws_numbers_of_its_own(tmp_path: Path, second: list[Noted]) -> None:
    task = write_task(tmp_path / "task.jsonl", ["1"] * 30)
    first, _, metrics = label(task, tmp_path / "out", second_policy=SECOND)
    (other,) = second
    assert not set(first.keys) & set(other.keys)
    found = metrics["consensus"]
    assert found["agreed"] == metrics["num_labeled"]
    assert min(found[f"only the {one} calls it right"] for one in ("first", "second")) > 5, "luck differs"


def test_problems_of_one_text_keep_their_answers_for_a_second_policy(tmp_path: Path, second: list[Noted]) -> None:
    asked: set[tuple[int, str, str | None]] = set()

    def note(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
        asked.update((len(second), problem.name, problem.answer) for problem, _ in solutions)
        return judging(solutions)

    task, exact = tmp_path / "task.jsonl", tmp_path / "exact.jsonl"
    twins = [{"problem": "p", "answer": answer, "name": name} for name, answer in (("a", "1"), ("b", "0"))]
    task.write_text("".join(json.dumps(twin) + "\n" for twin in twins))
    label(str(task), tmp_path / "out", note, second_policy=SECOND)
    assert asked == {(0, "a", "1"), (0, "b", "0"), (1, "a", "1"), (1, "b", "0")}
    asked.clear()
    sample = [{"problem": "p", "steps": ["good 0", "bad 1"], "label": 1, "id": name} for name in "ab"]
    exact.write_text("".join(json.dumps(one) + "\n" for one in sample))
    label(str(task), tmp_path / "out", note, check=str(exact))
    assert asked == {(1, "a", "1"), (1, "b", "0")}
    exact.write_text(json.dumps(sample[0] | {"id": "c"}) + "\n")
    with pytest.raises(PrismError, match=r"exact\.jsonl:1.*2 problems of the task have its text, 'p'"):
        label(str(task), tmp_path / "out", note, check=str(exact))


def test_a_refused_command_changes_nothing(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task.jsonl", ["1"] * 3)
    label(task, tmp_path / "out")
    before = contents(tmp_path / "out")
    recipe = LabelRecipe(task=task, policy=PolicySettings("hf:first"), label=replace(SETTINGS, rollouts=8))
    with pytest.raises(PrismError, match="rollouts"):
        label_task(recipe, tmp_path / "out", policy=Noted(), judge=judging)
    assert contents(tmp_path / "out") == before


def test_more_problems_add_to_second_opinions_and_checks(tmp_path: Path, second: list[Noted]) -> None:
    task = write_task(tmp_path / "task.jsonl", ["1"] * 6)
    records = [{"problem": f"p{i}", "steps": ["good 0", "bad 1"], "label": 1, "id": str(i)} for i in range(5)]
    (tmp_path / "exact.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    more = {"second_policy": SECOND, "check": str(tmp_path / "exact.jsonl")}
    label(task, tmp_path / "out", limit=4, check_limit=3, **more)
    policy, said, metrics = label(task, tmp_path / "out", limit=6, check_limit=5, **more)
    assert policy.problems == {"p3", "p4", "p5"}, "two new problems, and two new solutions to check"
    assert second[1].problems == {"p4", "p5"}
    filed = [json.loads(line) for line in (tmp_path / "out" / "journal" / "second.jsonl").read_text().splitlines()[1:]]
    made = [one["record"] for one in filed]
    cost = {"rollouts": sum(one["rollouts"] for one in made), "policy_tokens": sum(one["tokens"] for one in made)}
    assert metrics["second_cost"] == cost
    assert metrics["check_cost"]["rollouts"] == 5 * 4, "of the first step each; the second ends its solution"
    rows = (tmp_path / "out" / "report.md").read_text()
    assert f"| rollouts of the second policy | {cost['rollouts']} |" in rows
    assert "| rollouts for the check | 20 |" in rows
    assert said == [
        "Reusing 4 of 6 labeled problems, labels", "Reusing 3 of 5 labeled trees, check",
        "Reusing 4 of 6 labeled trees, second",
    ]  # fmt: skip


def test_what_labels_follow_from() -> None:
    """Answers, tolerances, tests and trees count; names do not."""
    number, program = TaskProblem("p", "1"), problem_of(stdin_record())
    trees = [StepTree.chain("p", ["a"]), StepTree.chain("p", ["a", "b"])]

    def content(problem: TaskProblem, tree: StepTree | None = None) -> str:
        return LabelItem(problem, tree).content()

    assert content(number) == content(replace(number, name="another"))
    changed = [
        number, replace(number, answer="2"), replace(number, tolerance=0.1), program,
        problem_of(stdin_record(public_test_cases="[]")), problem_of(stdin_record(private_test_cases=packed([]))),
    ]  # fmt: skip
    found = [content(problem) for problem in changed] + [content(number, tree) for tree in trees]
    assert len(set(found)) == len(found)


LUCKY = ["good 0", "bad 1", "good 2", "good 3", "#### 1"]
PROCESSBENCH = [
    {"problem": "p0", "steps": LUCKY, "label": 1, "id": "lucky"},
    {"problem": "p0", "steps": ["good 0", "#### 1"], "label": -1, "id": "right"},
    {"problem": "p0", "steps": ["good 0", "#### 0"], "label": 1, "id": "wrong"},
]
STEPWISE = [
    {"prompt": " p0", "completions": LUCKY, "labels": [True, False, True, True, True]},
    {"prompt": "p0", "completions": ["good 0", "#### 1"], "labels": [True, True]},
    {"prompt": "p0", "completions": ["good 0", "#### 0"], "labels": [True, False]},
]


@pytest.mark.parametrize("records", [PROCESSBENCH, STEPWISE], ids=["processbench", "stepwise"])
@pytest.mark.parametrize(
    "problem", [{"problem": "p0", "answer": "1"}, {**OWN, "problem": "p0"}], ids=["answer", "tests"]
)
def test_right_answers_through_wrong_steps_are_counted(
    records: list[dict[str, Any]], problem: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "task.jsonl").write_text(json.dumps({"problem": "first", "answer": "1"}) + "\n" + json.dumps(problem))
    (tmp_path / "exact.jsonl").write_text("\n".join(map(json.dumps, records)))
    asked: list[TaskProblem] = []

    def judge(solutions: Sequence[tuple[TaskProblem, str]]) -> list[bool]:
        asked.extend(problem for problem, _ in solutions)
        return [text.endswith("#### 1") for _, text in solutions]

    check = {"check": str(tmp_path / "exact.jsonl"), "limit": 1}
    noise = label(str(tmp_path / "task.jsonl"), tmp_path / "out", judge, **check)[2]["label_noise"]
    unnoticed = noise["groups"]["solutions with the right answer"]["wrong_called_right"]
    found = [noise[name] for name in ("solved", "solved_wrongly", "solved_wrongly_unnoticed")]
    assert found == [2, 1, unnoticed]
    assert {one.reference for one in asked if one.text == "p0"} == {problem_of(problem).reference}


def test_programs_without_a_sandbox_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "task.jsonl").write_text(json.dumps({**OWN, "public_tests": []}))
    _, said, _ = label(str(tmp_path / "task.jsonl"), tmp_path / "out", lambda some: [False] * len(some), sandbox="none")
    bare = "1 of 1 code problems have no public tests: votes cannot tell programs apart."
    warning = "Warning: programs ran WITHOUT a sandbox (sandbox=none): they could do whatever you may do."
    assert said == [bare, warning]
    page = (tmp_path / "out" / "report.md").read_text()
    assert bare in page
    assert warning in page


def test_two_models_of_one_server_are_two_policies(tmp_path: Path) -> None:
    """Each is asked by its own name; "b" is always wrong."""

    def answer(body: dict[str, Any]) -> Answer:
        text = "1+1=2\n\n#### 2" if body["model"] == "a" else "#### 3"
        choice = {"text": text, "finish_reason": "stop", "stop_reason": None}
        return 200, {"choices": [choice], "usage": {"completion_tokens": 3}}

    (tmp_path / "task.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    plain = PolicySettings("", prompting=Prompting(template="none"), model="a", tokenizer="of-a")
    settings = replace(SETTINGS, rollouts=3, alternatives=0)
    with serve(answer, {"data": [{"id": "a"}, {"id": "b"}]}) as (url, asked):
        first = replace(plain, name=f"openai:{url}")
        recipe = LabelRecipe(task=str(tmp_path / "task.jsonl"), policy=first, label=settings, second_policy=first.name)
        with pytest.raises(
            PrismError, match=r"serves a, b; choose one with -P model=NAME \(for a second policy: --set second_model="
        ):
            label_task(recipe, tmp_path / "out", judges=1)
        metrics = label_task(replace(recipe, second_model="b"), tmp_path / "out", judges=1)
    assert Counter(body["model"] for body in asked) == {"a": 1 + 3, "b": 3}
    assert metrics["consensus"] == {"only the first calls it right": 1, "agreed": 1}


def test_the_tokenizer_of_the_first_policy_is_not_that_of_the_second() -> None:
    first = PolicySettings("openai:http://a/v1", model="a", tokenizer="of-a", concurrency=3)
    recipe = LabelRecipe(task="t", policy=first)
    assert recipe.second is None
    named = replace(recipe, second_policy=SECOND, second_tokenizer="of-b")
    assert named.second == PolicySettings(SECOND, tokenizer="of-b", concurrency=3)
    with pytest.raises(PrismError, match="are for a second policy: name one with --second-policy"):
        replace(recipe, second_model="b")


def test_misleading_solutions_of_a_search_are_labeled_and_get_alternatives(tmp_path: Path) -> None:
    """Of five solutions, two equal ones have a wrong answer and a high score; their second step is the first error."""
    task = write_task(tmp_path / "task.jsonl", ["1"])
    bad, good = ["good 0", "bad 1", "bad 2", "bad 3", "#### 0"], ["good 0", "good 1", "good 2", "good 3", "#### 1"]
    solutions = [(bad, 0.9), (bad, 0.8), (good, 0.9), (bad, 0.3), (bad, None)]
    record = {
        "problem": "p0",
        "answer": "1",
        "solutions": [{"steps": steps} | ({"scores": [0.99] * 4 + [p]} if p else {}) for steps, p in solutions],
    }
    other = {"problem": "another", "answer": "1", "solutions": [{"steps": bad, "scores": [0.9] * 5}]}
    (tmp_path / "search" / "pools").mkdir(parents=True)
    (tmp_path / "search" / "pools" / "beam.jsonl").write_text(json.dumps(record) + "\n" + json.dumps(other) + "\n")
    settings = replace(SETTINGS, method="binary", rule="value>0.25", rollouts=64, alternatives=4)
    policy, said = Noted(), list[str]()
    recipe = LabelRecipe(
        task=task, policy=PolicySettings("hf:first"), label=settings, from_search=str(tmp_path / "search")
    )
    with shown_on(Console(said.append)):
        label_task(recipe, tmp_path / "out", policy=policy, judge=judging)
    assert said[0] == (
        f"{tmp_path / 'search'}: solutions without scores: 1, with a low score: 1, with the right answer: 1, "
        "with a wrong answer and a high score: 2, of other problems: 1"
    )
    (tree,) = iter_trees(tmp_path / "out" / "trees.parquet")
    assert tree.texts(tree.trunk) == bad
    assert [step.label for step in tree.nodes] == [1.0, 0.0, None, None, None, 1.0]
    assert (tree.nodes[5].text, tree.parents[5]) == ("good 1", 0), "the alternative to the first error"
    with pytest.raises(PrismError, match=r"no solution of a problem of .* has a wrong answer and a score above 0\.95"):
        label_task(replace(recipe, min_score=0.95), tmp_path / "none", policy=policy, judge=judging)

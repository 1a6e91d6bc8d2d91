from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from prism_prm.data.formats import POOL_FIELDS, ReadOptions
from prism_prm.data.reader import Reader, read_trees
from prism_prm.errors import DataError
from prism_prm.tree import ROOT, Step, StepTree


def read_one(tmp_path: Path, record: dict[str, Any], **options: Any) -> StepTree:
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(record))
    (tree,) = read_trees(file, options=ReadOptions(**options))
    return tree


def completion(text: str, rating: int | None) -> dict[str, Any]:
    return {"text": text, "rating": rating, "flagged": False}


def prm800k(steps: list[dict[str, Any]], finish: str | None = "solution", **flags: bool) -> dict[str, Any]:
    return {
        "question": {"problem": "1+1?", "ground_truth_answer": "2"},
        "label": {"steps": steps, "finish_reason": finish},
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        **flags,
    }


def position(
    completions: list[dict[str, Any]] | None, chosen: int | None, human: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"completions": completions, "chosen_completion": chosen, "human_completion": human}


STEPS = [
    position([completion("a", -1), completion("b", 1)], 1),
    position([completion("c", 0), completion("d", None)], None, completion("e", None)),
    position([completion("f", 1)], 0),
]


def test_prm800k_trunk_follows_chosen_then_human(tmp_path: Path) -> None:
    tree = read_one(tmp_path, prm800k(STEPS))
    assert tree.texts(tree.trunk) == ["b", "e", "f"]
    assert tree.parents == (ROOT, ROOT, 1, 1, 1, 4)
    assert tree.nodes == (
        Step("a", 0.0, -1.0),
        Step("b", 1.0, 1.0),
        Step("c", None, 0.0),
        Step("d", None, None),
        Step("e", 1.0, None, "human"),
        Step("f", 1.0, 1.0),
    )
    assert (tree.answer, tree.ended) == ("2", True)


@pytest.mark.parametrize(("neutral", "label"), [("drop", None), ("negative", 0.0), ("positive", 1.0)])
def test_prm800k_neutral_policy(tmp_path: Path, neutral: str, label: float | None) -> None:
    neutral_step = read_one(tmp_path, prm800k(STEPS), neutral=neutral).nodes[2]
    assert (neutral_step.label, neutral_step.rating) == (label, 0.0)


def test_prm800k_trunk_ends_where_nothing_was_chosen(tmp_path: Path) -> None:
    tree = read_one(tmp_path, prm800k([STEPS[0], position([completion("c", -1)], None)], "found_error"))
    assert tree.texts(tree.trunk) == ["b"]
    assert tree.parents[-1] == 1
    assert tree.ended is False


def test_prm800k_without_finish_reason_ends_when_complete(tmp_path: Path) -> None:
    assert read_one(tmp_path, prm800k(STEPS, None)).ended is True
    assert read_one(tmp_path, prm800k([STEPS[0], position(None, None)], None)).ended is False


@pytest.mark.parametrize(
    ("record", "options", "reason"),
    [
        (prm800k(STEPS, "bad_problem"), {}, "finish:bad_problem"),
        (prm800k([position(None, None)], "give_up"), {}, "no-completions"),
        (prm800k(STEPS, "give_up"), {"drop_finish": ("give_up",)}, "finish:give_up"),
        (prm800k(STEPS, is_quality_control_question=True), {"quality_control": "drop"}, "quality-control"),
        (prm800k(STEPS, is_initial_screening_question=True), {"screening": "drop"}, "screening"),
    ],
)
def test_prm800k_records_left_out_are_counted(
    tmp_path: Path, record: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text(json.dumps(record))
    reader = Reader([file], options=ReadOptions(**options))
    assert list(reader.drafts()) == []
    assert reader.report.dropped == {reason: 1}


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (prm800k([position([completion("a", 2)], 0)]), "bad-rating"),
        (prm800k([position([completion(" ", 1)], 0)]), "empty-text"),
        (prm800k([position([completion("a", 1)], 1)]), "bad-index"),
        (prm800k([position([completion("a", 1)], None), STEPS[0]]), "broken-trunk"),
        ({**prm800k(STEPS), "question": {"problem": ""}}, "empty-text"),
        ({"question": {"problem": "p"}, "label": {}}, "missing-field"),
        ({"input": "p Step 1: a ки", "label": "p Step 1: a ?"}, "bad-rating"),
        ({"input": "p Step 1: a ки", "label": "p Step 1: b +"}, "label-mismatch"),
        ({"input": "p Step 1: a", "label": "p Step 1: a"}, "no-tag"),
        ({"input": "p. a ки", "label": "p. a +"}, "no-marker"),
        ({"input": "p Step 1: ки", "label": "p Step 1: +"}, "empty-text"),
        ({"questions": "p", "solution": {"Step 1": {"content": "a", "label": 3}}}, "bad-rating"),
        ({"questions": "p", "solution": {"Step 2": {"content": "a", "label": 1}}}, "bad-index"),
        ({"prompt": "p", "completions": ["a"], "labels": [True, False]}, "label-mismatch"),
        ({"prompt": "p", "completions": ["a"], "labels": [1.5]}, "bad-rating"),
        ({"prompt": "p", "completions": [], "labels": []}, "no-steps"),
        ({"prompt": "p", "completions": ["a"], "labels": ["yes"]}, "wrong-type"),
        ({"problem": "p", "steps": ["a"], "label": 1}, "bad-rating"),
        ({"problem": "p", "steps": ["a", ""], "label": 1}, "empty-text"),
        ({"classification": "c", "idx": "1", "modified_question": "q", "modified_process": ["a"], "error_steps": [0]},
         "bad-rating"),
        ({"classification": "c", "idx": "1", "modified_question": "q", "modified_process": [], "error_steps": []},
         "no-steps"),
        ({"foo": 1}, "wrong-format"),
    ],
)  # fmt: skip
def test_bad_records_have_a_reason(tmp_path: Path, record: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=r"records\.jsonl:1: ") as raised:
        read_one(tmp_path, record)
    assert raised.value.reason == reason


def test_math_shepherd_original(tmp_path: Path) -> None:
    source = "How many? - 3 + 4? Step 1: a + b ки\nStep 2: c\n\nd ки"
    tree = read_one(tmp_path, {"input": source, "label": source.replace("ки", "+", 1).replace("ки", "-")})
    assert tree == StepTree.chain("How many? - 3 + 4?", [Step("a + b", 1.0, 1.0), Step("c\n\nd", 0.0, 0.0)], ended=True)


def test_math_shepherd_reads_a_run_of_spaces_once(tmp_path: Path) -> None:
    """Looked for from each of these spaces anew, the marker after them would take minutes to find."""
    source = "p?" + " " * 400_000 + "so? Step 1: a" + "\n" * 400_000 + "b ки"
    tree = read_one(tmp_path, {"input": source, "label": source.replace("ки", "+")})
    assert tree.problem == source[: source.index(" Step")]
    assert tree.nodes[0].text == "a" + "\n" * 400_000 + "b"


def test_math_shepherd_split(tmp_path: Path) -> None:
    solution = {"Step 1": {"content": "a", "label": 1}, "Step 2": {"content": "b", "label": 0}}
    tree = read_one(tmp_path, {"questions": "p", "solution": solution})
    assert tree == StepTree.chain("p", [Step("a", 1.0, 1.0), Step("b", 0.0, 0.0)], ended=True)


def test_stepwise_takes_hard_and_soft_labels(tmp_path: Path) -> None:
    tree = read_one(tmp_path, {"prompt": "p", "completions": ["a", "b", "c"], "labels": [True, 0.25, 0]})
    assert [step.label for step in tree.nodes] == [1.0, 0.25, 0.0]


def test_process_labels_stop_at_the_first_error(tmp_path: Path) -> None:
    tree = read_one(tmp_path, {"id": "x-1", "problem": "p", "steps": ["a", "b", "c"], "label": 1})
    assert [step.label for step in tree.nodes] == [1.0, 0.0, None]
    assert tree.name == "x-1"
    tree = read_one(tmp_path, {"problem": "p", "steps": ["a", "b"], "label": -1})
    assert [step.label for step in tree.nodes] == [1.0, 1.0]


def test_prmbench_items_and_twins(tmp_path: Path) -> None:
    row = {
        "classification": "redundency", "idx": "t_1", "original_question": "o?", "modified_question": "m?",
        "original_process": ["a"], "modified_process": ["a", "", "b"], "error_steps": [2, 9],
    }  # fmt: skip
    again = {**row, "modified_question": "other?"}
    file = tmp_path / "records.jsonl"
    file.write_text(f"{json.dumps(row)}\n{json.dumps(again)}\n")
    reader = Reader([file])
    item, twin = (draft.tree(0) for _, draft in reader.drafts())
    assert (item.name, item.problem, [step.label for step in item.nodes]) == ("redundency_t_1", "m?", [1.0, 0.0, 1.0])
    assert (twin.name, twin.problem, [step.label for step in twin.nodes]) == ("correct_t_1", "o?", [1.0])
    assert reader.report.dropped == {"duplicate-name": 2}


def test_plain_solutions_need_the_flag(tmp_path: Path) -> None:
    record = {"problem": "p", "solution": "a\n\nb", "answer": "2", "id": 5}
    with pytest.raises(DataError, match=r"split it into steps with --set read\.split_steps=true"):
        read_one(tmp_path, record)
    tree = read_one(tmp_path, record, split_steps=True)
    assert tree == StepTree.chain("p", ["a", "b"], name="5", answer="2", ended=True)
    tree = read_one(tmp_path, {"question": "p", "answer": "a\n#### 2"}, split_steps=True, trust_solutions=True)
    assert tree.texts(tree.trunk) == ["a", "#### 2"]
    assert [step.label for step in tree.nodes] == [1.0, 1.0]


@pytest.mark.parametrize("field", POOL_FIELDS)
def test_a_pool_is_not_a_solution(tmp_path: Path, field: str) -> None:
    """Its `answer` is the reference, which nobody wants scored as a solution."""
    plain, pool = {"problem": "p", "answer": "a"}, {"problem": "p", "answer": "2", field: ["a\n\nb", "c"]}
    with pytest.raises(DataError, match=f"a pool: `{field}` lists several solutions. `prism rerank` reads it") as found:
        read_one(tmp_path, pool)
    assert "split_steps" not in str(found.value)
    file = tmp_path / "records.jsonl"
    file.write_text(f"{json.dumps(plain)}\n{json.dumps(pool)}\n")
    with pytest.raises(DataError, match=rf"records.jsonl:2: this is a pool: `{field}`"):
        list(read_trees(file, options=ReadOptions(split_steps=True)))


def test_steps_without_labels_can_be_scored_and_not_paired(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    for record in ({"problem": "p", "steps": ["a", "b"], "id": 7}, {"prompt": "p", "completions": ["a", "b"]}):
        file.write_text(json.dumps(record))
        ((_, draft),) = Reader([file], unlabeled=True).drafts()
        assert draft.tree(0) == StepTree.chain("p", ["a", "b"], name=str(record.get("id", "")))
        with pytest.raises(DataError, match="in no known format"):
            list(read_trees(file))
        with pytest.raises(DataError, match="in no known format"):
            list(Reader([file]).drafts())
    file.write_text(json.dumps({"prompt": "p", "completions": ["a\n\nb", "c"], "answer": "2"}))
    with pytest.raises(DataError, match="this is a pool: `completions`"):
        list(Reader([file], unlabeled=True).drafts())
    file.write_text(json.dumps({"problem": "p", "steps": ["a", "b"], "label": 1}))
    ((_, draft),) = Reader([file], unlabeled=True).drafts()
    assert draft.labels == [1.0, 0.0], "labels that are there are read"


def test_real_files_read(real_data: Path) -> None:
    def labels(trees: list[StepTree]) -> Counter[float | None]:
        return Counter(step.label for tree in trees for step in tree.nodes)

    phase1 = list(read_trees(real_data / "prm800k" / "phase1_train.jsonl"))
    assert len(phase1) == 942
    assert sum(1 for tree in phase1 for _ in tree.positions()) == 15311
    assert labels(phase1) == {1.0: 18782 + 2341, 0.0: 19656, None: 10234 + 822}
    raw = list(read_trees(real_data / "prm800k" / "raw_samples.jsonl"))
    assert [tree.ended for tree in raw] == [True, False, True, True, False, True]
    shepherd = list(read_trees(real_data / "math_shepherd"))
    assert len(shepherd) == 107
    # The original rows are the first rows of the split copy.
    assert [t.nodes for t in shepherd[100:102]] == [t.nodes for t in shepherd[:2]]
    process = list(read_trees(real_data / "processbench"))
    assert len(process) == 1400
    assert sum(any(step.label == 0.0 for step in tree.nodes) for tree in process) == 207 + 594
    prmbench = list(read_trees(real_data / "prmbench"))
    assert len(prmbench) == 2295 - 5 + 267
    assert sum(tree.name.startswith("correct_") for tree in prmbench) == 267

"""Text that a tokenizer does not know: the example PRMs refuse it, and others say what they left out."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from prism_prm import PRM, StepTree, example_folder, example_prm, init_prm, score_files
from prism_prm.cli import app
from prism_prm.errors import DataError
from serving_prms import running

READABLE = ("1+1+2-1", ["1+1=2", "2+2=3", "3-1=2", "#### 2"])
KNOWN = "abcdefghijklmnopqrstuvwxyzLTPQ0123456789+-=.,:?\\{}'*/<>|_ \n"


def tokenizer_of_letters(unknown: str | None) -> Any:
    """Knows some characters; others become the token `unknown`, or nothing."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>", *([unknown] if unknown else [])]
    vocabulary = {token: i for i, token in enumerate([*special, *KNOWN])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown))
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>", unk_token=unknown)


@pytest.fixture(params=["<unk>", None], ids=["unknown token", "dropped"])
def lossy(request: pytest.FixtureRequest, tiny_lm: Callable[..., Path], tmp_path: Path) -> PRM:
    """A PRM whose tokenizer lacks most of Unicode; beside a Qwen model, transformers would replace its rules."""
    shutil.copytree(tiny_lm("llama"), tmp_path / "lm")
    tokenizer_of_letters(request.param).save_pretrained(tmp_path / "lm")
    return init_prm(tmp_path / "lm", family="qwen", dtype="float32")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("problem", "step", "named"),
    [
        ("1+1", "1 + 1 = 2", "' + ', ' = '"),
        ("1+1", "1+1=2 so", "' so'"),
        ("1+1", "8+1=2", "'8'"),
        ("What is 1+1?", "1+1=2", "'What is ', '?'"),
    ],
)
def test_the_example_prms_refuse_what_they_cannot_read(problem: str, step: str, named: str) -> None:
    prm = example_prm("prism")
    with pytest.raises(DataError, match="example PRMs read only their own language") as refused:
        prm.score(problem, [step])
    assert f"cannot read {named}" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert prm.can_score("1+1=2", 0)
    assert not prm.can_score("1 + 1 = 2", 0)


def test_white_space_alone_changes_nothing() -> None:
    problem, steps = READABLE
    prm = example_prm("prism")
    assert prm.score(f" {problem} ", [f"{step} " for step in steps]) == prm.score(problem, steps)


def test_the_command_names_the_characters(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(json.dumps({"problem": "1+1", "steps": ["1 + 1 = 2"]}) + "\n")
    command = ["score", tmp_path / "s.jsonl", "--prm", example_folder(), "--out", tmp_path / "s.parquet"]
    result = CliRunner().invoke(app, [*map(str, command)])
    assert result.exit_code != 0
    assert "cannot read ' + ', ' = '" in str(result.exception)


def test_unknown_characters_are_counted_and_said(
    lossy: PRM, tmp_path: Path, caplog: pytest.LogCaptureFixture, said: list[str]
) -> None:
    lossy.score("an x?", ["x = 1", "so y = 2"])
    assert warnings(caplog) == []
    for _ in range(2):
        assert len(lossy.score("an x?", ["x ≠ 1", "y é ⇒ 日"])) == 2
    assert [said for said in warnings(caplog) if "cannot read" in said] == [
        "the tokenizer cannot read '≠'; scores ignore what it does not know"
    ], "logged once"
    (tmp_path / "s.jsonl").write_text(json.dumps({"problem": "é", "steps": ["y ≠ 2"]}) + "\n")
    score_files(lossy, tmp_path / "s.jsonl", tmp_path / "s.parquet")
    assert "6 characters were not read, because the PRM's tokenizer does not know them" in said


def test_the_server_says_what_was_not_read(lossy: PRM) -> None:
    with running({"m": lossy}) as server:
        assert "warnings" not in server.steps({"problem": "x?", "steps": ["x = 1"]})
        expected = [f"m's tokenizer cannot read {one}, so these were not scored" for one in ("'≠'", "'é'")]
        items = [{"problem": "x?", "steps": ["x ≠ 1"]}, {"problem": "é?", "steps": ["x = 1"]}]
        assert server.steps(*items)["warnings"] == expected
        turns = [{"role": "user", "content": "é?"}, {"role": "assistant", "content": "x ≠ 1<extra_0>"}]
        answer = server.post("/pooling", {"messages": turns}).json()
        assert answer["warnings"] == ["m's tokenizer cannot read 'é', '≠', so these were not scored"]
        answer = server.post("/get_reward", {"query": ["x?x ≠ 1"], "prompts": ["x?"]}).json()
        assert answer["warnings"] == ["m's tokenizer cannot read '≠', so these were not scored"]
        answer = server.post("/pooling", {"input": "x?é<extra_0>"}).json()
        assert answer["warnings"] == ["m's tokenizer cannot read 'é', so these were not scored"]


def test_a_server_of_an_example_prm_refuses_what_it_cannot_read() -> None:
    with running({"prism": example_prm("prism")}) as server:
        for path, body in (
            ("/v1/steps", {"items": [{"problem": "1+1", "steps": ["1 + 1 = 2"]}]}),
            ("/pooling", {"input": "1 + 1 = 2<extra_0>"}),
        ):
            answer = server.post(path, body)
            assert answer.status_code == 400
            assert "cannot read ' + ', ' = '" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["qwen2", "mistral", "llama"])
def test_tokenizers_with_bytes_read_everything(
    kind: str, tiny_lm: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    prm = init_prm(tiny_lm(kind), family="token-classification")
    prm.score("What is é?", ["日本 😀 \ue000", "\u0378"])
    assert warnings(caplog) == []
    assert prm.family.text.unread("日本 😀 \ue000") == []
    assert prm.encode_tree(StepTree.chain("x", ["日"])).ids != prm.encode_tree(StepTree.chain("x", ["本"])).ids

"""Every shipped format against a scripted server: what is asked, to the letter where it is protocol, and the scores."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import LLAMA_CPP, OTHER, PROBLEM, SGLANG, STEPS, VLLM, chat, critic, said
from transformers import AutoTokenizer

from loopback import Answer
from prism_prm.backends.critic import Critic, code_runner, program
from prism_prm.backends.critic_format import FORMATS, read_format
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.open_critic import open_critic
from prism_prm.config import from_mapping
from prism_prm.errors import ConfigError
from prism_prm.grading.sandbox import RunResult
from prism_prm.grading.sandbox_policy import SandboxError
from prism_prm.tree import Step, StepTree

DIRECT = """You check the steps of a solution to a math problem, one after the other.

Problem: What is 2 + 3 * 4?

Step 1: 3 * 4 = 12

Is this step correct? Answer Yes or No."""


# --- direct ---


def test_a_direct_verdict_is_read_from_log_probabilities(tmp_path: Path) -> None:
    shares = iter([{"Yes": 0.6, " No": 0.2, "So": 0.1}, {"So": 0.5, "no": 0.3, "Yes": 0.1}, {"Yes": 0.9, "So": 0.05}])
    with critic(tmp_path, lambda _: chat("Yes", top=[next(shares)]), top=True, concurrency=1) as (prm, asked):
        found = prm.score(PROBLEM, STEPS)
        assert prm.votes == 1
        assert prm.ledger.tally.verdicts == {"log-probabilities": 3}
    # A label that is not shown gets the smallest value that is.
    assert found == pytest.approx([0.75, 0.25, 0.9 / 0.95], abs=1e-9)
    assert asked[0]["messages"] == [{"role": "user", "content": DIRECT}]
    assert [turn["role"] for turn in asked[2]["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert [turn["content"] for turn in asked[2]["messages"][1::2]] == ["Yes", "Yes"]
    assert said(asked[2]).startswith("Step 3: The answer is 15.\n\nIs this step")
    assert (asked[0]["temperature"], asked[0]["logprobs"], asked[0]["top_logprobs"]) == (0.0, True, 20)
    assert "seed" not in asked[0]


def test_without_log_probabilities_votes_are_counted(tmp_path: Path) -> None:
    replies = iter(["Yes", "**Yes**.", " no", '"Yes', "No", "No", "No", "No"])
    with critic(tmp_path, lambda _: chat(next(replies)), concurrency=1) as (prm, asked):
        assert prm.score(PROBLEM, STEPS[:2]) == pytest.approx([0.75, 0.0], abs=1e-9)
        assert prm.ledger.tally.verdicts == {"votes": 8}
        assert "verdicts from what it writes, mean of 4 answers" in prm.notes()[0]
    assert len({body["seed"] for body in asked}) == 8
    assert {body["temperature"] for body in asked} == {1.0}
    assert "logprobs" not in asked[0]


def test_log_probabilities_can_be_left_unused(tmp_path: Path) -> None:
    answer = chat("No", top=[{"Yes": 0.9, "No": 0.1}])
    with critic(tmp_path, lambda _: answer, top=True, log_probabilities="off", votes=2) as (prm, _):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0.0], abs=1e-9)


# --- thinkprm ---


def think(body: dict[str, Any]) -> Answer:
    if "Is the solution correct?" in said(body):
        return chat("yes", top=[{"yes": 0.8, "no": 0.2}])
    return chat(" Step 1 is \\boxed{correct}.\n")


def test_thinkprm_critiques_a_prefix_and_is_then_asked(tmp_path: Path) -> None:
    with critic(tmp_path, think, models=VLLM, top=True, format="thinkprm", votes=2, concurrency=1) as (prm, asked):
        assert prm.score(PROBLEM, STEPS[:2]) == pytest.approx([0.8, 0.8])
        assert prm.card.aggregator == "last"
    critique, verdict = asked[0], next(body for body in asked if said(body).endswith("correct? "))
    user = critique["messages"][0]["content"]
    assert user.startswith("You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n")
    assert "\n\n[Solution]\n\nStep 1: 3 * 4 = 12\n\n" in user
    assert critique["messages"][1] == {"role": "assistant", "content": "<think>\n\nLet's verify step by step:"}
    assert (critique["continue_final_message"], critique["add_generation_prompt"]) == (True, False)
    assert critique["stop"] == ["Is the solution correct?", "</think>", "Step 2:"]
    assert critique["temperature"] == 0.4
    assert "logprobs" not in critique
    begun = "<think>\n\nLet's verify step by step: Step 1 is \\boxed{correct}.\n\nIs the solution correct? "
    assert verdict["messages"][1] == {"role": "assistant", "content": begun}
    assert verdict["logprobs"] is True
    assert len(asked) == 2 * 2 * 2


R1 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}"
    "{% else %}{{ '<|Assistant|>' + m['content'].split('</think>')[-1] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
"""The chat template of ThinkPRM's backbone, in short."""


@pytest.mark.parametrize("models", [VLLM, SGLANG, LLAMA_CPP])
def test_thinkprm_reads_what_it_was_trained_on_behind_every_server(
    tmp_path: Path, models: Any, tiny_lm: Callable[..., Path]
) -> None:
    """As published: the generation prompt, then the words with which the turn begins."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm("qwen2"))
    tokenizer.chat_template = R1

    def rendered(messages: list[dict[str, str]], **how: bool) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **how))

    with critic(tmp_path, think, models=models, format="thinkprm", votes=1) as (prm, asked):
        prm.score(PROBLEM, STEPS[:1])
    for body, begun in zip(asked, ["step by step:", "\n\nIs the solution correct? "], strict=True):
        turns = body["messages"]
        if models == VLLM:  # by transformers' own way to continue a turn
            read = rendered(turns, continue_final_message=True, add_generation_prompt=False)
        else:  # these take the last turn off, and put it behind the generation prompt
            read = rendered(turns[:-1], add_generation_prompt=True) + turns[-1]["content"]
        published = rendered(turns[:1], add_generation_prompt=True) + "\nLet's verify step by step:"
        assert read.startswith(published)
        assert read.endswith(begun)


def test_a_server_that_continues_no_turn_is_asked_in_words(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return chat("no") if said(body) == "Is the solution correct? Answer with one word: yes or no." else chat("Hm.")

    with critic(tmp_path, answer, models=OTHER, format="thinkprm", votes=1, temperature=0.0) as (prm, asked):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0.0], abs=1e-9)
        assert "is not primed" in prm.notes()[0]
    assert said(asked[0]).endswith("\n\nBegin your answer with: Let's verify step by step:")
    assert [turn["role"] for turn in asked[1]["messages"]] == ["user", "assistant", "user"]
    assert asked[1]["messages"][1]["content"] == "Hm."
    assert not any("continue_final_message" in body for body in asked)


def test_llama_cpp_continues_a_turn_without_a_field_for_it(tmp_path: Path) -> None:
    with critic(tmp_path, think, models=LLAMA_CPP, top=True, format="thinkprm", votes=1) as (prm, asked):
        prm.score(PROBLEM, STEPS[:1])
    assert asked[0]["messages"][-1]["role"] == "assistant"
    assert "continue_final_message" not in asked[0]


def test_a_stop_text_that_the_server_leaves_in_does_not_stay(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return chat("yes") if said(body).endswith("correct? ") else chat(" fine\nIs the solution correct?")

    with critic(tmp_path, answer, models=VLLM, format="thinkprm", votes=1) as (prm, asked):
        prm.score(PROBLEM, STEPS[:1])
    assert said(asked[1]).count("Is the solution correct?") == 1


# --- genprm ---


def judge(body: dict[str, Any]) -> Answer:
    begun = said(body)
    if begun.endswith("$\\boxed"):
        top = [{"{": 1.0}, {"Yes": 0.7, "No": 0.2, "Maybe": 0.1}, {"}": 1.0}]
        return chat("{Yes}$\n", top=top)
    return chat("It is fine.\n")


def test_genprm_is_a_conversation_of_critiques(tmp_path: Path) -> None:
    with critic(tmp_path, judge, models=VLLM, top=True, format="genprm", concurrency=1) as (prm, asked):
        assert prm.score(PROBLEM, STEPS[:2]) == pytest.approx([0.7 / 0.9] * 2)
    analyse, output, later, _ = asked
    assert [turn["role"] for turn in analyse["messages"]] == ["system", "user", "assistant"]
    assert analyse["messages"][1]["content"] == f"{PROBLEM}\n{STEPS[0]}"
    opening = "<analyze>\nLet's analyze the Paragraph {} step by step: "
    assert said(analyse) == opening.format(1)
    assert analyse["stop"] == ["</analyze>\n"]
    assert (analyse["temperature"], analyse["top_p"], analyse["top_k"]) == (0.6, 0.95, 20)
    whole = opening.format(1) + "It is fine.\n</analyze>\n<output>\n**Judgement**: $\\boxed"
    assert said(output) == whole
    assert output["stop"] == ["</output>\n"]
    assert later["messages"][2] == {"role": "assistant", "content": whole + "{Yes}$\n</output>\n"}
    assert later["messages"][3] == {"role": "user", "content": STEPS[1]}
    assert said(later) == opening.format(2)


def test_the_last_of_several_verdicts_counts_as_published_and_is_noted(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return chat("{Yes}, no, \\boxed{\\text{No}}") if said(body).endswith("$\\boxed") else chat("Hm.")

    with critic(tmp_path, answer, models=VLLM, format="genprm") as (prm, _):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0.0], abs=1e-9)
        assert prm.ledger.tally.notes == {"several verdicts, the last counts": 1}


CODE = "<verify>\nLet's use python code to find any potential error:\n```python\n"


def with_code(tmp_path: Path, answer: Any, runs: list[str]) -> tuple[list[float], list[dict[str, Any]]]:
    def run(code: str) -> str:
        runs.append(code)
        return "12"

    with critic(tmp_path, answer, models=VLLM, format="genprm", concurrency=1) as (plain, asked):
        prm = Critic(plain.backend, plain.format, plain.settings, run)
        asked.clear()  # the probe
        return prm.score(PROBLEM, STEPS[:2]), asked


def test_code_is_run_and_its_output_shown(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        begun = said(body)
        if begun.endswith(CODE):
            return chat("print(3 * 4)", stop_reason="\n```\n")
        if begun.endswith("[Code Output]\n\n```\n12\n```\n"):
            return chat("Right.</verify>\n<output>\n**Judgement**: $\\boxed{No}$\n")
        return chat("It is fine.\n")

    runs: list[str] = []
    found, asked = with_code(tmp_path, answer, runs)
    assert found == pytest.approx([0.0, 0.0], abs=1e-9)
    assert asked[1]["stop"] == ["\n```\n", "</output>\n"]
    assert len(asked) == 2 * 3
    assert len(runs) == 2
    assert "exec('print(3 * 4)'" in runs[0]
    assert "for _code in []" in runs[0]
    assert "for _code in ['print(3 * 4)']" in runs[1], "earlier code runs first, in silence"


def test_code_without_a_judgement_falls_back_to_the_analysis(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        begun = said(body)
        if begun.endswith("$\\boxed"):
            return chat("{Yes}")
        return chat("x = 1") if CODE in begun else chat("Hm.\n")

    runs: list[str] = []
    found, asked = with_code(tmp_path, answer, runs)
    assert found == pytest.approx([1.0, 1.0], abs=1e-9)
    assert sum(CODE in said(body) for body in asked) == 2 * 3, "three rounds, as published"
    assert len(runs) == 1, "equal programs are run once"
    assert CODE not in said(asked[4]), "the code is forgotten"


def test_earlier_code_is_silent_and_may_fail(capsys: pytest.CaptureFixture[str]) -> None:
    exec(program(["x = 3\nprint('early')", "1 / 0", "print(x + 1)"]), {})
    assert capsys.readouterr().out == "4\n"


def test_code_runs_in_the_sandbox_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code_runner.cache_clear()

    def no_sandbox(**_: Any) -> None:
        raise SandboxError("Programs cannot be run in isolation on this machine: install bubblewrap")

    monkeypatch.setattr("prism_prm.backends.critic.Sandbox", no_sandbox)
    with pytest.raises(SandboxError, match="install bubblewrap"):
        open_critic("critic:openai:http://127.0.0.1:9/v1", CriticSettings(format="genprm", code=True))


def test_what_a_critic_sees_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def __init__(self, **_: Any) -> None:
            pass

        def run(self, code: str) -> RunResult:
            return {
                "ok": RunResult("ok", b"12\n"),
                "bad": RunResult("error", b"so far\n", b"Traceback\nZeroDivisionError: division by zero\n"),
                "slow": RunResult("timeout"),
                "long": RunResult("ok", b"x" * 10_000),
            }[code]

    code_runner.cache_clear()
    monkeypatch.setattr("prism_prm.backends.critic.Sandbox", Fake)
    run = code_runner()
    assert run("ok") == "12"
    assert run("bad") == "so far\nZeroDivisionError: division by zero"
    assert run("slow") == "The code ran out of time."
    assert len(run("long")) == 4002
    code_runner.cache_clear()


# --- processbench ---


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        (["… \\boxed{1}"], [1, 0, math.nan]),
        (["… \\boxed{-1}."], [1, 1, 1]),
        (["\\boxed{0} no, \\boxed{ 2 }"], [1, 1, 0]),
        (["\\boxed{-1} no, $\\boxed{\\text{1}}$"], [1, 0, math.nan]),
        (["\\boxed{1}", "\\boxed{1}", "\\boxed{2}", "\\boxed{-1}"], [0.75, 0.25, math.nan]),
        (["\\boxed{2}", "\\boxed{-1}"], [0.75, 0.75, 0.25]),
    ],
)
def test_processbench_names_the_first_wrong_paragraph(
    tmp_path: Path, replies: list[str], expected: list[float]
) -> None:
    left = iter(replies)
    votes = {"votes": len(replies)}
    with critic(tmp_path, lambda _: chat(next(left)), format="processbench", concurrency=1, **votes) as (prm, asked):
        (found,) = prm.score_trees([StepTree.chain(PROBLEM, STEPS)])
    np.testing.assert_allclose(found.probability, expected, atol=1e-9)
    assert found.unjudged == tuple(i for i, p in enumerate(expected) if math.isnan(p))
    assert "<paragraph_0>\n3 * 4 = 12\n</paragraph_0>\n\n<paragraph_1>\n" in said(asked[0])
    assert (asked[0]["temperature"], asked[0].get("top_p")) == ((1.0, 0.9) if len(replies) > 1 else (0.0, None))


# --- prmbench ---


def test_prmbench_gives_two_scores_per_step(tmp_path: Path) -> None:
    text = 'Here you are: ```json\n{"validity": [1, -0.5, 0], "redundancy": [-1.0, 0.5, 1]}\n```'
    with critic(tmp_path, lambda _: chat(text), format="prmbench") as (prm, asked):
        (found,) = prm.score_trees([StepTree.chain(PROBLEM, STEPS)])
    assert found.outputs == ("correct", "redundancy")
    np.testing.assert_allclose(found.probability, [1, 0.25, 0.5], atol=1e-9)
    np.testing.assert_allclose(found.named("redundancy"), [0, 0.75, 1], atol=1e-9)
    assert [turn["role"] for turn in asked[0]["messages"]] == ["system", "user"]
    assert said(asked[0]).startswith(f"Question: {PROBLEM}\n\nSolutions: Step 1: 3 * 4 = 12 \n\nStep 2: ")


def test_solutions_of_a_tree_are_judged_one_by_one(tmp_path: Path) -> None:
    tree = StepTree(0, PROBLEM, tuple(map(Step, "abc")), (-1, 0, 0), ())
    replies = iter(["\\boxed{1}", "\\boxed{0}"])
    with critic(tmp_path, lambda _: chat(next(replies)), format="processbench", concurrency=1) as (prm, asked):
        (found,) = prm.score_trees([tree])
    assert len(asked) == 2
    # The shared first step takes the verdict of the first solution, a → b; the second stops at it.
    np.testing.assert_allclose(found.probability, [1, 0, math.nan], atol=1e-9)


# --- formats are data ---


@pytest.mark.parametrize("name", FORMATS)
def test_shipped_formats_are_complete(name: str) -> None:
    found = read_format(name)
    assert found.identity() == read_format(name).identity()
    assert found.instruction


def test_the_published_instruction_can_be_given_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Do it {as published}.\n")
    with critic(
        tmp_path, lambda _: chat("\\boxed{-1}"), format="processbench", prompt=str(tmp_path / "prompt.txt")
    ) as (
        prm,
        asked,
    ):
        prm.score(PROBLEM, STEPS)
    assert said(asked[0]).endswith("\n\nDo it {as published}.")


def test_a_format_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'granularity = "prefix"\nreads = "label"\nuser = "{problem}|{solution}"\nstep = "<{step}>"\nbetween = ""\n'
        '[label]\nyes = "good"\nno = "bad"\n[[stages]]\nmax_tokens = 3\n'
    )
    with critic(tmp_path, lambda _: chat("bad!"), format=str(tmp_path / "mine.toml")) as (prm, asked):
        assert prm.score("p", ["a", "b"]) == pytest.approx([0, 0], abs=1e-9)
    assert sorted(map(said, asked)) == ["p|<a>", "p|<a><b>"]
    assert asked[0]["max_tokens"] == 3


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_may_extend_a_shipped_one_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.toml").write_text(f'extends = "{name}"\ninstruction = "Mine."')
    assert read_format(str(tmp_path / "mine.toml")) == replace(read_format(name), instruction="Mine.")


def test_a_boxed_verdict_after_a_critique_in_one_part_is_drawn(tmp_path: Path) -> None:
    """Only a verdict that is the first word is read without drawing."""
    (tmp_path / "mine.toml").write_text(
        'granularity = "prefix"\nreads = "label"\nuser = "{problem}{solution}"\n[label]\nat = "boxed"\n'
        "[sampling]\ntemperature = 0.7\nvotes = 2\n"
    )
    answer = chat("Well, \\boxed{Yes}", top=[{"Well": 1.0}, {"Yes": 0.8, "No": 0.2}])
    how = {"format": str(tmp_path / "mine.toml"), "top": True, "max_tokens": 77}
    with critic(tmp_path, lambda _: answer, **how) as (prm, asked):
        assert prm.score(PROBLEM, STEPS[:1]) == pytest.approx([0.8])
        assert prm.ledger.tally.verdicts == {"log-probabilities": 2}
    assert [(body["temperature"], body["max_tokens"]) for body in asked] == [(0.7, 77)] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the setting granularity is missing"),
        ('granularity = "steps"\nreads = "label"', "granularity = 'steps': must be one of prefix, step, solution"),
        ('granularity = "prefix"\nreads = "label"\nuser = "{problem}"', r"user lacks \{solution\}"),
        ('granularity = "step"\nreads = "label"\nfirst = "{step}"', r"first lacks \{problem\}"),
        ('granularity = "prefix"\nreads = "index"\nuser = "{problem}{solution}"', "reads = 'index' does not fit"),
        ('granularity = "solution"\nreads = "scores"\nuser = "{problem}{solution}"', "must have a key for each"),
        ('granularity = "prefix"\nreads = "label"\nuser = "{problem}{solution}"\nstages = []', "stages is empty"),
        ('granularity = "prefix"\nreads = "label"\nverdict = 1', r"Unknown keys \['verdict'\]"),
        (
            'granularity = "prefix"\nreads = "label"\nuser = "{problem}{solution}"\n[label]\nyes = "x"\nno = " X"',
            "yes and no are the same word",
        ),
    ],
)
def test_a_wrong_format_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"mine\.toml: .*{message}"):
        read_format(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("place", "settings", "message"),
    [
        ("critic:openai", {}, "expected critic:openai:BASE_URL or critic:hf:FOLDER"),
        ("critic:vllm:http://x/v1", {}, "is not a critic"),
        ("critic:openai:http://user:secret@x/v1", {}, r"must not contain a password.*\$OPENAI_API_KEY"),
        ("critic:openai:http://x/v1?key=secret", {}, "must not contain a password or a query"),
        ("critic:openai:http://x/v1", {"format": "gpt"}, "Unknown critic format 'gpt'. Known: direct, "),
        ("critic:openai:http://x/v1", {"format": "no.toml"}, "no.toml: no such file"),
        ("critic:openai:http://x/v1", {"prompt": "no.txt"}, "no.txt: cannot be read"),
        ("critic:openai:http://x/v1", {"code": True}, "the format direct has no part with code"),
    ],
)
def test_what_is_no_critic_is_refused_before_anything_is_asked(
    place: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_critic(place, CriticSettings(**settings))
    assert "secret" not in str(caught.value)


def test_settings_may_come_from_a_recipe() -> None:
    with pytest.raises(ConfigError, match=r"Unknown keys \['vote'\] in \[critic\]"):
        from_mapping(CriticSettings, {"vote": 3}, "critic")
    with pytest.raises(ConfigError, match=r"critic\.votes = 0: must be 1 or more"):
        from_mapping(CriticSettings, {"votes": 0}, "critic")


def test_votes_at_temperature_0_make_no_sense(tmp_path: Path) -> None:
    settings = {"format": "thinkprm", "votes": 4, "temperature": 0.0}
    with pytest.raises(ConfigError, match="-C votes=4 at temperature 0"), critic(tmp_path, think, **settings):
        pass


def test_what_is_asked_is_json_however_odd_the_texts(tmp_path: Path) -> None:
    with critic(tmp_path, lambda _: chat("Yes"), votes=1) as (prm, asked):
        prm.score("{problem} {x} \\boxed{}", ["{step}\n\0\u2028"])
    assert "{problem} {x} \\boxed{}" in said(asked[0])
    assert "Step 1: {step}\n\0\u2028" in said(asked[0])
    json.dumps(asked)

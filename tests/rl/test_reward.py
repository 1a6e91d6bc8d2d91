"""A PRM as a reward function: what each completion gets, what is gated, and what never ends a run."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import fake

from prism_prm import ConfigError, PRMReward
from prism_prm.aggregate import AGGREGATORS, CardValues, solution_score
from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.open_scorer import PrmOptions
from prism_prm.calibration import Calibration
from prism_prm.tree import StepTree

GOOD = "0.9 a\n\n0.5 b\n\n0.8 #### 3"


def rewards(reward: PRMReward, completions: list[Any], **columns: Any) -> list[float]:
    found = reward(prompts=["1 + 2?"] * len(completions), completions=completions, **columns)
    return [float(one) for one in found if one is not None]


@pytest.mark.parametrize("how", AGGREGATORS)
def test_steps_are_put_together_as_asked(how: str) -> None:
    expected = solution_score([0.9, 0.5, 0.8], how, GOOD.split("\n\n"))
    assert rewards(PRMReward(fake(), how), [GOOD]) == [pytest.approx(expected)]


CRITIC = "critic:openai:http://127.0.0.1:9/v1"


@pytest.mark.parametrize("place", [CRITIC, f"ensemble:mean:prms/a,{CRITIC}"])
def test_a_critic_may_not_skip_steps(place: str) -> None:
    with pytest.raises(ConfigError, match='on_missing = "skip"'):
        PRMReward(place, prm_options=PrmOptions(critic=CriticSettings(on_missing="skip")))


def test_the_card_says_how_unless_the_user_does(tiny_prm: Callable[..., Any], tmp_path: Path) -> None:
    prm = tiny_prm("qwen", "qwen2")
    prm.save(tmp_path / "prm", aggregator="mean", threshold=0.25)
    reward = PRMReward(tmp_path / "prm", prm_options=PrmOptions(dtype="float64"))
    steps = ["1 + 2 = 3", "#### 3"]
    assert (reward.aggregator, reward.threshold) == ("mean", 0.25)
    assert rewards(reward, ["\n\n".join(steps)]) == [pytest.approx(np.mean(reward.scorer.score("1 + 2?", steps)))]
    assert PRMReward(tmp_path / "prm", "last").aggregator == "last"
    assert PRMReward(fake()).aggregator == "min", "a scorer without a card"
    with pytest.raises(ConfigError, match="Unknown aggregator 'best'"):
        PRMReward(fake(), "best")


def test_conversations_and_texts_are_alike() -> None:
    scorer = fake()
    reward = PRMReward(scorer)
    talk = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1 + 2?"}]
    parts = [{"type": "text", "text": GOOD}]
    found = reward(
        prompts=[talk, talk, "1 + 2?\n"],
        completions=[[{"role": "assistant", "content": GOOD}], [{"role": "assistant", "content": parts}], GOOD],
    )
    assert found == [pytest.approx(0.5)] * 3
    assert {tree.problem for tree in scorer.seen} == {"1 + 2?"}
    reward(prompts=[talk], completions=[GOOD], problem=["One and two?"])
    assert scorer.seen[-1].problem == "One and two?", "the dataset's own column is surer than a prompt"


def test_completions_of_a_problem_share_a_tree() -> None:
    scorer = fake()
    found = PRMReward(scorer)(
        prompts=["p", "q", "p", "p"],
        completions=["0.9 a\n\n0.8 #### 1", "0.7 #### 1", "0.9 a\n\n0.6 #### 2", "0.9 a\n\n0.8 #### 1"],
    )
    assert found == pytest.approx([0.8, 0.7, 0.6, 0.8])
    first, second = scorer.seen
    assert [node.text for node in first.nodes] == ["0.9 a", "0.8 #### 1", "0.6 #### 2"]
    assert (first.parents, second.problem) == ((-1, 0, 0), "q")


def test_packed_trees_give_what_single_solutions_get(tiny_prm: Callable[..., Any]) -> None:
    prm = tiny_prm("qwen", "qwen2")
    reward = PRMReward(prm, "product")
    texts = [f"x = {i % 3}\n\ny = {i}\n\n#### {i}" for i in range(6)]
    alone = [prm.score("p?", text.split("\n\n")) for text in texts]
    reward(prompts=["p?"] * 6, completions=texts)
    assert np.allclose([one.probabilities for one in reward.last], alone, atol=1e-9)


def test_the_gate() -> None:
    reward = PRMReward(fake(), eos=[7, 8])
    texts = [GOOD, "0.9 a\n\n0.9 It is 3", GOOD, GOOD, ""]
    ids = [[1, 7], [1, 8], [1, 2], [], [7]]
    assert rewards(reward, texts, completion_ids=ids) == [0.5, 0.0, 0.0, 0.0, 0.0]
    assert [one.cut for one in reward.last] == [False, False, True, True, False]
    assert [one.answer for one in reward.last] == ["3", None, "3", "3", None]
    assert reward.last[1].probabilities == pytest.approx((0.9, 0.9)), "what the PRM said is not forgotten"
    assert reward.last[1].scores == (0.0, 0.0), "but no step is paid for"
    assert reward.last[4].steps == ("",)
    assert reward.counts == Counter(completions=5, steps=12, gated=4, cut=2, unanswered=2, unreadable=1)
    open_ = PRMReward(fake(), gate=False, eos=7)
    assert rewards(open_, texts, completion_ids=ids) == pytest.approx([0.5, 0.9, 0.5, 0.5, 0.0])


def test_a_reward_that_cannot_tell_what_was_cut_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    reward = PRMReward(fake())
    with caplog.at_level(logging.WARNING):
        assert rewards(reward, [GOOD], completion_ids=[[1]]) == [0.5]
        rewards(reward, [GOOD])
    assert [record.message for record in caplog.records if "eos=tokenizer.eos_token_id" in record.message] != []
    assert len(caplog.records) == 1


def test_counts_are_logged_as_shares() -> None:
    logged: dict[str, float] = {}
    reward = PRMReward(fake(), eos=7, name="ours")
    texts = [GOOD, "0.9 a\n\n\t\n\n0.2 b", "0.9 a\n\nu\tv", GOOD]
    rewards(reward, texts, completion_ids=[[7], [7], [7], [1]], log_metric=logged.__setitem__)
    assert logged == {
        "ours/gated": 0.75, "ours/cut": 0.25, "ours/unanswered": 0.5, "ours/unreadable_steps": 1 / 10,
        "ours/right_steps": 6 / 10, "ours/steps": 2.5,
    }  # fmt: skip


def test_steps_that_cannot_be_read_score_nothing_and_the_others_are_read() -> None:
    scorer = fake()
    reward = PRMReward(scorer, "mean")
    assert rewards(reward, ["0.9 a\n\nu\tv\n\n0.6 #### 3"]) == [pytest.approx(0.5)]
    assert reward.last[0].num_unreadable == 1
    assert [node.text for node in scorer.seen[0].nodes] == ["0.9 a", "0.6 #### 3"]


@pytest.mark.parametrize("choice", ["error", "skip", "window"])
def test_too_long_steps_score_nothing(tiny_prm: Callable[..., Any], tmp_path: Path, choice: Any) -> None:
    tiny_prm("qwen", "qwen2").save(tmp_path / "prm")
    from prism_prm import load_prm

    prm = load_prm(tmp_path / "prm", context=120, on_too_long=choice, dtype="float64")
    reward = PRMReward(prm, "last", eos=7)
    endless = "x + " * 400
    texts = [f"1 + 2 = 3\n\n{endless}\n\n#### 3", "1 + 2 = 3\n\n#### 3"]
    rewards(reward, texts, completion_ids=[[7], [7]])
    (short,) = prm.score_many([("1 + 2?", ["1 + 2 = 3", "#### 3"])])
    first, second = (one.probabilities for one in reward.last)
    assert second == pytest.approx(short)
    assert first[0] == pytest.approx(short[0])
    assert math.isnan(first[1])
    assert math.isnan(first[2]) == (choice != "window")


def test_a_scorer_that_refuses_a_tree_loses_that_tree_only() -> None:
    scorer = fake()
    scorer.count_tokens = lambda tree: 0 if tree.problem == "long" else 1  # it counts wrongly
    refused = scorer.score_trees

    def score_trees(trees: list[StepTree]) -> Any:
        from prism_prm import DataError

        if any(tree.problem == "long" for tree in trees):
            raise DataError("too long")
        return refused(trees)

    scorer.score_trees = score_trees
    reward = PRMReward(scorer)
    assert reward(prompts=["long", "short"], completions=[GOOD, GOOD]) == [0.0, 0.5]
    assert reward.counts["unreadable"] == 3


STRANGE = {
    "nothing": "", "blank": " \n\n \n\n", "control words": "<|im_end|>\n\n<|im_start|>assistant\n\nassistant",
    "separators": "<extra_0>\n\n<extra_0><extra_0>\n\n#### 3", "one endless step": "1 + " * 5000,
    "tiny steps": "\n\n".join(["1 + 1"] * 1000), "half characters": "\ufffd\n\n\ufffd\x00\n\n#### 3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "kind"), [("qwen", "qwen2"), ("math-shepherd", "mistral"), ("reasoneval", "mistral")]
)
def test_no_text_ends_a_run(tiny_prm: Callable[..., Any], family: str, kind: str) -> None:
    reward = PRMReward(tiny_prm(family, kind), eos=7)
    texts = list(STRANGE.values())
    found = rewards(reward, texts * 2, completion_ids=[[7]] * len(texts) * 2)
    assert all(0 <= one <= 1 for one in found)
    by_name = dict(zip(STRANGE, reward.last, strict=False))
    assert [by_name[name].reward for name in ("nothing", "blank", "one endless step", "tiny steps")] == [0.0] * 4
    assert by_name["nothing"].num_unreadable == by_name["blank"].num_unreadable == 1
    assert by_name["one endless step"].num_unreadable == 1, "longer than the context of 1,024 tokens"
    assert 0 < by_name["tiny steps"].num_unreadable < 1000, "read up to the end of the context"


def test_a_right_answer_can_be_rewarded_beside_the_steps() -> None:
    reward = PRMReward(fake(), verifiable=2.0)
    texts = [GOOD, "0.9 a\n\n0.8 #### 4", "0.9 The answer is $\\frac{6}{2}$."]
    assert rewards(reward, texts, answer=["3", 3, "3"]) == pytest.approx([2.5, 0.8, 2.9])
    assert [one.correct for one in reward.last] == [True, False, True]
    reward.close()
    with pytest.raises(ConfigError, match="no column 'answer'"):
        rewards(reward, [GOOD])
    named = PRMReward(fake(), verifiable=1.0, reference="solution")
    assert rewards(named, [GOOD], solution=["3"]) == [1.5]


def test_clip_and_delta() -> None:
    reward = PRMReward(fake(), clip=0.6)
    assert rewards(reward, [GOOD, "0.9 #### 3", "0.9 x"]) == pytest.approx([-0.1, 0.0, -0.6])
    assert reward.last[0].step_rewards == pytest.approx((0.0, -0.1, 0.0))
    assert reward.last[2].step_rewards == (-0.6,), "the gate gives the worst reward there is"
    both = PRMReward(fake(), clip=0.6, delta=True, verifiable=1.0)
    assert rewards(both, [GOOD], answer=["3"]) == pytest.approx([0.9])
    assert both.last[0].step_rewards == pytest.approx((0.1, -0.1, 0.0))
    with pytest.raises(ConfigError, match="verifiable"):
        PRMReward(fake(), delta=True)
    carded = fake()
    carded.card = CardValues(threshold=0.6)
    assert PRMReward(carded, clip="card").clip == 0.6
    for card, reason in ((None, "has no card"), (CardValues(), "has only the default threshold, 0.5, in its card")):
        carded.card = card
        with pytest.raises(ConfigError, match=f'clip = "card": the PRM {reason}; calibrate it'):
            PRMReward(carded, clip="card")(prompts=["1"], completions=["0.5 x"])
    carded.card = CardValues(threshold=0.0)
    with pytest.raises(ConfigError, match="the threshold in the PRM's card is 0, so all scores would count the same"):
        PRMReward(carded, clip="card")(prompts=["1"], completions=["0.5 x"])
    carded.card = CardValues(calibration=Calibration("processbench", "tpr=0.9", 0.5))
    assert PRMReward(carded, clip="card").clip == 0.5, "it was chosen, and happens to be the default"
    with pytest.raises(ConfigError, match="clip = 'cart' is neither a number nor"):
        PRMReward(fake(), clip="cart")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="clip = 2"):
        PRMReward(fake(), clip=2)


def test_it_can_be_awaited() -> None:
    from trl.trainer.utils import get_callable_name, is_async_callable

    reward = PRMReward(fake(), name="ours")
    awaited = reward.async_()
    assert is_async_callable(awaited)
    assert not is_async_callable(reward)
    assert get_callable_name(awaited) == get_callable_name(reward) == "ours"
    found = asyncio.run(awaited(prompts=["p"], completions=[GOOD], completion_ids=[[7]], level=["1"]))
    assert found == [0.5]
    assert reward.counts["completions"] == 1


def test_it_pickles(tiny_prm: Callable[..., Any], tmp_path: Path) -> None:
    prm = tiny_prm("qwen", "qwen2", dtype="float32")
    prm.save(tmp_path / "prm")
    text = "1 + 2 = 3\n\n#### 3"
    placed = PRMReward(tmp_path / "prm")
    before = pickle.dumps(placed)
    expected = rewards(placed, [text])
    assert len(pickle.dumps(placed)) < 2000, "a PRM named by its place is loaded again there"
    assert rewards(pickle.loads(before), [text]) == expected
    assert rewards(pickle.loads(pickle.dumps(placed)), [text]) == expected
    assert rewards(pickle.loads(pickle.dumps(PRMReward(prm))), [text]) == expected, "a loaded one brings its weights"
    assert rewards(pickle.loads(pickle.dumps(placed.async_().reward)), [text]) == expected


THINKING = "0.2 <think>a\n\n0.3 #### 3\n</think>\n\n0.9 so\n\n0.8 #### 3"


def test_an_answer_only_in_the_thinking_is_gated() -> None:
    reward = PRMReward(fake(), "min", verifiable=1.0)
    found = rewards(
        reward,
        [
            THINKING,
            "0.9 <think>#### 3</think>\n\n0.9 done",
            "0.9 <think>#### 3",
            "0.9 <think>#### 4</think>\n\n0.7 #### 3",
        ],
        answer=["3"] * 4,
    )
    assert found == pytest.approx([0.2 + 1, 0.0, 0.0, 0.7 + 1])
    assert [judged.gated for judged in reward.last] == [False, True, True, False]
    assert reward.counts["unanswered"] == 2


def test_thinking_without_credit_shares_that_of_the_response() -> None:
    reward = PRMReward(fake(), "min", credit_thinking=False)
    assert rewards(reward, [THINKING]) == pytest.approx([0.8])
    (judged,) = reward.last
    assert judged.steps == ("0.2 <think>a\n\n0.3 #### 3\n</think>\n\n0.9 so", "0.8 #### 3")
    assert judged.scores == pytest.approx((0.9, 0.8))
    assert rewards(reward, ["0.4 a\n\n0.5 #### 3"]) == pytest.approx([0.4]), "no thinking"
    with_credit = PRMReward(fake(), "response-only")
    assert rewards(with_credit, [THINKING]) == pytest.approx([0.8])
    assert len(with_credit.last[0].steps) == 4


def test_completions_are_cut_by_the_segmenter() -> None:
    reward = PRMReward(fake(), "min", segmenter="thinking:50")
    assert rewards(reward, [THINKING]) == pytest.approx([0.2])
    assert [step[:12] for step in reward.last[0].steps] == ["0.2 <think>a", "0.9 so", "0.8 #### 3"]
    with pytest.raises(ConfigError, match="Unknown segmenter"):
        PRMReward(fake(), segmenter="lines")

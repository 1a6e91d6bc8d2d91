"""The local policy: exact against plain generation, whatever is batched or kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from prism_prm import PrismError
from prism_prm.backends.decode import Decoder, choose
from prism_prm.backends.hf import HfPolicy, load_hf
from prism_prm.backends.policy import Sampling, StepRequest, Written, node_key, rng, write_steps
from tiny import qwen_tokenizer

TEXTS = ["Let x be 1. ", "Compute 12 * 4 / 6.\n\nThen", "y", "so y = 2 and x = 2 + 1 - 0. Please reason"]
SAMPLING = Sampling(temperature=1.0, max_step_tokens=12, stop="\n")


@pytest.fixture(params=["qwen2", "qwen2-window", "llama", "mistral"])
def policy(request: pytest.FixtureRequest, tiny_lm: Callable[..., Path]) -> HfPolicy:
    made = load_hf(tiny_lm(request.param), dtype="float32")
    # A tiny random model repeats itself: flatten what it says, so that it writes this and that.
    head = made.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight * 0.5)
    return made


def plain_step(policy: HfPolicy, ask: StepRequest, sampling: Sampling) -> tuple[str, list[int], float]:
    """The slow, obvious way: the whole text through the model for every token."""
    ids = list(policy.tokenizer(ask.text)["input_ids"])
    numbers = rng(ask.key)
    written: list[int] = []
    total = 0.0
    while len(written) < ask.max_tokens:
        with torch.inference_mode():
            logits_1V = policy.model(input_ids=torch.tensor([ids + written])).logits[:, -1].double()
        number = None if ask.greedy else float(numbers.random())
        if number is None:
            token = int(logits_1V.argmax())
        else:
            cumulative = torch.softmax(logits_1V[0] / sampling.temperature, -1).cumsum(-1)
            token = int((cumulative <= number * cumulative[-1]).sum())
        total += float(torch.log_softmax(logits_1V[0], -1)[token])
        written.append(token)
        text = policy.tokenizer.decode(ids[-8:] + written, skip_special_tokens=True)
        text = text.removeprefix(policy.tokenizer.decode(ids[-8:], skip_special_tokens=True))
        if token in policy.end_ids or sampling.stop in text:
            break
    at = text.find(sampling.stop)
    return text if at < 0 else text[: at + len(sampling.stop)], written, total


def check(policy: HfPolicy, ask: StepRequest, found: Written, sampling: Sampling) -> None:
    text, written, total = plain_step(policy, ask, sampling)
    assert found.text == text
    assert found.num_tokens == len(written)
    assert found.log_likelihood == pytest.approx(total, abs=1e-4)
    assert found.ending == (
        "stop" if text.endswith(sampling.stop) else "end" if written[-1] in policy.end_ids else "cut"
    )


@pytest.mark.parametrize("stop", ["\n", "e"])
def test_steps_equal_plain_sampling(policy: HfPolicy, stop: str) -> None:
    """Several steps in a row, two continuations of each text, over kept key/values; and greedy ones among them."""
    endings = set()
    sampling = replace(SAMPLING, stop=stop)
    asks = [StepRequest(text, node_key(0, text, [k]), 12, greedy=k == 2) for text in TEXTS for k in range(3)]
    for _ in range(3):
        found = policy.write(asks, sampling)
        for ask, one in zip(asks, found, strict=True):
            check(policy, ask, one, sampling)
        endings |= {one.ending for one in found}
        asks = [
            replace(ask, text=ask.text + one.text, key=ask.key + 1, state=one.state)
            for ask, one in zip(asks, found, strict=True)
            if one.ending != "end"
        ]
    assert ("stop" if stop == "e" else "cut") in endings, "random texts hold letters, and hardly ever a line break"


def test_the_identity_is_what_decides_texts(tiny_lm: Callable[..., Path]) -> None:
    folder = tiny_lm("llama")
    assert load_hf(folder).identity() == load_hf(folder).identity()
    others = [load_hf(folder) for _ in range(4)]
    others[0].tokenizer.chat_template = "{{ messages[0]['content'] }}"
    others[1].model.config.rope_parameters = {**others[1].model.config.rope_parameters, "rope_theta": 5.0}
    others[2].end_ids = {*others[2].end_ids, 7}
    with torch.no_grad():
        others[3].model.get_output_embeddings().weight.mul_(2)
    assert len({load_hf(folder).identity(), *(other.identity() for other in others)}) == 5


def test_rows_that_are_done_do_not_leave_the_context() -> None:
    """GPT-2 has no embedding for positions behind its context, where rows that wait for a long one would get to."""
    torch.manual_seed(0)
    tokenizer = qwen_tokenizer()
    sizes = {"n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0))
    policy = HfPolicy(model, tokenizer)
    texts = ["x + 2 = 3, so the answer is", *("y" * (i + 1) for i in range(8))]
    asks = [StepRequest(text, node_key(0, text, [0]), 4 if i == 0 else 15) for i, text in enumerate(texts)]
    assert len(tokenizer(texts[0])["input_ids"]) + 13 > 24
    sampling = replace(SAMPLING, max_step_tokens=15)
    together = policy.write(asks, sampling)
    assert [one.text for one in together] == [policy.write([ask], sampling)[0].text for ask in asks]


def test_kept_key_values_save_tokens_and_change_nothing(policy: HfPolicy) -> None:
    asks = [StepRequest(text, node_key(1, text, [0]), 12) for text in TEXTS]
    first = policy.write(asks, SAMPLING)
    kept = [replace(a, text=a.text + w.text, state=w.state) for a, w in zip(asks, first, strict=True)]
    fresh = [replace(ask, state=None) for ask in kept]
    policy.num_read = 0
    over_kept = policy.write(kept, SAMPLING)
    read_kept, policy.num_read = policy.num_read, 0
    over_fresh = policy.write(fresh, SAMPLING)
    assert [(w.text, w.ending) for w in over_kept] == [(w.text, w.ending) for w in over_fresh]
    # The tokens of a random model are rarely those that its text is cut into, so most are read again here.
    assert read_kept < policy.num_read


def test_batch_composition_changes_nothing(policy: HfPolicy) -> None:
    asks = [StepRequest(text, node_key(0, text, [k]), 3 + k) for k in range(3) for text in TEXTS]
    together = policy.write(asks, SAMPLING)
    one_by_one = [policy.write([ask], SAMPLING)[0] for ask in asks]
    assert [w.text for w in together] == [w.text for w in one_by_one]
    policy.token_budget = 40
    in_small_batches = policy.write(asks, SAMPLING)
    assert [w.text for w in together] == [w.text for w in in_small_batches]


def test_what_is_kept_between_calls_is_bounded(policy: HfPolicy) -> None:
    """However many solutions are under way: without a state a text is read again, and says the same."""
    asks = [StepRequest(f"{text}{i}", node_key(0, text, [i]), 6) for i in range(10) for text in TEXTS]
    texts = [one.text for one in policy.write(asks, SAMPLING)]
    policy.token_budget = 60
    found = policy.write(asks, SAMPLING)
    states = {one.state for one in found if one.state}
    while bases := {state.base for state in states if state.base} - states:
        states |= bases
    assert 60 <= sum(state.keys_values.shape[-2] for state in states) <= 2 * 60, "all there is room for, and one batch"
    assert [one.text for one in found] == texts
    further = [replace(a, text=a.text + w.text, state=w.state) for a, w in zip(asks, found, strict=True)]
    fresh = [replace(ask, state=None) for ask in further]
    assert [w.text for w in policy.write(further, SAMPLING)] == [w.text for w in policy.write(fresh, SAMPLING)]
    del found, further, states
    assert policy.write(asks[:1], SAMPLING)[0].state is not None, "there is room again"


def test_a_batch_too_big_for_memory_is_halved(policy: HfPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [StepRequest(text, node_key(0, text, [k]), 4) for k in range(3) for text in TEXTS]
    expected = [one.text for one in policy.write(asks, SAMPLING)]
    run, sizes, room = Decoder.run, [], [2]

    def small(self: Decoder, contexts: Any, rows: Any, *more: Any, **options: Any) -> None:
        sizes.append(len(rows))
        if len(rows) > room[0]:
            raise torch.OutOfMemoryError("out of memory")
        run(self, contexts, rows, *more, **options)

    monkeypatch.setattr(Decoder, "run", small)
    assert [one.text for one in policy.write(asks, SAMPLING)] == expected
    assert sizes[0] == 12
    room[0] = 0
    with pytest.raises(PrismError, match="out of memory with one solution alone"):
        policy.write(asks, SAMPLING)


def test_greedy_equals_generate(policy: HfPolicy) -> None:
    sampling = replace(SAMPLING, temperature=0.0, stop="\x00")
    found = policy.write([StepRequest(text, 0, 12) for text in TEXTS], sampling)
    for text, one in zip(TEXTS, found, strict=True):
        ids = policy.tokenizer(text, return_tensors="pt")
        out = policy.model.generate(**ids, max_new_tokens=12, do_sample=False, pad_token_id=0)
        whole = policy.tokenizer.decode(out[0], skip_special_tokens=True)
        assert one.text == whole.removeprefix(policy.tokenizer.decode(ids["input_ids"][0], skip_special_tokens=True))


def test_a_full_context_is_cut(policy: HfPolicy) -> None:
    policy.context = len(policy.tokenizer(TEXTS[0])["input_ids"])
    assert policy.write([StepRequest(TEXTS[0], 0, 12)], SAMPLING) == [Written("", "cut", 0, 0.0)]


def test_choice_follows_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    numbers = [0.0, 0.49, 0.51, 0.79, 0.81, 0.999]
    tokens, log_likelihoods = choose(logits.repeat(6, 1), numbers, temperature=1.0)
    assert tokens == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(np.exp(log_likelihoods), [0.5, 0.5, 0.3, 0.3, 0.2, 0.2])
    assert choose(logits, [None], temperature=1.0)[0] == [0]
    # The two likeliest tokens have 0.8 together, so the third is out: 0.5 / 0.8 = 0.625.
    assert choose(logits.repeat(3, 1), [0.62, 0.63, 0.999], temperature=1.0, top_p=0.8)[0] == [0, 1, 1]
    assert choose(logits.repeat(3, 1), [0.62, 0.63, 0.999], temperature=1.0, top_k=2)[0] == [0, 1, 1]
    assert choose(logits.repeat(2, 1), [0.0, 0.999], temperature=1.0, top_k=1)[0] == [0, 0]
    # At temperature 2 the odds are the square roots: 0.5^½ : 0.3^½ : 0.2^½ = 0.415 : 0.322 : 0.263.
    assert choose(logits.repeat(3, 1), [0.41, 0.42, 0.74], temperature=2.0)[0] == [0, 1, 2]


def test_keys_name_the_noise() -> None:
    keys = {node_key(seed, problem, path) for seed in (0, 1) for problem in "ab" for path in ((0,), (1,), (0, 0))}
    assert len(keys) == 12
    assert rng(node_key(0, "a", (0,))).random() == rng(node_key(0, "a", [0])).random()


class Scripted:
    """A policy that says what it is told to, in turn."""

    name = "scripted"
    has_log_likelihood = True

    def __init__(self, *said: Written) -> None:
        self.said = list(said)
        self.asked: list[StepRequest] = []

    def write(self, asks: list[StepRequest], sampling: Sampling) -> list[Written]:  # noqa: ARG002
        self.asked += asks
        return [self.said.pop(0) for _ in asks]


def test_blank_stretches_are_no_steps() -> None:
    asks = [StepRequest("p", 8, 20), StepRequest("q", 16, 20)]
    policy: Any = Scripted(
        Written("\n\n", "stop", 1, -1.0), Written("b\n\n", "stop", 2, -2.0), Written("", "end", 1, -0.5)
    )
    first, second = write_steps(policy, asks, Sampling())
    assert first == Written("\n\n", "end", 2, -1.5)
    assert second == Written("b\n\n", "stop", 2, -2.0)
    assert [ask.text for ask in policy.asked] == ["p", "q", "p\n\n"]
    assert policy.asked[2].max_tokens == 19
    endless: Any = Scripted(*[Written("\n\n", "stop", 1, -1.0)] * 9)
    assert write_steps(endless, asks[:1], Sampling())[0].ending == "cut"
    assert len(endless.asked) == 4


def test_whole_solutions_run_over_stop_strings(policy: HfPolicy) -> None:
    """The same noise gives the same text: up to the stop string, or to the end; beside each other in one batch."""
    sampling = replace(SAMPLING, stop="e")
    steps = [StepRequest(text, node_key(0, text, [0]), 12) for text in TEXTS]
    wholes = [replace(ask, whole=True, keep=False) for ask in steps]
    found = policy.write([*steps, *wholes], sampling)
    assert [one.ending for one in found[:4]].count("stop") >= 2
    for step, whole, ask in zip(found[:4], found[4:], wholes, strict=True):
        assert whole.text.startswith(step.text)
        assert whole.ending in ("end", "cut")
        assert whole.num_tokens == 12 or whole.ending == "end"
        assert whole.state is None
        assert step.state is not None
        check(policy, ask, whole, replace(sampling, stop="no such text"))


def test_a_state_serves_every_prefix_of_its_text(policy: HfPolicy) -> None:
    """Rollouts from inside a solution need only what follows the part that was read."""
    whole = policy.write([StepRequest(TEXTS[0], 3, 12, whole=True)], SAMPLING)[0]
    text = TEXTS[0] + whole.text[: len(whole.text) // 2]
    asks = [StepRequest(text, key, 6, whole=True, keep=False) for key in range(3)]
    before = policy.num_read
    fresh = policy.write(asks, SAMPLING)
    read = policy.num_read - before
    kept = policy.write([replace(ask, state=whole.state) for ask in asks], SAMPLING)
    assert [one.text for one in kept] == [one.text for one in fresh]
    assert 0 < policy.num_read - before - read < read

"""Implicit PRMs, outcome reward models and confidences give what plain sequences give."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from loopback import serve
from prism_prm.aggregate import segmenter_of
from prism_prm.backends.load_prm import init_prm, open_prm
from prism_prm.backends.open_scorer import PrmOptions, check_scorer, named_segmenter
from prism_prm.backends.rivals import ORM, Confidence, ImplicitPRM, LocalTokens, lowest_group
from prism_prm.errors import ConfigError, ModelError, PrismError
from prism_prm.models.families import RIVALS
from prism_prm.models.language_module import columns_before
from prism_prm.models.packing import encode_tree
from prism_prm.models.prm import PRM
from prism_prm.paths import own_name
from prism_prm.plan.skeleton import load_skeleton
from prism_prm.tree import ROOT, Step, StepTree
from tiny import exact_norms, gguf_model

TREE = StepTree(
    0,
    "What is 12 * 4, divided by 6?",
    tuple(map(Step, ["We compute 12 * 4 = 48.", "Then 48 / 6 = 8.", "Then 48 / 6 = 7.", "So the answer is 8.", "8"])),
    (ROOT, 0, 0, 1, ROOT),
    (0, 1, 3),
)
OTHER = StepTree.chain("Let x be 1. What is x + 2?", ["x + 2 = 3"], tree_id=1)
DOUBLE = PrmOptions(dtype="float64")


def open_exactly(name: str) -> Any:
    """A scorer in 64 bits with exact norms, as in the exactness tests of PRMs."""
    scorer = open_prm(name, DOUBLE)
    for part in vars(scorer).values():
        prm = part.prm if isinstance(part, LocalTokens) else part
        if isinstance(prm, PRM):
            exact_norms(prm.module)
    return scorer


def exact_model(kind: Any, place: Path) -> Any:
    model = kind.from_pretrained(place, dtype=torch.float64).eval()
    exact_norms(model)
    return model


def raw_log_probabilities(place: Path, prm: PRM, tree: StepTree, node: int) -> list[tuple[int, torch.Tensor]]:
    """(token, log-probabilities over the vocabulary) of the tokens of each step of a path, from one plain sequence."""
    model = exact_model(AutoModelForCausalLM, place)
    encoded = encode_tree(tree, prm.family)
    ids = [*encoded.prompt, *(token for at in tree.path(node) for token in encoded.ids[at])]
    with torch.no_grad():
        log_p_TV = model(torch.tensor([ids])).logits[0].log_softmax(1)
    return [(ids[at], log_p_TV[at - 1]) for at in range(len(encoded.prompt), len(ids))]


def test_the_token_before_another_is_the_last_of_its_parent() -> None:
    # A prompt of 2 tokens, a step of 2, its two children of 1 and 2 tokens, and another first step.
    end = np.array([8, 8, 7, 7, 5, 7, 7, 8])
    assert columns_before(end).tolist() == [-1, 0, 1, 2, 3, 3, 5, 1]


@pytest.mark.parametrize("kind", ["qwen2", "qwen2-window", "llama", "mistral"])
def test_an_implicit_prm_packed_is_exactly_that_of_sequences(tiny_lm: Callable[..., Path], kind: str) -> None:
    places = [tiny_lm(kind), tiny_lm(kind, initializer_range=0.2)]
    scorer = open_exactly(f"implicit:{places[0]}+{places[1]}")
    assert isinstance(scorer, ImplicitPRM)
    found = scorer.score_trees([TREE, OTHER])
    for tree, scores in zip([TREE, OTHER], found, strict=True):
        sizes = [len(ids) for ids in encode_tree(tree, scorer.model.family).ids]
        for node in range(len(tree.nodes)):
            sums = []
            for place in places:
                path = raw_log_probabilities(place, scorer.model, tree, node)
                sums.append(sum(float(log_p_V[token]) for token, log_p_V in path[-sizes[node] :]))
            assert scores.log_odds_NO[node, 0] == pytest.approx(0.05 * (sums[0] - sums[1]), abs=1e-9)
    # Sessions and single nodes give the same.
    with scorer.session([TREE.problem]) as session:
        [first] = session.extend([(session.roots[0], TREE.nodes[0].text)])
        [second] = session.extend([(first, TREE.nodes[2].text)])
    assert [first.log_odds[0], second.log_odds[0]] == pytest.approx(found[0].log_odds_NO[[0, 2], 0].tolist(), abs=1e-9)
    [alone] = scorer.score_trees([TREE], [[3]])
    assert alone.scored == [3]
    assert alone.log_odds_NO[3, 0] == pytest.approx(found[0].log_odds_NO[3, 0], abs=1e-9)


def test_gradients_of_packed_log_likelihoods_are_those_of_sequences(tiny_lm: Callable[..., Path]) -> None:
    prm = open_exactly(f"implicit:{tiny_lm('qwen2')}+{tiny_lm('qwen2')}").model
    encoded = encode_tree(TREE, prm.family)
    from prism_prm.models.packing import pack

    weights = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0], dtype=torch.float64)
    packed = prm.module(prm.module.collate(pack([encoded], 4096)))[:, 0]
    batch = prm.module.collate(pack([encoded], 4096))
    order = [node for _, node in batch.owners]
    (packed * weights[order]).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in prm.module.named_parameters()}
    prm.module.zero_grad()
    model = exact_model(AutoModelForCausalLM, tiny_lm("qwen2"))
    for node, weight in enumerate(weights):
        ids = [*encoded.prompt, *(token for at in TREE.path(node) for token in encoded.ids[at])]
        log_p_TV = model(torch.tensor([ids])).logits[0].log_softmax(1)
        steps = range(len(ids) - len(encoded.ids[node]), len(ids))
        (weight * sum(log_p_TV[at - 1, ids[at]] for at in steps)).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("kind", ["logprob", "self-certainty", "lowest-group-3", "tail-4"])
def test_confidences_are_those_of_raw_log_probabilities(tiny_lm: Callable[..., Path], kind: str) -> None:
    place = tiny_lm("qwen2")
    scorer = open_exactly(f"{kind}:hf:{place}")
    assert isinstance(scorer, Confidence)
    [found], _ = scorer.confidences([TREE], [range(5)])
    [scores] = scorer.score_trees([TREE])
    for node in range(5):
        path = raw_log_probabilities(place, scorer.source.prm, TREE, node)
        size = len(path[0][1])
        top = [-float(log_p_V.sort().values[-20:].mean()) for _, log_p_V in path]
        expected = {
            "logprob": np.mean([float(log_p_V[token]) for token, log_p_V in path]),
            "self-certainty": np.mean([-sum(math.log(size) + float(value) for value in one) / size for _, one in path]),
            "lowest-group-3": min(np.mean(top[i : i + 3]) for i in range(max(1, len(top) - 2))),
            "tail-4": np.mean(top[-4:]),
        }[kind]
        assert found[node] == pytest.approx(expected, abs=1e-9)
        p = scores.probability[node]
        assert p == pytest.approx(math.exp(expected) if kind == "logprob" else expected / (expected + 1000), rel=1e-9)


def test_the_lowest_group_by_hand() -> None:
    assert lowest_group(np.array([5.0, 1.0, 3.0, 4.0]), 2) == 2.0
    assert lowest_group(np.array([5.0, 1.0]), 10) == 3.0


def make_orm(backbone: Path, place: Path, num_outputs: int) -> Path:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(backbone, num_labels=num_outputs, dtype=torch.float64)
    model.save_pretrained(place)
    for file in backbone.glob("*token*"):
        (place / file.name).write_bytes(file.read_bytes())
    return place


@pytest.fixture
def orm_place(tiny_lm: Callable[..., Path], tmp_path: Path) -> Path:
    return make_orm(tiny_lm("qwen2"), tmp_path / "orm", 1)


def test_outputs_of_an_orm(tiny_lm: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two, three = (make_orm(tiny_lm("qwen2"), tmp_path / str(count), count) for count in (1, 2, 3))
    open_prm(f"orm:{one}")
    assert "do not say which one" not in caplog.text, "one output needs no names"
    open_prm(f"orm:{two}")
    assert "do not say which one" in caplog.text
    with pytest.raises(ConfigError, match=rf"{three}: an outcome reward model has one output, or two .* has 3"):
        open_prm(f"orm:{three}")
    with pytest.raises(ConfigError, match="is an outcome reward model; name it orm:"):
        open_prm(one, PrmOptions(family="orm"))


def test_an_orm_scores_each_prefix_as_transformers_does(orm_place: Path) -> None:
    scorer = open_exactly(f"orm:{orm_place}")
    assert isinstance(scorer, ORM)
    model = exact_model(AutoModelForSequenceClassification, orm_place)
    model.config.pad_token_id = None
    family: Any = scorer.model.family
    [found] = scorer.score_trees([TREE])
    for node in range(5):
        *before, last = TREE.path(node)
        ids = family.prompt_ids(TREE.problem)
        for at in before:
            ids += family.step_ids(TREE.nodes[at].text, 0)[0]
        ids += family.last_step_ids(TREE.nodes[last].text)
        with torch.no_grad():
            expected = float(model(torch.tensor([ids])).logits[0, 0])
        assert found.log_odds_NO[node, 0] == pytest.approx(expected, abs=1e-9)
    assert scorer.card.aggregator == "last"
    assert scorer.solution_score("p", ["8", "3"]) == pytest.approx(scorer.score("p", ["8", "3"])[-1])


def test_a_path_beyond_the_context(tiny_lm: Callable[..., Path], orm_place: Path) -> None:
    place = tiny_lm("qwen2")
    for name in (f"implicit:{place}+{place}", f"orm:{orm_place}", f"tail:hf:{place}"):
        scorer = open_prm(name, PrmOptions(context=45, on_too_long="skip"))
        [found] = scorer.score_trees([TREE])
        assert 3 in found.too_long, name
        assert np.isnan(found.log_odds_NO[list(found.too_long), 0]).all()
        assert found.scored, name
        remedy = "window" if name.startswith("implicit:") else "skip"  # others refuse windows
        with pytest.raises(PrismError, match=f"context is 45. With on_too_long='{remedy}'"):
            open_prm(name, PrmOptions(context=45)).score_trees([TREE])


def test_a_server_that_echoes_log_probabilities() -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        words, offset = body["prompt"].split(" "), 0
        found: dict[str, list[Any]] = {"token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for number, word in enumerate(words):
            found["token_logprobs"].append(-0.1 * number if number else None)
            found["top_logprobs"].append({"a": -0.5, "b": -1.0 - number} if number else None)
            found["text_offset"].append(offset)
            offset += len(word) + 1
        return 200, {"choices": [{"text": body["prompt"], "logprobs": found}]}

    tree = StepTree.chain("What now", ["Well so", "it is 3"])
    with serve(answer) as (url, asked):
        # "What now\n\nWell so\n\nit is 3\n\n": the words so, is and 3 begin in a step.
        [found] = open_prm(f"logprob:openai:{url}").score_trees([tree], [[1]])
        assert found.probability[1] == pytest.approx(math.exp(-(0.2 + 0.3 + 0.4) / 3))
        [found] = open_prm(f"tail-2:openai:{url}").score_trees([tree], [[1]])
        expected = (0.5 + 4 + 0.5 + 5) / 4
        assert found.probability[1] == pytest.approx(expected / (expected + 1000))
        assert [one["echo"] for one in asked] == [True, True]
    silent = {"choices": [{"text": "3", "logprobs": {"content": [{"token": "3", "logprob": -0.1}]}}]}
    with (
        serve(lambda _: (200, silent)) as (url, _),
        pytest.raises(PrismError, match="no log-probabilities of the prompt"),
    ):
        open_prm(f"logprob:openai:{url}", PrmOptions(prm_retries=0)).score_trees([tree])


def test_a_served_model_without_a_chat_template(tiny_lm: Callable[..., Path]) -> None:
    """Its tokenizer is named with `local`; prompts are plain text."""
    place = tiny_lm("qwen2")
    with serve(lambda _: (200, {})) as (url, _):
        named, unnamed = (open_prm(f"tail:openai:{url}", PrmOptions(local=local)) for local in (str(place), None))
        assert named.identity() != unnamed.identity()


@pytest.mark.parametrize("family", RIVALS)
def test_the_prompt_does_not_depend_on_the_day(tiny_lm: Callable[..., Path], family: str) -> None:
    """Llama 3's templates state today's date, unless they are given one."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm("qwen2"))
    tokenizer.chat_template = (
        "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}"
        "{% for m in messages %}{{ m.content }}.{% endfor %}"
    )
    ids = RIVALS[family](tokenizer).prompt_ids("p")
    assert tokenizer.decode(ids) == "26 Jul 2024p."


@pytest.mark.parametrize("family", RIVALS)
def test_a_chat_template_that_drops_a_turn(tiny_lm: Callable[..., Path], family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm("qwen2"))
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ModelError, match=f"'{family}': the tokenizer's chat template must contain each turn"):
        RIVALS[family](tokenizer)


def test_options_of_a_gguf_file(tmp_path: Path) -> None:
    gguf_model(tmp_path / "model")
    scorer = open_prm(f"tail:hf:{tmp_path / 'model'}", PrmOptions(context=45, segmenter="code"))
    assert (scorer.context, segmenter_of(scorer)) == (45, "code")
    with pytest.raises(ConfigError, match="a GGUF file takes no adapter"):
        open_prm(f"tail:hf:{tmp_path / 'model'}", PrmOptions(adapter=tmp_path))


def test_steps_are_cut_as_the_models_say(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    """A card of the models, or the option; members of an ensemble must agree."""
    plain, places = tiny_lm("qwen2"), []
    for threshold in (0.4, 0.6):
        prm = init_prm(plain)
        prm.card = replace(prm.card, segmenter="code", threshold=threshold)
        places.append(str(tmp_path / f"prm-{threshold}"))
        prm.save(Path(places[-1]))
    language_model = init_prm(plain, family="implicit")
    language_model.card = replace(language_model.card, segmenter="code")
    language_model.save(tmp_path / "trained")
    for name in (f"ensemble:min:{','.join(places)}", f"implicit:{tmp_path / 'trained'}+{plain}"):
        assert segmenter_of(open_prm(name)) == "code", name
        assert named_segmenter([name], PrmOptions()) == "code", name
    for name in (f"implicit:{plain}+{plain}", f"tail:hf:{plain}"):
        assert segmenter_of(open_prm(name, PrmOptions(segmenter="code"))) == "code", name
    mixed = f"ensemble:min:{places[0]},tail:hf:{plain}"
    with pytest.raises(ConfigError, match=r"different rules: code .*, paragraph .*load\.segmenter"):
        named_segmenter([mixed], PrmOptions())
    with pytest.raises(ConfigError, match=r"different rules: code .*, paragraph .*load\.segmenter"):
        open_prm(mixed)
    assert segmenter_of(open_prm(mixed, PrmOptions(segmenter="code"))) == "code"


def test_a_token_that_the_server_puts_before_the_text() -> None:
    """vLLM adds it to what it echoes, and to the offsets."""
    text, tree = "What?\n\nA b\n\nc\n\n", StepTree.chain("What?", ["A b", "c"])

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        assert body["prompt"] == text
        tokens = ["<|begin_of_text|>", "What?\n\n", "A", " b", "\n\n", "c", "\n\n", "d"]
        values = [None, -9.0, -0.1, -0.2, -0.3, -0.4, -0.5, -9.0]
        offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
        tops = [None if value is None else {"a": value} for value in values]
        found = {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
        return 200, {"choices": [{"logprobs": found}]}

    with serve(answer) as (url, _):
        [found] = open_prm(f"logprob:openai:{url}").score_trees([tree])
    assert found.probability.tolist() == pytest.approx([math.exp(-0.2), math.exp(-0.3)])


def test_a_plan_needs_a_single_prm(tiny_lm: Callable[..., Path]) -> None:
    place = tiny_lm("qwen2")
    for name in (f"ensemble:mean:{place},{place}", f"implicit:{place}+{place}", f"tail:hf:{place}"):
        with pytest.raises(ConfigError, match="is no single PRM"):
            load_skeleton(name)


def test_names_and_refusals(tiny_lm: Callable[..., Path], tmp_path: Path) -> None:
    place = tiny_lm("qwen2")
    assert own_name("orm:models/my-orm") == "orm:my-orm"
    assert own_name("implicit:runs/a+base/b") == "implicit:a+b"
    assert own_name("tail-512:hf:models/a") == "tail-512:a"
    for name, message in {
        f"implicit:{place}": "expected implicit:MODEL\\+REFERENCE",
        f"logprob:{place}": "expected logprob:hf:FOLDER or logprob:openai:URL",
        "self-certainty:openai:http://localhost:1/v1": "self-certainty needs the probabilities of all tokens",
        f"logprob-3:hf:{place}": "expected logprob:hf",
        "orm:no/such/model": "no such model folder",
    }.items():
        with pytest.raises(PrismError, match=message):
            check_scorer(name, PrmOptions())
    with pytest.raises(ModelError, match="different tokenizers"):
        open_prm(f"implicit:{place}+{tiny_lm('llama')}")
    for options in (PrmOptions(on_too_long="window"), PrmOptions(thinking="context")):
        with pytest.raises(ConfigError, match="reads whole solutions"):
            check_scorer(f"tail:hf:{place}", options)
    for name in (f"implicit:{place}+{place}", f"ensemble:mean:{place},{place}"):
        with pytest.raises(ConfigError, match=r"has several models; load\.adapter is for one"):
            check_scorer(name, PrmOptions(adapter=tmp_path))
    identities = {
        open_prm(f"{kind}:hf:{place}").identity() for kind in ("logprob", "self-certainty", "tail-3", "tail-4")
    }
    assert len(identities) == 4

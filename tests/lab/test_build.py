"""A small world, built once: a real policy trained from scratch, and everything that is made with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prism_prm.backends.load_prm import init_prm
from prism_prm.data.reader import read_trees
from prism_prm.data.tables import iter_trees
from prism_prm.lab.world.build import World, build_world, load_policy, world_settings
from prism_prm.lab.world.oracle import OracleScorer, judge, judge_step
from prism_prm.lab.world.policy import (
    PRM_SETTINGS,
    STEP_END,
    TinyPolicySettings,
    make_model,
    make_tokenizer,
    prompt_of,
    right_step_share,
    shown_problems,
    solution_text,
    train_policy,
)
from prism_prm.lab.world.problems import ANSWER_MARK, Problem, ProblemSettings, draw_problems
from prism_prm.lab.world.sampling import TokenSampler, sample_next_steps, sample_solutions, sample_tokens
from prism_prm.lab.world.trees import PERTURBATIONS


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return build_world(world_settings("quick", seed=7), tmp_path_factory.mktemp("world"), far=True)


def test_the_tokenizer_is_exact_and_survives_saving(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    made = make_tokenizer(13)
    made.save_pretrained(tmp_path)
    problem = Problem.parse("7+12*3-4", 13)
    text = prompt_of(problem.text) + solution_text(problem.solution())
    for tokenizer in (made, AutoTokenizer.from_pretrained(tmp_path)):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
        assert len(tokenizer("7+12=6")["input_ids"]) == 3
        assert len(tokenizer(ANSWER_MARK.strip())["input_ids"]) == 1  # what is left of a mark without a number
        messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": problem.text}]
        assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == prompt_of(
            problem.text
        )


def test_training_reaches_its_target(world: World) -> None:
    """At least the share asked for where training stopped; sampling agrees with the exact probability."""
    model, tokenizer = load_policy(world.policy)
    problems = draw_problems(world.settings.pretraining, 400, np.random.default_rng(1))
    share = right_step_share(model, tokenizer, problems)
    assert share > world.settings.policy.target - 0.05
    assert right_step_share(load_policy(world.backbone)[0], tokenizer, problems) > 0.92
    written = sample_next_steps(model, tokenizer, [(p.text, p.solution()) for p in problems], copies=2)
    right = [step == p.solution()[i] for p, some in zip(problems, written, strict=True) for i in (*range(len(some)),)
             for step in some[i]]  # fmt: skip
    assert len(right) == sum(2 * (len(p.operations) + 1) for p in problems)
    assert np.mean(right) == pytest.approx(share, abs=0.04)


def test_sampling_equals_the_model_fed_whole_sequences(world: World) -> None:
    """Greedy texts with key/values, padding and batches are those of the plain model, row by row."""
    model, tokenizer = load_policy(world.policy)
    problems = [p.text for p in draw_problems(world.settings.pretraining, 20, np.random.default_rng(2))]
    sampled = sample_solutions(model, tokenizer, problems, copies=2, temperature=0, batch=14)
    end = tokenizer.convert_tokens_to_ids(tokenizer.eos_token)
    for problem, (first, second) in zip(problems, sampled, strict=True):
        assert first == second
        steps, ended = first
        ids = tokenizer(prompt_of(problem))["input_ids"]
        start = len(ids)
        while (len(ids) < start + model.config.max_position_embeddings // 2 and ids[-1] != end) or len(ids) == start:
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert ended == (ids[-1] == end)
        assert STEP_END.join(steps) == tokenizer.decode(ids[start:]).removesuffix(tokenizer.eos_token)


def test_steps_sampled_inside_a_solution_are_those_of_its_prefix_alone(world: World) -> None:
    """Greedy steps under every prefix equal those of the plain model fed that prefix and nothing after it."""
    model, tokenizer = load_policy(world.policy)
    problems = draw_problems(world.settings.pretraining, 10, np.random.default_rng(3))
    found = sample_next_steps(
        model, tokenizer, [(p.text, p.solution()) for p in problems], copies=2, temperature=0, batch=9
    )
    stops = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(STEP_END)}
    for problem, some in zip(problems, found, strict=True):
        assert len(some) == len(problem.operations) + 1
        for position, (first, second) in enumerate(some):
            prefix = "".join(f"{step}{STEP_END}" for step in problem.solution()[:position])
            ids = tokenizer(prompt_of(problem.text) + prefix)["input_ids"]
            start = len(ids)
            while len(ids) == start or (len(ids) < start + 8 and ids[-1] not in stops):
                with torch.no_grad():
                    ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            text = tokenizer.decode(ids[start:]).removesuffix(tokenizer.eos_token).removesuffix(STEP_END)
            assert first == second == text


def test_sampling_has_the_models_probabilities() -> None:
    tokenizer = make_tokenizer(5)
    model = make_model(TinyPolicySettings(layers=1, hidden=16, heads=2, seed=4), tokenizer, 64).eval()
    prompt = tokenizer(prompt_of("3+1"))["input_ids"]
    sampler = TokenSampler((), 1, 2.0, torch.Generator().manual_seed(1), banned=(0, 1))
    rows = sample_tokens(model, [prompt], 20000, sampler)
    counts = np.bincount([row[0] for row in rows], minlength=len(tokenizer)) / len(rows)
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([prompt])).logits[0, -1] / 2.0, -1).numpy()
    expected[:2] = 0
    expected /= expected.sum()
    assert np.abs(counts - expected).max() < 0.012


def test_files_are_ordinary_and_labels_exact(world: World) -> None:
    settings = world.settings
    sizes = {"base": settings.base_trees, "annotated": settings.pair_trees, "natural": settings.test_trees}
    problems: list[str] = []
    for name, size in sizes.items():
        trees = list(iter_trees(world.trees(name)))
        assert trees == list(read_trees(world.trees(name)))
        assert len(trees) == size
        problems += [tree.problem for tree in trees]
        flips = 0
        for tree in trees:
            problem = Problem.parse(tree.problem, 5)
            for node, step in enumerate(tree.nodes):
                *prefix, text = tree.texts(tree.path(node))
                right = judge_step(problem, prefix, text) == "right"
                assert step.label == 1.0 if right else step.label in (0.0, 1.0)
                flips += step.label == 1.0 and not right
        wrong = sum(world.verdicts()[name].values()) - world.verdicts()[name]["right"]
        assert wrong > 10
        assert flips == 0 if name != "base" else 0.2 < flips / wrong < 0.6
    assert len(problems) == len(set(problems))
    for kind in PERTURBATIONS:
        assert world.verdicts()[kind][kind] == len(list(iter_trees(world.trees(kind))))


def test_the_pool_is_what_the_policy_writes(world: World) -> None:
    records = [json.loads(line) for line in world.pool().read_text().splitlines()]
    assert len(records) == world.settings.pool_problems
    right = 0
    for record in records:
        problem = Problem.parse(record["problem"], 5)
        assert record["answer"] == problem.answer
        assert len(record["solutions"]) == world.settings.pool_size
        right += sum(set(judge(problem, s["steps"])) == {"right"} for s in record["solutions"])
    assert 0.2 < right / sum(len(record["solutions"]) for record in records) < 1.0


def test_the_far_part_is_another_policy_on_other_problems(world: World) -> None:
    near = {tree.problem for tree in iter_trees(world.trees("natural"))}
    far = [tree.problem for tree in iter_trees(world.trees("natural", far=True))]
    assert not near & set(far)
    assert {len(Problem.parse(text, 5).operations) for text in far} == {4}
    assert load_policy(world.far_policy)[0].config.hidden_size == 24


def test_a_second_build_does_nothing_and_another_seed_is_another_world(world: World) -> None:
    cache = world.data.parent
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert build_world(world.settings, cache, far=True) == world
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before


def test_the_same_settings_make_the_same_policy() -> None:
    settings = TinyPolicySettings(
        layers=1, hidden=16, heads=2, batch=8, target=0.0, backbone_target=0.0, max_updates=10
    )
    problems = ProblemSettings(5, "+-", 2, 3)
    first, second = (train_policy(settings, problems, make_tokenizer(5))[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_progress_ends_where_the_bar_does() -> None:
    """Told in percent of right steps, since training stops when enough of them are right."""
    settings = TinyPolicySettings(layers=1, hidden=16, heads=2, batch=8, target=0.01, backbone_target=0.03)
    told: list[int] = []
    train_policy(settings, ProblemSettings(5, "+-", 2, 3), make_tokenizer(5), advance=told.append)
    assert sum(told) == settings.percent == 3
    assert all(step >= 0 for step in told)


def test_a_prm_made_of_the_backbone_reads_the_policys_prompt(world: World) -> None:
    prm = init_prm(world.backbone, settings=PRM_SETTINGS)
    assert prm.tokenizer.decode(prm.family.prompt_ids("3+1")) == prompt_of("3+1")
    tree = next(iter_trees(world.trees("natural")))
    assert len(prm.score(tree.problem, tree.texts(tree.trunk))) == len(tree.trunk)


def test_words_of_the_chat_are_not_drawn() -> None:
    """A policy that knows nothing draws every token there is, save those that no solution holds."""
    tokenizer = make_tokenizer(5)
    model = make_model(TinyPolicySettings(layers=1, hidden=16, heads=2, seed=4), tokenizer, 64).eval()
    (solutions,) = sample_solutions(model, tokenizer, ["3+1"], copies=200, temperature=3.0)
    written = "".join(step for steps, _ in solutions for step in steps)
    assert "+1" in written
    assert not [word for word in ("user", "assistant", "<", "\n") if word in written]


def test_what_a_policy_was_shown_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every problem of its batches, and those that it was measured by."""
    from prism_prm.lab.world import policy as training

    seen: list[str] = []
    batch = training.training_batch

    def noted(problems: list[Problem], tokenizer: Any) -> Any:
        seen.extend(problem.text for problem in problems)
        return batch(problems, tokenizer)

    monkeypatch.setattr(training, "training_batch", noted)
    settings = TinyPolicySettings(layers=1, hidden=16, heads=2, batch=8, target=0.05, backbone_target=0.05)
    problems = ProblemSettings(5, "+-", 2, 3)
    *_, updates = train_policy(settings, problems, make_tokenizer(5))
    assert {problem.text for problem in shown_problems(settings, problems, updates)} == set(seen)


def test_the_oracle_scores_steps_by_the_truth() -> None:
    scorer = OracleScorer(7)
    assert scorer.score("3+5-1", ["3+5=1", "1-1=0", "#### 0"]) == pytest.approx([1, 1, 1])
    assert scorer.score("3+5-1", ["3+5=2", "2-1=1", "#### 1"]) == pytest.approx([0, 1, 1]), (
        "what follows is judged anew"
    )

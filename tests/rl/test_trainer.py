"""GRPO with credit for single steps: the same loss where nothing differs, and what TRL must not change."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import fake
from runs import by_length, trainer_of
from trl import GRPOTrainer

from launching import together
from prism_prm import ConfigError, PrismError, PRMReward
from prism_prm.rl.credit import CREDITS, Graded, find_credit, standardize
from prism_prm.rl.trainer import check_trl


def reward(**options: Any) -> PRMReward:
    return PRMReward(fake(by_length), "mean", gate=False, **options)


def batch_of(trainer: Any) -> dict[str, Any]:
    """The first batch as the loss sees it."""
    trainer.model.train()
    torch.manual_seed(0)
    inputs = next(iter(trainer.get_train_dataloader()))
    found: dict[str, Any] = trainer._generate_and_score_completions(inputs)
    return found


def loss_of(trainer: Any, batch: dict[str, Any]) -> tuple[float, torch.Tensor]:
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def test_what_is_overridden_is_as_it_was() -> None:
    """If this fails, TRL has changed: read GRPOTrainer again before you change the trainer."""
    check_trl()
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert source.count("self._calculate_rewards(inputs, prompts, completions, completion_ids_list)") == 1
    assert '"advantages": advantages,' in source
    assert "rewards.view(-1, num_generations)" in source, "rows are in the order of groups"
    assert "advantages.dim() == 1" in inspect.getsource(GRPOTrainer._compute_loss), "(B, T) advantages are taken"
    assert "gather(rewards_per_func)" in inspect.getsource(GRPOTrainer._calculate_rewards), "rewards of all processes"


def test_a_changed_trl_is_refused_by_name() -> None:
    class Renamed:
        def _generate_and_score_completions(self, batch: Any) -> None: ...

    with pytest.raises(PrismError, match=r"_generate_and_score_completions takes .*pip install 'trl==1\.16\.0'"):
        check_trl(Renamed)
    with pytest.raises(PrismError, match="_generate_and_score_completions is gone"):
        check_trl(object)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_constant_advantages_give_trls_own_loss(memorising_policy: Path, tmp_path: Path, loss_type: str) -> None:
    args = {"loss_type": loss_type, "beta": 0.1}
    ours = trainer_of(memorising_policy, tmp_path, reward(), credit="outcome", args=args)
    theirs = trainer_of(memorising_policy, tmp_path, reward(), kind=GRPOTrainer, args=args)
    batch, plain = batch_of(ours), batch_of(theirs)
    assert torch.equal(batch["completion_ids"], plain["completion_ids"])
    assert batch["advantages"].shape == batch["completion_ids"].shape
    assert plain["advantages"].abs().max() > 0.1
    (loss, gradient), (expected, by_trl) = loss_of(ours, batch), loss_of(theirs, plain)
    assert loss == pytest.approx(expected, abs=1e-6)
    assert torch.allclose(gradient, by_trl, atol=1e-6)


def expected_advantages(trainer: Any, batch: dict[str, Any], credit: str) -> np.ndarray:
    """By the pure functions, from the texts alone; each token of these tokenizers is in one step."""
    tokenizer = trainer.processing_class
    rows: list[tuple[Graded, list[int]]] = []
    for ids, mask in zip(batch["completion_ids"].tolist(), batch["completion_mask"].tolist(), strict=True):
        kept = [token for token, there in zip(ids, mask, strict=True) if there]
        owners, step, text = [], 0, ""
        steps: list[str] = []
        for token in kept:
            if "\n\n" in text and text.strip() and not text.endswith("\n\n"):
                raise AssertionError("a separator is the end of a token here")
            owners.append(len(steps))
            text += tokenizer.decode([token], skip_special_tokens=True)
            if text.endswith("\n\n") and text.strip():
                steps.append(text.strip())
                text = ""
        if text.strip():
            steps.append(text.strip())
        steps = steps or [""]
        owners = [min(owner, len(steps) - 1) for owner in owners]
        scores = [by_length(step) if step else 0.0 for step in steps]
        tokens = [owners.count(k) for k in range(len(steps))]
        rows.append((Graded(scores, scores, tokens, float(np.mean(scores))), owners))
        del step
    found = np.zeros(batch["completion_ids"].shape)
    for start in range(0, len(rows), 4):
        group = rows[start : start + 4]
        for i, own in enumerate(find_credit(credit)([graded for graded, _ in group])):
            owners = group[i][1]
            found[start + i, : len(owners)] = own[owners]
    return found


@pytest.mark.parametrize("credit", CREDITS)
def test_each_token_gets_its_steps_advantage(memorising_policy: Path, tmp_path: Path, credit: str) -> None:
    trainer = trainer_of(memorising_policy, tmp_path, reward(), credit=credit)
    batch = batch_of(trainer)
    expected = expected_advantages(trainer, batch, credit)
    mask = batch["completion_mask"].numpy()
    assert np.allclose(batch["advantages"].numpy() * mask, expected * mask, atol=1e-4)
    if credit != "outcome":
        assert any(len(set(row[kept == 1].round(4))) > 1 for row, kept in zip(expected, mask, strict=True))


def right_parity(completions: list[str], **_: Any) -> list[float]:
    """Another reward function: whether the text has an even length."""
    return [float(len(text) % 2) for text in completions]


def test_other_rewards_are_added_to_all_tokens(memorising_policy: Path, tmp_path: Path) -> None:
    alone = batch_of(trainer_of(memorising_policy, tmp_path, reward(), credit="pure"))
    trainer = trainer_of(
        memorising_policy, tmp_path, None, credit="pure", reward_funcs=[right_parity, reward()],
        args={"reward_weights": [0.5, 2.0]},
    )  # fmt: skip
    both = batch_of(trainer)
    texts = trainer.processing_class.batch_decode(both["completion_ids"], skip_special_tokens=True)
    parity = 0.5 * np.array(right_parity(texts)).reshape(-1, 4)
    more = np.concatenate([standardize(group) for group in parity])[:, None]
    mask = both["completion_mask"].numpy()
    expected = (2 * alone["advantages"].numpy() + more) * mask
    assert np.allclose(both["advantages"].numpy() * mask, expected, atol=1e-4)
    assert np.abs(more).max() > 0.1


def test_the_trainer_says_what_ends_a_completion(memorising_policy: Path, tmp_path: Path) -> None:
    gated = PRMReward(fake(by_length))
    trainer = trainer_of(memorising_policy, tmp_path, gated, credit="process")
    assert gated.eos == {trainer.processing_class.eos_token_id, trainer.processing_class.pad_token_id}
    given = PRMReward(fake(by_length), eos=5)
    trainer_of(memorising_policy, tmp_path, given.async_(), credit="process")
    assert given.eos == {5}


def test_one_prm_reward_is_needed(memorising_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are 0 with a weight among its 1 reward functions"):
        trainer_of(memorising_policy, tmp_path, right_parity)
    logged = PRMReward(fake(by_length), name="logged")
    trainer = trainer_of(
        memorising_policy, tmp_path, None, reward_funcs=[logged, reward()], args={"reward_weights": [0.0, 1.0]}
    )
    assert trainer._step_column == 1
    with pytest.raises(ConfigError, match="Unknown credit 'best'"):
        trainer_of(memorising_policy, tmp_path, reward(), credit="best")


STRANGE = ["", "\n\n\n\n", "<|im_end|>\n\nassistant", "1 + " * 400, "\n\n".join(["1"] * 1000), "u\tv\n\n#### 3"]


@pytest.mark.parametrize("credit", ["outcome", "pure"])
def test_no_text_ends_a_run(memorising_policy: Path, tmp_path: Path, credit: str) -> None:
    """A policy that writes nothing, control words, an endless step or a thousand tiny ones is trained like any."""
    gated = PRMReward(fake(by_length, context=300), "product")
    trainer = trainer_of(
        memorising_policy, tmp_path, gated, credit=credit,
        args={"max_steps": 2, "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 2000},
    )  # fmt: skip
    tokenizer, written = trainer.processing_class, iter(STRANGE * 9)

    def write(prompt_ids: Any, *_: Any, **__: Any) -> Any:
        texts = [next(written) for _ in prompt_ids]
        ends = [i % 2 * [tokenizer.eos_token_id] for i in range(len(texts))]
        return [
            [*tokenizer.encode(text), *end] or [tokenizer.pad_token_id]
            for text, end in zip(texts, ends, strict=True)
        ], None  # fmt: skip

    trainer._generate_single_turn = write
    trainer.train()
    assert trainer.state.global_step == 2
    assert gated.counts["completions"] == 8
    assert gated.counts["unreadable"] > 0
    logged = [entry for entry in trainer.state.log_history if "PRMReward/gated" in entry]
    assert len(logged) == 2
    assert all(np.isfinite(entry["loss"]) for entry in logged)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


TWO = """
import json, sys
from pathlib import Path
import torch
from runs import by_length, problems, trainer_of
from fakes import fake
from prism_prm import PRMReward

policy, out, per_process = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
texts = ["3 + 4 = 7\\n\\n#### 7", "1", "2\\n\\n3\\n\\n4 = 4", "12345\\n\\n#### 1",
         "a b\\n\\nc", "#### 5", "1\\n\\n\\n\\n22", "x = 1"]
trainer = trainer_of(policy, out / "run", PRMReward(fake(by_length), "mean", gate=False),
                     args={"per_device_train_batch_size": per_process, "num_generations": 8})
rank, tokenizer = trainer.accelerator.process_index, trainer.processing_class
own = texts[rank * per_process : (rank + 1) * per_process]
ids = [tokenizer.encode(text) + [tokenizer.eos_token_id] for text in own]
trainer._generate_single_turn = lambda *_, **__: (ids, None)
found = {}
for trainer.credit in ("outcome", "process", "pure", "progress"):
    trainer.model.train()
    row = list(problems())[0]
    batch = trainer._generate_and_score_completions([dict(row) for _ in own])
    kept = [row[mask == 1].tolist() for row, mask in zip(batch["advantages"], batch["completion_mask"])]
    from accelerate.utils import gather_object
    found[trainer.credit] = gather_object(kept)
if trainer.accelerator.is_main_process:
    (out / f"{per_process}.json").write_text(json.dumps([trainer.accelerator.num_processes, found]))
"""


def test_two_processes_give_the_same_advantages(memorising_policy: Path, tmp_path: Path) -> None:
    """A group of eight, in one process or spread over two."""
    code = f"import sys; sys.path[:0] = {sys.path!r}" + TWO
    for processes, rows in ((1, 8), (2, 4)):
        done = together(memorising_policy, tmp_path, rows, processes=processes, code=code)
        assert done.returncode == 0, done.stderr[-3000:]
    (one, alone), (two, shared) = (json.loads((tmp_path / f"{rows}.json").read_text()) for rows in (8, 4))
    assert (one, two) == (1, 2)
    for credit in CREDITS:
        for a, b in zip(alone[credit], shared[credit], strict=True):
            assert a == pytest.approx(b, abs=1e-6)
        assert np.abs(np.concatenate(alone[credit])).max() > 0.1


def test_without_trl_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import prism_prm.rl

    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "prism_prm.rl.trainer")
    with pytest.raises(PrismError, match=re.escape("pip install 'prism-prm[rl]'")):
        prism_prm.rl.__getattr__("StepGRPOTrainer")
    assert prism_prm.rl.PRMReward is PRMReward, "the reward alone needs no TRL"

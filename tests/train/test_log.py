"""The log of a run: what it keeps over a kill or a full disc."""

from __future__ import annotations

import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from prism_prm.errors import MissingExtraError
from prism_prm.train.log import RunLog, check_reporters


def a_line(update: int, name: str = "1_all") -> dict[str, Any]:
    numbers = {"loss": 0.5 + update, "lr": 1e-3, "grad_norm": 1.0, "tokens": 10, "seconds": 0.25}
    return {"round": name, "update": update, **numbers}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_a_resumed_round_forgets_what_it_will_do_again(tmp_path: Path) -> None:
    log = RunLog(tmp_path, (), {})
    for name in ("1_easy", "2_hard"):
        log.resume(name, 0)
        for update in range(4):
            log.update(a_line(update, name))
    log.resume("2_hard", 2)
    log.update(a_line(2, "2_hard"))
    log.close()
    assert lines_of(tmp_path) == [a_line(i, "1_easy") for i in range(4)] + [a_line(i, "2_hard") for i in range(3)]


def test_a_log_cut_off_anywhere_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = RunLog(tmp_path, (), {})
    log.resume("1_all", 0)
    for update in range(3):
        log.update(a_line(update))
    log.close()
    path = tmp_path / "log.jsonl"
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            log = RunLog(tmp_path, (), {})
            log.resume("1_all", 99)
            log.update(a_line(98))
            log.close()
        num_whole = sum(end <= length for end in ends)
        assert lines_of(tmp_path) == [*(a_line(i) for i in range(num_whole)), a_line(98)]
        is_torn = length not in (0, *ends)
        assert [str(path) in record.getMessage() for record in caplog.records] == [True] * is_torn


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard draws: tag → (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_counts_updates_over_rounds_and_draws_none_twice(tmp_path: Path) -> None:
    log = RunLog(tmp_path, ("tensorboard",), {"seed": 1})
    log.validation({"auroc": 0.5})
    for name in ("1_easy", "2_hard"):
        log.resume(name, 0)
        for update in range(3):
            log.update(a_line(update, name))
        log.validation({"auroc": 0.75})
    log.close()
    again = RunLog(tmp_path, ("tensorboard",), {"seed": 1})
    again.resume("2_hard", 1)
    again.update({**a_line(1, "2_hard"), "loss": 7.0})
    again.close()
    found = scalars(tmp_path / "tensorboard")
    assert set(found) == {
        "validation/auroc",
        *(f"train/{key}" for key in ("loss", "lr", "grad_norm", "tokens", "seconds")),
    }
    assert found["train/loss"] == [(0, 0.5), (1, 1.5), (2, 2.5), (3, 0.5), (4, 7.0)]
    assert found["validation/auroc"] == [(0, 0.5), (3, 0.75)]


def test_wandb_is_one_run_of_all_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Wandb(types.ModuleType):
        def init(self, **settings: Any) -> Any:
            calls.append(settings)
            return types.SimpleNamespace(
                log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("finished")
            )

    monkeypatch.setitem(sys.modules, "wandb", Wandb("wandb"))
    log = RunLog(tmp_path / "my-run", ("wandb",), {"seed": 1})
    assert not calls, "nothing has happened yet"
    for name in ("1_easy", "2_hard"):
        log.resume(name, 0)
        log.update(a_line(0, name))
    log.validation({"auroc": 0.75})
    log.close()
    train = {f"train/{key}": a_line(0)[key] for key in ("loss", "lr", "grad_norm", "tokens", "seconds")}
    opened = {"project": "prism-prm", "name": "my-run", "dir": str(tmp_path / "my-run"), "config": {"seed": 1}}
    assert calls == [{**opened, "resume": "allow"}, (0, train), (1, train), (2, {"validation/auroc": 0.75}), "finished"]


def test_a_reporter_that_is_not_installed_is_said_before_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    check_reporters(("tensorboard",))
    with pytest.raises(MissingExtraError, match=r"prism-prm\[wandb\]"):
        check_reporters(("tensorboard", "wandb"))

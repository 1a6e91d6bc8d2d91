"""One round of training: updates over planned examples, with checkpoints from which a killed run resumes.

This is a short loop on accelerate and not a transformers.Trainer: an update here is a stated number of PAIRS, however
they are packed, micro-batched or spread over processes; a non-finite loss must stop the run before it touches the
weights; and checkpoints must appear whole or not at all. Trainer counts sequences per device, hides NaN by default and
writes checkpoints in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prism_prm.errors import PrismError
from prism_prm.losses import Objective
from prism_prm.packing import Layout, PackedBatch, Row
from prism_prm.pairs.examples import Examples
from prism_prm.training.batches import MicroBatch, RowLimits, micro_batches, parts_of_update
from prism_prm.training.model import CANNOT_WRITE, to_training
from prism_prm.training.plan import over_limit, plan_updates
from prism_prm.training.settings import TrainSettings
from prism_prm.types import Ints

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE_FILE = "progress.json"


class NotFiniteError(PrismError):
    """Training met a loss or gradient that is not a number; the weights of the last checkpoint are good."""


@dataclass
class Round:
    """What one round works with; `run` trains it to its end."""

    name: str
    model: torch.nn.Module
    """As the optimiser sees it: a PRM's module, perhaps wrapped by peft."""
    family: Layout
    make_batch: Callable[[Sequence[Row]], PackedBatch]
    limits: RowLimits
    examples: Examples
    objective: Objective
    settings: TrainSettings
    seed: tuple[int, ...]
    checkpoints: Path
    on_update: Callable[[dict[str, Any]], None] = lambda _: None
    """Called on the main process after every update with its log line."""
    on_resume: Callable[[int], None] = lambda _: None
    """Called with the number of updates that are already done."""
    updates: list[Ints] = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.updates = [
            update
            for epoch in range(settings.epochs)
            for update in plan_updates(
                self.examples.tree,
                per_update=settings.pairs_per_update,
                per_tree=settings.max_pairs_per_tree_per_update,
                seed=(*self.seed, epoch),
            )
        ]

    def broken_limit(self) -> str:
        """What is to be said of a limit per tree that the updates do not keep, or ""."""
        limit = self.settings.max_pairs_per_tree_per_update
        over, most = over_limit(self.examples.tree, self.updates, limit)
        if not over:
            return ""
        return (
            f"train.max_pairs_per_tree_per_update = {limit} cannot be met in updates of even size: {over} trees have "
            f"too many examples, up to {most} of one tree in an update"
        )

    def run(self, accelerator: Accelerator) -> torch.nn.Module:
        """Train, or resume from the last checkpoint; returns the prepared model."""
        settings = self.settings
        to_training(self.model)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
        )
        if accelerator.state.deepspeed_plugin is not None:  # it wants a number although it loads no data here
            accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 1
        model, optimizer = accelerator.prepare(self.model, optimizer)
        start = self._resume(accelerator)
        self.on_resume(start)
        for number in range(start, len(self.updates)):
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = settings.lr_at(number, len(self.updates))
            with seeded(chance_of(self.seed, number, accelerator.process_index), accelerator.device):
                line = self._update(accelerator, model, optimizer, number)
            line |= {"lr": group["lr"], "seconds": time.perf_counter() - started}
            if accelerator.is_main_process:
                self.on_update(line)
            if (number + 1) % settings.checkpoint_every == 0 and number + 1 < len(self.updates):
                self._checkpoint(accelerator, number + 1)
        return model  # type: ignore[no-any-return]

    def resumed(self) -> str:
        """Where a run that is stopped now will be resumed."""
        last = _last_checkpoint(self.checkpoints)
        if last is None:
            return f"from the beginning of round {self.name}"
        return f"from update {_read_state(last)['updates_done']:,} of {len(self.updates):,} of round {self.name}"

    def _update(self, accelerator: Accelerator, model: Any, optimizer: Any, number: int) -> dict[str, Any]:
        """One update; raises before the weights change if its loss or gradient is not a number."""
        settings, update = self.settings, self.updates[number]
        parts = parts_of_update(self.examples, update, self.family, settings.pack, self.limits)
        batches = micro_batches(
            parts, self.make_batch, settings.microbatch_tokens, accelerator.process_index, accelerator.num_processes
        )
        total = 0.0
        for i, micro in enumerate(batches):
            last = i == len(batches) - 1
            accelerator.gradient_state._set_sync_gradients(last)  # where DeepSpeed looks for the end of an update
            with contextlib.nullcontext() if last else accelerator.no_sync(model):
                loss_N = self._losses(model, micro, accelerator.device)
                self._check_losses(number, micro, loss_N.detach())
                # Processes average their gradients; the update's loss is the mean over all its examples.
                accelerator.backward(loss_N.sum() * (micro.weight * accelerator.num_processes / len(update)))
            total += micro.weight * float(loss_N.detach().sum())
        norm = self._gradient_norm(accelerator, model)
        if not math.isfinite(norm):
            raise self._not_finite(number, f"gradient norm {norm}", self.examples.ids[update])
        optimizer.step()
        optimizer.zero_grad()
        tokens = sum(micro.batch.input_ids_BL.numel() for micro in batches)
        sums = torch.tensor([total, tokens], dtype=torch.float64, device=accelerator.device)
        loss, all_tokens = accelerator.reduce(sums, "sum").tolist()
        return {
            "round": self.name, "update": number, "updates": len(self.updates), "loss": loss / len(update),
            "grad_norm": norm, "examples": len(update), "tokens": int(all_tokens),
            "max_per_tree": int(np.unique(self.examples.tree[update], return_counts=True)[1].max()),
        }  # fmt: skip

    def _losses(self, model: Any, micro: MicroBatch, device: torch.device) -> torch.Tensor:
        log_odds_R = model(micro.batch.to(device))[:, 0]
        read_NK = log_odds_R[micro.reads_NK.to(device)]
        if self.examples.labels is None:
            return self.objective.of_pairs(read_NK[:, 0], read_NK[:, 1])
        labels_N = torch.as_tensor(self.examples.labels[micro.examples], dtype=read_NK.dtype, device=device)
        return self.objective.of_steps(read_NK[:, 0], labels_N)

    def _gradient_norm(self, accelerator: Accelerator, model: Any) -> float:
        norm = accelerator.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm or math.inf)
        if norm is None:  # DeepSpeed clips, and stops on overflow, by itself
            return 0.0
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def _check_losses(self, number: int, micro: MicroBatch, loss_N: torch.Tensor) -> None:
        """Raise before the backward pass if a loss is not a number; the launcher then ends the other processes."""
        bad_N = ~torch.isfinite(loss_N)
        if bad_N.any():
            bad = self.examples.ids[micro.examples[bad_N.cpu().numpy()]]
            raise self._not_finite(number, f"loss {loss_N[bad_N][0].item()}", bad)

    def _not_finite(self, number: int, what: str, ids: Ints) -> NotFiniteError:
        kind = "pairs" if self.examples.labels is None else "labelled steps"
        last = _last_checkpoint(self.checkpoints)
        kept = f"The last good checkpoint is {last}" if last else "This round has no checkpoint yet and starts again"
        return NotFiniteError(
            f"round {self.name}, update {number}: {what}, from the {kind} {ids[:20].tolist()}. {kept}. "
            'Lower train.lr, or use float32 (hardware.mixed_precision = "no"), in a new run (another --out).'
        )

    def _checkpoint(self, accelerator: Accelerator, done: int) -> None:
        """Write aside, rename, then remove older ones."""
        final = self.checkpoints / f"update-{done:06d}"
        aside = self.checkpoints / f".update-{done:06d}.part"
        if accelerator.is_main_process:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        accelerator.wait_for_everyone()
        try:
            accelerator.save_state(str(aside))
        except KeyboardInterrupt:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        except CANNOT_WRITE as error:
            last = _last_checkpoint(self.checkpoints)
            raise PrismError(
                f"{final}: the checkpoint could not be written ({error}). "
                f"{f'{last} is complete' if last else 'There is none yet'}; make room and rerun the same command."
            ) from error
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            (aside / STATE_FILE).write_text(json.dumps({"updates_done": done, "plan": self._plan_hash}))
            shutil.rmtree(final, ignore_errors=True)
            aside.rename(final)
            for old in _checkpoints(self.checkpoints)[: -self.settings.keep_checkpoints]:
                shutil.rmtree(old)
        accelerator.wait_for_everyone()

    def _resume(self, accelerator: Accelerator) -> int:
        last = _last_checkpoint(self.checkpoints)
        if last is None:
            return 0
        state = _read_state(last)
        if state["plan"] != self._plan_hash:
            raise PrismError(
                f"{last}: made for other pairs or settings; remove {self.checkpoints} to start the round again."
            )
        accelerator.load_state(str(last))
        return int(state["updates_done"])

    @cached_property
    def _plan_hash(self) -> str:
        digest = hashlib.blake2b(repr((self.settings, self.objective)).encode(), digest_size=8)
        digest.update(self.examples.content_key().encode())
        for update in self.updates:
            digest.update(np.ascontiguousarray(update).tobytes() + b"|")
        return digest.hexdigest()


def _read_state(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / STATE_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {"updates_done": int(found["updates_done"]), "plan": found["plan"]}
    except (ValueError, KeyError, TypeError) as error:
        raise PrismError(
            f"{path}: not what `prism train` writes there ({error}); remove {checkpoint} to resume without it."
        ) from None


def chance_of(seed: tuple[int, ...], update: int, process: int) -> int:
    """The seed of an update's dropout: a formula, so nothing to resume."""
    return int(np.random.SeedSequence((*seed, update, process)).generate_state(1, np.uint64)[0])


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Chance from a seed, within the block alone."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("update-*")) if folder.is_dir() else []


def _last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint; those still written aside do not count."""
    return max((path for path in _checkpoints(folder) if (path / STATE_FILE).exists()), default=None)

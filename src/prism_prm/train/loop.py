"""One round of training: the update loop, and the checkpoints from which a killed run resumes.

This is a short loop on accelerate, not a transformers.Trainer, for three reasons. An update is a fixed number of PAIRS,
however they are packed, micro-batched or spread over processes. A non-finite loss must stop the run before it changes
the weights. And a checkpoint must be complete or absent. Trainer counts sequences per device, hides NaN by default and
writes checkpoints in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
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
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from prism_prm.arrays import Floats, Ints
from prism_prm.data.pair_examples import NO_STEP, Examples
from prism_prm.errors import PrismError
from prism_prm.files import atomic_folder
from prism_prm.losses import Objective
from prism_prm.models.packing import Layout, PackedBatch, Row
from prism_prm.train.batches import KeptReads, RowLimits, micro_batches, over_limit, parts_of_update, plan_updates
from prism_prm.train.model import is_sharded, place_like, set_training_mode, whole
from prism_prm.train.recipe import TrainSettings

if TYPE_CHECKING:
    from accelerate import Accelerator


STATE_FILE = "progress.json"
FILE_BYTES = 2**31
"""The approximate size of a file. The main process holds the tensors of one file at a time."""


class Checkpoints:
    """The checkpoints in a folder. All processes must call every method."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def last(self) -> Path | None:
        return max((path for path in self._all() if (path / STATE_FILE).exists()), default=None)

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("update-*")) if self.folder.is_dir() else []

    def updates_done(self) -> int:
        last = self.last()
        return 0 if last is None else int(_read_progress(last)["updates_done"])

    def save(
        self, done: int, plan: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator
    ) -> None:
        """Write a checkpoint, then remove older ones."""
        is_main = accelerator.is_main_process
        if is_main:
            for unfinished in self.folder.glob(".update-*.part"):  # left by a killed run
                shutil.rmtree(unfinished, ignore_errors=True)
        with atomic_folder(self.folder / f"update-{done:06d}") if is_main else contextlib.nullcontext() as partial:
            files = _write_state(model, optimizer, partial)
            if partial:
                progress = {"updates_done": done, "plan": plan, "files": files}
                (partial / STATE_FILE).write_text(json.dumps(progress))
        if is_main:
            for old in self._all()[: -self.keep]:
                shutil.rmtree(old)
        accelerator.wait_for_everyone()

    def load(self, plan: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load weights and optimizer from the newest checkpoint. Returns its number of updates; 0 without one."""
        last = self.last()
        if last is None:
            return 0
        progress = _read_progress(last)
        if progress["plan"] != plan:
            raise PrismError(f"{last}: made for other pairs or settings. Remove {self.folder} to restart the round.")
        try:
            _read_state(last, progress["files"], model, optimizer)
        except (OSError, SafetensorError, ValueError) as error:
            raise _unreadable(last, error) from error
        return int(progress["updates_done"])


def _trained(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _write_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path | None) -> int:
    """Write all tensors that an update changes. Returns the number of files.

    A process without a folder only contributes its shards. The order is the same on every process: `name` of a weight,
    then `name key` of its optimizer state.
    """
    held: dict[str, torch.Tensor] = {}
    num_files = 0

    def flush() -> None:
        nonlocal num_files
        if held and folder:
            save_file(held, folder / f"state-{num_files:05d}.safetensors")
            num_files += 1
            held.clear()

    for name, parameter in _trained(model).items():
        state = {f"{name} {key}": value for key, value in optimizer.state[parameter].items()}
        for key, tensor in ({name: parameter.detach()} | state).items():
            full = whole(tensor)
            if folder:
                held[key] = full.contiguous()
                if sum(value.nbytes for value in held.values()) >= FILE_BYTES:
                    flush()
    flush()
    return num_files


@torch.no_grad()
def _read_state(folder: Path, num_files: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    paths = sorted(folder.glob("state-*.safetensors"))
    if len(paths) != num_files:
        raise ValueError(f"{len(paths)} of {num_files} files")
    trained, found = _trained(model), set()
    for path in paths:
        for full_name, value in load_file(path).items():
            name, _, key = full_name.partition(" ")
            found.add(name)
            if name not in trained:
                continue
            parameter = trained[name]
            if not key:
                parameter.copy_(place_like(value, parameter))
            else:  # AdamW keeps its step count on the CPU
                optimizer.state[parameter][key] = value if key == "step" else place_like(value, parameter)
    if found != trained.keys():
        raise ValueError(f"it has other weights, e.g. {min(found ^ trained.keys())}")


def _read_progress(checkpoint: Path) -> dict[str, Any]:
    path = checkpoint / STATE_FILE
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {"updates_done": int(read["updates_done"]), "plan": read["plan"], "files": int(read["files"])}
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(checkpoint, error) from None


def _unreadable(checkpoint: Path, error: Exception) -> PrismError:
    return PrismError(
        f"{checkpoint}: not a checkpoint of `prism train`, or damaged ({error}). Remove {checkpoint} to resume without "
        "it."
    )


class NotFiniteError(PrismError):
    """A loss or gradient is not finite. The weights of the last checkpoint are good."""


@dataclass
class TrainingRound:
    """One round of training; `run` trains it to its end."""

    name: str
    model: torch.nn.Module
    """A PRM's module, perhaps wrapped by peft or sharded."""
    family: Layout
    make_batch: Callable[[Sequence[Row]], PackedBatch]
    limits: RowLimits
    examples: Examples
    """Pairs or labeled steps; with a listwise objective the pairs of each prefix become one example."""
    objective: Objective
    settings: TrainSettings
    seed: tuple[int, ...]
    folder: Path
    """The folder of its checkpoints."""
    num_updates: int | None = None
    """The number of updates, as many epochs as that takes; by default `settings.epochs` decides."""
    reference_N: Floats | None = None
    """For solutions: the log-likelihood of each by the reference."""
    kept_reads: KeptReads | None = None
    """If all layers are frozen and cached: the states that the head reads, instead of packed trees."""
    on_update: Callable[[dict[str, Any]], None] = lambda _: None
    """Called on the main process after every update with its log line."""
    on_resume: Callable[[int], None] = lambda _: None
    """Called before the first update with the number of updates in the checkpoint."""
    updates: list[Ints] = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        if self.objective.in_lists:
            self.examples = self.examples.by_prefix()
        self.checkpoints = Checkpoints(self.folder, settings.keep_checkpoints)
        epochs = range(settings.epochs) if self.num_updates is None else itertools.count()
        updates = (
            update
            for epoch in epochs
            for update in plan_updates(
                self.examples.tree,
                per_update=settings.pairs_per_update,
                per_tree=settings.max_pairs_per_tree_per_update,
                seed=(*self.seed, epoch),
            )
        )
        self.updates = list(itertools.islice(updates, self.num_updates))

    def describe_exceeded_limit(self) -> str:
        """A note if some trees exceed the limit per update, else ""."""
        limit = self.settings.max_pairs_per_tree_per_update
        over, most = over_limit(self.examples.tree, self.updates, limit)
        if not over:
            return ""
        return (
            f"train.max_pairs_per_tree_per_update = {limit} cannot be met in updates of even size: {over} trees have "
            f"too many examples, up to {most} from one tree in an update"
        )

    def run(self, accelerator: Accelerator) -> None:
        """Train the model, or resume from the last checkpoint."""
        settings = self.settings
        set_training_mode(self.model)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
        )
        model: Any = self.model
        if not is_sharded(model):
            model, optimizer = accelerator.prepare(model, optimizer)
        start = self.checkpoints.load(self._plan_hash, self.model, optimizer)
        self.on_resume(start)
        for number in range(start, len(self.updates)):
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = settings.lr_at(number, len(self.updates))
            with seeded(dropout_seed(self.seed, number, accelerator.process_index), accelerator.device):
                line = self._update(accelerator, model, optimizer, number)
            line |= {"lr": group["lr"], "seconds": time.perf_counter() - started}
            if accelerator.is_main_process:
                self.on_update(line)
            if (number + 1) % settings.checkpoint_every == 0 and number + 1 < len(self.updates):
                self.checkpoints.save(number + 1, self._plan_hash, self.model, optimizer, accelerator)

    def resume_point(self) -> str:
        """Where a run that is stopped now will resume."""
        done = self.checkpoints.updates_done()
        if not done:
            return f"from the beginning of round {self.name}"
        return f"from update {done:,} of {len(self.updates):,} of round {self.name}"

    def _update(self, accelerator: Accelerator, model: Any, optimizer: Any, number: int) -> dict[str, Any]:
        """Make one update, and return its log line. Raises before the weights change if a value is not finite."""
        settings, update, device = self.settings, self.updates[number], accelerator.device
        process = accelerator.process_index, accelerator.num_processes
        if self.kept_reads is not None:
            batches = [self.kept_reads.micro_batch(update, *process)]
        else:
            parts = parts_of_update(self.examples, update, self.family, settings.pack, self.limits)
            batches = micro_batches(parts, self.make_batch, settings.microbatch_tokens, *process)
        total = 0.0
        for i, micro in enumerate(batches):
            # Copies of the model sum their gradients once per update. Sharded models sum them after every pass:
            # unsynchronized gradients would be whole on every process, and need more memory than sharding saves.
            is_synced = is_sharded(model) or i == len(batches) - 1
            with contextlib.nullcontext() if is_synced else accelerator.no_sync(model):
                log_odds_R = model(micro.batch.to(device))[:, 0]
                read_NK = log_odds_R[micro.reads_NK.to(device)]
                loss_N = self._losses(micro.examples, read_NK)
                bad_N = ~torch.isfinite(loss_N.detach())
                if bad_N.any():  # the launcher then stops the other processes
                    bad = self.examples.ids[micro.examples[bad_N.cpu().numpy()]]
                    raise self._not_finite(number, f"loss {loss_N[bad_N][0].item()}", bad)
                # Processes average their gradients; the update's loss is the mean over all its examples.
                accelerator.backward(loss_N.sum() * (micro.weight * accelerator.num_processes / len(update)))
            total += micro.weight * float(loss_N.detach().sum())
        norm = float(whole(accelerator.clip_grad_norm_(model.parameters(), settings.max_grad_norm or math.inf)))
        if not math.isfinite(norm):
            raise self._not_finite(number, f"gradient norm {norm}", self.examples.ids[update])
        optimizer.step()
        optimizer.zero_grad()
        tokens = sum(micro.batch.input_ids_BL.numel() for micro in batches)
        sums = torch.tensor([total, tokens], dtype=torch.float64, device=device)
        loss, all_tokens = accelerator.reduce(sums, "sum").tolist()
        return {
            "round": self.name, "update": number, "updates": len(self.updates), "loss": loss / len(update),
            "grad_norm": norm, "examples": len(update), "tokens": int(all_tokens),
            "max_per_tree": int(np.unique(self.examples.tree[update], return_counts=True)[1].max()),
        }  # fmt: skip

    def _losses(self, examples: Ints, read_NK: torch.Tensor) -> torch.Tensor:
        """The loss of each example, given the log-odds (or log-likelihoods) of its reads."""

        def column(values: NDArray[np.float64]) -> torch.Tensor:
            return torch.as_tensor(values[examples], dtype=read_NK.dtype, device=read_NK.device)

        if self.examples.labels is None:
            if not self.examples.in_lists:
                return self.objective.of_pairs(read_NK[:, 0], read_NK[:, 1])
            return self.objective.of_lists(read_NK, *sides_of_lists(self.examples.take(examples), read_NK))
        labels_N = column(self.examples.labels)
        if self.reference_N is None:
            return self.objective.of_steps(read_NK[:, 0], labels_N)
        is_step_NK, _ = sides_of_lists(self.examples.take(examples), read_NK)
        return self.objective.of_solutions((read_NK * is_step_NK).sum(1) - column(self.reference_N), labels_N)

    def _not_finite(self, number: int, what: str, ids: Ints) -> NotFiniteError:
        kind = "labeled steps" if self.examples.labels is not None else "pairs"
        if self.examples.in_lists:
            kind = "prefixes of the pairs" if self.examples.labels is None else "solutions"
        last = self.checkpoints.last()
        kept = f"The last good checkpoint is {last}" if last else "This round has no checkpoint yet"
        return NotFiniteError(
            f"round {self.name}, update {number}: {what}, from the {kind} {ids[:20].tolist()}. {kept}. "
            'Lower train.lr, or use float32 (hardware.mixed_precision = "no"), in a new run (another --out).'
        )

    @cached_property
    def _plan_hash(self) -> str:
        digest = hashlib.blake2b(repr((self.settings, self.objective)).encode(), digest_size=8)
        digest.update(self.examples.content_key().encode())
        for update in self.updates:
            digest.update(np.ascontiguousarray(update).tobytes() + b"|")
        return digest.hexdigest()


def sides_of_lists(examples: Examples, read_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which reads of each prefix are its right and its wrong steps: right ones come first, and rows are filled up."""
    right_N, wrong_N = (
        torch.as_tensor((column != NO_STEP).sum(1), device=read_NK.device)[:, None]
        for column in (examples.chosen, examples.rejected)
    )
    at_K = torch.arange(read_NK.shape[1], device=read_NK.device)
    return at_K < right_N, (at_K >= right_N) & (at_K < right_N + wrong_N)


def dropout_seed(seed: tuple[int, ...], update: int, process: int) -> int:
    """The seed of an update's dropout. It is a formula, so checkpoints need no RNG state."""
    return int(np.random.SeedSequence((*seed, update, process)).generate_state(1, np.uint64)[0])


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers inside the block, and restore them afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

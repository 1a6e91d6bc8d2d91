"""The processes of a run: how they may be started, and what is said if one of them is lost."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prism_prm.backends.load_prm import init_prm
from prism_prm.config import to_toml
from prism_prm.console import progress, say, silent_unless
from prism_prm.curriculum import Binned, assign
from prism_prm.data.pair_examples import Examples, Split
from prism_prm.errors import ConfigError, DataError, PrismError
from prism_prm.files import write_text
from prism_prm.job import Job, refuse_changes, stoppable
from prism_prm.models.card import RUN_FILE, is_whole, read_run, set_threshold
from prism_prm.models.lower_cache import CacheSettings
from prism_prm.models.prm import PRM
from prism_prm.models.whole_trees import pair_cost
from prism_prm.store import ScoreStore, Share
from prism_prm.train.batches import RowLimits, batch_maker, too_long
from prism_prm.train.log import RunLog, check_reporters
from prism_prm.train.loop import TrainingRound
from prism_prm.train.margins import fill_cache, histogram, margins_of, score_examples, write_margins
from prism_prm.train.model import count, is_to_shard, prepare, release_memory, save_trained, spread
from prism_prm.train.recipe import Recipe, load_recipe
from prism_prm.train.validation import Validation, best_round

if TYPE_CHECKING:
    from accelerate import Accelerator

    from prism_prm.arrays import Floats
    from prism_prm.train.recipe import DataSettings


TRAIN = "train"
DATA = "data"


def data_folder(recipe: Recipe, run: Path) -> Path:
    """Where the run's trees and pairs are."""
    return Path(recipe.data.folder) if recipe.data.folder else run / DATA


def make_data(recipe: Recipe, job: Job) -> None:
    """Make the run's trees and pairs from the recipe's inputs, unless they were made from just these before."""
    from prism_prm.data.build_pairs import PairRecipe, build_pairs
    from prism_prm.data.reader import Reader
    from prism_prm.data.same_problem import Exclusions, Splits

    settings = recipe.data
    if settings.folder:
        return

    def make(folder: Path) -> None:
        reader = Reader(settings.inputs, format=settings.format, options=settings.read)
        exclusions = Exclusions.read(settings.exclude) if settings.exclude else None
        splits = Splits(settings.split, settings.pairs.seed)
        build_pairs(reader, folder, PairRecipe(settings.pairs, splits, exclusions))

    job.folder(DATA, make, settings=settings, files=_hashes(settings))


def check_inputs(recipe: Recipe, job: Job) -> None:
    """Refuse inputs that are not those which the run's data were made from; inputs that are gone are not others."""
    made_from = job.made_from(DATA)
    if recipe.data.folder or made_from is None:
        return
    before = made_from["files"]
    try:
        now = _hashes(recipe.data)
    except DataError:
        return
    if changed := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
        raise PrismError(
            f"{job.out}: {', '.join(changed)} changed since this run read it. Name another --out to train on it, or "
            "remove the folder to start again."
        )


def _hashes(settings: DataSettings) -> dict[str, str | None]:
    """The files and datasets that data are made from, and the hash of each; None for a dataset of the hub."""
    from prism_prm.data.inputs import find_sources

    return {source.name: source.sha256() for source in find_sources([*settings.inputs, *settings.exclude])}


def examples_that_fit(split: Split, recipe: Recipe, prm: PRM) -> tuple[Examples, np.ndarray, dict[str, int]]:
    """The examples to train on that fit the PRM's context, their kinds, and how many fit or do not."""
    examples = split.examples(recipe.objective.on)
    long = too_long(examples, prm.family, prm.context)
    if len(long) and recipe.train.on_too_long == "error":
        raise DataError(
            f"{len(long)} of {len(examples)} examples are longer than the model's context of {prm.context} tokens, "
            f'the first in tree {examples.tree[long[0]]}; set train.on_too_long = "skip" to leave them out.'
        )
    kept = np.setdiff1d(np.arange(len(examples)), long)
    kinds = split.kinds if examples.labels is None else np.full(len(examples), "labelled", dtype=object)
    return examples.take(kept), kinds[kept], {"fitting": len(kept), "too_long": len(long)}


def needs_margins(train: Examples, recipe: Recipe) -> bool:
    """Whether margins decide which pairs are trained when."""
    return train.labels is None and not recipe.curriculum.takes_all


def rounds_of(train: Examples, kinds: np.ndarray, recipe: Recipe, margins: Floats | None) -> Binned:
    """The rounds that margins give; without margins one round of everything."""
    everything = Binned((np.arange(len(train)),), {"all": len(train)}, {})
    binned = everything if margins is None else assign(margins, recipe.curriculum)
    return binned.mixed(kinds, recipe.lookahead_ratio, recipe.seed)


def check_launch(accelerator: Accelerator) -> None:
    """Refuse a launcher that shards the weights in its own way."""
    kind = str(accelerator.distributed_type.value)
    if any(name in kind.upper() for name in ("FSDP", "DEEPSPEED", "MEGATRON")):
        raise ConfigError(
            f"accelerate was started with {kind}. Launch without it (recipes/accelerate/gpus.yaml), and set "
            'hardware.sharding = "fsdp" in the recipe to shard the weights.'
        )


@contextlib.contextmanager
def noticing_losses() -> Iterator[None]:
    """An error that says so if another process ended in the middle of the work: killed, or with an error of its own."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):  # gloo has no class for it
            raise PrismError(
                "Another process of this run has ended, so this one cannot go on. If it gives no error of its own, it "
                "was killed, perhaps for lack of memory. Rerun the command, with any number of processes, to resume."
            ) from error
        raise


BASE = "0_base"
BEGUN = "begun.json"
"""What the first update was made from; without it nothing in the folder binds a later start."""
FREE = ("hardware.cache", "hardware.cache_gb", "hardware.sharding")
"""Settings that may change in a run: they change nothing that is learned."""


def train_prm(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    assignments: Sequence[str] = (),
    accelerator: Accelerator | None = None,
) -> dict[str, Any]:
    """Train a PRM: pairs, margins of the base PRM, curriculum rounds, validation, the best round.

    Repeat a stopped call to resume it.

    Args:
        recipe: a recipe, or the TOML file that holds one.
        out: the run's folder; every round writes a PRM folder in it.
        assignments: settings to override, as `--set` takes them: "train.lr=2e-6".
        accelerator: an `accelerate.Accelerator`; default: a new one, with the recipe's precision.

    Returns:
        The content of run.json: `rounds` with their validation, `best`, the path of the best trained round, and
        `beats_base`, whether that round is better than the base PRM (None without validation). `load_prm(out)` loads
        the best round.

    Raises:
        PrismError: a setting, an input or a model cannot be used; the message says what to change.

    Example:
        >>> run = train_prm("recipe.toml", "run", assignments=["train.epochs=1"])
        >>> list(run["rounds"])
        ['0_base', '1_all']
        >>> prm = load_prm("run")
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, assignments)
    elif assignments:
        raise ConfigError("assignments apply to a recipe file; change a Recipe object with dataclasses.replace")
    if accelerator is None:
        from accelerate import Accelerator

        accelerator = Accelerator(mixed_precision=recipe.hardware.mixed_precision)
    return TrainingRun(recipe, out, accelerator).go()


class TrainingRun:
    """One recipe in one folder; under `accelerate launch` every process has its own of the same."""

    def __init__(self, recipe: Recipe, folder: str | Path, accelerator: Accelerator) -> None:
        self.recipe = recipe
        self.folder = Path(folder)
        self.accelerator = accelerator
        self.main: bool = accelerator.is_main_process
        self.share = Share(accelerator.process_index, accelerator.num_processes, accelerator.wait_for_everyone)
        self.is_begun = False
        """Whether an earlier start made an update. If not, a stage is done again unless its result has the content that
        is wanted now; else results are taken as they are, and nothing that they were made from may change."""
        self.content: dict[str, str] = {}
        """What updates are made from: a hash per name."""
        self.log: RunLog | None = None
        """The log of the main process, while there is work to do."""

    def go(self) -> dict[str, Any]:
        """Do what is not done yet; gives the content of run.json, with the best round's path as seen from here."""
        check_reporters(self.recipe.report_to)
        check_launch(self.accelerator)
        with silent_unless(self.main), noticing_losses(), Job(self.folder, is_main=self.main) as self.job:
            self.is_begun = any((self.folder / name).exists() for name in (BEGUN, "log.jsonl", RUN_FILE))
            self._main_only(self._check_recipe)
            if self.is_begun:
                self._main_only(lambda: check_inputs(self.recipe, self.job))
            finished = read_run(self.folder)
            is_lost = finished is not None and not is_whole(self.folder / finished["best"])
            if finished is not None and is_lost:
                best = self.folder / finished["best"]
                say(f"{best}: the weights of the best round are missing; this round is trained again.")
            if finished is None or is_lost:
                with self._opened_log():
                    finished = self._stages()
            else:
                say(f"{self.folder} is already finished; nothing to do.")
        return {**finished, "best": str(self.folder / finished["best"])}

    def _stages(self) -> dict[str, Any]:
        """From data to the best round.

        Before the first update, existing results are reused by content, so that mistakes can be corrected; afterwards
        as they are, provided that what they were made from has not changed.
        """
        if not self.is_begun:
            self._main_only(lambda: make_data(self.recipe, self.job))
        data = data_folder(self.recipe, self.folder)
        place = self._base()
        base = self._load(place)
        validation = self._validation(data, base)
        split = Split.read(data, TRAIN)
        train, kinds = self._fitting(split, base)
        self.content = {
            "base PRM": base.model_hash(),
            "training data": train.content_key(),
            "validation data": validation.content_key() if validation else "",
        }
        self._check_content()
        results = {BASE: self._validated(BASE, base, validation)}
        binned = self._binned(train, kinds, base)
        del base
        names = self.recipe.curriculum.round_names()
        binned.refuse_empty(enumerate(names))
        for number, name in enumerate(names):
            if number and self.recipe.curriculum.rescore:
                binned = self._binned(train, kinds, self._load(place), name)
                binned.refuse_empty([(number, name)])
            place = self._round(number, name, train.take(binned.rounds[number]), place)
            results[name] = self._validated(name, place, validation)
        return self._finish(results)

    def _check_recipe(self) -> None:
        """Save the recipe, or compare it with the one that the folder belongs to."""
        path = self.folder / "recipe.toml"
        if self.is_begun and path.exists():
            refuse_changes(self.folder, asdict(load_recipe(path)), asdict(self.recipe), free=FREE)
        else:
            write_text(path, to_toml(self.recipe))

    def _check_content(self) -> None:
        """Refuse to resume from other content than the first update was made from."""
        path = self.folder / BEGUN
        if not path.exists():
            return
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise PrismError(
                f"{path}: not what `prism train` writes there ({error}). Name another --out, or remove the folder."
            ) from None
        if changed := [name for name, key in self.content.items() if before.get(name) != key]:
            raise PrismError(
                f"{self.folder}: the {' and the '.join(changed)} changed since its first update, so it cannot be "
                f"resumed. Name another --out, or remove the folder to start again."
            )

    # --- the stages, in order ---

    def _base(self) -> Path | str:
        """Where the PRM to start from is; a fresh one is made and saved."""
        settings = self.recipe.base
        if settings.prm:
            return settings.prm
        folder = self.folder / "base"

        def make() -> None:
            assert settings.backbone
            family, dtype, seed = settings.family or "qwen", self.recipe.hardware.dtype, self.recipe.seed
            fresh = init_prm(
                settings.backbone, family=family, settings=settings.settings, dtype=dtype, device="cpu", seed=seed,
                layers=settings.layers,
            )  # fmt: skip
            fresh.save(folder)

        if not self._is_done(folder):
            self._main_only(make)
        return folder

    def _validation(self, data: Path, prm: PRM) -> Validation | None:
        settings = self.recipe.validation
        if not settings.split:
            return None
        validation = Validation.of(Split.read(data, settings.split), prm, settings)
        say(validation.described())
        return validation

    def _fitting(self, split: Split, prm: PRM) -> tuple[Examples, np.ndarray]:
        """The examples to train on, and their kinds."""
        kept, kinds, self.examples = examples_that_fit(split, self.recipe, prm)
        left_out = self.examples["too_long"]
        say(f"{len(kept)} examples of {len(split.trees)} trees to train on; {left_out} left out as too long")
        return kept, kinds

    def _binned(self, train: Examples, kinds: np.ndarray, prm: PRM, name: str = "") -> Binned:
        """Margins, and the rounds they give; one round of everything where no margin is asked for."""
        recipe = self.recipe
        if not needs_margins(train, recipe):
            return rounds_of(train, kinds, recipe, None)
        stem = f"margins-{name}" if name else "margins"
        path = self.folder / f"{stem}.parquet"
        with progress("margins", len(np.unique(train.tree))) as advance:
            log_odds_N2 = score_examples(self._store(prm), train, share=self.share, advance=advance)
        self._main_only(lambda: write_margins(path, train, log_odds_N2, prm.model_hash()))
        margins = margins_of(log_odds_N2)
        binned = rounds_of(train, kinds, recipe, margins)
        facts = {"pairs": len(train), "bins": binned.bin_sizes, "dropped": binned.dropped}
        facts |= {"rounds": [len(indices) for indices in binned.rounds], "histogram": histogram(margins, kinds)}
        self._main_only(lambda: write_text(self.folder / f"{stem}.json", json.dumps(facts, indent=2) + "\n"))
        say(f"margins: bins {binned.bin_sizes}, dropped {binned.dropped}")
        return binned

    def _round(self, number: int, name: str, examples: Examples, start: Path | str) -> Path:
        """Train one round from the PRM at `start`; gives its folder."""
        folder = self.folder / "rounds" / name
        if self._is_done(folder):
            return folder
        recipe = self.recipe
        # What was measured of weights that are gone says nothing of those that follow.
        self._main_only(lambda: folder.with_name(f"{name}.json").unlink(missing_ok=True))
        if recipe.hardware.cache:
            self._fill_cache(name, examples, start)
        # What is sharded need not fit the device as a whole: its layers are moved there one by one.
        prm = self._load(start, device="cpu" if is_to_shard(recipe.hardware, self.accelerator) else None)
        model = prepare(prm.module, recipe.hardware, recipe.seed)
        trained, total = count(model)
        spread(model, recipe.hardware, self.accelerator)
        work = TrainingRound(
            name,
            model,
            prm.family,
            batch_maker(prm.module, recipe.train.microbatch_tokens, prm.cache),
            RowLimits(recipe.train.row_tokens, pair_cost(prm.module)),
            examples,
            recipe.objective,
            recipe.train,
            (recipe.seed, number),
            self.folder / "checkpoints" / name,
        )
        say(
            f"round {name}: {len(examples)} examples in {len(work.updates)} updates, "
            f"{trained:,} of {total:,} parameters trained, processes: {self.share.world}"
        )
        if note := work.broken_limit():
            say(f"round {name}: {note}")
        with self._logged(work), stoppable(work.resumed):
            work.run(self.accelerator)
        if prm.cache is not None:
            prm.cache.flush()
        save_trained(prm, model, folder, self.accelerator, recipe)
        self._main_only(lambda: shutil.rmtree(self.folder / "checkpoints", ignore_errors=True))
        self.accelerator.free_memory()
        release_memory()
        return folder

    def _fill_cache(self, name: str, examples: Examples, start: Path | str) -> None:
        """What the frozen layers make of a round's examples, all candidates of a tree in one pass."""
        with progress(f"frozen layers, round {name}", len(examples)) as advance:
            fill_cache(self._load(start), examples, share=self.share, advance=advance)

    @contextlib.contextmanager
    def _opened_log(self) -> Iterator[None]:
        """The run's log, on the main process."""
        if not self.main:
            yield
            return
        with contextlib.closing(RunLog(self.folder, self.recipe.report_to, asdict(self.recipe))) as self.log:
            yield
        self.log = None

    @contextlib.contextmanager
    def _logged(self, work: TrainingRound) -> Iterator[None]:
        """A progress bar and the run's log, on the main process."""
        with progress(f"round {work.name}", len(work.updates)) as advance:
            if (log := self.log) is not None:

                def on_resume(done: int) -> None:
                    if done:
                        say(f"Resuming round {work.name} from update {done:,} of {len(work.updates):,}")
                    log.resume(work.name, done)
                    advance(done)

                def on_update(line: dict[str, Any]) -> None:
                    if not (self.folder / BEGUN).exists():  # from now on the folder belongs to this recipe
                        write_text(self.folder / BEGUN, json.dumps(self.content, indent=2) + "\n")
                    log.update(line)
                    advance(1)

                work.on_resume, work.on_update = on_resume, on_update
            yield

    def _validated(self, name: str, place: PRM | Path, data: Validation | None) -> dict[str, Any]:
        """The metrics of a round; the threshold they give goes into its PRM folder."""
        path = self.folder / "rounds" / f"{name}.json"
        if not self._is_done(path):
            result: dict[str, Any] = {}
            if data is not None:
                store = self._store(place if isinstance(place, PRM) else self._load(place))
                with progress(f"validating {name}", data.num_trees) as advance:
                    result = data.measure(store, self.recipe.validation, self.share, advance)

            def note() -> None:
                if isinstance(place, Path) and "threshold" in result:
                    set_threshold(place, result["threshold"])
                write_text(path, json.dumps(result, indent=2) + "\n")
                if self.log is not None:
                    self.log.validated(result)

            self._main_only(note)
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def _finish(self, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Mark the best round, and the run as done."""
        trained = {name: result for name, result in results.items() if name != BASE}
        settings = self.recipe.validation
        best = best_round(trained, settings.criterion) if settings.split else list(trained)[-1]
        finished = {
            "best": f"rounds/{best}",  # seen from the folder, which may be moved
            "criterion": settings.criterion if settings.split else "last round",
            "beats_base": best_round({BASE: results[BASE], best: results[best]}, settings.criterion) == best
            if settings.split
            else None,
            "examples": self.examples,
            "rounds": results,
        }
        self._main_only(lambda: write_text(self.folder / "run.json", json.dumps(finished, indent=2) + "\n"))
        return finished

    # --- what the stages share ---

    def _load(self, place: Path | str, device: str | None = None) -> PRM:
        hardware = self.recipe.hardware
        kept = CacheSettings(hardware.cache, hardware.frozen_layers, hardware.cache_gb) if hardware.cache else None
        return PRM.from_pretrained(
            place, family=self.recipe.base.family, dtype=hardware.dtype, device=device or self.accelerator.device,
            attn=hardware.attn, token_budget=hardware.score_tokens, cache=kept,
        )  # fmt: skip

    def _store(self, prm: PRM) -> ScoreStore:
        """The run's scores: what was scored before a stop is not scored again."""
        return ScoreStore(self.folder / "scores", prm)

    def _is_done(self, path: Path) -> bool:
        """Whether a stage is done; all processes check before any continues and makes it."""
        found = self.is_begun and (path.exists() if path.suffix == ".json" else is_whole(path))
        self.accelerator.wait_for_everyone()
        return found

    def _main_only(self, work: Callable[[], object]) -> None:
        """Work of the main process, for which the others wait."""
        if self.main:
            work()
        self.accelerator.wait_for_everyone()

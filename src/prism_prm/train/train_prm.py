"""`train_prm`: train a PRM from a recipe. `prism train` calls it."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prism_prm.arrays import Floats, Ints
from prism_prm.backends.load_prm import init_prm
from prism_prm.backends.rivals import ImplicitPRM
from prism_prm.config import to_toml
from prism_prm.console import progress, say, silent_unless
from prism_prm.curriculum import Binned, assign
from prism_prm.data.build_pairs import PairRecipe, build_pairs
from prism_prm.data.inputs import find_sources
from prism_prm.data.pair_examples import Examples, Split
from prism_prm.data.reader import Reader
from prism_prm.data.same_problem import Exclusions, Splits
from prism_prm.errors import ConfigError, DataError, PrismError
from prism_prm.file_types import read_json
from prism_prm.files import write_text
from prism_prm.job import Job, refuse_changes, stoppable
from prism_prm.models.card import RUN_FILE, has_weights, read_run, set_threshold
from prism_prm.models.lower_cache import CacheSettings
from prism_prm.models.prm import PRM, pair_cost
from prism_prm.scorer import Scorer
from prism_prm.store import ScoreStore, Share
from prism_prm.train.batches import KeptReads, RowLimits, batch_maker, in_windows, too_long
from prism_prm.train.log import RunLog, check_reporters
from prism_prm.train.loop import TrainingRound
from prism_prm.train.margins import fill_cache, histogram, margins_of, score_examples, write_margins
from prism_prm.train.model import count_parameters, needs_sharding, prepare, save_trained, shard
from prism_prm.train.recipe import DataSettings, Recipe, load_recipe
from prism_prm.train.validation import Validation, best_round

if TYPE_CHECKING:
    from accelerate import Accelerator


TRAIN, DATA, BASE = "train", "data", "0_base"
BEGUN = "begun.json"
"""Written at the first update, with hashes of the inputs. Without it, the recipe may still change."""
FREE = ("hardware.cache", "hardware.cache_gb", "hardware.sharding")
"""Settings that may change when a run resumes: they do not affect what is learned."""


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
    check_reporters(recipe.report_to)
    check_launch(accelerator)
    folder, is_main = Path(out), accelerator.is_main_process
    with (
        silent_unless(is_main),
        lost_process_error(),
        Job(folder, is_main=is_main) as job,
        contextlib.ExitStack() as stack,
    ):
        run = _Stages(recipe, folder, accelerator)

        # Before the first update, the recipe may change, and stages are redone if their inputs changed. Afterwards the
        # run resumes as it is, and changed settings or inputs are refused.
        if is_main:
            saved = folder / "recipe.toml"
            if run.is_begun and saved.exists():
                before = load_recipe(saved)
                kept = {"hardware.cache"} if before.hardware.rounds_states != recipe.hardware.rounds_states else set()
                refuse_changes(folder, asdict(before), asdict(recipe), free={*FREE} - kept)
            else:
                write_text(saved, to_toml(recipe))
            if run.is_begun:
                check_inputs(recipe, job)
        accelerator.wait_for_everyone()
        finished = read_run(folder)
        if finished is not None:
            best = folder / finished["best"]
            if has_weights(best):
                say(f"{folder} is already finished; nothing to do.")
                return {**finished, "best": str(best)}
            say(f"{best}: the weights of the best round are missing; the round is trained again.")

        # The data and the base PRM.
        if is_main:
            run.log = stack.enter_context(contextlib.closing(RunLog(folder, recipe.report_to, asdict(recipe))))
            if not run.is_begun:
                make_data(recipe, job)
        accelerator.wait_for_everyone()
        place: Path | str = recipe.base.prm or folder / "base"
        if isinstance(place, Path) and not run.is_done(place):
            if is_main:
                assert recipe.base.backbone
                family, settings = recipe.new_layout
                init_prm(
                    recipe.base.backbone, family=family, settings=settings,
                    dtype=recipe.hardware.dtype, device="cpu", seed=recipe.seed, layers=recipe.base.layers,
                ).save(place)  # fmt: skip
            accelerator.wait_for_everyone()
        base = run.load(place)
        data = data_folder(recipe, folder)
        if recipe.validation.split:
            run.validation = Validation.of(Split.read(data, recipe.validation.split), base, recipe.validation)
            say(run.validation.describe())
        split = Split.read(data, TRAIN)
        train, kinds, examples = examples_that_fit(split, recipe, base)
        windows = f"; {examples['in_windows']} in windows" if "in_windows" in examples else ""
        too_many = f"{examples['too_long']} too long, skipped"
        say(f"{len(train)} examples of {len(split.trees)} trees to train on{windows}; {too_many}")
        run.content = {
            "base PRM": base.model_hash(),
            "training data": train.content_key(),
            "validation data": run.validation.content_key() if run.validation else "",
        }
        run.refuse_changed_content()
        if recipe.hardware.cache:  # frozen layers compute the same in every round
            held_out = (run.validation.steps, run.validation.pairs) if run.validation else ()
            fill_cache(base, train, *held_out, share=run.share)
        if recipe.objective.name == "implicit":
            run.reference = base
            with progress("reference", len(train)) as advance:
                store = ScoreStore(run.scores, base)
                run.reference_N = score_examples(store, train, share=run.share, advance=advance)[:, 0]

        # The margins of the base PRM sort the pairs into rounds; every round starts from the PRM of the one before.
        results = {BASE: run.validate(BASE, base)}
        if run.validation:
            best_round(results, recipe.validation.criterion)  # raises before hours of training
        binned = run.sort_into_rounds(train, kinds, base)
        del base
        names = recipe.curriculum.round_names()
        binned.refuse_empty(enumerate(names))
        for number, name in enumerate(names):
            if number and recipe.curriculum.rescore:
                binned = run.sort_into_rounds(train, kinds, run.load(place), f"-{name}")
                binned.refuse_empty([(number, name)])
            start, place = place, folder / "rounds" / name
            if not run.is_done(place):
                num_updates = recipe.train.updates_of_rounds([len(indices) for indices in binned.rounds])[number]
                run.train_round(number, name, train, binned.rounds[number], num_updates, start, place)
            results[name] = run.validate(name, place)

        # The best round.
        best_name, beats_base, criterion = names[-1], None, "last round"
        if recipe.validation.split:
            criterion = recipe.validation.criterion
            best_name = best_round({name: results[name] for name in names}, criterion)
            beats_base = best_round({BASE: results[BASE], best_name: results[best_name]}, criterion) == best_name
        finished = {
            "best": f"rounds/{best_name}",  # relative, so that the folder can be moved
            "criterion": criterion,
            "beats_base": beats_base,
            "examples": examples,
            "rounds": results,
        }
        if is_main:
            write_text(folder / RUN_FILE, json.dumps(finished, indent=2) + "\n")
        accelerator.wait_for_everyone()
    return {**finished, "best": str(folder / finished["best"])}


class _Stages:
    """The stages of a run and their shared state. Under `accelerate launch`, every process has its own instance."""

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Accelerator) -> None:
        self.recipe, self.folder, self.accelerator = recipe, folder, accelerator
        self.scores = folder / ("scores-bf16" if recipe.hardware.rounds_states else "scores")
        """The score store. Scores from states in 16 bits are kept apart from those in full precision."""
        self.log: RunLog | None = None
        """Only on the main process."""
        self.is_main: bool = accelerator.is_main_process
        self.share = Share(accelerator.process_index, accelerator.num_processes, accelerator.wait_for_everyone)
        self.is_begun = any((folder / name).exists() for name in (BEGUN, "log.jsonl", RUN_FILE))
        """Whether the run made an update before."""
        self.validation: Validation | None = None
        self.reference: PRM | None = None
        """The reference of an implicit PRM."""
        self.reference_N: Floats | None = None
        """The log-likelihood of each example by the reference."""
        self.content: dict[str, str] = {}
        """The hashes of the data and the base PRM."""

    def load(self, place: Path | str, device: str | None = None) -> PRM:
        hardware = self.recipe.hardware
        bf16, cache = hardware.mixed_precision == "bf16", None
        if hardware.cache:
            cache = CacheSettings(hardware.cache, hardware.frozen_layers, hardware.cache_gb, bf16)
        prm = PRM.from_pretrained(
            place, family=self.recipe.base.family, dtype=hardware.dtype, device=device or self.accelerator.device,
            attn=hardware.attn, token_budget=hardware.score_tokens, cache=cache,
        )  # fmt: skip
        prm.card = prm.card.uncalibrated()  # training changes the weights, and judges by the model's own scores
        return prm

    def is_done(self, path: Path) -> bool:
        """Whether a stage is done. All processes check before any of them starts it."""
        is_done = self.is_begun and (path.exists() if path.suffix == ".json" else has_weights(path))
        self.accelerator.wait_for_everyone()
        return is_done

    def refuse_changed_content(self) -> None:
        """Raise if the data or the base PRM changed since the first update."""
        path = self.folder / BEGUN
        if not path.exists():
            return
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise PrismError(
                f"{path}: not written by `prism train`, or damaged ({error}). Name another --out, or remove the folder."
            ) from None
        if changed := [name for name, key in self.content.items() if before.get(name) != key]:
            raise PrismError(
                f"{self.folder}: the {' and the '.join(changed)} changed since its first update, so it cannot resume. "
                "Name another --out, or remove the folder to start over."
            )

    def sort_into_rounds(self, train: Examples, kinds: np.ndarray, prm: PRM, suffix: str = "") -> Binned:
        """Score the margins and sort the pairs by them. Without a curriculum, one round has all pairs."""
        if not needs_margins(train, self.recipe):
            return rounds_of(train, kinds, self.recipe, None)
        with progress("margins", len(np.unique(train.tree))) as advance:
            log_odds_N2 = score_examples(ScoreStore(self.scores, prm), train, share=self.share, advance=advance)
        margins = margins_of(log_odds_N2)
        binned = rounds_of(train, kinds, self.recipe, margins)
        if self.is_main:
            write_margins(self.folder / f"margins{suffix}.parquet", train, log_odds_N2, prm.model_hash())
            facts = {
                "pairs": len(train), "bins": binned.bin_sizes, "dropped": binned.dropped,
                "rounds": [len(indices) for indices in binned.rounds], "histogram": histogram(margins, kinds),
            }  # fmt: skip
            write_text(self.folder / f"margins{suffix}.json", json.dumps(facts, indent=2) + "\n")
        self.accelerator.wait_for_everyone()
        say(f"margins: bins {binned.bin_sizes}, dropped {binned.dropped}")
        return binned

    def train_round(
        self, number: int, name: str, train: Examples, chosen: Ints, num_updates: int | None, start: Path | str,
        folder: Path,
    ) -> None:  # fmt: skip
        """Train one round from the PRM at `start` on the chosen examples, and save its PRM."""
        from accelerate.utils import gather_object

        examples = train.take(chosen)
        reference_N = None if self.reference_N is None else self.reference_N[chosen]
        recipe, hardware, accelerator = self.recipe, self.recipe.hardware, self.accelerator
        if self.is_main:  # its metrics belong to weights that are gone
            folder.with_name(f"{name}.json").unlink(missing_ok=True)
        accelerator.wait_for_everyone()
        # A model that will be sharded need not fit on one device: its layers are moved there one by one.
        prm = self.load(start, device="cpu" if needs_sharding(hardware, accelerator) else None)
        model = prepare(prm.module, hardware, recipe.seed)
        trained, total = count_parameters(model)
        shard(model, hardware, accelerator)
        work = TrainingRound(
            name, model, prm.family, batch_maker(prm.module, recipe.train.microbatch_tokens, prm.cache),
            RowLimits(recipe.train.row_tokens, pair_cost(prm.module)), examples, recipe.objective, recipe.train,
            (recipe.seed, number), self.folder / "checkpoints" / name, num_updates, reference_N,
        )  # fmt: skip
        if prm.cache is not None:
            kept = KeptReads.of(prm.cache, work.examples, prm.family, work.limits)
            if all(gather_object([kept is not None])):  # processes that divide an update differently train wrongly
                work.kept_reads = kept
        say(
            f"round {name}: {len(work.examples)} examples in {len(work.updates)} updates, "
            f"{trained:,} of {total:,} parameters trained, processes: {self.share.world}"
        )
        if note := work.describe_exceeded_limit():
            say(f"round {name}: {note}")
        with progress(f"round {name}", len(work.updates)) as advance, stoppable(work.resume_point):

            def on_resume(done: int) -> None:
                if done:
                    say(f"Resuming round {name} from update {done:,} of {len(work.updates):,}")
                if self.log is not None:
                    self.log.resume(name, done)
                advance(done)

            def on_update(line: dict[str, Any]) -> None:
                if not (self.folder / BEGUN).exists():  # from now on the recipe is fixed
                    write_text(self.folder / BEGUN, json.dumps(self.content, indent=2) + "\n")
                assert self.log is not None, "called on the main process"
                self.log.update(line)
                advance(1)

            work.on_resume, work.on_update = on_resume, on_update
            work.run(accelerator)
        if prm.cache is not None:
            prm.cache.flush()
        if (segmenter := data_segmenter(data_folder(recipe, self.folder))) is not None:
            prm.card = replace(prm.card, segmenter=segmenter)
        save_trained(prm, model, folder, accelerator, recipe)
        if self.is_main:
            shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        accelerator.wait_for_everyone()
        accelerator.free_memory()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def validate(self, name: str, place: PRM | Path) -> dict[str, Any]:
        """Measure a round, and write its threshold into its PRM folder."""
        path = self.folder / "rounds" / f"{name}.json"
        if not self.is_done(path):
            result: dict[str, Any] = {}
            if self.validation is not None:
                scorer: Scorer = place if isinstance(place, PRM) else self.load(place)
                if isinstance(scorer, PRM) and self.reference is not None:
                    scorer = ImplicitPRM(scorer, self.reference)
                store = ScoreStore(self.scores, scorer)
                with progress(f"validating {name}", self.validation.num_trees) as advance:
                    result = self.validation.measure(store, self.recipe.validation, self.share, advance)
            if self.log is not None:
                if isinstance(place, Path) and "threshold" in result:
                    set_threshold(place, result["threshold"])
                write_text(path, json.dumps(result, indent=2) + "\n")
                self.log.validation(result)
            self.accelerator.wait_for_everyone()
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return saved


def data_folder(recipe: Recipe, run: Path) -> Path:
    return Path(recipe.data.folder) if recipe.data.folder else run / DATA


def data_segmenter(data: Path) -> str | None:
    """How the data's solutions were cut into steps; None if not known, by the rule of all texts, or by several."""
    path = data / "summary.json"
    if not path.exists():
        return None
    summary = read_json(path)
    chosen: str | None = summary["settings"].get("segmenter")
    return chosen or ("code" if [*summary["records"]["formats"]] == ["bug-fixes"] else None)


def make_data(recipe: Recipe, job: Job) -> None:
    """Make the run's trees and pairs from the recipe's inputs, unless they exist and the inputs have not changed."""
    settings = recipe.data
    if settings.folder:
        return

    def make(folder: Path) -> None:
        reader = Reader(settings.inputs, format=settings.format, options=settings.read)
        exclusions = Exclusions.read(settings.exclude) if settings.exclude else None
        splits = Splits(settings.split, settings.pairs.seed)
        build_pairs(reader, folder, PairRecipe(settings.pairs, splits, exclusions))

    job.folder(DATA, make, settings=settings, files=_hash_inputs(settings))


def check_inputs(recipe: Recipe, job: Job) -> None:
    """Raise if inputs changed since the run's data were made from them. Inputs may be removed."""
    made_from = job.made_from(DATA)
    if recipe.data.folder or made_from is None:
        return
    before = made_from["files"]
    try:
        now = _hash_inputs(recipe.data)
    except DataError:
        return
    if changed := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
        raise PrismError(
            f"{job.out}: {', '.join(changed)} changed since this run read it. Name another --out to train on it, or "
            "remove the folder to start over."
        )


def _hash_inputs(settings: DataSettings) -> dict[str, str | None]:
    """The hash of each input file; None for a hub dataset."""
    return {source.name: source.sha256() for source in find_sources([*settings.inputs, *settings.exclude])}


def examples_that_fit(split: Split, recipe: Recipe, prm: PRM) -> tuple[Examples, np.ndarray, dict[str, int]]:
    """The examples that fit the PRM's context, their kinds, and the counts of those that do and do not."""
    examples = split.examples(recipe.objective.examples)
    long = too_long(examples, prm.family, prm.context)
    if len(long) and recipe.train.on_too_long == "error":
        raise DataError(
            f"{len(long)} of {len(examples)} examples are longer than the model's context of {prm.context} tokens, "
            f'the first in tree {examples.tree[long[0]]}; set train.on_too_long = "window" to read them after the last '
            'steps that fit, or "skip" to skip them.'
        )
    num_windows = 0
    if len(long) and recipe.train.on_too_long == "window":
        num_long = len(long)
        examples, long = in_windows(examples, long, prm.family, prm.context)
        num_windows = num_long - len(long)
    kept = np.setdiff1d(np.arange(len(examples)), long)
    kinds = split.kinds if examples.labels is None else np.full(len(examples), "labeled", dtype=object)
    counts = {"fitting": len(kept), "too_long": len(long)} | ({"in_windows": num_windows} if num_windows else {})
    return examples.take(kept), kinds[kept], counts


def needs_margins(train: Examples, recipe: Recipe) -> bool:
    """Whether the curriculum sorts pairs by their margins."""
    return train.labels is None and not recipe.curriculum.takes_all


def rounds_of(train: Examples, kinds: np.ndarray, recipe: Recipe, margins: Floats | None) -> Binned:
    """Sort the examples into rounds by their margins; without margins, one round has all of them."""
    everything = Binned((np.arange(len(train)),), {"all": len(train)}, {})
    binned = everything if margins is None else assign(margins, recipe.curriculum)
    return binned.mixed(kinds, recipe.lookahead_ratio, recipe.seed)


def check_launch(accelerator: Accelerator) -> None:
    """Raise if the launcher shards the weights itself."""
    kind = str(accelerator.distributed_type.value)
    if any(name in kind.upper() for name in ("FSDP", "DEEPSPEED", "MEGATRON")):
        raise ConfigError(
            f"accelerate was started with {kind}. Launch without it (recipes/accelerate/gpus.yaml), and set "
            'hardware.sharding = "fsdp" in the recipe to shard the weights.'
        )


@contextlib.contextmanager
def lost_process_error() -> Iterator[None]:
    """Raise a clear error if another process of the run died."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):  # gloo has no class for it
            raise PrismError(
                "Another process of this run has died, so this one cannot continue. If it printed no error, it was "
                "killed, perhaps because memory ran out. Rerun the command, with any number of processes, to resume."
            ) from error
        raise

"""`PRM`: a process reward model to score with, train, and save."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from prism_prm.aggregate import check_aggregator, solution_score
from prism_prm.errors import DataError, ModelError, first_sentence
from prism_prm.packing import EncodedTree, Row, describe, encode_tree, pack
from prism_prm.prms.base import Family
from prism_prm.prms.card import Card, model_card
from prism_prm.prms.folder import save_folder
from prism_prm.prms.module import PrmModule
from prism_prm.records import StepTree
from prism_prm.scorer.lower_cache import CacheSettings, LowerCache
from prism_prm.scorer.model_hash import hash_model
from prism_prm.scorer.protocol import Solution, as_trees
from prism_prm.scorer.results import TreeScores
from prism_prm.scorer.run import pair_cost, run_rows
from prism_prm.scorer.settings import OnTooLong
from prism_prm.scorer.too_long import PackItem, check_choice, fit

if TYPE_CHECKING:
    from prism_prm.scorer.session import Session

log = logging.getLogger(__name__)

TREES_AT_ONCE = 512
"""Trees are laid out and sorted by length within portions of this many, so that memory stays bounded."""


class PRM:
    """A PRM: its differentiable module, its family's layout, and how to score with them.

    `load_prm` and `PRM.from_pretrained` read one, `init_prm` makes one.
    """

    def __init__(
        self,
        module: PrmModule,
        family: Family,
        card: Card,
        *,
        token_budget: int | None = None,
        context: int | None = None,
        on_too_long: OnTooLong = "error",
        cache: CacheSettings | None = None,
    ) -> None:
        check_choice(on_too_long)
        self.module = module
        self.cache = LowerCache(module, cache) if cache else None
        """What the frozen lower layers make of texts, where that is kept."""
        self.family = family
        self.card = card
        self.token_budget = token_budget or (8192 if module.device.type == "cpu" else 16384)
        """Tokens of one forward pass, padding included."""
        self.context: int = context or module.config.max_position_embeddings
        """The longest path that is scored."""
        self.on_too_long: OnTooLong = on_too_long

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> PRM:
        """A PRM from a folder or a hub id.

        Args:
            name: folder or hub id of a PRM, of a LoRA adapter of one, or of a `prism train` run.
            options: those of `load_prm`.

        Example:
            >>> prm = PRM.from_pretrained("my-prm", context=512)
            >>> prm.outputs
            ('correct',)
        """
        from prism_prm.scorer.load import load_prm

        return load_prm(name, **options)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the log-odds; the first is that the step is right."""
        return self.family.outputs

    @property
    def tokenizer(self) -> Any:
        return self.family.text.tokenizer

    def encode_tree(self, tree: StepTree) -> EncodedTree:
        """The tree's token ids; cheap, and independent of the weights."""
        return encode_tree(tree, self.family)

    def score(self, problem: str, steps: Sequence[str]) -> list[float]:
        """P(the step is right) for each step of one solution.

        Args:
            problem: the problem's text.
            steps: the texts of the steps, in order; `split_steps` cuts a whole solution into them.

        Example:
            >>> prm = load_prm("my-prm")
            >>> [0 <= score <= 1 for score in prm.score("What is 2 + 3 * 4?", ["3 * 4 = 12.", "2 + 12 = 15."])]
            [True, True]
        """
        return self.score_many([(problem, steps)])[0]

    def score_many(self, solutions: Sequence[Solution], *, progress: bool = False) -> list[list[float]]:
        """P(right) for each step of each solution, in the order given; batched by length.

        Args:
            solutions: each (problem, steps), {"problem": …, "steps": […]} or a `StepTree`.
            progress: show a bar on standard error.

        Example:
            >>> prm = load_prm("my-prm")
            >>> found = prm.score_many([("1 + 2?", ["1 + 2 = 3"]), {"problem": "2?", "steps": ["It is", "2"]}])
            >>> [len(scores) for scores in found]
            [1, 2]
        """
        return [scores.probability.tolist() for scores in self.score_trees(as_trees(solutions), progress=progress)]

    def solution_score(self, problem: str, steps: Sequence[str]) -> float:
        """One score of a whole solution: its steps' scores put together as the PRM's card says (`card.aggregator`).

        Args:
            problem: the problem's text.
            steps: the texts of the steps, in order.

        Example:
            >>> prm = load_prm("my-prm")
            >>> prm.card.aggregator
            'product'
            >>> 0 < prm.solution_score("1 + 2?", ["Add.", "3"]) < min(prm.score("1 + 2?", ["Add.", "3"]))
            True
        """
        return solution_score(self.score(problem, steps), self.card.aggregator)

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Callable[[int], None] | None = None,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, or of the wanted ones only.

        Args:
            trees: problems with their trees of steps.
            wanted: for each tree the nodes to score; default: all.
            progress: show a bar on standard error.
            advance: is called with how many more trees are done.

        Example:
            >>> prm = load_prm("my-prm")
            >>> [found] = prm.score_trees([StepTree.chain("1 + 2?", ["Add.", "3"])], wanted=[[1]])
            >>> found.scored, found.outputs
            ([1], ('correct',))
        """
        results: list[TreeScores] = []
        with _bar(len(trees), progress) as bar, self.scoring():
            for start in range(0, len(trees), TREES_AT_ONCE):
                some = trees[start : start + TREES_AT_ONCE]
                nodes = (
                    [range(len(tree.nodes)) for tree in some] if wanted is None else wanted[start : start + len(some)]
                )
                results += self._score_portion(some, nodes)
                bar(len(some))
                if advance is not None:
                    advance(len(some))
        return results

    def fill_cache(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> None:
        """Keep what scoring or training on these nodes will ask of the lower layers."""
        assert self.cache is not None, "a PRM is loaded with a cache or without"
        items = [
            item
            for i, (tree, nodes) in enumerate(zip(trees, wanted, strict=True))
            for item in fit(tree, i, nodes, self.family, self.context, self.on_too_long)[0]
        ]
        with self.scoring():
            self.cache.fill(self._rows(items), self.token_budget)

    def _rows(self, items: Sequence[PackItem]) -> list[Row]:
        trees, groups = [item.tree for item in items], [item.groups for item in items]
        return pack(trees, self.token_budget, groups, pair_cost=pair_cost(self.module))

    def _score_portion(self, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]]) -> list[TreeScores]:
        items: list[PackItem] = []
        too_long: list[tuple[int, ...]] = []
        for i, (tree, wanted) in enumerate(zip(trees, nodes, strict=True)):
            fitting, long = fit(tree, i, wanted, self.family, self.context, self.on_too_long)
            items += fitting
            too_long.append(tuple(long))
        if any(too_long):
            done = "left unscored" if self.on_too_long == "skip" else "scored without their earliest steps"
            first = next(describe(tree, long[0]) for tree, long in zip(trees, too_long, strict=True) if long)
            log.warning(
                "%d steps exceed the context of %d tokens: %s; the first: %s",
                sum(map(len, too_long)), self.context, done, first,
            )  # fmt: skip

        def owner(item: int, node: int) -> tuple[int, int]:
            stands_for = items[item].is_node
            return items[item].index, node if stands_for is None else stands_for

        def named(item: int, node: int) -> str:
            index, node = owner(item, node)
            return describe(trees[index], node)

        rows = self._rows(items)
        scores = [np.full((len(tree.nodes), len(self.outputs)), np.nan) for tree in trees]
        for owners, log_odds_RO in run_rows(self.module, rows, self.token_budget, named, self.cache):
            for (item, node), values in zip(owners, log_odds_RO.tolist(), strict=True):
                index, node = owner(item, node)
                scores[index][node] = values
        return [TreeScores(self.outputs, *found) for found in zip(scores, too_long, strict=True)]

    @contextlib.contextmanager
    def scoring(self) -> Iterator[None]:
        """No dropout while scoring, also between two updates of training."""
        training = [part for part in self.module.modules() if part.training]
        self.module.eval()
        try:
            yield
        finally:
            for part in training:  # one by one: frozen layers do not train beside those that do
                part.training = True

    def session(self, problems: Sequence[str]) -> Session:
        """Growing trees of steps, one per problem, that keep key/values: only new tokens go through the model.

        Args:
            problems: the texts of the problems; `roots` of the session stand for them, in order.

        Example:
            >>> prm = load_prm("my-prm")
            >>> with prm.session(["1 + 2?"]) as session:
            ...     [first] = session.extend([(session.roots[0], "Add.")])
            ...     second, other = session.extend([(first, "3"), (first, "4")])
            >>> second.steps(), other.steps()
            (['Add.', '3'], ['Add.', '4'])
        """
        if isinstance(problems, str):
            raise DataError("a session takes a list of problems; for one problem: session([problem])")
        from prism_prm.scorer.check_packing import check_session
        from prism_prm.scorer.session import Session

        check_session(self.module)
        return Session(self, problems)

    def model_hash(self) -> str:
        """A hash of all that decides scores: weights as loaded, config, tokenizer, family and its settings."""
        return hash_model(self.module, self.family)

    def save(
        self,
        folder: str | Path,
        *,
        state: Mapping[str, Tensor] | None = None,
        threshold: float | None = None,
        aggregator: str | None = None,
        readme: str | None = None,
    ) -> None:
        """Write the PRM's folder, whole or not at all: safetensors, config, tokenizer, card and README.

        Args:
            folder: where to; `load_prm` reads it.
            state: the weights, if they are spread over devices; default: the module's own.
            threshold: above it a step counts as right; default: as the card says.
            aggregator: how step scores make a solution's score; default: as the card says.
            readme: the text of README.md; default: a short one.

        Example:
            >>> prm = init_prm("my-lm")
            >>> prm.save_pretrained("new-prm", aggregator="mean")
            >>> load_prm("new-prm").card.aggregator
            'mean'
        """
        if aggregator is not None:
            check_aggregator(aggregator)
        card = replace(
            self.card,
            threshold=self.card.threshold if threshold is None else threshold,
            aggregator=self.card.aggregator if aggregator is None else aggregator,
        )
        save_folder(Path(folder), self.module, self.family, card, state, readme or model_card(card))
        self.card = card

    save_pretrained = save

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        message: str = "Upload a PRM",
        token: str | None = None,
        api: Any = None,
    ) -> str:
        """Put the PRM's folder on the Hugging Face hub; gives the address of the commit.

        Args:
            repo_id: "owner/name", or a name of your own; made if it is not there.
            private: make it private, where it is made.
            message: what the commit says.
            token: of the hub; default: the one that `hf auth login` left.
            api: a `huggingface_hub.HfApi` to use instead, with its own token.

        Example:
            >>> prm = load_prm("my-prm")
            >>> prm.push_to_hub("me/my-prm")  # doctest: +SKIP
            'https://huggingface.co/me/my-prm/commit/…'
        """
        import httpx
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError

        api = api or HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "prm")
            try:
                repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
                return str(api.upload_folder(repo_id=repo_id, folder_path=Path(folder) / "prm", commit_message=message))
            except (httpx.HTTPError, HFValidationError, OSError) as error:
                said = first_sentence(error)
                raise ModelError(f"{repo_id}: the hub did not take it ({said}); `hf auth login` logs in") from error

    def identity(self) -> str:
        """A hash of all that decides scores: the model, its context, and what becomes of longer paths."""
        said = repr((self.model_hash(), self.context, self.on_too_long))
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    def can_score(self, step: str, depth: int) -> bool:
        """Whether a step with so many before it has a place in the family's layout; one without a token has none."""
        try:
            self.family.step_ids(step, depth)
        except DataError:
            return False
        return True

    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens the tree is: the problem, and every step once."""
        encoded = self.encode_tree(tree)
        return len(encoded.prompt) + sum(map(len, encoded.ids))

    def memory_estimate(self) -> int:
        """Bytes that scoring takes at its peak, roughly: weights, and the activations and masks of one batch."""
        config = self.module.config
        weights = sum(p.numel() * p.element_size() for p in self.module.parameters())
        width = 8 * config.hidden_size + 3 * getattr(config, "intermediate_size", 4 * config.hidden_size)
        size = next(self.module.parameters()).element_size()
        mask = 5 * self.token_budget * min(self.token_budget, self.context) if self.module.attention == "sdpa" else 0
        return int(weights + self.token_budget * width * size + mask)


Prm = PRM
"""The name it had first."""


@contextlib.contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("scoring", total=total)
        yield lambda done: bar.advance(task, done)

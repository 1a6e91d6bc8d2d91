"""`PRM`: a process reward model to score with, train, and save."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from prism_prm.console import Advance, bar_on_stderr, ignore
from prism_prm.errors import ConfigError, DataError
from prism_prm.models.card import Card, model_card
from prism_prm.models.families.base import Family
from prism_prm.models.load_settings import OnTooLong
from prism_prm.models.lower_cache import CacheSettings, LowerCache
from prism_prm.models.module import PrmModule, hash_model
from prism_prm.models.packing import EncodedTree, encode_tree
from prism_prm.models.prm_folder import push_folder, save_folder
from prism_prm.models.whole_trees import check_choice, fit_all, rows_of, score_chunk
from prism_prm.scorer import Scorer, TreeScores
from prism_prm.tree import StepTree

if TYPE_CHECKING:
    from prism_prm.models.session import Session

TREES_AT_ONCE = 512
"""Trees are laid out and sorted by length within chunks of this many, so that memory stays bounded."""


class PRM(Scorer):
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
        """The cache of frozen-layer activations, or None."""
        self.family = family
        self.outputs = family.outputs
        self.card: Card = card
        self.token_budget = token_budget or (8192 if module.device.type == "cpu" else 16384)
        """Tokens of one forward pass, padding included."""
        self.context: int = context or module.config.max_position_embeddings
        """The longest path that is scored."""
        self.on_too_long: OnTooLong = on_too_long

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> PRM:
        """Load a PRM from a folder or a hub id.

        Args:
            name: folder or hub id of a PRM or a LoRA adapter, or the folder of a `prism train` run.
            options: those of `load_prm`.

        Example:
            >>> prm = PRM.from_pretrained("my-prm", context=512)
            >>> prm.outputs
            ('correct',)
        """
        from prism_prm import load_prm

        prm = load_prm(name, **options)
        if not isinstance(prm, PRM):
            raise ConfigError(f"{name}: a PRM behind a server has no weights here; open it with load_prm")
        return prm

    @property
    def tokenizer(self) -> Any:
        return self.family.text.tokenizer

    def encode_tree(self, tree: StepTree) -> EncodedTree:
        """The tree's token ids; cheap, and independent of the weights."""
        return encode_tree(tree, self.family)

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        """The scores of all nodes of each tree, or only of the wanted ones.

        Args:
            trees: problems with their trees of steps.
            wanted: for each tree the nodes to score; default: all.
            progress: show a progress bar on standard error.
            advance: called with the number of further trees that are done.

        Example:
            >>> prm = load_prm("my-prm")
            >>> [found] = prm.score_trees([StepTree.chain("1 + 2?", ["Add.", "3"])], wanted=[[1]])
            >>> found.scored, found.outputs
            ([1], ('correct',))
        """
        wanted = [range(len(tree.nodes)) for tree in trees] if wanted is None else wanted
        results: list[TreeScores] = []
        with bar_on_stderr("scoring", len(trees), shown=progress) as bar, self.module.scoring():
            for start in range(0, len(trees), TREES_AT_ONCE):
                some = slice(start, start + TREES_AT_ONCE)
                results += score_chunk(self, trees[some], wanted[some])
                bar(len(results) - start)
                advance(len(results) - start)
        return results

    def fill_cache(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> None:
        """Keep what scoring or training on these nodes will ask of the lower layers."""
        assert self.cache is not None, "a PRM is loaded with a cache or without"
        items, _ = fit_all(self, trees, wanted)
        with self.module.scoring():
            self.cache.fill(rows_of(self, items), self.token_budget)

    def session(self, problems: Sequence[str]) -> Session:
        """Open growing trees of steps, one per problem, with a KV cache: only new tokens go through the model.

        Args:
            problems: the texts of the problems; the session's `roots` are in the same order.

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
        from prism_prm.models.check_packing import check_session
        from prism_prm.models.session import Session

        check_session(self.module)
        return Session(self, problems)

    def model_hash(self) -> str:
        """A hash of the model: weights as loaded, config, tokenizer, family and its settings."""
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
        """Write the PRM's folder atomically: safetensors, config, tokenizer, card and README.

        `save` and `save_pretrained` are the same method.

        Args:
            folder: the folder to write, for `load_prm`.
            state: the weights, if they are sharded over devices; default: the module's own.
            threshold: a step counts as right above this; default: the card's.
            aggregator: how step scores become a solution's score; default: the card's.
            readme: the text of README.md; default: a short one.

        Example:
            >>> prm = init_prm("my-lm")
            >>> prm.save_pretrained("new-prm", aggregator="mean")
            >>> load_prm("new-prm").card.aggregator
            'mean'
        """
        card = replace(
            self.card,
            threshold=self.card.threshold if threshold is None else threshold,
            aggregator=self.card.aggregator if aggregator is None else aggregator,
        )
        readme = readme or model_card(card, self.family.architecture(self.module.config))
        save_folder(Path(folder), self.module, self.family, card, state, readme)
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
        """Upload the PRM's folder to the Hugging Face hub; returns the URL of the commit.

        Args:
            repo_id: "owner/name", or a name in your own account; created if it does not exist.
            private: whether a new repository is private.
            message: the commit message.
            token: the hub token; default: that of `hf auth login`.
            api: a `huggingface_hub.HfApi` to use instead, with its own token.

        Example:
            >>> prm = load_prm("my-prm")
            >>> prm.push_to_hub("me/my-prm")  # doctest: +SKIP
            'https://huggingface.co/me/my-prm/commit/…'
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder) / "prm")
            return push_folder(Path(folder) / "prm", repo_id, private=private, message=message, token=token, api=api)

    def identity(self) -> str:
        """A hash of everything that determines scores: the model, its context, and the treatment of longer paths."""
        said = repr((self.model_hash(), self.context, self.on_too_long))
        return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()

    def can_score(self, step: str, depth: int) -> bool:
        """Whether a step after this many others fits the family's layout; one without a token does not."""
        return self.family.can_read(step, depth)

    def notes(self) -> list[str]:
        """What was left out of the scores."""
        count = self.family.text.num_unread
        return [f"{count:,} characters were not read, because the PRM's tokenizer does not know them"] * bool(count)

    def count_tokens(self, tree: StepTree) -> int:
        """How many tokens the tree is: the problem, and every step once."""
        return self.encode_tree(tree).num_tokens


Prm = PRM
"""Deprecated alias of `PRM`."""

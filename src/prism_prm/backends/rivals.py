"""The rivals of PRMs as scorers: implicit PRMs, outcome reward models, and the confidence of a policy.

An outcome reward model and a confidence score the solution up to a step, so their aggregator is `last`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from prism_prm.aggregate import CardValues
from prism_prm.arrays import Floats
from prism_prm.backends.open_rival import CONFIDENCES, WINDOW, RivalPlace
from prism_prm.backends.openai import API_KEY, TOP, first_choice, served_model
from prism_prm.backends.policy import Prompting, render
from prism_prm.console import Advance, ignore
from prism_prm.errors import ConfigError, DataError, ModelError
from prism_prm.models.card import prm_folder
from prism_prm.models.families.language_model import LanguageModel, OutcomeReward
from prism_prm.models.gguf_files import find_gguf
from prism_prm.models.language_module import log_probability, self_certainty, token_values, top_confidence
from prism_prm.models.packing import EncodedTree, describe, encode_tree
from prism_prm.models.prm import PRM, PackItem, score_items
from prism_prm.net import RetryPolicy, Server
from prism_prm.scorer import Scorer, ScorerWithBar, TreeScores, digest
from prism_prm.segments import DEFAULT_SEGMENTER
from prism_prm.tree import StepTree

AT_ONCE = 64
"""Trees that are scored together."""
LARGE = 1000.0
"""The odds of a confidence C are C / LARGE: confidences are far smaller, so P is almost in proportion to C, and a
weighted vote weighs solutions by their confidence, as DeepConf does."""
_AVOID_ZERO = 1e-12


class ImplicitPRM(Scorer):
    """The log-odds of a step are β · log π(step) / π_ref(step), summed over its tokens: two language models.

    A model that was trained as π against its starting point π_ref on outcomes alone scores steps this way
    (`[objective] name = "implicit"`).
    """

    def __init__(self, model: PRM, reference: PRM, beta: float | None = None) -> None:
        vocabularies = [prm.tokenizer.get_vocab() for prm in (model, reference)]
        if vocabularies[0] != vocabularies[1]:
            raise ModelError(
                "an implicit PRM compares the probabilities of the same tokens, but the two models have different "
                f"tokenizers ({len(vocabularies[0]):,} and {len(vocabularies[1]):,} tokens); use two models with one"
            )
        assert isinstance(model.family, LanguageModel), "opened as a language model"
        self.model = model
        # The reference reads the same tokens, whatever its own chat template.
        self.reference = PRM(
            reference.module, model.family, model.card, token_budget=reference.token_budget,
            context=min(model.context, reference.context), on_too_long=model.on_too_long,
        )  # fmt: skip
        model.context = self.context = self.reference.context
        self.on_too_long = model.on_too_long
        self.beta = float(model.family.chosen["beta"]) if beta is None else beta
        self.card = CardValues(
            "min", model.card.threshold, segmenter=model.card.segmenter, thinking=model.card.thinking
        )  # fmt: skip

    def identity(self) -> str:
        return digest("implicit", self.beta, self.model.identity(), self.reference.identity())

    def score_trees(
        self,
        trees: Sequence[StepTree],
        wanted: Sequence[Sequence[int]] | None = None,
        *,
        progress: bool = False,
        advance: Advance = ignore,
    ) -> list[TreeScores]:
        found = self.model.score_trees(trees, wanted, progress=progress, advance=advance)
        references = self.reference.score_trees(trees, wanted, progress=progress)
        return [
            TreeScores(self.outputs, self.beta * (one.log_odds_NO - other.log_odds_NO), one.too_long)
            for one, other in zip(found, references, strict=True)
        ]

    def count_tokens(self, tree: StepTree) -> int:
        return self.model.count_tokens(tree) + self.reference.count_tokens(tree)

    def can_score(self, step: str, depth: int) -> bool:
        return self.model.can_score(step, depth)

    def notes(self) -> list[str]:
        return self.model.notes()


class _InChunks(ScorerWithBar):
    """A scorer that reads some trees at a time, to bound memory."""

    def _score(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]], advance: Advance) -> list[TreeScores]:
        results: list[TreeScores] = []
        for start in range(0, len(trees), AT_ONCE):
            results += self._score_chunk(trees[start : start + AT_ONCE], wanted[start : start + AT_ONCE])
            advance(len(results) - start)
        return results

    @abstractmethod
    def _score_chunk(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> list[TreeScores]:
        """Score the wanted nodes of each tree."""


class ORM(_InChunks):
    """An outcome reward model: the score of a step is that of the solution, if it ended there."""

    def __init__(self, model: PRM) -> None:
        assert isinstance(model.family, OutcomeReward), "opened as an outcome reward model"
        self.model, self.family = model, model.family
        self.context, self.on_too_long = model.context, model.on_too_long
        self.card = CardValues("last", model.card.threshold, segmenter=model.card.segmenter)

    def identity(self) -> str:
        return digest("orm", self.model.identity())

    def _score_chunk(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> list[TreeScores]:
        """Add an end after the parent of each node, with the node's text and the end of the turn, and read there."""
        prm = self.model
        items, too_long = [], []
        for index, (tree, nodes) in enumerate(zip(trees, wanted, strict=True)):
            encoded = encode_tree(tree, self.family)
            ends = [tuple(self.family.last_step_ids(step.text)) for step in tree.nodes]
            with_ends = EncodedTree(
                encoded.prompt, encoded.ids + tuple(ends), encoded.reads + tuple(len(ids) - 1 for ids in ends),
                encoded.parents * 2, encoded.starts * 2,
            )  # fmt: skip
            size = len(tree.nodes)
            long = _too_long(prm, tree, {node: with_ends.path_tokens(size + node) for node in nodes})
            groups = [(size + node,) for node in nodes if node not in long]
            items += [PackItem(with_ends, groups, index)] * bool(groups)
            too_long.append(tuple(long))
        sizes = [2 * len(tree.nodes) for tree in trees]
        with prm.module.scoring():
            scores = score_items(prm, items, sizes, lambda i, node: f"tree {i}, node {node - len(trees[i].nodes)}")
        return [
            TreeScores(self.outputs, found[len(tree.nodes) :], long)
            for found, tree, long in zip(scores, trees, too_long, strict=True)
        ]

    def count_tokens(self, tree: StepTree) -> int:
        """Count each step twice, except the last ones: once as a prefix of others, and once with the end."""
        inner = set(tree.parents)
        encoded = self.model.encode_tree(tree)
        ends = sum(len(self.family.last_step_ids(step.text)) for step in tree.nodes)
        return len(encoded.prompt) + ends + sum(len(ids) for node, ids in enumerate(encoded.ids) if node in inner)

    def can_score(self, step: str, depth: int) -> bool:
        return self.model.can_score(step, depth)

    def notes(self) -> list[str]:
        return self.model.notes()


class LocalTokens:
    """Values of tokens by a local language model."""

    MEASURES: ClassVar = {"logprob": log_probability, "self-certainty": self_certainty}

    def __init__(self, prm: PRM) -> None:
        self.prm = prm
        self.context = prm.context
        self.identity, self.count_tokens, self.can_score = prm.identity, prm.count_tokens, prm.can_score

    def values(
        self, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]], measure: str
    ) -> tuple[list[dict[int, Floats]], list[tuple[int, ...]]]:
        """Per tree the values of the tokens of each node and of all its ancestors, and the nodes that are too long."""
        prm = self.prm
        encoded, paths, too_long = [], [], []
        for tree, wanted in zip(trees, nodes, strict=True):
            encoded.append(encode_tree(tree, prm.family))
            long = _too_long(prm, tree, {node: encoded[-1].path_tokens(node) for node in wanted})
            paths.append(sorted({node for end in wanted if end not in long for node in tree.path(end)}))
            too_long.append(tuple(long))
        return token_values(prm, encoded, paths, self.MEASURES.get(measure, top_confidence)), too_long

    def close(self) -> None:
        """Do nothing: there are no connections."""


class ServedTokens:
    """Values of tokens by a server's completions API that echoes the prompt with log-probabilities (vLLM)."""

    def __init__(self, url: str, tokenizer: Any, policy: RetryPolicy, concurrency: int) -> None:
        self.server = Server(url, policy, concurrency, key_variable=API_KEY)
        self.model = served_model(self.server)
        self.tokenizer = tokenizer
        self.context = 2**31

    def identity(self) -> str:
        return digest(self.server.shown, self.model, self.tokenizer and render("a", Prompting(), self.tokenizer))

    def values(
        self, trees: Sequence[StepTree], nodes: Sequence[Sequence[int]], measure: str
    ) -> tuple[list[dict[int, Floats]], list[tuple[int, ...]]]:
        """As `LocalTokens.values`."""
        # One request per path that is not the beginning of another.
        paths = [
            [
                path
                for path in (tree.path(node) for node in wanted)
                if not any(path[-1] in tree.path(other)[:-1] for other in wanted)
            ]
            for tree, wanted in zip(trees, nodes, strict=True)
        ]
        asked = [self._ask(tree, path, measure) for tree, own in zip(trees, paths, strict=True) for path in own]
        answers: Iterator[dict[int, Floats]] = iter(self.server.together(asked))
        found = [{node: values for _ in own for node, values in next(answers).items()} for own in paths]
        return found, [() for _ in trees]

    async def _ask(self, tree: StepTree, path: Sequence[int], measure: str) -> dict[int, Floats]:
        text = render(tree.problem, Prompting(), self.tokenizer)
        starts = []
        for node in path:
            starts.append(len(text))
            text += tree.nodes[node].text + "\n\n"
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0.0, "echo": True, "logprobs": TOP}

        def read(answer: dict[str, Any]) -> dict[int, Floats]:
            return _echoed(answer, text, path, [*starts, len(text)], measure)

        return await self.server.ask("POST", "/completions", read, body)

    def count_tokens(self, tree: StepTree) -> int:
        """Estimate by characters: only the server knows."""
        return (len(tree.problem) + sum(len(step.text) for step in tree.nodes)) // 4

    def can_score(self, step: str, depth: int) -> bool:  # noqa: ARG002
        return bool(step.strip())

    def close(self) -> None:
        self.server.close()


def _echoed(
    answer: dict[str, Any], text: str, path: Sequence[int], starts: Sequence[int], measure: str
) -> dict[int, Floats]:
    """Read the values of each node's tokens from an echoed prompt. Raises ValueError if the answer has none."""
    logprobs = first_choice(answer).get("logprobs")
    own, tops, offsets, tokens = (
        logprobs.get(name) if isinstance(logprobs, dict) else None
        for name in ("token_logprobs", "top_logprobs", "text_offset", "tokens")
    )
    if not (isinstance(own, list) and isinstance(offsets, list) and isinstance(tops, list)) or not (
        len(own) == len(offsets) == len(tops) and any(offset < starts[-1] for offset in offsets)
    ):
        raise ValueError(
            "the answer has no log-probabilities of the prompt (echo with logprobs), which this server does not "
            "return; vLLM does, and a local model does: hf:FOLDER"
        )
    # Offsets count the beginning-of-sequence token that a server puts before the text.
    first = str(tokens[0]) if isinstance(tokens, list) and len(tokens) > 1 else ""
    if not text.startswith(first) and "\ufffd" not in first:
        offsets = [offset - offsets[1] for offset in offsets]
    found: dict[int, Floats] = {}
    for node, start, end in zip(path, starts, starts[1:], strict=False):
        values = []
        for log_p, top, offset in zip(own, tops, offsets, strict=True):
            if start <= offset < end and log_p is not None:
                top_values = sorted(top.values(), reverse=True)[:TOP]
                values.append(log_p if measure == "logprob" else -float(np.mean(top_values)))
        if not values or not np.isfinite(values).all():
            raise ValueError(f"the answer has no finite log-probabilities for the characters {start} to {end}")
        found[node] = np.array(values)
    return found


def lowest_group(values_T: Floats, window: int) -> float:
    """The lowest mean of `window` tokens in a row; of all tokens, if there are fewer."""
    size = min(window, len(values_T))
    sums = np.cumsum(np.concatenate([[0.0], values_T]))
    return float((sums[size:] - sums[:-size]).min() / size)


SUMMARIES: dict[str, Callable[[Floats, int], float]] = {
    "logprob": lambda values_T, _: float(values_T.mean()),
    "self-certainty": lambda values_T, _: float(values_T.mean()),
    "lowest-group": lowest_group,
    "tail": lambda values_T, window: float(values_T[-window:].mean()),
}
"""How the values of a solution's tokens become its confidence."""


class Confidence(_InChunks):
    """The confidence of a language model in the text up to a step."""

    def __init__(
        self,
        source: LocalTokens | ServedTokens,
        kind: str,
        window: int = WINDOW,
        segmenter: str = DEFAULT_SEGMENTER,
    ) -> None:
        assert kind in CONFIDENCES, "checked when its name is parsed"
        self.source, self.kind, self.window = source, kind, window
        self.card = CardValues("last", segmenter=segmenter)
        self.context = source.context

    def identity(self) -> str:
        window = self.window if self.kind in ("lowest-group", "tail") else None
        return digest(self.kind, window, self.source.identity())

    def confidences(
        self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]
    ) -> tuple[list[dict[int, float]], list[tuple[int, ...]]]:
        """The confidence in the text up to each wanted node, and the nodes that are too long."""
        values, too_long = self.source.values(trees, wanted, self.kind)
        found = []
        for tree, nodes, long, own in zip(trees, wanted, too_long, values, strict=True):
            ends = [node for node in nodes if node not in long]
            paths = {node: np.concatenate([own[at] for at in tree.path(node)]) for node in ends}
            found.append({node: SUMMARIES[self.kind](path, self.window) for node, path in paths.items()})
        return found, too_long

    def _score_chunk(self, trees: Sequence[StepTree], wanted: Sequence[Sequence[int]]) -> list[TreeScores]:
        results = []
        for tree, found, long in zip(trees, *self.confidences(trees, wanted), strict=True):
            log_odds_NO = np.full((len(tree.nodes), 1), np.nan)
            for node, confidence in found.items():
                log_odds_NO[node] = self._log_odds(confidence)
            results.append(TreeScores(self.outputs, log_odds_NO, long))
        return results

    def _log_odds(self, confidence: float) -> float:
        if self.kind == "logprob":  # P is the geometric mean of the tokens' probabilities
            confidence = min(confidence, -_AVOID_ZERO)
            return confidence - math.log(-math.expm1(confidence))
        return math.log(max(confidence, _AVOID_ZERO) / LARGE)

    def count_tokens(self, tree: StepTree) -> int:
        return self.source.count_tokens(tree)

    def can_score(self, step: str, depth: int) -> bool:
        return self.source.can_score(step, depth)

    def close(self) -> None:
        self.source.close()


def open_rival(place: RivalPlace, load: Mapping[str, Any]) -> Scorer:
    """Open a rival; `load` has the arguments of `load_prm`."""
    if place.kind == "implicit":
        model, reference = (_open_model(name, LanguageModel.name, load) for name in (place.target, place.reference))
        return ImplicitPRM(model, reference)
    if place.kind == "orm":
        return ORM(_open_model(place.target, OutcomeReward.name, load))
    policy, _, target = place.target.partition(":")
    if policy == "hf":
        model = _open_model(target, LanguageModel.name, load)
        return Confidence(LocalTokens(model), place.kind, place.window, model.card.segmenter)
    tokenizer = None
    if load["local"] is not None:
        from prism_prm.models.model_files import load_tokenizer, local_folder

        tokenizer = load_tokenizer(local_folder(str(load["local"])))
    retry = RetryPolicy(load["prm_timeout"], load["prm_retries"])
    served = ServedTokens(target, tokenizer, retry, load["prm_concurrency"])
    return Confidence(served, place.kind, place.window, load["segmenter"] or DEFAULT_SEGMENTER)


def _open_model(name: str, family: str, load: Mapping[str, Any]) -> PRM:
    from prism_prm.backends.load_prm import init_prm, load_prm

    folder = prm_folder(name)
    if Path(folder).is_dir() and find_gguf(Path(folder)) is not None:
        if family == OutcomeReward.name:
            raise ConfigError(f"orm:{name}: a GGUF file has no head that scores solutions; name a sequence classifier")
        if load["adapter"] is not None:
            raise ConfigError(f"{name}: a GGUF file takes no adapter; leave out load.adapter, or merge it first")
        options = ("dtype", "device", "attn", "token_budget", "on_too_long", "allow_pickle")
        prm = init_prm(folder, family=family, **{option: load[option] for option in options})
        prm.card = replace(prm.card, **{key: load[key] for key in ("segmenter", "thinking") if load[key] is not None})
        prm.context = load["context"] or prm.context
        return prm
    loaded = load_prm(folder, **{**load, "family": family, "local": None, "check": False})
    assert isinstance(loaded, PRM), "a local model"
    return loaded


def _too_long(prm: PRM, tree: StepTree, sizes: Mapping[int, int]) -> list[int]:
    """The nodes whose paths, of these sizes in tokens, exceed the context. Raises unless such nodes are skipped."""
    long = [node for node, size in sizes.items() if size > prm.context]
    if long and prm.on_too_long == "error":
        raise DataError(
            f"{describe(tree, long[0])}: the problem and the solution up to here are {sizes[long[0]]} tokens, but the "
            f"model's context is {prm.context}. With on_too_long='skip' it gets no score.",
            reason="too-long",
        )
    return long

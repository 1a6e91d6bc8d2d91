"""Plans `prism search` from a stated length of its solutions: what is written is not known before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prism_prm.costs import Batch, Memory, ModelSizes, Setup, cache_bytes, forward_flops
from prism_prm.names import named_places
from prism_prm.planning.fit import BYTES
from prism_prm.planning.gpus import Cluster
from prism_prm.planning.plan import Fit, Plan, Stage
from prism_prm.prms.skeleton import Stand, backbone_sizes, load_skeleton
from prism_prm.search.recipe import SearchRecipe
from prism_prm.tasks import load_task

PROMPT = 200
"""Tokens that a problem and the layout around it are taken to have."""
POOL_BYTES = 6
"""Bytes of text per token in a pool of solutions."""


@dataclass(frozen=True)
class Writing:
    """How much is written, and how much of it at once."""

    length: int
    """Tokens of a solution."""
    tokens: Mapping[int, int]
    """n → tokens of all problems."""
    rows: int
    """Solutions that are open at once, at the largest n."""

    @classmethod
    def of(cls, recipe: SearchRecipe, solution_tokens: int) -> Writing:
        task = load_task(recipe.task, recipe.task_data, answer_field=recipe.answer_field)
        problems, search = len(task.problems[: recipe.limit]), recipe.search
        length = min(solution_tokens, search.sampling.max_tokens)
        tokens = {n: problems * n * length * (1 + search.lookahead) for n in recipe.ns}
        if search.max_policy_tokens:
            tokens = {n: min(some, problems * search.max_policy_tokens) for n, some in tokens.items()}
        return cls(length, tokens, min(recipe.at_once, problems) * max(recipe.ns))

    def batch(self, n: int, reads: int) -> Batch:
        """All tokens once, as in sessions and packed trees: each sees the prompt and what is before it."""
        return Batch(self.tokens[n], self.tokens[n] * (PROMPT + self.length // 2), reads)


def plan_search(recipe: SearchRecipe, cluster: Cluster, stands: Mapping[str, Stand], solution_tokens: int) -> Plan:
    """What `prism search` will take if solutions have so many tokens."""
    writing = Writing.of(recipe, solution_tokens)
    stages: list[Stage] = []
    fits: list[Fit] = []
    notes = [
        f"a solution is taken to have {writing.length:,} tokens (--solution-tokens) after a prompt of {PROMPT}",
        "16-bit weights, unless the recipe names a dtype",
        "one process searches: further GPUs do not make it faster, except behind a server",
    ]
    kind, _, place = recipe.policy.name.partition(":")
    if kind == "hf":
        size = BYTES.get(recipe.policy.dtype or "", 2)
        sizes, _, said = backbone_sizes(place, stands.get(place, stands[""]))
        stages += [_writing(n, writing, sizes, Setup(weights=size, compute=size), cluster) for n in writing.tokens]
        fits.append(_fit("policy", sizes, Setup(weights=size, compute=size), writing, cluster))
        notes += [f"policy, not its own: {note}" for note in said]
    else:
        notes.append(f"the policy is served ({recipe.policy.name}); its cost is not counted")
    for name, prm in named_places(recipe.prm).items():
        skeleton = load_skeleton(prm, stand=stands.get(prm, stands[""]))
        setup = Setup(weights=2, compute=2)
        stages += [_judging(name, n, writing, skeleton.sizes, setup, cluster) for n in writing.tokens]
        fits.append(_fit(name, skeleton.sizes, setup, writing, cluster))
        notes += [f"{name}, not its own: {note}" for note in skeleton.notes]
    peak = sum(one.memory.peak for one in fits)
    together = Fit("all on one GPU", Memory({}, peak), peak <= cluster.room)
    return Plan(
        "search", {"name": recipe.policy.name}, cluster, stages, [together, *fits],
        [] if together.fits else _remedies(writing.rows // max(recipe.ns), fits, cluster),
        {"pools": float(POOL_BYTES * sum(writing.tokens.values()))}, notes,
    )  # fmt: skip


def _writing(n: int, writing: Writing, sizes: ModelSizes, setup: Setup, cluster: Cluster) -> Stage:
    """Decoding: a pass per token reads all weights and the KV cache, which takes longer than the arithmetic."""
    tokens = writing.tokens[n]
    flops = forward_flops(sizes, writing.batch(n, tokens))
    seconds = flops / cluster.speed(setup.compute)
    if cluster.bandwidth:
        in_step = min(writing.rows, max(1, tokens // writing.length))
        cached = cache_bytes(sizes, in_step * (PROMPT + writing.length // 2), setup)
        read = sizes.parameters * setup.weights + cached
        seconds = max(seconds, tokens / in_step * read / (cluster.bandwidth * cluster.utilisation))
    return Stage(f"writing, n = {n}", tokens, 0, flops, seconds / 3600)


def _judging(name: str, n: int, writing: Writing, sizes: ModelSizes, setup: Setup, cluster: Cluster) -> Stage:
    flops = forward_flops(sizes, writing.batch(n, 0))
    return Stage(f"{name}, n = {n}", writing.tokens[n], 0, flops, flops / cluster.speed(setup.compute) / 3600)


def _fit(name: str, sizes: ModelSizes, setup: Setup, writing: Writing, cluster: Cluster) -> Fit:
    """Weights, the KV cache of everything that is open at once, and 32-bit logits."""
    tokens = writing.rows * (writing.length + PROMPT)
    parts = {
        "weights": float(sizes.parameters * setup.weights), "KV cache": float(cache_bytes(sizes, tokens, setup)),
        "temporary": float(4 * writing.rows * sizes.head_flops // (2 * sizes.hidden)),
    }  # fmt: skip
    peak = sum(parts.values())
    return Fit(name, Memory(parts, peak), peak <= cluster.room)


def _remedies(at_once: int, fits: Sequence[Fit], cluster: Cluster) -> list[str]:
    """Fewer problems at once, if the weights leave room for any."""
    weights = sum(one.memory.parts["weights"] for one in fits)
    growing = sum(one.memory.parts["KV cache"] for one in fits)
    fewer = int(at_once * (cluster.room - weights) / growing)
    if fewer >= 1:
        return [f"--at-once {fewer}"]
    return ["the policy behind a server on other GPUs (--policy openai:…)", "fewer PRMs at once"]

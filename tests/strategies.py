"""Hypothesis strategies over trees."""

from __future__ import annotations

from hypothesis import strategies as st

from prism_prm.tree import ROOT, Estimate, Step, StepTree

TEXTS = ["x = 1", "x = 2", "X  = 1", "so y = 2", "then z = x + y = 3", "Σ ∑ ü 漢字 🙂", "\\frac{1}{2}\n\n$$a$$", "done"]

texts = st.sampled_from(TEXTS) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
labels = st.sampled_from([None, 0.0, 1.0, 0.25, 0.5, 0.75])
estimates = st.none() | st.builds(
    Estimate, st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 4), st.just(0.0), st.just(1.0)
)
origins = st.sampled_from(["model", "human", "perturbed"])
steps = st.builds(Step, texts, labels, st.sampled_from([None, -1.0, 0.0, 1.0]), origins, estimates)


@st.composite
def trees(draw: st.DrawFn, *, tree_id: int = 0, max_nodes: int = 12) -> StepTree:
    """Any tree at all: branches may grow anywhere, and the trunk is any path from the problem."""
    nodes = tuple(draw(st.lists(steps, max_size=max_nodes)))
    parents = tuple(draw(st.integers(ROOT, i - 1)) for i in range(len(nodes)))
    trunk: list[int] = []
    for node, parent in enumerate(parents):
        if parent == (trunk[-1] if trunk else ROOT) and draw(st.booleans()):
            trunk.append(node)
    return StepTree(
        tree_id,
        draw(texts),
        nodes,
        parents,
        tuple(trunk),
        draw(st.text(st.characters(codec="utf-8"), max_size=5)),
        draw(st.none() | texts),
        draw(st.none() | st.booleans()),
    )


@st.composite
def forests(draw: st.DrawFn, *, max_trees: int = 5) -> list[StepTree]:
    """Some trees, numbered."""
    return [draw(trees(tree_id=i)) for i in range(draw(st.integers(0, max_trees)))]

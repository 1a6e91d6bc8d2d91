"""Draws the diagrams of the docs: docs/figures/{data-flow,packed-tree,search-loop,job-folder,rl-rounds,windows}.svg.

Each is one SVG with two palettes: it follows the reader's color scheme, and on the docs site the palette toggle.

Run: python docs/diagrams.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FIGURES = Path(__file__).parent / "figures"
WIDTH = 600
"""Narrow, so that the text stays legible on a phone."""

STYLE = """
:root{--ink:#1f2328;--soft:#57606a;--line:#8c959f;--box:#f6f8fa;--blue:#ddeefa;--green:#d8f3e8;--red:#fde3d3;--edge:#0072b2;--on:#0072b2;--off:#eaeef2}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#a9b4c0;--line:#76818d;--box:#262d36;--blue:#17354b;--green:#123f33;--red:#4d2c18;--edge:#58b0ea;--on:#58b0ea;--off:#2b323b}}
text{font:16.5px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink)}
.soft{fill:var(--soft);font-size:14.5px}.bold{font-weight:600}
.code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:14.5px}
.line{fill:none;stroke:var(--line);stroke-width:1.6}
"""


class Drawing:
    """SVG elements; y grows downwards."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self.height = 0.0

    def box(self, x: float, y: float, width: float, height: float, *lines: str, fill: str = "box") -> None:
        """A rounded box with lines in its middle: a bold one (`code` in backticks), then soft ones."""
        self.rectangle(x, y, width, height, fill=fill, radius=7, stroke=True)
        first = y + height / 2 - 10 * (len(lines) - 1) + 5.5
        for i, line in enumerate(lines):
            self.text(x + width / 2, first + 20 * i, line, "bold" if i == 0 else "soft", anchor="middle")

    def rectangle(
        self, x: float, y: float, width: float, height: float, *, fill: str, radius: float = 0, stroke: bool = False
    ) -> None:
        edge = ' stroke="var(--line)" stroke-width="1.2"' if stroke else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
            f'style="fill:var(--{fill})"{edge}/>'
        )
        self.height = max(self.height, y + height)

    def text(self, x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> None:
        """A line of text; in backticks it is code."""
        if text.startswith("`"):
            text, kind = text.strip("`"), f"code {'bold' if 'bold' in kind else ''}".strip()
        self.parts.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>')
        self.height = max(self.height, y + 5)

    def arrow(self, *points: tuple[float, float], label: str = "", at: tuple[float, float] | None = None) -> None:
        """A line through points with a head at its end, and a label to the right of its middle or at a place."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path d="M{path}" class="line" marker-end="url(#head)"/>')
        if label:
            (x, y), (to_x, to_y) = points[-2:]
            where = at or ((x + to_x) / 2 + 9, (y + to_y) / 2 + 4)
            self.text(*where, label, "" if label.startswith("`") else "soft")

    def svg(self) -> str:
        head = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0 8 4 0 8z" style="fill:var(--line)"/></marker></defs>'
        )
        size = f'viewBox="0 0 {WIDTH} {self.height + 2:g}" width="{WIDTH}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(self.title)}" {size}>'
            f"<style>{STYLE}</style>{head}\n" + "\n".join(self.parts) + "\n</svg>\n"
        )


def data_flow() -> Drawing:
    """From labels or answers to a PRM and its uses."""
    drawing = Drawing("Data flow: labeled solutions or problems become pairs, a PRM, and its uses")
    drawing.box(10, 2, 270, 56, "Labeled solutions", "PRM800K, Math-Shepherd, yours")
    drawing.box(320, 2, 270, 56, "Problems with answers", "no step labels")
    drawing.box(
        95, 104, 410, 56, "Step trees and matched pairs", "a right and a wrong step after the same prefix", fill="green"
    )
    drawing.arrow((170, 58), (170, 103), label="`prism pairs`")
    drawing.arrow((430, 58), (430, 103), label="`prism label`")
    drawing.box(10, 206, 230, 56, "Base PRM", "or a language model")
    drawing.box(340, 206, 165, 56, "Trained PRM", "a folder", fill="blue")
    drawing.arrow((422, 160), (422, 205), label="`prism train`")
    drawing.arrow((240, 234), (339, 234))
    uses = {
        "eval": "error rates",
        "rerank": "best of N",
        "search": "guided",
        "grpo": "RL reward",
        "serve": "HTTP, page",
    }
    drawing.parts.append('<path d="M422 262V284M64 284H536" class="line"/>')
    for i, (command, use) in enumerate(uses.items()):
        drawing.arrow((64 + 118 * i, 284), (64 + 118 * i, 305))
        drawing.box(8 + 118 * i, 306, 112, 54, f"`{command}`", use)
    return drawing


PACKED = {"problem": None, "1": "problem", "2": "1", "3": "2", "2′": "1", "1′": "problem"}
"""Depth first: a part of the row → its parent. A prime marks a wrong candidate."""
TOKENS = 2
"""Tokens of each part, for the picture."""


def packed_tree() -> Drawing:
    """A tree on the left, its row of tokens with the mask on the right."""
    drawing = Drawing("A packed tree: six parts in one row of tokens, each of which attends to its own ancestors")
    places = {"problem": (124, 44), "1": (82, 114), "1′": (182, 114), "2": (46, 184), "2′": (136, 184), "3": (46, 254)}
    for name, parent in PACKED.items():
        if parent:
            (x, y), (from_x, from_y) = places[name], places[parent]
            drawing.arrow((from_x, from_y + 17), (x, y - 18))
    for name, (x, y) in places.items():
        width = 90 if name == "problem" else 70
        label = name if name == "problem" else f"step {name}"
        drawing.box(x - width / 2, y - 17, width, 34, label, fill=_color(name))
    drawing.text(10, 308, "Steps with a prime", "soft")
    drawing.text(10, 326, "are wrong candidates.", "soft")
    parts = [name for name in PACKED for _ in range(TOKENS)]
    left, top, cell = 292, 52, 25
    drawing.text(left + cell * len(parts) / 2, 14, "attended token", "soft", anchor="middle")
    for i, name in enumerate(PACKED):
        middle = cell * (TOKENS * i + TOKENS / 2)
        label = "prob." if name == "problem" else name
        for x, y in ((left + cell * TOKENS * i, top - 27), (left - 46, top + cell * TOKENS * i)):
            wide, high = (cell * TOKENS, 23) if y < top else (42, cell * TOKENS)
            drawing.rectangle(x + 1, y + 1, wide - 2, high - 2, fill=_color(name), radius=3)
        drawing.text(left + middle, top - 11, label, "soft", anchor="middle")
        drawing.text(left - 25, top + middle + 5, label, "soft", anchor="middle")
    for query, asks in enumerate(parts):
        for key, seen in enumerate(parts):
            visible = key <= query and seen in _path(asks)
            x, y = left + cell * key, top + cell * query
            drawing.rectangle(x + 1, y + 1, cell - 2, cell - 2, fill="on" if visible else "off", radius=3)
    drawing.text(
        10,
        top + cell * len(parts) + 30,
        "Token q attends to token k if k ≤ q < end[k]: q is in the subtree of k.",
        "soft",
    )
    return drawing


def _color(part: str) -> str:
    return "box" if part == "problem" else "red" if "′" in part else "green"


def _path(part: str | None) -> list[str]:
    return [part, *_path(PACKED[part])] if part else []


def search_loop() -> Drawing:
    """Beam search as a cycle of policy and PRM."""
    drawing = Drawing("The search loop: the policy writes steps, the PRM scores them, the method keeps some")
    drawing.box(10, 2, 190, 56, "Problem", "of a task")
    drawing.box(330, 2, 260, 56, "Policy writes next steps", "several for each open beam", fill="blue")
    drawing.box(330, 112, 260, 56, "PRM scores the steps", "prefixes are cached", fill="blue")
    drawing.box(330, 222, 260, 56, "Method keeps beams", "beam, DVTS, particles, …", fill="blue")
    drawing.box(10, 222, 190, 56, "Finished solutions", "an answer, or a limit", fill="green")
    drawing.box(10, 332, 190, 56, "Selection", "best, or a vote")
    drawing.box(330, 332, 260, 56, "One answer per problem", "accuracy, tokens, intervals")
    drawing.arrow((200, 30), (329, 30))
    drawing.arrow((460, 58), (460, 111))
    drawing.arrow((460, 168), (460, 221))
    drawing.arrow((329, 250), (201, 250), label="finished", at=(236, 243))
    drawing.arrow((345, 222), (270, 190), (270, 80), (345, 58), label="open beams:", at=(172, 130))
    drawing.text(172, 149, "next round", "soft")
    drawing.arrow((100, 278), (100, 331))
    drawing.arrow((200, 360), (329, 360))
    return drawing


FOLDER = {
    "beam/": ("the folder of --out; one run at a time", "box"),
    "settings.toml": ("every setting; rerun it with --recipe", "box"),
    "journal/": ("finished problems: a rerun resumes here", "green"),
    "scores/": ("step scores: nothing is scored twice", "green"),
    "pools/": ("every solution with its step scores", "blue"),
    "solutions/": ("the grade of every solution", "blue"),
    "rounds/": ("every step written, round by round", "blue"),
    "metrics.json": ("all numbers of the report", "blue"),
    "report.html": ("the report; also as report.md", "blue"),
}
"""Name → meaning, color: what `prism search --out beam` writes."""


def job_folder() -> Drawing:
    """The files of a run, by what they are for."""
    drawing = Drawing("What a job's folder holds, for prism search --out beam")
    for i, (name, (meaning, color)) in enumerate(FOLDER.items()):
        y = 2 + 38 * i
        left = 46 if i else 10
        drawing.rectangle(left, y, 174 if i else 210, 30, fill=color, radius=5, stroke=True)
        drawing.text(left + 12, y + 20, f"`{name}`", "bold")
        drawing.text(234, y + 20, meaning, "soft")
        if i:
            drawing.parts.append(f'<path d="M26 {y - (8 if i == 1 else 23)}V{y + 15}H45" class="line"/>')
    y = 2 + 38 * len(FOLDER) + 14
    for x, color, meaning in ((10, "green", "lets a stopped run resume"), (262, "blue", "results")):
        drawing.rectangle(x, y, 18, 18, fill=color, radius=4, stroke=True)
        drawing.text(x + 27, y + 14, meaning, "soft")
    return drawing


def rl_rounds() -> Drawing:
    """Adversarial rounds of a policy and its PRM."""
    drawing = Drawing("A round: train the policy, sample its steps, label suspects, retrain the PRM, train again")
    drawing.box(10, 2, 210, 56, "Reference policy", "every round starts here")
    drawing.box(330, 2, 260, 56, "Train the policy", "to the end, or to the alarm", fill="blue")
    drawing.box(330, 112, 260, 56, "Sample its steps", "after prefixes of right solutions", fill="blue")
    drawing.box(330, 222, 260, 56, "Keep suspects", "high score, no right answer", fill="red")
    drawing.box(330, 332, 260, 56, "Label them", "rollouts, a critic, people", fill="green")
    drawing.box(10, 332, 210, 56, "Pairs, old and new", "after the same prefix", fill="green")
    drawing.box(10, 172, 210, 56, "Retrain the PRM", "from its base", fill="blue")
    drawing.arrow((220, 30), (329, 30))
    drawing.arrow((460, 58), (460, 111))
    drawing.arrow((460, 168), (460, 221))
    drawing.arrow((460, 278), (460, 331))
    drawing.arrow((329, 360), (221, 360))
    drawing.arrow((115, 331), (115, 229))
    drawing.arrow((220, 200), (275, 200), (275, 48), (329, 48), label="reward", at=(220, 128))
    return drawing


def windows() -> Drawing:
    """A long solution: its roles, its steps, and the windows in which they are scored."""
    drawing = Drawing("A text of thinking and response, cut into steps, which are scored in overlapping windows")
    left, width, num_thinking = 96, 38, 9
    steps = 13
    drawing.text(left, 24, "`<think>`", "bold")
    drawing.text(left + num_thinking * width + 4, 24, "`</think>`", "bold")
    drawing.text(8, 62, "steps", "soft")
    for k in range(steps):
        drawing.box(left + k * width, 40, width - 3, 34, str(k + 1), fill="blue" if k < num_thinking else "green")
    drawing.text(left, 98, "thinking", "soft")
    drawing.text(left + num_thinking * width, 98, "response", "soft")
    # (first step, first new step, end) of each window
    for row, (first, new, end) in enumerate(((0, 0, 6), (3, 6, 10), (7, 10, 13))):
        y = 118 + row * 46
        drawing.text(8, y + 22, f"window {row + 1}", "soft")
        for k in range(first, end):
            drawing.box(left + k * width, y, width - 3, 34, str(k + 1), fill="red" if k < new else "box")
    drawing.rectangle(left, 262, 18, 18, fill="red", radius=3, stroke=True)
    drawing.text(left + 26, 276, "read again, at most half of the room", "soft")
    drawing.rectangle(left + 300, 262, 18, 18, fill="box", radius=3, stroke=True)
    drawing.text(left + 326, 276, "scored here", "soft")
    drawing.text(left, 302, "Every window begins with the problem.", "soft")
    return drawing


DIAGRAMS = {
    "data-flow": data_flow,
    "packed-tree": packed_tree,
    "search-loop": search_loop,
    "job-folder": job_folder,
    "rl-rounds": rl_rounds,
    "windows": windows,
}


if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        (FIGURES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")

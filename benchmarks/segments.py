"""Segmenters: the rate on long texts, against the rate on texts of an eighth of their length.

If the work grows linearly, the rates are equal, and the ratio is 1. Each text is thinking and a response with code and
formulas, or one of the hostile texts on which a careless rule takes quadratic time: runs of dots, blanks, line breaks,
digits, opening marks and tags. Every cut is joined again, and must give the text back.

Run: python benchmarks/segments.py [--characters 400000]
"""

from __future__ import annotations

import time

from _side_by_side import conclude, options, print_ratios, side_by_side
from prism_prm.segments import SEGMENTERS, cut_text

LONG, SHORT = "long texts", "texts of an eighth of the length"
PARTS = (
    "Okay, so we need x. Let me see: 12 * 12 is 144.\n\nWait, that is e.g. $$x\n= 1$$ so far.\n\n"
    "```python\nf(1,\n\n2)\n```\n\n",
    ".", " ", "\n", "\n\n", "$$", "\\[", "`", "```\n", "7", "(", "\n```python\nx = (", "Wait, ", ". ", "<think>",
    "</think>", "\\begin{a}", "But ", "* ", '"',
)  # fmt: skip


def texts(length: int) -> list[str]:
    """One text of each part, thinking first."""
    return [f"<think>\n{part * (length // len(part))}\n</think>\n\nIt is 144." for part in PARTS]


def main() -> None:
    """Time both, and show each segmenter and text whose rate falls."""
    parser = options(__doc__, repeats=5)
    parser.add_argument("--characters", type=int, default=200_000, help="of a long text (default: %(default)s)")
    arguments = parser.parse_args()
    long, short = texts(arguments.characters), texts(arguments.characters // 8)

    def cut(some: list[str], times: int = 1) -> None:
        for name in SEGMENTERS:
            for text in some * times:
                assert "".join(cut_text(text, name)) == text

    print(f"{len(PARTS)} texts of {arguments.characters:,} characters; seconds per million characters")
    for name in SEGMENTERS:
        rates = []
        for some in (long, short):
            start = time.perf_counter()
            for text in some:
                cut_text(text, name)
            rates.append((time.perf_counter() - start) / sum(map(len, some)) * 1e6)
        print(f"  {name}: {rates[0]:.2f} (an eighth of the length: {rates[1]:.2f})")
    seconds = side_by_side(
        {SHORT: lambda: cut(short, 8), LONG: lambda: cut(long)},
        repeats=arguments.repeats, beside=arguments.busy,
    )  # fmt: skip
    print_ratios(seconds, peer=SHORT)
    conclude(seconds[LONG], seconds[SHORT], peer=SHORT)


if __name__ == "__main__":
    main()

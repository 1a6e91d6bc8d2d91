"""Judge 4,000 answers with workers on all cores, against the same judging one answer after the other.

    PRISM_DATA=… python benchmarks/judging.py

With PRISM_DATA the answers are those of the pool of 100 MATH-500 problems × 40 solutions; without it, as many are made
up. The peer is a plain loop over math-verify in one process, without any time limit. Against it: the same calls in
killable workers, each with its time limit; and `Judge`, which also compares plain numbers without algebra and judges
equal answers once.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

from _side_by_side import print_ratios, side_by_side
from prism_prm.answers import Judge, symbolic
from prism_prm.answers.workers import Workers

NUM_ANSWERS = 4_000


def real_pairs(folder: Path) -> list[tuple[str, str]]:
    """(reference, answer) of the pool's solutions that have one."""
    records = [json.loads(line) for line in (folder / "best_of_n/math500_pool_100.jsonl").open(encoding="utf-8")]
    pairs = [(r["answer"], s["parsed_answer"]) for r in records for s in r["samples"] if s["parsed_answer"]]
    return (pairs * 2)[:NUM_ANSWERS]


def made_up_pairs() -> list[tuple[str, str]]:
    """Fractions, roots and polynomials, half of them right."""
    draw = random.Random(0)
    pairs = []
    for _ in range(NUM_ANSWERS):
        a, b, c = (draw.randint(2, 99) for _ in range(3))
        wrong = draw.random() < 0.5
        reference, answer = draw.choice(
            [
                (rf"\frac{{{a}}}{{{b}}}\sqrt{{{c}}}", rf"\frac{{{a * c}}}{{{b}\sqrt{{{c}}}}}"),
                (f"(x+{a})({b}x-{c})", f"{b}x^2+{a * b - c}x-{a * c}"),
                (rf"({a}, \frac{{{b}}}{{{c}}})", rf"\left({a}, \frac{{{2 * b}}}{{{2 * c}}}\right)"),
            ]
        )
        pairs.append((reference, f"{answer}+1" if wrong and not answer.startswith(r"\left") else answer))
    return pairs


def main() -> None:
    """Print the ratio."""
    folder = os.environ.get("PRISM_DATA")
    pairs = real_pairs(Path(folder)) if folder else made_up_pairs()
    calls = [("equivalent", (reference, answer, 0.0)) for reference, answer in pairs]
    symbolic.warm_up()
    verdicts: dict[str, list[bool]] = {}

    def serial() -> None:
        verdicts["serial"] = [symbolic.equivalent(reference, answer) for reference, answer in pairs]

    def judge() -> None:
        with Judge() as judge:
            verdicts["judge"] = [verdict.correct for verdict in judge.judge(pairs)]

    with Workers("prism_prm.answers.symbolic") as workers:
        workers.run(calls[: 4 * workers.count])  # start them: their imports are paid once, not per judgement

        def parallel() -> None:
            verdicts["parallel"] = [bool(outcome.value) for outcome in workers.run(calls)]

        peer = "serial loop over math-verify, no time limit"
        medians = side_by_side(
            {
                peer: serial,
                f"the same in killable workers, {workers.count} cores": parallel,
                "Judge, start included": judge,
            }
        )
    print(f"{len(pairs):,} answers ({'real' if folder else 'made up'}), {sum(verdicts['serial']):,} right by the loop")
    for name in ("parallel", "judge"):
        differ = sum(a != b for a, b in zip(verdicts["serial"], verdicts[name], strict=True))
        print(f"verdicts that differ from the loop's, {name}: {differ}")
    print_ratios(medians, peer=peer)


if __name__ == "__main__":
    main()

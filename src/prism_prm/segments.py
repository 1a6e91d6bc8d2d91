r"""Segmenters: the rules that cut a solution into steps, and which steps are thinking and which the response.

Reasoning models write `<think>…</think>` before their response. Every segmenter is a pure function from a text to the
offsets where steps end; `cut_text` gives the pieces, and joining them gives the text back. `SEGMENTERS` lists them all.
Borders depend only on the text before them and the next word, so a search can cut while a policy writes.

Tokens are counted by a fixed rule (a word, a digit or a sign is one), so that steps do not depend on a model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from prism_prm.errors import ConfigError
from prism_prm.steps import STOP, Span, code_blocks, code_lines, marked, trimmed, unfinished_code
from prism_prm.tree import ROOT, StepTree

OPEN, CLOSE = "<think>", "</think>"
"""The tags around thinking. Chat templates may write the first one into the prompt."""
DEFAULT_SEGMENTER = "paragraph"

_CLOSED = re.compile(rf"{CLOSE}\s*")
_BLANK_LINE = re.compile(r"\n[ \t]*\n\s*")
_STOP = re.compile(re.escape(STOP))
_TOKEN = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_")
"""What counts as one token."""
_OPENER = re.compile(r"^[ \t]*(?P<ticks>`{3,}|~{3,})|\\begin\{(?P<name>\w+\*?)\}|(?P<dollars>\$\$)|\\\[", re.MULTILINE)
_LONGEST = {"code": 8000, "formula": 2000}
"""Characters after which a block that is still open counts as closed: one stray `$$` must not swallow a whole text."""
_LEAD_IN = re.compile(r"\s*(?:#+ .*|\*\*[^*]+\*\*|.*[:：]\**)")
"""A line that only leads to the next: a heading, or one that ends with a colon."""
_LONGEST_LINE = 400
_MOVE = re.compile(
    r"""
    (?: (?:^|(?<=\n)) [ \t]*  # at the start of a line
        (?: (?:\*\*|\#+[ ]*)? (?: Step[ ]*\d+\b | \d{1,3}[.)](?=\s) )
          | (?:So|Now|Next|First|Second|Then|Therefore|Thus|Hence|Finally|Okay|Ok|Let\ me|Let's|Another|Similarly)\b )
      | (?: ^ | (?<=[.!?][ ]) | (?<=\n) ) [ \t]*  # or of a sentence
        (?: (?:But\ )?[Ww]ait\b | Hmm\b | Hold\ on\b | Alternatively\b | Actually\b | However\b | No,
          | On\ second\ thought\b | Let\ me\ (?:re|double)-?\ ?(?:check|consider|think|examine|verify|do|compute) ) )
    """,
    re.VERBOSE,
)
"""The start of a move of reasoning: a new step of the plan, a conclusion, a doubt or another way."""
_REVISION = re.compile(
    r"""(?:^|(?<=[.!?]\s)|(?<=\n))[ \t]*(?:(?:But\ |Oh\ |No,?\ |Hmm,?\ )*wait\b|Actually,|Hold\ on\b|On\ second\ thought
    |(?:No|Oops|Sorry),|(?:I|That)\ (?:made|was)\ (?:a|an|my)\ (?:mistake|error)\b
    |That(?:'s|\ is|\ can't\ be|\ cannot\ be)\ (?:not\ right|wrong|incorrect|right\?)
    |Let\ me\ (?:correct|redo|fix)\b)""",
    re.VERBOSE | re.IGNORECASE,
)
"""The start of a revision: what comes before it may be taken back."""
_SENTENCE = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]*]*+(?:[ \t]+|\s*\n\s*)|\n\s*")
_NO_END = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|approx|eq|Eq|Fig|Dr|Mr|Ms)|(?:^|\n)[ \t]*\d{1,3})\Z")
"""What a period after it does not end: an abbreviation, the number of an item. A variable often ends a sentence."""
_FENCE = ("```", "~~~")
"""The start of a line that opens or closes a block of code."""
_STATEMENT = re.compile(
    r"""[ \t]*(?:(?:assert|break|class|continue|def|del|elif|except|finally|global|import|nonlocal|pass|raise|return|try
    |while|with)(?=\W) | (?:else|for|if)\b[^\n]*:[ \t]*\n)""",
    re.VERBOSE,
)
"""A line that cannot be inside brackets: one that is open there was never closed."""


def blocks(text: str) -> Iterator[Span]:
    """The spans of code between fences and of displayed formulas, which most segmenters keep whole."""
    at = 0
    while opener := _OPENER.search(text, at):
        start, at = opener.start(), opener.end()
        ticks, name = opener["ticks"], opener["name"]
        limit = start + _LONGEST["code" if ticks else "formula"]
        if ticks:
            close = text.find(f"\n{ticks}", at, limit)
            end = text.find("\n", close + 1, limit) if close >= 0 else -1
            end = end if close < 0 or end >= 0 else close + 1 + len(ticks)
        else:
            mark = f"\\end{{{name}}}" if name else "$$" if opener["dollars"] else "\\]"
            close = text.find(mark, at, limit)
            end = close + len(mark) if close >= 0 else -1
        at = max(at, min(limit, len(text)) if end < 0 else end)
        yield start, at


def _outside_blocks(text: str, borders: Sequence[int]) -> list[int]:
    """The borders that are not inside of code or a displayed formula."""
    inside = marked(text, blocks(text))
    return [border for border in borders if border >= len(text) or not (inside[border] and inside[border - 1])]


def _paragraphs(text: str, _: int) -> list[int]:
    """Blank lines; in code only where brackets and strings are closed."""
    kept = marked(text, unfinished_code(text))
    return [match.end() for match in _STOP.finditer(text) if kept.find(1, *match.span()) < 0]


def _thinking(text: str, budget: int) -> list[int]:
    """Blank lines outside of code and displayed formulas, but not after a heading or a line that ends with a colon; in
    thinking, only once a step has `budget` tokens."""
    found = _outside_blocks(text, [match.end() for match in _BLANK_LINE.finditer(text)])
    end = thinking_end(text)
    kept, at = [], 0
    for border in sorted({*found, end} if end < len(text) else {*found}):
        if border == end or (
            (border > end or _has_tokens(text, at, border, budget))
            and not _LEAD_IN.fullmatch(text[max(at, border - _LONGEST_LINE) : border].rstrip().rpartition("\n")[2])
        ):
            kept.append(border)
            at = border
    return kept


def _has_tokens(text: str, start: int, end: int, count: int) -> bool:
    return any(number == count for number, _ in enumerate(_TOKEN.finditer(text, start, end), 1))


def _markers(text: str, _: int) -> list[int]:
    """Starts of moves ("Wait", "Alternatively", "So", "Step 2", "3."), outside of code and formulas."""
    return _outside_blocks(text, [match.start() for match in _MOVE.finditer(text)])


def _sentences(text: str, _: int) -> list[int]:
    """Ends of sentences and lines, outside of code and formulas."""
    ends = []
    for match in _SENTENCE.finditer(text):
        start = match.start()
        if text[start] == "." and "\n" not in match.group() and _NO_END.search(text, max(0, start - 12), start):
            continue
        ends.append(match.end())
    return _outside_blocks(text, ends)


def _tokens(text: str, budget: int) -> list[int]:
    """Every `budget` tokens, counted separately in the response."""
    middle = min(thinking_end(text), len(text))
    return [
        match.start()
        for part in ((0, middle), (middle, len(text)))
        for number, match in enumerate(_TOKEN.finditer(text, *part))
        if number and number % budget == 0
    ]


def _logical_lines(text: str, _: int) -> list[int]:
    """Ends of logical lines of Python, those with continuation lines whole. What opens a block belongs to the block's
    first line; decorators, comments, blank lines and fences belong to what follows.

    If a bracket or string is never closed, each of its lines is a logical line. It counts as never closed at a fence,
    after as many characters as any other code, and a bracket also at a statement. At the end of the text it may still
    be closed.
    """
    borders: list[int] = []
    middle = min(thinking_end(text), len(text))
    for first, last in ((0, middle), (middle, len(text))):
        at = first
        while at < last:
            begin, opened = at, ""
            inner: list[int] = []  # the ends of lines at which something is open
            for start, end, still_open, comment in code_lines(text, at, last):
                at = end + 1
                is_fence = text.startswith(_FENCE, start, last)
                is_statement = opened == "(" and _STATEMENT.match(text, start, last)
                if inner and (is_fence or is_statement or start - begin > _LONGEST["code"]):
                    borders += inner
                    at = start
                    break
                if is_fence:
                    break
                opened = still_open
                if opened:
                    inner.append(at)
                    continue
                code = text[begin:comment].strip()
                if code and not code.startswith("@") and not code.endswith(":") and end < last:
                    borders.append(at)
                begin, inner = at, []
    return borders


@dataclass(frozen=True, slots=True)
class Segmenter:
    """A rule for where steps end."""

    borders: Callable[[str, int], list[int]]
    """(text, budget) → the offsets where steps end. `</think>` ends a step in any case."""
    about: str
    budget: int = 0
    """The default budget of tokens; 0 if the rule has none."""
    stop: str = STOP
    """Where a policy stops by default, to see whether a step ends."""
    is_code: bool = False
    """Whether a text is code without fences too, so that steps keep their indentation."""


SEGMENTERS: dict[str, Segmenter] = {
    "paragraph": Segmenter(_paragraphs, "a step ends at a blank line"),
    "thinking": Segmenter(
        _thinking, "a blank line after `budget` tokens of thinking; code and formulas stay whole", 64
    ),
    "marker": Segmenter(_markers, "a step starts with a move: Wait, Alternatively, So, Step 2"),
    "sentence": Segmenter(_sentences, "a step is a sentence or a line"),
    "tokens": Segmenter(_tokens, "a step has `budget` tokens", 128),
    "code": Segmenter(
        _logical_lines, "a step is a logical line of Python, with what opens its block", stop="\n", is_code=True
    ),
}
"""By name. NAME:N sets the budget, as in thinking:128."""


def find_segmenter(name: str) -> tuple[Segmenter, int]:
    """The segmenter of a name, and its budget."""
    kind, colon, number = name.partition(":")
    found = SEGMENTERS.get(kind)
    if found is None:
        raise ConfigError(f"Unknown segmenter {name!r}. Known: {', '.join(SEGMENTERS)}.")
    if not colon:
        return found, found.budget
    if not found.budget or not re.fullmatch(r"[1-9]\d{0,5}", number):
        budgets = ", ".join(f"{known}:N" for known, one in SEGMENTERS.items() if one.budget)
        raise ConfigError(f"Segmenter {name!r}: a budget of tokens is a number above 0, and only for {budgets}.")
    return found, int(number)


def cut_text(text: str, segmenter: str = DEFAULT_SEGMENTER) -> list[str]:
    """Cut a text into pieces; joining them gives the text back, and none is blank unless the whole text is.

    Args:
        text: a solution, or the beginning of one.
        segmenter: a key of `SEGMENTERS`, with a budget if you like: `thinking:128`.

    Example:
        >>> cut_text("<think>Is it 4? Wait, it is 5.</think>It is 5.", "marker")
        ['<think>Is it 4? ', 'Wait, it is 5.</think>', 'It is 5.']
    """
    found, budget = find_segmenter(segmenter)
    borders = found.borders(text, budget)
    if found.borders is not _paragraphs and (closed := _CLOSED.search(text)):
        end = len(text[: closed.start()].rstrip())
        if found.stop not in text[end : closed.start()]:  # the tag belongs to the step that it follows directly
            borders = [border for border in borders if not end < border < closed.end()]
        borders.append(closed.end())
    pieces: list[str] = []
    begin, is_step = 0, False
    for start, end in pairwise(sorted({0, *borders, len(text)})):
        piece = text[start:end].strip()
        if is_step and piece:  # white space belongs to the step before it
            pieces.append(text[begin:start])
            begin, is_step = start, False
        is_step |= bool(piece) and (found.borders is _paragraphs or _has_text(piece))  # a tag to the one after it
    return [*pieces, text[begin:]] if begin < len(text) else pieces


def split_text(text: str, segmenter: str = DEFAULT_SEGMENTER) -> list[str]:
    """The steps of a text: its pieces without surrounding white space; code keeps its indentation."""
    return [step for step, _ in split_with_ends(text, segmenter)]


def split_with_ends(text: str, segmenter: str = DEFAULT_SEGMENTER) -> list[tuple[str, int]]:
    """The same, as (step, index after its piece)."""
    code = marked(text, [(0, len(text))] if find_segmenter(segmenter)[0].is_code else code_blocks(text))
    steps, at = [], 0
    for piece in cut_text(text, segmenter):
        step = trimmed(piece, in_code=bool(piece) and bool(code[at]))
        at += len(piece)
        if step.strip():
            steps.append((step, at))
    return steps


def complete_steps(text: str, segmenter: str = DEFAULT_SEGMENTER) -> list[str]:
    """The steps of the beginning of a solution that are complete, however it continues."""
    # Any text may follow; if the last step ended with this one, what follows is a step of its own.
    *_, last = cut_text(f"{text}x", segmenter)
    steps = split_text(text, segmenter)
    return steps if last.strip() == "x" else steps[:-1]


def thinking_end(text: str) -> int:
    """Where the response begins: after the first `</think>`; never if thinking is still open; 0 without thinking."""
    if closed := _CLOSED.search(text):
        return closed.end()
    return len(text) + 1 if OPEN in text else 0


def response_of(text: str) -> str:
    """The response alone, where answers are looked for; "" if a text ends while it is thinking."""
    return text[thinking_end(text) :]


def _has_text(piece: str) -> bool:
    """Whether a piece is more than white space and tags."""
    return bool(piece.replace(OPEN, "").replace(CLOSE, "").strip())


def _ends_with_thinking(step: str) -> bool:
    """Of a step with `</think>`: whether there is thinking before the tag. Else it is the response's first step."""
    return _has_text(step.partition(CLOSE)[0])


def first_response(steps: Sequence[str]) -> int:
    """The number of thinking steps at the start of a solution. A step with text on both sides of `</think>` is one."""
    for k, step in enumerate(steps):
        if CLOSE in step:
            return k + _ends_with_thinking(step)
    return len(steps) if any(OPEN in step for step in steps) else 0


def roles_of(steps: Sequence[str]) -> list[Literal["thinking", "response"]]:
    """The role of each step of a solution."""
    first = first_response(steps)
    return ["thinking" if k < first else "response" for k in range(len(steps))]


def thinking_nodes(tree: StepTree) -> list[bool]:
    """For each node of a tree, whether it is thinking: a path of nodes is a solution, or the beginning of one."""
    closes = [CLOSE in step.text for step in tree.nodes]
    before_close = [is_last and _ends_with_thinking(one.text) for is_last, one in zip(closes, tree.nodes, strict=True)]
    for node in reversed(range(len(closes))):
        if (closes[node] or before_close[node]) and tree.parents[node] != ROOT:
            before_close[tree.parents[node]] = True
    is_thinking: list[bool] = []
    is_open: list[bool] = []
    done: list[bool] = []
    for node, parent in enumerate(tree.parents):
        is_done = parent != ROOT and done[parent]
        is_open.append((parent != ROOT and is_open[parent]) or OPEN in tree.nodes[node].text)
        is_thinking.append(not is_done and (before_close[node] or (is_open[node] and not closes[node])))
        done.append(is_done or closes[node])
    return is_thinking


SCORED = "scored"


def thinking_tokens(thinking: str) -> float:
    """How many tokens of thinking a response is read after, by a card's `thinking`: scored, context, dropped, last-N.

    Only `scored` gives thinking steps scores of their own.
    """
    if thinking in (SCORED, "context"):
        return math.inf
    if thinking == "dropped":
        return 0
    if match := re.fullmatch(r"last-([1-9]\d{0,6})", thinking):
        return int(match[1])
    raise ConfigError(f"thinking = {thinking!r} is not one of scored, context, dropped, or last-N for N tokens")


def last_revision(steps: Sequence[str]) -> int:
    """The number of the last step that begins or contains a revision ("Wait", "Actually,"); 0 if none does."""
    return max((k for k, step in enumerate(steps) if _REVISION.search(without_tags(step))), default=0)


def without_tags(step: str) -> str:
    """A step without the tags around thinking, unless it is nothing else."""
    if OPEN not in step and CLOSE not in step:
        return step
    return step.replace(OPEN, "").replace(CLOSE, "").strip() or step

"""The input formats: read options, record types, how records become drafts of trees, and how to detect a format.

A draft is made of plain lists, because a million small objects would cost more than the reading itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import msgspec

from prism_prm.config import Word, check
from prism_prm.errors import ConfigError, DataError
from prism_prm.plugins import Plugins
from prism_prm.segments import find_segmenter, split_text, split_with_ends
from prism_prm.steps import split_steps
from prism_prm.tree import ROOT, Estimate, Origin, Step, StepTree, content_hash

Neutral = Literal["drop", "negative", "positive"]
Keep = Literal["keep", "drop"]
OnBadRecord = Literal["fail", "skip"]

FINISH_REASONS = ("solution", "found_error", "give_up", "bad_problem")
"""How a PRM800K labeler ended a record."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read records; the defaults are those of `prism pairs`."""

    neutral: Neutral = "drop"
    """How to label PRM800K steps with the neutral rating (0): not at all, wrong, or right."""
    drop_finish: tuple[Word, ...] = ("bad_problem",)
    """PRM800K finish reasons whose records are left out: solution, found_error, give_up, bad_problem."""
    quality_control: Keep = "keep"
    """Whether to keep the PRM800K records that were used to check labelers."""
    screening: Keep = "keep"
    """Whether to keep the PRM800K records that were used to screen labelers."""
    split_steps: bool = False
    """Also read records with a problem and a plain solution, and split the solution into steps."""
    segmenter: str | None = None
    """How plain solutions are split: paragraph, thinking, marker, sentence, tokens or code. By default as the PRM's
    card says, else at blank lines and numbered steps, or at lines or sentences if there are none; bug fixes by code."""
    trust_solutions: bool = False
    """Label every step of a plain solution as right, e.g. for reference solutions, and of the fixed version of a bug
    fix."""
    split: str | None = None
    """Read only the trees of this split of a `trees.parquet`."""
    on_bad_record: OnBadRecord = "fail"
    """What to do with a record that cannot be read: stop (fail), or leave it out and count it (skip)."""

    def __post_init__(self) -> None:
        check(self)
        if self.segmenter is not None:
            find_segmenter(self.segmenter)
        unknown = [reason for reason in self.drop_finish if reason not in FINISH_REASONS]
        if unknown:
            raise ConfigError(f"Unknown finish reasons {unknown} to drop. Known: {', '.join(FINISH_REASONS)}.")


@dataclass(slots=True)
class Draft:
    """The tree of one record as plain lists; the fields are those of `StepTree`, one list entry per node."""

    problem: str
    texts: list[str]
    parents: list[int]
    labels: list[float | None]
    ratings: list[float | None]
    origins: list[Origin]
    trunk: list[int]
    name: str = ""
    answer: str | None = None
    ended: bool | None = None
    where: str = ""
    """For messages: `file:line`."""
    estimates: list[Estimate | None] | None = None
    """None if no step has one."""

    @classmethod
    def chain(
        cls,
        problem: str,
        texts: Sequence[str],
        labels: Sequence[float | None],
        *,
        name: str = "",
        answer: str | None = None,
        ended: bool | None = None,
    ) -> Draft:
        """Make a draft of one plain solution; its ratings are its labels."""
        assert len(texts) == len(labels), "one label per step"
        size = len(texts)
        origins: list[Origin] = ["model"] * size
        return cls(
            problem, list(texts), list(range(ROOT, size - 1)), list(labels), list(labels), origins, list(range(size)),
            name, answer, ended,
        )  # fmt: skip

    @classmethod
    def of(cls, tree: StepTree) -> Draft:
        """Make a draft of a tree."""
        nodes = tree.nodes
        return cls(
            tree.problem, [node.text for node in nodes], list(tree.parents), [node.label for node in nodes],
            [node.rating for node in nodes], [node.origin for node in nodes], list(tree.trunk), tree.name, tree.answer,
            tree.ended, tree.where, [node.estimate for node in nodes] if any(node.estimate for node in nodes) else None,
        )  # fmt: skip

    def tree(self, tree_id: int) -> StepTree:
        """Make the tree of this draft."""
        estimates = self.estimates or [None] * len(self.texts)
        nodes = map(Step, self.texts, self.labels, self.ratings, self.origins, estimates)
        return StepTree(
            tree_id, self.problem, tuple(nodes), tuple(self.parents), tuple(self.trunk), self.name, self.answer,
            self.ended, self.where,
        )  # fmt: skip

    def check_links(self) -> None:
        """Raise if the parents and the trunk do not form a tree; in a file they may be anything."""
        for node, parent in enumerate(self.parents):
            if parent is None or not ROOT <= parent < node:
                raise DataError(
                    f"node {node} has the parent {parent}, which is neither {ROOT} nor a node before it; "
                    "write the table again with `prism pairs`",
                    reason="bad-parent",
                )
        before = ROOT
        for node in self.trunk:
            if node is None or not 0 <= node < len(self.parents) or self.parents[node] != before:
                raise DataError(
                    f"the trunk has the node {node} after {before}, which is not its parent; "
                    "write the table again with `prism pairs`",
                    reason="broken-trunk",
                )
            before = node

    def content_hash(self) -> str:
        """Return the same hash as `StepTree.content_hash`."""
        return content_hash(
            self.problem, self.answer, self.ended, self.trunk, self.parents, self.texts, self.labels, self.ratings,
            self.origins, self.estimates,
        )  # fmt: skip


def require_texts(problem: str, steps: Sequence[str]) -> None:
    """Raise if a record has no problem, no steps, or an empty step."""
    if not problem.strip():
        raise DataError("the problem is empty; every record needs one", reason="empty-text")
    if not steps:
        raise DataError("the solution has no steps; every record needs at least one", reason="no-steps")
    for i, text in enumerate(steps):
        if not text.strip():
            raise DataError(f"step {i + 1} has an empty text ({text!r}); every step needs one", reason="empty-text")


@dataclass(frozen=True, slots=True)
class Format:
    """How to recognize and read one kind of record."""

    name: str
    record: type[Any]
    """The msgspec type that a record must have."""
    keys: frozenset[str]
    """A record with these keys looks like this format."""
    read: Callable[[Any, ReadOptions], list[Draft]]
    drop_reason: Callable[[Any, ReadOptions], str | None] = lambda _record, _options: None
    """Returns why the options leave a record out, or None."""
    unique_names: bool = False
    """Whether to drop (and count) repeated names."""


# --- PRM800K, both phases, in its original records: several rated completions per position, one of which continues.
# The trunk follows the chosen completion, or else the human completion; without either, it ends. Every other completion
# is a candidate after the prefix it was shown with.


class RatedCompletion(msgspec.Struct, gc=False):
    text: str
    rating: float | None = None


class Position(msgspec.Struct, gc=False):
    completions: list[RatedCompletion] | None
    chosen_completion: int | None
    human_completion: RatedCompletion | None = None


class Prm800kQuestion(msgspec.Struct, gc=False):
    problem: str
    ground_truth_answer: str | None = None


class Prm800kLabel(msgspec.Struct, gc=False):
    steps: list[Position]
    finish_reason: str | None = None


class Prm800kRecord(msgspec.Struct, gc=False):
    question: Prm800kQuestion
    label: Prm800kLabel
    is_quality_control_question: bool | None = None
    is_initial_screening_question: bool | None = None


def _drop_prm800k(record: Prm800kRecord, options: ReadOptions) -> str | None:
    if record.label.finish_reason in options.drop_finish:
        return f"finish:{record.label.finish_reason}"
    if record.is_quality_control_question and options.quality_control == "drop":
        return "quality-control"
    if record.is_initial_screening_question and options.screening == "drop":
        return "screening"
    # A labeler who gives up at once leaves a valid record without content.
    if not any(position.completions or position.human_completion for position in record.label.steps):
        return "no-completions"
    return None


def _read_prm800k(record: Prm800kRecord, options: ReadOptions) -> list[Draft]:
    problem, steps = record.question.problem, record.label.steps
    if not problem.strip():
        raise DataError("the problem is empty; every record needs one", reason="empty-text")
    completions: list[RatedCompletion] = []
    parents: list[int] = []
    humans: list[int] = []
    trunk: list[int] = []
    prefix = ROOT
    for at, position in enumerate(steps):
        if len(trunk) < at:
            raise DataError(
                f"position {at} has neither a chosen nor a human completion, but {len(steps) - at} positions follow, "
                "whose prefix is unknown",
                reason="broken-trunk",
            )
        first, chosen = len(completions), position.chosen_completion
        completions += position.completions or ()
        if chosen is not None:
            if not 0 <= chosen < len(completions) - first:
                raise DataError(
                    f"position {at + 1}: chosen_completion {chosen} is not the index of one of its "
                    f"{len(completions) - first} completions",
                    reason="bad-index",
                )
            trunk.append(first + chosen)
        if position.human_completion is not None:
            humans.append(len(completions))
            if chosen is None:
                trunk.append(len(completions))
            completions.append(position.human_completion)
        parents += [prefix] * (len(completions) - first)
        prefix = trunk[-1] if trunk else ROOT
    texts = [completion.text for completion in completions]
    ratings = [completion.rating for completion in completions]
    # With "drop", a neutral step stays in the tree without a label.
    neutral = {"drop": None, "negative": 0.0, "positive": 1.0}[options.neutral]
    label_of: dict[float | None, float | None] = {-1.0: 0.0, 0.0: neutral, 1.0: 1.0, None: None}
    try:
        labels = [label_of[rating] for rating in ratings]
    except KeyError:
        text, rating = next((step.text, step.rating) for step in completions if step.rating not in label_of)
        raise DataError(
            f"rating {rating:g} is not one of -1, 0, 1, null (of the step {text[:60]!r})", reason="bad-rating"
        ) from None
    if "" in texts or any(map(str.isspace, texts)):
        raise DataError("a completion has an empty text; every step needs one", reason="empty-text")
    origins: list[Origin] = ["model"] * len(texts)
    for node in humans:
        origins[node] = "human"
        labels[node] = 1.0
    reason, answer = record.label.finish_reason, record.question.ground_truth_answer
    # Regrouped copies lack the finish reason; there a complete trunk counts as ended.
    ended = len(trunk) == len(steps) if reason is None else reason == "solution"
    return [Draft(problem, texts, parents, labels, ratings, origins, trunk, "", answer, ended)]


# --- Math-Shepherd: steps marked with the tag ки in `input` and with + or - in `label`, or split into a dict of steps.
# The "Step i:" markers are removed, because the number would give a lookahead negative away.

TAG = "ки"
MARKS = {"+": 1.0, "-": 0.0}
# The lookbehinds match a run of spaces only from its first one; otherwise matching would take quadratic time.
FIRST_STEP = re.compile(r"(?<!\s)\s*Step 1\s*:")
_MARKER = re.compile(r"(?<!\s)\s*Step \d+\s*:\s*")


class TaggedRecord(msgspec.Struct):
    input: str
    label: str


def _read_tagged(record: TaggedRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    *steps, rest = record.input.split(TAG)
    if not steps or rest.strip():
        raise DataError(
            f"`input` does not end with the step tag {TAG!r}: found {record.input[-40:]!r}", reason="no-tag"
        )
    labels: list[float] = []
    at = 0  # `label` repeats `input` with marks instead of tags
    for i, step in enumerate(steps):
        if not record.label.startswith(step, at):
            raise DataError(f"`label` does not repeat step {i + 1} of `input`", reason="label-mismatch")
        at += len(step) + 1
        mark = record.label[at - 1 : at]
        if mark not in MARKS:
            raise DataError(f"step {i + 1} is marked {mark!r} in `label`, not + or -", reason="bad-rating")
        labels.append(MARKS[mark])
    first_step = FIRST_STEP.search(steps[0])
    if first_step is None:
        raise DataError(f'`input` has no "Step 1:" after the question: found {steps[0][:60]!r}', reason="no-marker")
    problem = steps[0][: first_step.start()]
    steps[0] = steps[0][first_step.start() :]
    texts = [_MARKER.sub("", step, count=1).strip() for step in steps]
    require_texts(problem, texts)
    return [Draft.chain(problem, texts, labels, ended=True)]


class SplitStep(msgspec.Struct):
    content: str
    label: float


class SplitRecord(msgspec.Struct):
    """A row of the split copy: {"Step 1": {content, label}, …}."""

    questions: str
    solution: dict[str, SplitStep]


def _read_split(record: SplitRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    names = [f"Step {i + 1}" for i in range(len(record.solution))]
    if list(record.solution) != names:
        raise DataError(f"the steps are named {list(record.solution)}, not {names}", reason="bad-index")
    for name, step in record.solution.items():
        if step.label not in (0.0, 1.0):
            raise DataError(f"{name}: label {step.label:g} is not one of 0, 1", reason="bad-rating")
    texts = [step.content for step in record.solution.values()]
    require_texts(record.questions, texts)
    return [Draft.chain(record.questions, texts, [step.label for step in record.solution.values()], ended=True)]


# --- a problem and a list of its steps


class StepwiseRecord(msgspec.Struct):
    """TRL's stepwise supervision: steps as `completions`, with true/false or soft `labels`; the end is not marked."""

    prompt: str
    completions: list[str]
    labels: list[bool | float]


def _read_stepwise(record: StepwiseRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    if len(record.completions) != len(record.labels):
        raise DataError(
            f"{len(record.completions)} completions but {len(record.labels)} labels; each step needs one",
            reason="label-mismatch",
        )
    labels = [float(label) for label in record.labels]
    for i, label in enumerate(labels):
        if not 0.0 <= label <= 1.0:
            raise DataError(f"label {label:g} of step {i + 1} is not in [0, 1]", reason="bad-rating")
    require_texts(record.prompt, record.completions)
    return [Draft.chain(record.prompt, record.completions, labels)]


NO_ERROR = -1


class ProcessLabelsRecord(msgspec.Struct):
    """As in ProcessBench: `label` is the 0-based index of the first wrong step, or -1.

    Steps before it are right; steps after it were not judged and stay unlabeled.
    """

    problem: str
    steps: list[str]
    label: int
    id: str | int = ""


def _read_process_labels(record: ProcessLabelsRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    size = len(record.steps)
    if not NO_ERROR <= record.label < size:
        raise DataError(
            f"label {record.label} is not the index of one of {size} steps (0 to {size - 1}), nor -1 for no error",
            reason="bad-rating",
        )
    require_texts(record.problem, record.steps)
    labels: list[float | None] = [1.0] * size
    if record.label != NO_ERROR:
        labels[record.label :] = [0.0, *[None] * (size - record.label - 1)]
    return [Draft.chain(record.problem, record.steps, labels, name=str(record.id), ended=True)]


class PRMBenchRecord(msgspec.Struct):
    """A solution with injected errors and their 1-based positions.

    A listed step is wrong and every other step is right, also after an error; positions past the last step are
    ignored, as in the benchmark. A `redundency` row (PRMBench's spelling) also gives its original as an item without
    errors. The first item of a name counts. Step texts are unchanged, even empty ones, because positions refer to them.
    """

    classification: str
    idx: str
    modified_question: str
    modified_process: list[str]
    error_steps: list[int]
    original_question: str = ""
    original_process: list[str] = []
    ground_truth: str | None = None


def read_prmbench(record: PRMBenchRecord, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    if any(position < 1 for position in record.error_steps):
        raise DataError(f"error_steps {record.error_steps} must count from 1", reason="bad-rating")
    wrong = set(record.error_steps)
    solutions = [(record.classification, record.modified_question, record.modified_process, wrong)]
    if record.classification == "redundency":
        solutions.append(("correct", record.original_question, record.original_process, set()))
    items = []
    for kind, problem, steps, errors in solutions:
        name = f"{kind}_{record.idx}"
        if not problem.strip():
            raise DataError(f"item {name}: the question is empty", reason="empty-text")
        if not steps:
            raise DataError(f"item {name}: the process has no steps", reason="no-steps")
        labels = [0.0 if i + 1 in errors else 1.0 for i in range(len(steps))]
        items.append(Draft.chain(problem, steps, labels, name=name, answer=record.ground_truth))
    return items


# --- a program with a bug, and its fixed version, which is the trunk. Both share their steps up to the first that
# differs. There the fixed version's step is right and the buggy one's is wrong; what follows was not judged.


class BugFix(msgspec.Struct, kw_only=True):
    buggy: str
    fixed: str
    problem: str | None = None
    task: str | int | None = None
    """Identifies the problem if its text is not known."""
    id: str | int | None = None
    fault_line: int | None = None
    """The line of the fault in the buggy program, from 1."""


class ConDefectsRecord(BugFix, kw_only=True):
    """The same under other names."""

    buggy: str = msgspec.field(name="faulty")
    fixed: str = msgspec.field(name="correct")
    problem: str | None = msgspec.field(default=None, name="statement")
    id: str | int | None = msgspec.field(default=None, name="submission")


def _versions(record: BugFix, options: ReadOptions) -> tuple[list[str], list[str], int, str | None]:
    """Return the steps of the buggy and the fixed program, how many they share, and why they make no pair, or None."""
    program = record.buggy.replace("\r\n", "\n")
    num_lines = program.count("\n") + 1
    if record.fault_line is not None and not 1 <= record.fault_line <= num_lines:
        raise DataError(
            f"fault_line {record.fault_line} is not one of the {num_lines} lines of the buggy program, counted from 1",
            reason="bad-index",
        )
    segmenter = options.segmenter or "code"
    cut = split_with_ends(program, segmenter)
    buggy, fixed = [step for step, _ in cut], split_text(record.fixed.replace("\r\n", "\n"), segmenter)
    if not buggy or not fixed:
        raise DataError(f"the {'fixed' if buggy else 'buggy'} program is empty; it needs a step", reason="no-steps")
    shared = 0
    while buggy[shared : shared + 1] == fixed[shared : shared + 1] != []:
        shared += 1
    if shared == len(buggy) == len(fixed):
        return buggy, fixed, shared, "no-difference"
    if shared in (len(buggy), len(fixed)):
        return buggy, fixed, shared, "nothing-instead"
    last_line = program[: cut[shared][1]].rstrip().count("\n") + 1
    return buggy, fixed, shared, "differs-before-fault" if last_line < (record.fault_line or 0) else None


def _drop_bug_fix(record: BugFix, options: ReadOptions) -> str | None:
    return _versions(record, options)[-1]


def _read_bug_fix(record: BugFix, options: ReadOptions) -> list[Draft]:
    buggy, fixed, shared, _ = _versions(record, options)
    task, own = ("" if value is None else str(value).strip() for value in (record.task, record.id))
    problem = (record.problem or "").strip() or task
    if not problem:
        raise DataError("neither a problem nor a `task` that identifies it; add one of them", reason="empty-text")
    draft = Draft.chain(
        problem, fixed, [1.0] * (shared + 1) + [1.0 if options.trust_solutions else None] * (len(fixed) - shared - 1),
        name="/".join(filter(None, (task, own))), ended=True,
    )  # fmt: skip
    wrong = buggy[shared:]
    draft.texts += wrong
    draft.parents += [shared - 1, *range(len(fixed), len(fixed) + len(wrong) - 1)]
    draft.labels += [0.0, *[None] * (len(wrong) - 1)]
    draft.ratings = list(draft.labels)
    draft.origins += ["model"] * len(wrong)
    return [draft]


# --- one solution without labels: as steps, or as a text, which is split into steps only with `split_steps`

PROBLEM_FIELDS = ("problem", "question", "prompt")
SOLUTION_FIELDS = ("solution", "response", "completion", "answer")
POOL_FIELDS = ("solutions", "samples", "completions", "responses", "generations", "outputs")
"""Names of a list of solutions; a record with one belongs to a pool."""
POOL = "a pool: `{}` lists several solutions. `prism rerank` reads it, and scores it with --prm."


class PlainSolution(msgspec.Struct):
    """A problem and its solution, under the names that datasets use."""

    problem: str | None = None
    question: str | None = None
    prompt: str | None = None
    solution: str | None = None
    response: str | None = None
    completion: str | None = None
    answer: str | int | float | None = None
    id: str | int = ""
    solutions: Any = None
    samples: Any = None
    completions: Any = None
    responses: Any = None
    generations: Any = None
    outputs: Any = None


def read_solution(record: PlainSolution, options: ReadOptions) -> list[Draft]:
    """Read one plain solution; its steps are unlabeled unless `trust_solutions` is set."""
    for field in POOL_FIELDS:
        if isinstance(getattr(record, field), list):
            reject_pool(field)
    problem = next((value for field in PROBLEM_FIELDS if (value := getattr(record, field))), "")
    solutions = [(field, value) for field in SOLUTION_FIELDS if (value := getattr(record, field))]
    if not solutions or not isinstance(solutions[0][1], str):
        raise DataError(f"no solution text in any of the fields {', '.join(SOLUTION_FIELDS)}", reason="empty-text")
    field, text = solutions[0]
    texts = split_steps(text) if options.segmenter is None else split_text(text, options.segmenter)
    require_texts(problem, texts)
    labels = [1.0 if options.trust_solutions else None] * len(texts)
    # In some datasets `answer` is the solution itself, in others the reference answer.
    answer = None if field == "answer" or record.answer is None else str(record.answer)
    return [Draft.chain(problem, texts, labels, name=str(record.id), answer=answer, ended=True)]


SOLUTIONS = tuple(
    Format("solutions", PlainSolution, frozenset({problem, solution}), read_solution)
    for solution in SOLUTION_FIELDS
    for problem in PROBLEM_FIELDS
)
"""Tried after all other formats, and only with `split_steps`."""


def reject_pool(field: str) -> NoReturn:
    """Raise for a record with several solutions; its `answer` is the reference, not a text to score."""
    raise DataError(f"this is {POOL.format(field)}", reason="wrong-format")


class UnlabeledSteps(msgspec.Struct):
    problem: str
    steps: list[str]
    id: str | int = ""


def _read_steps(record: UnlabeledSteps, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    require_texts(record.problem, record.steps)
    return [Draft.chain(record.problem, record.steps, [None] * len(record.steps), name=str(record.id))]


class UnlabeledCompletions(msgspec.Struct):
    """Steps under TRL's names; with a reference answer in the record, they are solutions instead."""

    prompt: str
    completions: list[str]
    answer: Any = None


def _read_completions(record: UnlabeledCompletions, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    if record.answer is not None:
        reject_pool("completions")
    require_texts(record.prompt, record.completions)
    return [Draft.chain(record.prompt, record.completions, [None] * len(record.completions))]


# --- our own `trees.parquet`, read back as written: labels stay, and neutral ratings are not labeled again


class TreeTableNode(msgspec.Struct):
    text: str
    parent: int
    label: float | None
    rating: float | None
    origin: Origin
    estimate: Estimate | None = None


class TreeTableRow(msgspec.Struct):
    tree_id: int
    problem: str
    nodes: list[TreeTableNode]
    trunk: list[int]
    name: str = ""
    answer: str | None = None
    ended: bool | None = None
    split: str = ""


def _read_tree_row(row: TreeTableRow, options: ReadOptions) -> list[Draft]:  # noqa: ARG001
    nodes = row.nodes
    draft = Draft(
        row.problem, [node.text for node in nodes], [node.parent for node in nodes], [node.label for node in nodes],
        [node.rating for node in nodes], [node.origin for node in nodes], row.trunk, row.name, row.answer, row.ended,
        estimates=[node.estimate for node in nodes] if any(node.estimate for node in nodes) else None,
    )  # fmt: skip
    try:
        draft.check_links()
    except DataError as error:
        raise DataError(f"tree {row.tree_id}: {error}", reason=error.reason) from None
    return [draft]


def _drop_tree_row(row: TreeTableRow, options: ReadOptions) -> str | None:
    return None if options.split in (None, row.split) else "other-split"


# --- all of them

TREE_TABLE_ROW = Format("trees", TreeTableRow, frozenset({"tree_id", "nodes", "trunk"}), _read_tree_row, _drop_tree_row)

FORMATS: dict[str, tuple[Format, ...]] = {
    "prm800k": (Format("prm800k", Prm800kRecord, frozenset({"question", "label"}), _read_prm800k, _drop_prm800k),),
    "math-shepherd": (
        Format("math-shepherd", TaggedRecord, frozenset({"input", "label"}), _read_tagged),
        Format("math-shepherd", SplitRecord, frozenset({"questions", "solution"}), _read_split),
    ),
    "stepwise": (Format("stepwise", StepwiseRecord, frozenset({"prompt", "completions", "labels"}), _read_stepwise),),
    "process-labels": (
        Format("process-labels", ProcessLabelsRecord, frozenset({"problem", "steps", "label"}), _read_process_labels),
    ),
    "bug-fixes": (
        Format("bug-fixes", BugFix, frozenset({"buggy", "fixed"}), _read_bug_fix, _drop_bug_fix),
        Format("bug-fixes", ConDefectsRecord, frozenset({"faulty", "correct"}), _read_bug_fix, _drop_bug_fix),
    ),
    "prmbench": (
        Format(
            "prmbench", PRMBenchRecord, frozenset({"modified_question", "modified_process", "error_steps"}),
            read_prmbench, unique_names=True,
        ),
    ),
}  # fmt: skip
"""Format name → its variants, in the order in which detection tries them."""

UNLABELED = (
    Format("steps", UnlabeledSteps, frozenset({"problem", "steps"}), _read_steps),
    Format("steps", UnlabeledCompletions, frozenset({"prompt", "completions"}), _read_completions),
)
"""Steps without labels, for scoring but not for training; tried after the formats with labels."""


_PLUGINS: Plugins[Any] = Plugins(
    "format",
    FORMATS,
    "prism_prm.readers",
    "a Format (or a tuple of them)",
    lambda found: (
        found != () and all(isinstance(each, Format) for each in (found if isinstance(found, tuple) else (found,)))
    ),
    also="; or auto",
)


def find_format(name: str) -> tuple[Format, ...]:
    """Return the variants of a format in FORMATS, or of one that an installed package adds."""
    found = _PLUGINS.find(name)
    return found if isinstance(found, tuple) else (found,)


def added_formats() -> list[Format]:
    """Return all variants of all formats that installed packages add."""
    return [variant for name in _PLUGINS.names() if name not in FORMATS for variant in find_format(name)]


def detect(
    keys: Iterable[str],
    *,
    wanted: tuple[Format, ...] | None = None,
    added: Callable[[], list[Format]] = added_formats,
    with_solutions: bool = False,
    with_unlabeled: bool = False,
) -> Format:
    """Return the format of a record with these keys, among the wanted variants or all.

    Formats of installed packages (`added`) are tried after the built-in ones, and loaded only then.
    """
    keys = set(keys)
    if keys >= TREE_TABLE_ROW.keys:
        return TREE_TABLE_ROW
    candidates = [variant for variants in FORMATS.values() for variant in variants] + list(UNLABELED) * with_unlabeled
    fitting = [variant for variant in (*candidates, *(SOLUTIONS * with_solutions)) if variant.keys <= keys]
    if wanted is not None:
        for variant in wanted:
            if variant.keys <= keys:
                return variant
        needed = " or ".join(str(sorted(variant.keys)) for variant in wanted)
        other = f" It looks like {fitting[0].name}: use --format {fitting[0].name}." if fitting else ""
        raise DataError(
            f"a {wanted[0].name} record needs the fields {needed}; found {sorted(keys)}.{other}", reason="wrong-format"
        )
    if not fitting:
        others = added()
        fitting = [variant for variant in others if variant.keys <= keys]
        candidates += others
    if fitting:
        return fitting[0]
    hint = ""
    if pool := next((field for field in POOL_FIELDS if field in keys), None):
        hint = f" It looks like {POOL.format(pool)}"
    elif not with_solutions and any(variant.keys <= keys for variant in SOLUTIONS):
        hint = (
            " It looks like a plain solution: `prism score` and `prism pairs` split it into steps with "
            "--set read.split_steps=true."
        )
    known = "; ".join(f"{variant.name} ({', '.join(sorted(variant.keys))})" for variant in candidates)
    raise DataError(
        f"a record with the fields {sorted(keys)} is in no known format.{hint} Known: {known}.", reason="wrong-format"
    )

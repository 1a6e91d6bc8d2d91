"""What the fuzzers share: hostile values, mutations of valid records and bytes, and what every case must hold."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prism_prm.errors import PrismError

CASES = int(os.environ.get("PRISM_FUZZ_CASES", "1000"))
"""How many cases all fuzzers run together."""
SECONDS = 20
"""CPU time that one case may take: by far more than any needs, so that only a hang exceeds it."""
ran: Counter[str] = Counter()
"""Fuzzer → the cases it ran."""


class HangError(BaseException):
    """A case took too long; no `except Exception` may catch it."""


Test = Callable[..., None]


def fuzz(share: float, **drawn: st.SearchStrategy[Any]) -> Callable[[Test], Test]:
    """A test over this share of all cases, the same ones in every run."""

    def decorate(test: Test) -> Test:
        chosen = settings(
            max_examples=max(1, round(CASES * share)), derandomize=True, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink][: 1 + (CASES <= 2000)],
        )  # fmt: skip
        return chosen(given(**drawn)(test))

    return decorate


def survives(name: str, call: Callable[[], Any], *, allowed: tuple[type[Exception], ...] = (PrismError,)) -> Any:
    """The result of a call, or None where it raised an error that a user can mend; anything else is a failure."""
    ran[name] += 1
    with _in_time():
        try:
            return call()
        except allowed:
            return None


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise HangError(f"more than {SECONDS} seconds of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.0, -0.5, 0.5, 1.5, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), float("-inf"), "", " ", "\n", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "\ufeff",
    "\u202e", "\u2028", "nan", "inf", "1e999", "-1", "0", "true", "null", "[]", "..", "../../x", "/", "C:\\x", "%s%n",
    "{0}", "\\", "\\boxed{", "\\boxed{}", "####", "#### ", "ки", "+", "-", "Step 1:", "Step 99999999999999999999:",
    "```", "$$", "\\[", "\\begin{a}", "x" * 5000, "9" * 5000, "(" * 500, "\\frac" * 200, [], {}, [None], [[]], [{}],
    {"": None}, {"text": None}, [""], [" "], ["a"], [1], [0.5], [True], {"a": 1}, [["a"]], {"text": "a"},
    {"steps": ["a"]}, _nested(50),
]  # fmt: skip

values = st.sampled_from(HOSTILE).map(copy.deepcopy) | st.text(max_size=8) | st.integers() | st.floats() | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""Any value that JSON can hold, and some that it cannot."""


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all parts of a value."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield (*path, key)
            yield from _places(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield (*path, i)
            yield from _places(part, (*path, i))


@st.composite
def mutated(draw: st.DrawFn, records: Sequence[Any]) -> Any:
    """A valid record in which a few parts are replaced, dropped, renamed, doubled or nested."""
    record = copy.deepcopy(draw(st.sampled_from(records)))
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        places = list(_places(record))
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        holder = record
        for key in way:
            holder = holder[key]
        change = draw(st.sampled_from(("replace", "replace", "replace", "drop", "rename", "double", "nest", "add")))
        if change == "replace":
            holder[last] = draw(values)
        elif change == "drop":
            del holder[last]
        elif change == "nest":
            holder[last] = draw(st.sampled_from(([holder[last]], {"a": holder[last]}, {last: holder[last]})))
        elif isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]) if change == "double" else draw(values))
        elif change == "rename":
            holder[draw(st.text(max_size=6))] = holder.pop(last)
        else:
            holder[draw(st.sampled_from(("text", "scores", "answer", "label", "name", "id", "error", "x", "")))] = draw(
                values
            )
    return record


INSERTED = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b'"', b"\\", b"\\ud800", b"{", b"}", b"[", b"]", b",",
    b":", b"=", b"[" * 3000, b'{"a":' * 3000, b"1" * 400, b"1e999", b"NaN", b"-", b"\xc3", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"#", b"'", b"<!DOCTYPE html>", b"version https://git-lfs", b"PAR1", b"PK\x03\x04",
    b"\x1f\x8b", b"\xff\xfe",
)  # fmt: skip


@st.composite
def torn(draw: st.DrawFn, data: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of which a few are changed, cut out, doubled or put in; or all of them packed or encoded otherwise."""
    found = draw(data)
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2, 4)))):
        at = draw(st.integers(0, len(found)))
        change = draw(st.sampled_from(("byte", "byte", "cut", "insert", "insert", "double", "end", "front")))
        if change == "byte":
            found = found[:at] + bytes([draw(st.integers(0, 255))]) + found[at + 1 :]
        elif change == "cut":
            found = found[:at] + found[at + draw(st.integers(1, 40)) :]
        elif change == "insert":
            found = found[:at] + draw(st.sampled_from(INSERTED)) + found[at:]
        elif change == "double":
            found = found[:at] + found[at : at + 50] + found[at:]
        else:
            found = found[:at] if change == "end" else found[at:]
    whole = draw(st.sampled_from(("plain",) * 8 + ("gzip", "cut gzip", "utf-16", "latin-1")))
    if whole == "gzip":
        return gzip.compress(found, 1, mtime=0)
    if whole == "cut gzip":
        return gzip.compress(found, 1, mtime=0)[: draw(st.integers(0, 40))]
    return found if whole == "plain" else found.decode("utf-8", "replace").encode(whole, "replace")


def as_json(record: Any) -> bytes:
    """A record as JSON; lone surrogates and numbers that JSON has not are written as Python does."""
    return json.dumps(record).encode()


@st.composite
def files(draw: st.DrawFn, records: Sequence[Any]) -> bytes:
    """A JSON file of valid and mutated records: lines, an array, or pretty-printed."""
    found = draw(st.lists(st.sampled_from(records) | mutated(records), min_size=1, max_size=3))
    written = [as_json(record) for record in found]
    shape = draw(st.sampled_from(("lines", "lines", "lines", "array", "pretty")))
    if shape == "pretty":
        return json.dumps(found if len(found) > 1 else found[0], indent=1).encode()
    return b"[" + b",\n".join(written) + b"]" if shape == "array" else b"\n".join(written) + b"\n"


anything = st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
"""Bytes out of nothing."""

"""Answers as data, many ways to write each, and small changes that make another answer of it.

A kind has a strategy that draws the data of an answer, `write` (any harmless spelling of it), and `change` (the data of
a different answer that differs in one entry, sign, bracket, digit, unit …).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Kind:
    data: st.SearchStrategy[Any]
    write: Callable[[Draw, Any], str]
    change: Callable[[Draw, Any], Any]


def one_of(draw: Draw, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def chance(draw: Draw) -> bool:
    return bool(draw(st.booleans()))


# ---- numbers: ("whole", n), ("fraction", a, b), ("decimal", digits as text), ("mixed", w, a, b), ("root", a, b)

WHOLE = st.integers(-60, 60).map(lambda n: ("whole", n))
FRACTION = st.tuples(st.integers(-40, 40), st.integers(2, 30)).map(lambda ab: ("fraction", *ab))
DECIMAL = st.tuples(st.sampled_from(["", "-"]), st.integers(0, 400), st.integers(1, 9999)).map(
    lambda sab: ("decimal", f"{sab[0]}{sab[1]}.{sab[2]}")
)
MIXED = st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(2, 13)).map(lambda wab: ("mixed", *wab))
ROOT = st.tuples(st.integers(-12, 12).filter(bool), st.sampled_from([2, 3, 5, 6, 7, 10, 11, 13])).map(
    lambda ab: ("root", *ab)
)
NUMBER = st.one_of(WHOLE, WHOLE, FRACTION, DECIMAL)
ENTRY = st.one_of(WHOLE, FRACTION, WHOLE, ROOT)


def value(number: tuple[Any, ...]) -> Any:
    """What two numbers share exactly if they are equal."""
    match number:
        case ("whole", n):
            return Fraction(n)
        case ("fraction", a, b):
            return Fraction(a, b)
        case ("decimal", text):
            return Fraction(text)
        case ("mixed", w, a, b):
            return w + Fraction(a, b)
        case ("root", a, b):
            return (a, b)
    raise AssertionError(number)


def write_number(draw: Draw, number: tuple[Any, ...], *, alone: bool = True) -> str:
    match number:
        case ("whole", n):
            return write_whole(draw, n, alone=alone)
        case ("fraction", a, b):
            return write_fraction(draw, a, b)
        case ("decimal", text):
            short = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") and chance(draw) else text
            return short + one_of(draw, "", "", "0", "00")
        case ("mixed", w, a, b):
            frac = one_of(draw, r"\frac", r"\dfrac", r"\tfrac")
            tight = rf"{frac}{a}{b}" if a < 10 and b < 10 else rf"{frac}{{{a}}}{{{b}}}"
            return one_of(
                draw,
                *[rf"{w}{tight}", rf"{w} {frac}{{{a}}}{{{b}}}", rf"{w}\ {frac}{{{a}}}{{{b}}}", f"{w} {a}/{b}"],
                write_fraction(draw, w * b + a, b),
            )
        case ("root", a, b):
            root = one_of(
                draw, rf"\sqrt{{{b}}}", rf"\sqrt{{ {b} }}", *([rf"\sqrt{b}", rf"\sqrt {b}"] if b < 10 else [])
            )
            times = "" if abs(a) == 1 and chance(draw) else f"{abs(a)}{one_of(draw, '', ' ', chr(92) + 'cdot ', '*')}"
            return ("-" if a < 0 else "") + times + root
    raise AssertionError(number)


def write_whole(draw: Draw, n: int, *, alone: bool = True) -> str:
    """With or without separators of thousands; among commas only those that can be no comma of a list."""
    text = f"{abs(n):,}"
    if "," in text:
        separators = ["", "{,}", r",\!", r"{,}\!", r",\! ", r"\,", r"\;", r"\ ", r"\text{,}", "~"]
        text = text.replace(",", one_of(draw, *separators, *([",", " "] if alone else [])))
    minus = one_of(draw, "-", "-", "- ", "−") if n < 0 else ""
    return minus + text


def write_fraction(draw: Draw, a: int, b: int) -> str:
    minus = "-" if a < 0 else ""
    frac = one_of(draw, r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
    ways = [
        rf"{minus}{frac}{{{abs(a)}}}{{{b}}}", rf"{frac}{{{a}}}{{{b}}}", rf"{minus}{frac} {{{abs(a)}}} {{{b}}}",
        f"{a}/{b}", f"{a} / {b}", rf"{minus}{frac}{{{2 * abs(a)}}}{{{2 * b}}}",
    ]  # fmt: skip
    if abs(a) < 10 and b < 10:
        ways += [rf"{minus}{frac}{abs(a)}{b}", rf"{minus}{frac} {abs(a)} {b}", rf"{minus}{frac}{{{abs(a)}}}{b}"]
    if 10**6 % b == 0:
        ways.append(f"{a / b:.6f}".rstrip("0"))
    return str(one_of(draw, *ways))


def change_number(draw: Draw, number: tuple[Any, ...]) -> tuple[Any, ...]:
    """Another sign, or one digit or part moved."""
    match number:
        case ("whole", n):
            changed: tuple[Any, ...] = ("whole", change_digit(draw, n))
        case ("fraction", a, b):
            changed = one_of(draw, ("fraction", -a, b), ("fraction", change_digit(draw, a), b), ("fraction", a, b + 1))
        case ("decimal", text):
            at = draw(st.sampled_from([i for i, c in enumerate(text) if c.isdigit()]))
            other = f"{text[:at]}{(int(text[at]) + draw(st.integers(1, 9))) % 10}{text[at + 1 :]}"
            changed = ("decimal", one_of(draw, other, text[1:] if text[0] == "-" else f"-{text}"))
        case ("mixed", w, a, b):
            changed = one_of(draw, ("mixed", w + 1, a, b), ("mixed", w, a + 1, b), ("mixed", w, a, b + 1))
            changed = one_of(draw, changed, ("fraction", a, b), ("fraction", w * a, b), ("fraction", 10 * w + a, b))
        case ("root", a, b):
            changed = one_of(draw, ("root", -a, b), ("root", a + 1 or 5, b), ("root", a, b + 12))
        case _:
            raise AssertionError(number)
    assume(value(changed) != value(number))
    return changed


def change_digit(draw: Draw, n: int) -> int:
    """One digit, or the sign."""
    if n and draw(st.integers(0, 4)) == 0:
        return -n
    text = str(abs(n))
    at = draw(st.integers(0, len(text) - 1))
    digit = (int(text[at]) + draw(st.integers(1, 9))) % 10
    changed = int(f"{text[:at]}{digit}{text[at + 1 :]}") * (-1 if n < 0 else 1)
    assume(changed != n)
    return changed


# ---- lists of numbers: (kind of brackets, entries)

OPEN = {"(": ["(", r"\left(", r"\left( ", r"\big(", r"\bigl("], "[": ["[", r"\left[", r"\Big[", r"\lbrack "],
        "{": [r"\{", r"\left\{", r"\lbrace ", r"\bigl\{"]}  # fmt: skip
CLOSE = {")": [")", r"\right)", r" \right)", r"\big)", r"\bigr)"], "]": ["]", r"\right]", r"\Big]", r"\rbrack"],
         "}": [r"\}", r"\right\}", r"\rbrace", r"\bigr\}"]}  # fmt: skip
COMMAS = [",", ", ", r",\,", r",\ ", " , ", r",\;"]


def write_list(draw: Draw, data: tuple[str, list[Any]]) -> str:
    brackets, entries = data
    texts = [write_number(draw, entry, alone=False) for entry in entries]
    if brackets == "{}":
        texts = draw(st.permutations(texts))
    comma = one_of(draw, *COMMAS)
    return str(one_of(draw, *OPEN[brackets[0]]) + comma.join(texts) + one_of(draw, *CLOSE[brackets[1]]))


def change_entry(draw: Draw, entries: list[Any]) -> list[Any]:
    at = draw(st.integers(0, len(entries) - 1))
    return [change_number(draw, entry) if i == at else entry for i, entry in enumerate(entries)]


def change_tuple(draw: Draw, data: tuple[str, list[Any]]) -> tuple[str, list[Any]]:
    _, entries = data
    how = one_of(draw, "entry", "entry", "order", "brackets", "length")
    if how == "entry":
        return "()", change_entry(draw, entries)
    if how == "order":
        other = entries[1:] + entries[:1]
        assume([value(e) for e in other] != [value(e) for e in entries])
        return "()", other
    if how == "length":
        return "()", [*entries, draw(WHOLE)]
    return "{}", entries


def change_set(draw: Draw, data: tuple[str, list[Any]]) -> tuple[str, list[Any]]:
    _, entries = data
    if draw(st.integers(0, 4)) == 0:
        return "()", entries
    other = change_entry(draw, entries) if chance(draw) else [*entries, draw(WHOLE)]
    assume({value(e) for e in other} != {value(e) for e in entries})
    return "{}", other


def write_bare_list(draw: Draw, data: tuple[str, list[Any]]) -> str:
    texts = [write_number(draw, entry, alone=False) for entry in draw(st.permutations(data[1]))]
    last = one_of(draw, "", "", " and ", r" \text{ and } ", r"\text{ or }", ", and ")
    return one_of(draw, *COMMAS).join(texts) if not last else ", ".join(texts[:-1]) + last + texts[-1]


def change_bare_list(draw: Draw, data: tuple[str, list[Any]]) -> tuple[str, list[Any]]:
    _, entries = data
    other = one_of(draw, change_entry(draw, entries), [*entries, draw(WHOLE)], [*entries, entries[0]])
    assume(sorted(str(value(e)) for e in other) != sorted(str(value(e)) for e in entries))
    return "", other


def write_ratio(draw: Draw, parts: list[int]) -> str:
    return one_of(draw, ":", " : ", r" \colon ", ": ").join(str(part) for part in parts)  # type: ignore[no-any-return]


def change_ratio(draw: Draw, parts: list[int]) -> list[int]:
    at = draw(st.integers(0, len(parts) - 1))
    other = one_of(draw, parts[1:] + parts[:1], [abs(n - 1) + 2 if i == at else n for i, n in enumerate(parts)])
    assume(other != parts)
    return other  # type: ignore[no-any-return]


def is_interval(data: tuple[str, list[Any]]) -> bool:
    low, high = (value(entry) for entry in data[1])
    return bool(low < high)


INTERVAL = st.tuples(st.sampled_from(["()", "[]", "(]", "[)"]), st.lists(NUMBER, min_size=2, max_size=2))


def write_interval(draw: Draw, data: tuple[str, list[Any]]) -> str:
    brackets, (low, high) = data
    if draw(st.integers(0, 3)):
        return one_of(draw, "", "", r"x \in ", r"x\in") + write_list(draw, data)
    left = "<" if brackets[0] == "(" else one_of(draw, r"\le ", r"\leq ", r"\leqslant ", "≤")
    right = "<" if brackets[1] == ")" else one_of(draw, r"\le ", r"\leq ", r"\leqslant ", "<=")
    ends = [write_number(draw, end, alone=False) for end in (low, high)]
    return f"{ends[0]} {left} x {right} {ends[1]}"


def change_interval(draw: Draw, data: tuple[str, list[Any]]) -> tuple[str, list[Any]]:
    brackets, entries = data
    if chance(draw):
        other = draw(st.sampled_from([b for b in ["()", "[]", "(]", "[)"] if b != brackets]))
        return other, entries
    changed = brackets, change_entry(draw, entries)
    assume(is_interval(changed))
    return changed


# ---- matrices: rows of numbers

SHAPES = [(2, 1), (3, 1), (1, 3), (2, 2), (2, 3), (3, 2)]
MATRIX = st.sampled_from(SHAPES).flatmap(
    lambda shape: st.lists(st.lists(ENTRY, min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0])
)


def write_matrix(draw: Draw, rows: list[list[Any]]) -> str:
    row_end = one_of(draw, r"\\", r" \\ ", r"\\ ", r" \\[4pt] ", "\\\\\n")
    cell_end = one_of(draw, "&", " & ", "& ")
    body = row_end.join(cell_end.join(write_number(draw, e, alone=False) for e in row) for row in rows)
    body += one_of(draw, "", "", r" \\")
    name = one_of(draw, "pmatrix", "bmatrix", "array", "matrix")
    space = one_of(draw, "", " ")
    if name == "array":
        return rf"\left({space}\begin{{array}}{{{'c' * len(rows[0])}}}{space}{body}{space}\end{{array}}\right)"
    left, right = (r"\left[", r"\right]") if name == "matrix" else ("", "")
    return rf"{left}\begin{{{name}}}{space}{body}{space}\end{{{name}}}{right}"


def change_matrix(draw: Draw, rows: list[list[Any]]) -> list[list[Any]]:
    if draw(st.integers(0, 3)) == 0:  # another shape of the same numbers
        flat = [entry for row in rows for entry in row]
        return [flat] if len(rows) > 1 else [[entry] for entry in flat]
    at = draw(st.integers(0, len(rows) - 1))
    return [change_entry(draw, row) if i == at else row for i, row in enumerate(rows)]


# ---- polynomials: {power: coefficient}; lines: (a, b, c) for ax + by = c; complex numbers: (re, im)

POLYNOMIAL = st.dictionaries(st.integers(0, 7), st.integers(-99, 99).filter(bool), min_size=2, max_size=4)


def write_polynomial(draw: Draw, terms: dict[int, int]) -> str:
    text = ""
    for power, a in draw(st.permutations(sorted(terms.items()))):
        x = (
            {0: "", 1: "x"}.get(power)
            if power < 2
            else one_of(draw, f"x^{power}", f"x^{{{power}}}", f"x^{{ {power} }}")
        )
        size = "" if abs(a) == 1 and power else str(abs(a))
        times = one_of(draw, "", "", " ", r"\cdot ") if size and power else ""
        sign = "-" if a < 0 else ("+" if text else "")
        text += one_of(draw, sign, f" {sign} ") + size + times + str(x)
    return text.strip()


def change_polynomial(draw: Draw, terms: dict[int, int]) -> dict[int, int]:
    power = draw(st.sampled_from(sorted(terms)))
    other = dict(terms)
    if chance(draw):
        other[power] = draw(st.sampled_from([-terms[power], terms[power] + 1, terms[power] * 10]))
    else:
        other[power + 1] = other.pop(power) + other.get(power + 1, 0)
    assume({p: a for p, a in other.items() if a} != terms)
    return {p: a for p, a in other.items() if a} or {0: 7, 1: 1}


LINE = st.tuples(*[st.integers(-30, 30).filter(bool)] * 3)


def write_line(draw: Draw, line: tuple[int, int, int]) -> str:
    a, b, c = line
    scale = one_of(draw, 1, 1, 2, -1)
    x, y = f"{scale * a}x", f"{scale * b}y"
    left = one_of(draw, f"{x} + {y}", f"{y}+{x}").replace("+ -", "- ").replace("+-", "-")
    whole = f"{left}{-scale * c:+}"
    return str(one_of(draw, f"{left} = {scale * c}", f"{left}={scale * c}", f"{whole} = 0", f"0 = {whole}"))


def change_line(draw: Draw, line: tuple[int, int, int]) -> tuple[int, ...]:
    at = draw(st.integers(0, 2))
    return tuple(one_of(draw, -n, n + 1 or 7) if i == at else n for i, n in enumerate(line))


COMPLEX = st.tuples(st.integers(-60, 60).filter(bool), st.integers(-60, 60).filter(bool))


def write_complex(draw: Draw, number: tuple[int, int]) -> str:
    a, b = number
    i = ("" if abs(b) == 1 else str(abs(b))) + one_of(draw, "i", "i", " i", r"\mathrm{i}")
    sign = "-" if b < 0 else "+"
    return str(one_of(draw, f"{a}{sign}{i}", f"{a} {sign} {i}", f"{'-' if b < 0 else ''}{i}{a:+}"))


def change_complex(draw: Draw, number: tuple[int, int]) -> tuple[int, int]:
    a, b = number
    other = one_of(draw, (-a, b), (a, -b), (b, a), (change_digit(draw, a), b), (a, change_digit(draw, b) or 99))
    assume(other != number)
    assume(other[0])
    return other  # type: ignore[no-any-return]


# ---- quantities: (number, unit); percentages; times of day; numerals of other bases; big numbers

UNITS = {
    "cm": ["cm", r"\text{cm}", r"\text{ cm}", r"\,\mathrm{cm}", r"\mbox{ cm}", "centimeters", r"\text{ centimeters}"],
    "m": [r"\text{ m}", r"\mathrm{~m}", "meters", r"\text{ metres}", "meter"],
    "cm^2": [r"\text{ cm}^2", r"\mbox{ cm}^{2}", "square centimeters", r"\text{ sq cm}", r"\text{cm}^2", "cm^2"],
    "cm^3": [r"\text{ cm}^3", "cubic centimeters", r"\mathrm{cm}^{3}", "cm^3"],
    "in": [r"\text{ inches}", "inches", r"\text{ in}", "inch"],
    "ft": [r"\text{ feet}", "feet", r"\text{ ft}", "ft", "foot"],
    "h": ["hours", r"\text{ hours}", "hour", r"\text{ hr}"],
    "min": ["minutes", r"\text{ minutes}", "min"],
    "km/h": [r"\text{ km/h}", "km/h", "kilometers per hour", r"\text{ km per hour}"],
    "mi/h": ["miles per hour", r"\text{ mph}", "mph"],
    "$": ["dollars", r"\text{ dollars}", "dollar"],
    "cent": ["cents", r"\text{ cents}", r"\text{ cent}"],
    "kg": ["kg", r"\text{ kg}", "kilograms"],
    "am": ["am", r"\text{ a.m.}", "AM", "a.m.", r"\text{ AM}"],
    "pm": ["pm", r"\text{ p.m.}", "PM", r"\text{ pm}"],
}
QUANTITY = st.tuples(NUMBER | ROOT, st.sampled_from(sorted(set(UNITS) - {"am", "pm"})))


def write_quantity(draw: Draw, quantity: tuple[Any, str]) -> str:
    number, unit = quantity
    written = write_number(draw, number)
    if unit == "$" and not written.startswith("-") and chance(draw):
        return rf"\${written}"
    spelling = one_of(draw, *UNITS[unit])
    return written + ("" if spelling.startswith("\\") else " ") + spelling


def change_quantity(draw: Draw, quantity: tuple[Any, str]) -> tuple[Any, str]:
    number, unit = quantity
    if chance(draw):
        return change_number(draw, number), unit
    return number, draw(st.sampled_from([other for other in sorted(set(UNITS) - {"am", "pm"}) if other != unit]))


PERCENT = st.one_of(WHOLE, DECIMAL)


def write_percent(draw: Draw, number: tuple[Any, ...]) -> str:
    return write_number(draw, number) + one_of(draw, r"\%", "%", r" \%", " percent", r"\text{ percent}", r"\,\%")


CLOCK = st.tuples(st.integers(1, 12), st.integers(0, 59), st.sampled_from(["am", "pm"]))


def write_clock(draw: Draw, time: tuple[int, int, str]) -> str:
    hour, minute, half = time
    spelling = one_of(draw, *UNITS[half])
    return f"{hour}:{minute:02}" + ("" if spelling.startswith("\\") else " ") + spelling


def change_clock(draw: Draw, time: tuple[int, int, str]) -> tuple[int, int, str]:
    hour, minute, half = time
    other = one_of(draw, (hour % 12 + 1, minute, half), (hour, draw(st.integers(0, 59)), half))
    other = one_of(draw, other, (hour, minute, "am" if half == "pm" else "pm"))
    assume(other != time)
    return other  # type: ignore[no-any-return]


BASED = st.tuples(st.integers(10, 7777).map(lambda n: int(f"{n:o}"[:4])), st.integers(8, 9))


def write_based(draw: Draw, numeral: tuple[int, int]) -> str:
    digits, base = numeral
    return f"{digits}_" + one_of(draw, f"{base}", f"{{{base}}}", f"{{ {base} }}")


def change_based(draw: Draw, numeral: tuple[int, int]) -> tuple[int, int]:
    digits, base = numeral
    other = one_of(draw, (digits, 17 - base), (abs(change_digit(draw, digits)), base))
    assume(other != numeral)
    return other  # type: ignore[no-any-return]


BIG = st.integers(1_000, 10**14).map(lambda n: ("whole", n)) | st.integers(-(10**9), -1_000).map(lambda n: ("whole", n))


def listed(brackets: str, entry: st.SearchStrategy[Any], low: int, high: int) -> st.SearchStrategy[Any]:
    return st.lists(entry, min_size=low, max_size=high).map(lambda entries: (brackets, entries))


def distinct(data: tuple[str, list[Any]]) -> bool:
    return len({value(entry) for entry in data[1]}) == len(data[1])


KINDS: dict[str, Kind] = {
    "number": Kind(NUMBER, write_number, change_number),
    "big number": Kind(BIG, write_number, change_number),
    "mixed number": Kind(MIXED, write_number, change_number),
    "root": Kind(ROOT, write_number, change_number),
    "percentage": Kind(PERCENT, write_percent, change_number),
    "quantity": Kind(QUANTITY, write_quantity, change_quantity),
    "time": Kind(CLOCK, write_clock, change_clock),
    "numeral with a base": Kind(BASED, write_based, change_based),
    "complex number": Kind(COMPLEX, write_complex, change_complex),
    "polynomial": Kind(POLYNOMIAL, write_polynomial, change_polynomial),
    "line": Kind(LINE, write_line, change_line),
    "pair": Kind(listed("()", NUMBER, 2, 2), write_list, change_tuple),
    "tuple": Kind(listed("()", st.one_of(ENTRY, BIG), 3, 4), write_list, change_tuple),
    "set": Kind(listed("{}", st.one_of(ENTRY, BIG), 2, 4).filter(distinct), write_list, change_set),
    "list": Kind(listed("", ENTRY, 2, 4).filter(distinct), write_bare_list, change_bare_list),
    "ratio": Kind(st.lists(st.integers(1, 40), min_size=3, max_size=4), write_ratio, change_ratio),
    "interval": Kind(INTERVAL.filter(is_interval), write_interval, change_interval),
    "matrix": Kind(MATRIX, write_matrix, change_matrix),
}


def dress(draw: Draw, text: str) -> str:
    """What may stand around any answer."""
    around = [("", ""), ("", ""), ("$", "$"), (r"\(", r"\)"), (r"\[ ", r" \]"), ("$$", "$$"), (r"\displaystyle ", ""),
              (r"\boxed{", "}"), (" ", "\n"), (r"$\displaystyle ", "$")]  # fmt: skip
    left, right = one_of(draw, *around)
    return f"{left}{text}{right}" + one_of(draw, "", "", "", ".", " ")

"""Ranges of settings: what is accepted, and what is said of the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from prism_prm.config import MAY_BE_EMPTY, Count, Natural, NotNegative, Positive, Range, Share, check, fault
from prism_prm.errors import SettingError


@pytest.mark.parametrize(
    ("hint", "right", "wrong", "reason"),
    [
        (Count, [1, 10**18, np.int64(3)], [0, -1], "must be 1 or more"),
        (Count, [], [1.0, "1", True, None, math.nan], "must be a whole number"),
        (Natural, [0, -0], [-1], "must be 0 or more"),
        (Natural, [], [10**30, 2**63], "is too large: whole numbers have 64 bits"),
        (Positive, [1e-30, 3, np.float64(0.5)], [0, 0.0, -0.0, -1.0], "must be above 0"),
        (NotNegative, [0, -0.0], [-1e-9], "must be 0 or more"),
        (Share, [0, 1, 0.5], [-0.1, 1.1], "must be 0 or more and at most 1"),
        (Share, [], [math.nan, math.inf, -math.inf, True, "0.5", [0.5]], "must be a finite number"),
        (Annotated[float, Range(above=0, below=1)], [0.5], [0, 1], "must be above 0 and below 1"),
        (Count | None, [None, 2], [0], "must be 1 or more"),
        (Count | Literal["all"], ["all", 2], [0], "must be 1 or more or one of all"),
        (Literal["a", "b"], ["a"], ["c", "", 3, None], "must be one of a, b"),
        (tuple[Count, ...], [(), [1, 2]], [[0], (1, 0)], "each of the list must be 1 or more"),
        (tuple[Share, Share], [(0, 1)], [(0,), (0, 1, 1)], "must be a list of 2"),
        (tuple[str, ...], [("a",)], ["a", 3], "must be a list"),
        (dict[str, Share], [{}, {"a": 1}], [{"a": 2}], "must be 0 or more and at most 1"),
        (bool, [True], [1, "yes", None], "must be true or false"),
        (str, ["a"], [""], "must not be empty"),
        (Annotated[str, MAY_BE_EMPTY] | None, ["", None], [3], "must be a string"),
    ],
)
def test_what_a_type_accepts(hint: Any, right: list[Any], wrong: list[Any], reason: str) -> None:
    assert [value for value in right if fault(value, hint)] == []
    assert {fault(value, hint) for value in wrong} == {reason}


@dataclass(frozen=True)
class Car:
    doors: Count = 4
    name: str = ""
    note: str | None = None

    def __post_init__(self) -> None:
        check(self)


def test_a_class_refuses_what_its_fields_do_not_accept() -> None:
    assert Car(doors=2, name="").doors == 2
    with pytest.raises(SettingError, match="doors = 0: must be 1 or more"):
        Car(doors=0)
    with pytest.raises(SettingError, match="note = '': must not be empty"):
        Car(note="")

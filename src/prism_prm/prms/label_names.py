"""Which class of a token classifier stands for a right step, by the names that its config gives the classes."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from prism_prm.prms.card import CARD_FILE

log = logging.getLogger(__name__)

_RIGHT = frozenset({"accept", "correct", "good", "ok", "pass", "pos", "positive", "right", "true", "valid", "yes"})
_WRONG = frozenset(
    {"bad", "error", "fail", "false", "incorrect", "invalid", "mistake", "neg", "negative", "reject", "wrong"}
)
_SIGNS = {"+": True, "+1": True, "-": False, "-1": False}


def first_is_right(folder: Path, config: Any) -> bool:
    """Whether class 0 is a right step; if the names do not say, class 1 is, and a warning says so."""
    names = [str(config.id2label.get(label, "")) for label in (0, 1)]
    first, second = map(_is_right, names)
    if first != second:
        return not second if first is None else first
    if not (folder / CARD_FILE).exists():  # in folders of ours class 1 is right
        log.warning(
            "%s: its labels %r and %r do not say which one is a right step; the second is taken for it. Otherwise set "
            'id2label in config.json to {"0": "right", "1": "wrong"}.', folder, *names,
        )  # fmt: skip
    return False


def _is_right(name: str) -> bool | None:
    """What a name says of a step; None if it says nothing."""
    if (sign := _SIGNS.get(name.strip())) is not None:
        return sign
    words = {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}
    is_right, is_wrong, is_negated = bool(words & _RIGHT), bool(words & _WRONG), bool(words & {"no", "non", "not"})
    if is_right == is_wrong:
        return False if is_negated and not is_right else None
    return is_right != is_negated

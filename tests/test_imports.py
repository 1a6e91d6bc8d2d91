"""No garbage is collected while libraries are imported, and only then; `prism` never searches what they made."""

from __future__ import annotations

import gc

import pytest

from prism_prm import imports
from prism_prm.imports import importing


@pytest.mark.parametrize("freezes", [False, True])
def test_collection_resumes_after_imports(freezes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "freezes", freezes)
    before = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert (gc.get_freeze_count() >= before + len(made)) == freezes


def test_collection_resumes_after_a_failed_import() -> None:
    with pytest.raises(ModuleNotFoundError), importing():
        import no_such_module  # noqa: F401
    assert gc.isenabled()


def test_who_collects_by_hand_still_does() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

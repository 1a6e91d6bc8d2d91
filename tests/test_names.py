from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_prm.errors import ConfigError
from prism_prm.paths import check_name, file_name, named_places, own_name, split_name

printable = st.text(min_size=1, max_size=80).filter(lambda text: text.isprintable() and text.strip())


def test_names_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_name("base=prms/base") == ("base", "prms/base")
    assert split_name("prms/base") == ("", "prms/base")
    folder = tmp_path / "lr=1e-5"
    folder.mkdir()
    assert split_name(str(folder)) == ("", str(folder)), "a path with a = is a path"
    assert named_places([str(folder)]) == {"lr=1e-5": str(folder)}
    monkeypatch.chdir(folder)
    assert [own_name(place) for place in (".", "..", "org/prm", "prms/base/")] == [
        "lr=1e-5", tmp_path.name, "prm", "base"
    ]  # fmt: skip
    assert split_name(f"{'x' * 300}=prms/base") == ("x" * 300, "prms/base")
    with pytest.raises(ConfigError, match="names no folder or file"):
        split_name("base=")


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x1b[31m", "a\tb"])
def test_names_that_cannot_be_shown(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be shown"):
        check_name(name)
    with pytest.raises(ConfigError, match="cannot be shown"):
        split_name(f"{name}=prms/base")


def test_file_names() -> None:
    for plain in ("base", "Qwen2.5-Math-PRM-7B", "round 2", "lr=1e-5", "модель"):
        assert file_name(plain) == plain
    assert file_name("../../x") == "%2E.%2F..%2Fx"
    assert file_name(".") == "%2E"
    assert file_name(".hidden") == "%2Ehidden"
    assert file_name("a/b\\c%") == "a%2Fb%5Cc%25"


@given(printable, printable)
def test_file_names_stay_in_their_folder_and_differ_where_names_do(one: str, other: str) -> None:
    for name in (one, other, one * 40):
        path = Path("out") / f"{file_name(name)}.parquet"
        assert path.parent == Path("out")
        assert ".." not in path.parts
        assert not path.name.startswith(".")
        assert len(path.name.encode()) < 200
    assert (file_name(one) == file_name(other)) == (one == other)
    assert file_name(one * 40) != file_name(one * 41)

"""Recipe files as people have them: marks of editors, cycles, wrong numbers; every error names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_prm.config import read_settings, read_toml
from prism_prm.errors import ConfigError
from prism_prm.search.recipes import SearchRecipe
from prism_prm.train.recipe import load_recipe

TRAIN = '[data]\ninputs = ["x"]\n[base]\nprm = "x"\n'
SEARCH = 'task = "gsm8k"\n[policy]\nname = "hf:x"\n[search]\nmethod = "sample"\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_byte_order_mark_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_toml(path) == {"a": 1}


def test_a_circle_of_recipes_is_shown(tmp_path: Path) -> None:
    for name, base in ("ab", "bc", "ca"):
        write(tmp_path / f"{name}.toml", f'extends = "{base}.toml"\n')
    with pytest.raises(ConfigError, match=r"a\.toml: extends itself: a\.toml → b\.toml → c\.toml → a\.toml"):
        read_toml(tmp_path / "a.toml")
    write(tmp_path / "self.toml", 'extends = "self.toml"\n')
    with pytest.raises(ConfigError, match=r"self\.toml: extends itself"):
        read_toml(tmp_path / "self.toml")


def test_two_may_extend_one(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "a = 1\nb = 1\n")
    write(tmp_path / "middle.toml", 'extends = "base.toml"\nb = 2\n')
    write(tmp_path / "top.toml", 'extends = "middle.toml"\n')
    assert read_toml(tmp_path / "top.toml") == {"a": 1, "b": 2}


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.toml: cannot be read \(File name too long\)"):
        read_toml(write(tmp_path / "a.toml", f'extends = "{"x" * 300}.toml"\n'))


def test_what_is_extended_is_the_name_of_a_file(tmp_path: Path) -> None:
    for text in ("extends = 3", "extends = ''", "extends = ['a.toml']", 'extends = "\\u0000"'):
        with pytest.raises(ConfigError, match=r"a\.toml: extends = .*, expected the name of a TOML file"):
            read_toml(write(tmp_path / "a.toml", text + "\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5000, "(nested too deeply|not valid TOML)"),  # by the recursion limit of the moment
        ("a = " + "9" * 5000, "not valid TOML"),
        ("a = ", "not valid TOML"),
        ("a = 1\na = 2", "not valid TOML"),
    ],
)
def test_what_is_no_toml(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"a\.toml: {message}"):
        read_toml(write(tmp_path / "a.toml", text))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[train]\nwarp = 9", r"Unknown keys \['warp'\] in \[train\]"),
        ('[train]\nlr = "much"', "train.lr = 'much': must be a finite number"),
        ("[train]\nlr = nan", "train.lr = nan: must be a finite number"),
        ("[train]\nlr = inf", "train.lr = inf: must be a finite number"),
        ("seed = 99999999999999999999", "seed = 99999999999999999999: is too large"),
        ("lookahead_ratio = -1", "lookahead_ratio = -1: must be 0 or more"),
        ("[train]\nlr = 2020-01-01", "train.lr = datetime.date.*: must be a finite number"),
    ],
)
def test_what_is_wrong_in_a_training_recipe_names_the_file(tmp_path: Path, settings: str, message: str) -> None:
    top = settings if not settings.startswith("[") else ""
    path = write(tmp_path / "mine.toml", f"{top}\n{TRAIN}{settings if not top else ''}\n")
    with pytest.raises(ConfigError, match=rf"mine\.toml: .*{message}"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.lr=nan", "^--set train.lr=nan: must be a finite number"),
        ("a.b=1", "^--set a.b=1: there is no setting a.b"),
        ("data={}", r"mine.toml with --set data={}: \[data\] needs either inputs"),
    ],
)
def test_assignments_are_named_too(tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(tmp_path / "mine.toml", TRAIN), [assignment])


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ("n = [0]", {}, r"mine.toml: n = \[0\]: each of the list must be 1 or more"),
        ("n = [4]", {"search.method": "warp"}, "mine.toml with the options given: "),
        ("policy = 3", {"policy.name": "hf:x"}, r"the options given: \[policy\] must be a section, not 3"),
    ],
)
def test_what_is_wrong_in_a_search_recipe_names_the_file(
    tmp_path: Path, settings: str, given: dict[str, str], message: str
) -> None:
    text = f"{settings}\n" + (SEARCH if "policy" not in settings else "")
    with pytest.raises(ConfigError, match=message):
        read_settings(SearchRecipe, write(tmp_path / "mine.toml", text), given=given)


def test_without_a_file_none_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^no task"):
        read_settings(SearchRecipe, None, given={"policy.name": "hf:x"})

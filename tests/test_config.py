"""Settings: what a user writes, and what they are told when it is wrong."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prism_prm.config import from_mapping, read_settings, read_toml, to_toml
from prism_prm.errors import ConfigError
from prism_prm.train.recipe import Recipe


@dataclass(frozen=True)
class Engine:
    power: float = 1.5
    fuels: tuple[str, ...] = ("oil",)


@dataclass(frozen=True)
class Car:
    name: str
    doors: int = 4
    fast: bool = False
    note: str | None = None
    engine: Engine = field(default_factory=Engine)
    spare: Engine | None = None


def test_nested_sections_and_defaults() -> None:
    car = from_mapping(Car, {"name": "a", "engine": {"power": 2}, "spare": {"fuels": ["gas", "oil"]}})
    assert car == Car("a", engine=Engine(power=2.0), spare=Engine(fuels=("gas", "oil")))


def test_unknown_keys_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"Unknown keys \['warp'\] in \[engine\]. Known: \['power', 'fuels'\]."):
        from_mapping(Car, {"name": "a", "engine": {"warp": 9}})
    with pytest.raises(ConfigError, match=r"Unknown keys \['warp'\] in \[spare\]"):
        from_mapping(Car, {"name": "a", "spare": {"warp": 9}})


def test_wrong_type_names_the_place() -> None:
    with pytest.raises(ConfigError, match=r"engine\.power = 'much': must be a finite number"):
        from_mapping(Car, {"name": "a", "engine": {"power": "much"}})
    with pytest.raises(ConfigError, match="the setting name is missing"):
        from_mapping(Car, {})


def test_a_value_that_is_none_of_a_few_lists_them() -> None:
    sections = {"data": {"inputs": ["x"]}, "base": {"prm": "x"}}
    for change, known in [
        (
            {"objective": {"name": "foo"}},
            "objective.name = 'foo': must be one of sc, bce, hybrid, listwise, listwise+bce",
        ),
        (
            {"hardware": {"save_dtype": "fp16"}},
            "save_dtype = 'fp16': must be one of float32, bfloat16, float64",
        ),
        ({"report_to": ["mlflow"]}, "report_to = ['mlflow']: each of the list must be one of tensorboard, wandb"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(known)):
            from_mapping(Recipe, {**sections, **change})


def test_assignments_come_on_top_of_options_and_these_on_top_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "car.toml").write_text('name = "a"\ndoors = 2\n[engine]\npower = 1.0\nfuels = ["x"]\n')
    given = {"doors": 3, "engine.power": 2.0, "note": None}
    assert read_settings(Car, tmp_path / "car.toml", [], given) == Car("a", 3, engine=Engine(2.0, ("x",)))
    assert read_settings(Car, tmp_path / "car.toml", ["engine.power=2e-6", "name=b c", "fast = true"], given) == (
        Car("b c", 3, True, engine=Engine(2e-6, ("x",)))
    )


@pytest.mark.parametrize("text", ['engine.fuels=["x", "y"]', "engine.fuels = x, y", "engine={fuels=['x', 'y']}"])
def test_spellings_of_a_list(text: str) -> None:
    assert read_settings(Car, None, ["name=a", text]) == Car("a", engine=Engine(fuels=("x", "y")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine.power", "expected KEY=VALUE, e.g. --set seed=1"),
        ("=3", "expected KEY=VALUE"),
        ("name.x=3", "there is no setting name.x. Did you mean name?"),
        ("engine..power=1", "there is no setting engine..power. Did you mean engine.power?"),
        ("dors=3", "there is no setting dors. Did you mean doors?"),
        ("power=1", "power is ambiguous: engine.power or spare.power. Give more of the name."),
        ("doors=many", "must be a whole number"),
    ],
)
def test_bad_assignments(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--set {text}: {message}")):
        read_settings(Car, None, ["name=a", text])


def test_toml_round_trip() -> None:
    car = Car('a "quoted" \\ näme\n', doors=2, engine=Engine(1e-9, ("x", "y")), spare=Engine())
    assert from_mapping(Car, tomllib.loads(to_toml(car))) == car
    assert "note" not in to_toml(car)


def test_written_settings_can_be_read_by_people() -> None:
    assert to_toml(Car("a", engine=Engine(1e-6, ("x", "y")))) == (
        'name = "a"\ndoors = 4\nfast = false\n\n[engine]\npower = 1e-06\nfuels = [\n  "x",\n  "y",\n]\n'
    )


def test_lists_of_numbers_are_written_in_a_line() -> None:
    odd = "a [\n1,\n] b"
    recipe = from_mapping(
        Recipe, {"data": {"inputs": [odd, "[1, 2]"]}, "base": {"prm": odd}, "train": {"betas": [0, 0.5]}}
    )
    text = to_toml(recipe)
    assert "betas = [0.0, 0.5]" in text
    assert "bins = [\n  [0.5, 1.0],\n  [0.3, 0.5],\n  [0.2, 0.3],\n  [0.1, 0.2],\n]" in text
    assert from_mapping(Recipe, tomllib.loads(text)) == recipe


def test_names_and_texts_that_toml_must_quote() -> None:
    sections = {"data": {"inputs": ["x"], "split": {"train": 0.5, "held out.1": 0.5}}, "base": {"prm": "a\x7f\tb"}}
    recipe = from_mapping(Recipe, sections)
    assert from_mapping(Recipe, tomllib.loads(to_toml(recipe))) == recipe


def test_settings_written_by_earlier_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text('name = "a"\ndoors = 4\n\n[engine]\npower = 1e-06\nfuels = ["x", "y"]\n')
    assert from_mapping(Car, read_toml(tmp_path / "old.toml")) == Car("a", engine=Engine(1e-6, ("x", "y")))


def test_read_toml_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_toml(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match=r"bad.toml: not valid TOML: .*line 1"):
        read_toml(tmp_path / "bad.toml")


def test_a_file_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('name = "a"\ndoors = 3\n[engine]\npower = 2.0\nfuels = ["x", "y"]\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.toml").write_text('extends = "../base.toml"\ndoors = 5\n[engine]\nfuels = ["z"]\n')
    assert from_mapping(Car, read_toml(tmp_path / "sub" / "more.toml")) == Car("a", 5, engine=Engine(2.0, ("z",)))
    (tmp_path / "loop.toml").write_text('extends = "loop.toml"')
    with pytest.raises(ConfigError, match="extends itself"):
        read_toml(tmp_path / "loop.toml")

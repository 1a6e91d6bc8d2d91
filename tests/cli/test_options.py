"""Options are made from settings: one place for the name, type, default and help of each."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from prism_prm.backends.load_prm import load_prm
from prism_prm.cli.options import Command, families_of, is_repeated, metavar, narrow, parameter_name
from prism_prm.config import Count, Word, check, settings_of
from prism_prm.errors import ConfigError, SettingError
from prism_prm.lab.world.example_prms import example_folder
from prism_prm.models.load_settings import LoadSettings
from prism_prm.search.methods import METHODS, SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.select import SELECTORS


@dataclass(frozen=True)
class Engine:
    power: float = 1.5
    """How strong
    the engine is."""
    fuel: Literal["oil", "gas"] | None = None
    """What it burns."""


@dataclass(frozen=True)
class Car:
    name: str = ""
    """What it is called."""
    doors: tuple[Count, ...] = (2, 4)
    """Doors by row."""
    owners: tuple[str, ...] = ()
    """Who owns it."""
    colors: tuple[Word, ...] = ()
    """How it is painted."""
    fast: bool = False
    weights: dict[str, float] = field(default_factory=dict)
    manual: Path | None = None
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        check(self)
        if self.name == "nobody":
            raise SettingError("name", self.name, "must be a name")


COMMAND = Command(
    Car,
    print,
    options={
        "--name": "name", "--doors": "doors", "--owner": "owners", "--color": "colors", "--fast": "fast",
        "--weights": "weights", "--manual": "manual", "--fuel": "engine.fuel", "--power": "engine.power",
    },
    examples={},
)  # fmt: skip


def car(recipe: Path | None = None, assignments: tuple[str, ...] = (), **given: Any) -> Car:
    """The car of a command line as click has parsed it."""
    values = {parameter_name(flag): None for flag in COMMAND.options} | given
    read: Car = COMMAND.read({**values, "recipe": recipe, "set": assignments})
    return read


def test_settings_know_their_sections_and_texts() -> None:
    known = settings_of(Car)
    assert [*known][-2:] == ["engine.power", "engine.fuel"]
    assert known["engine.power"].text == "How strong the engine is."
    assert known["engine.power"].default == 1.5
    assert known["fast"].text == ""


def test_options_become_settings() -> None:
    found = car(name="T", doors="5,6", owner=("a,b", "c"), color="red,blue", fast=True, weights="front=0.5,back=2",
                manual="m.pdf", fuel="gas", power="2")  # fmt: skip
    expected = Car("T", (5, 6), ("a,b", "c"), ("red", "blue"), True, {"front": 0.5, "back": 2}, Path("m.pdf"),
                   Engine(2.0, "gas"))  # fmt: skip
    assert found == expected


def test_a_list_may_be_given_in_parts() -> None:
    assert car(doors=("5,6", "7")).doors == (5, 6, 7)


def test_options_override_a_recipe_and_set_overrides_both(tmp_path: Path) -> None:
    recipe = tmp_path / "car.toml"
    recipe.write_text('name = "file"\nfast = true\n[engine]\npower = 3.0\n')
    assert car(recipe) == Car("file", fast=True, engine=Engine(3.0))
    assert car(recipe, name="T", power="1.5") == Car("T", fast=True), "a default that is given counts too"
    assert car(recipe, ("power=4", "name=S"), name="T", power="1.5") == Car("S", fast=True, engine=Engine(4.0))


@pytest.mark.parametrize(
    ("assignment", "changed"),
    [
        ("engine.power=2e3", {"engine": Engine(2000.0)}),
        ("power=2", {"engine": Engine(2.0)}),
        ("doors=[1]", {"doors": (1,)}),
        ("doors=1", {"doors": (1,)}),
        ("name=42", {"name": "42"}),
        ('name="a b"', {"name": "a b"}),
        ("owners=a,b", {"owners": ("a", "b")}),
        ('owners=["a,b"]', {"owners": ("a,b",)}),
        ("owners=[]", {}),
        ("weights.front=1", {"weights": {"front": 1.0}}),
        ('engine={fuel="oil"}', {"engine": Engine(fuel="oil")}),
    ],
)
def test_assignments(assignment: str, changed: dict[str, Any]) -> None:
    assert car(assignments=(assignment,)) == Car(**changed)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"doors": "2,x"}, "--doors 2,x: each of the list must be a whole number"),
        ({"doors": "0"}, "--doors 0: each of the list must be 1 or more"),
        ({"power": "nan"}, "--power nan: must be a finite number"),
        ({"fuel": "water"}, "--fuel water: must be one of oil, gas"),
        ({"name": "nobody"}, "--name nobody: must be a name"),
        ({"assignments": ("power=x",)}, "--set power=x: must be a finite number"),
        ({"assignments": ("pwoer=1",)}, "--set pwoer=1: there is no setting pwoer. Did you mean engine.power?"),
        ({"assignments": ("power",)}, "--set power: expected KEY=VALUE"),
    ],
)
def test_refused_values_name_the_option(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        car(**given)
    assert str(refused.value).startswith(message)


def test_what_stands_for_a_value() -> None:
    known = settings_of(Car)
    assert {name: metavar(known[name]) for name in ("name", "doors", "fast", "engine.power", "engine.fuel")} == {
        "name": "NAME", "doors": "DOORS", "fast": "", "engine.power": "X", "engine.fuel": "FUEL",
    }  # fmt: skip
    assert [name for name in known if is_repeated(known[name])] == ["owners"]


def test_the_part_of_a_library_function() -> None:
    @dataclass(frozen=True)
    class Sports(Car):
        turbo: bool = True

    assert narrow(Sports("T", turbo=False), Car) == Car("T")


def test_families() -> None:
    assert families_of(["qwen", "b=rlhflow"], ["a", "b"]) == {"a": "qwen", "b": "rlhflow"}
    with pytest.raises(ConfigError, match=r"no PRM is called 'c'\. PRMs: a, b"):
        families_of(["c=qwen"], ["a", "b"])
    with pytest.raises(ConfigError, match="the PRM 'a' already has the family 'qwen'"):
        families_of(["a=qwen", "a=rlhflow"], ["a"])


def test_load_prm_takes_the_settings_of_loading() -> None:
    keywords = {key: value.default for key, value in inspect.signature(load_prm).parameters.items()}
    del keywords["name"], keywords["settings"]
    assert keywords == {one.name: one.default for one in fields(LoadSettings)} | {"on_too_long": "error"}


@pytest.mark.parametrize("wrong", [{"token_budget": 0}, {"context": 0}, {"cache_gb": -1.0}])
def test_loading_refuses_what_is_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} = .* or more"):
        load_prm("nowhere", **wrong)


def test_choices_are_those_that_there_are() -> None:
    assert get_args(settings_of(SearchSettings)["method"].hint) == tuple(METHODS)
    assert set(get_args(get_args(settings_of(SearchRecipe)["select"].hint)[0])) == set(SELECTORS)


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], ("torch", "numpy", "pyarrow")),
        (["search", "--help"], ("torch",)),
        (["score", "--help"], ("torch",)),
        (["grpo", "--help"], ("torch",)),
    ],
)
def test_help_waits_for_nothing_heavy(words: list[str], absent: tuple[str, ...]) -> None:
    code = f"import sys\nfrom prism_prm.cli import app\ntry:\n app({words!r})\nexcept SystemExit:\n pass\n"
    code += f"print('heavy', [name for name in {absent!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Usage" in out
    assert out.strip().endswith("heavy []")


def test_score_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"problem": "1+1+2", "steps": ["1+1=2", "2+2=4"]}\n')
    prm = example_folder()
    words = ["prism", "score", "one.jsonl", "--prm", str(prm), "--out", "scores.parquet"]
    absent = (
        "datasets", "fastapi", "gguf", "latex2sympy2_extended", "matplotlib", "peft", "ray", "sklearn", "tensorboard",
        "transformers.trainer", "trl",
    )  # fmt: skip
    code = f"import gc, sys\nfrom prism_prm.cli import main\nsys.argv = {words!r}\ntry:\n main()\n"
    code += f"finally:\n print([name for name in {absent!r} if name in sys.modules], gc.isenabled())"
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["2 steps of 1 trees → scores.parquet", "[] True"]

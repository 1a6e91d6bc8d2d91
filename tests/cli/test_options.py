"""Options are made from settings: one place for the name, type, default and help of each."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import pytest
import typer
from click.testing import CliRunner

from prism_prm.backends.load_prm import load_prm
from prism_prm.cli import app
from prism_prm.cli.options import Options, SettingsCommand, with_settings
from prism_prm.config import settings_of
from prism_prm.errors import ConfigError
from prism_prm.models.load_settings import LoadSettings
from prism_prm.search.methods import METHODS, SearchSettings
from prism_prm.search.recipes import SearchRecipe
from prism_prm.search.select import SELECTORS

GENERATED = ("pairs", "score", "margins", "eval", "rerank", "search")


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
    doors: tuple[int, ...] = (2, 4)
    """Doors by row."""
    owners: tuple[str, ...] = ()
    """Whose it is."""
    fast: bool = False
    undocumented: int | None = None
    engine: Engine = field(default_factory=Engine)

    def __post_init__(self) -> None:
        if self.name == "nobody":
            raise ConfigError("a car is never called nobody")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def command_of(seen: list[Any], **changes: Any) -> Callable[..., str]:
    """A command whose one settings parameter is a Car, or what was given of one; it returns what it prints."""
    panels = {"": ("name", "fast"), "Rest": ("doors", "owners")}
    small = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
    options = Options(f"{__name__}:Car", changes.pop("panels", panels), parse={"doors": numbers}, **changes)

    @with_settings(car=options)
    def drive(*, far: int = 1, car: Car, near: bool = False) -> None:
        """Drive a car."""
        seen.append((far, car, near))

    small.command(cls=SettingsCommand)(drive)
    small.command("other")(lambda: None)

    def run(*words: str) -> str:
        result = CliRunner().invoke(small, ["drive", *words], env={"COLUMNS": "80"})
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    return run


def test_settings_know_their_sections_and_texts() -> None:
    known = settings_of(Car)
    assert [*known] == ["name", "doors", "owners", "fast", "undocumented", "engine.power", "engine.fuel"]
    assert known["engine.power"].text == "How strong the engine is."
    assert known["engine.power"].default == 1.5
    assert known["undocumented"].text == ""


def test_a_command_gets_its_settings() -> None:
    seen: list[Any] = []
    run = command_of(seen)
    run()
    run("--name", "T", "--doors", "5,6", "--owners", "a", "--owners", "b", "--fast", "--far", "3")
    assert seen == [(1, Car(), False), (3, Car("T", (5, 6), ["a", "b"], fast=True), False)]  # type: ignore[arg-type]


def test_only_what_was_given_covers_a_recipe() -> None:
    seen: list[Any] = []
    run = command_of(seen, panels={"": ("name", "doors", "engine.power", "engine.fuel")}, as_given=True)
    run("--power", "1.5", "--fuel", "gas")
    run()
    assert [given for _, given, _ in seen] == [{"engine.power": 1.5, "engine.fuel": "gas"}, {}], (
        "a default is given too"
    )


def test_an_option_may_have_another_name_and_fewer_values() -> None:
    seen: list[Any] = []
    narrowed = {"engine.fuel": Literal["oil"]}
    run = command_of(seen, panels={"": ("engine.fuel",)}, names={"engine.fuel": "--burns"}, narrowed=narrowed,
                     as_given=True)  # fmt: skip
    run("--burns", "oil")
    assert seen[0][1] == {"engine.fuel": "oil"}
    with pytest.raises(AssertionError, match="SystemExit"):
        run("--burns", "gas")
    assert len(seen) == 1, "refused"


def test_help_shows_texts_and_defaults() -> None:
    shown = " ".join(command_of([])("-h").replace("│", " ").split())
    for words in ("What it is called.", "Doors by row. [default: 2,4]", "─ Rest ─", "--fast", "Drive a car."):
        assert words in shown


@pytest.mark.parametrize("name", ["search", "theory", "eval", "rerank"])
def test_help_says_that_the_card_decides(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    words = {
        "eval": "[default: (the PRM's card; 0.5 for PRMBench",
        "rerank": "[default: (all, with the PRM's own first)]",
    }
    assert words.get(name, "[default: (the PRM's card)]") in " ".join(shown.replace("│", " ").split())


def test_settings_refuse_values_of_options() -> None:
    with pytest.raises(AssertionError, match="never called nobody"):
        command_of([])("--name", "nobody")


@pytest.mark.parametrize("name", GENERATED)
def test_every_setting_that_is_an_option_is_described(name: str) -> None:
    """In whole sentences: they stand alone in the help and in the tables of the docs."""
    (info,) = [info for info in app.registered_commands if (info.name or info.callback.__name__) == name]  # type: ignore[union-attr]
    whole = vars(info.callback)["signature"](whole=True).parameters
    texts = {key: parameter.annotation.__metadata__[0].help for key, parameter in whole.items() if "__" in key}
    assert len(texts) > 6
    assert {
        key for key, text in texts.items() if not (text and text[0].isupper() and text.endswith((".", "…")))
    } == set()


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
    ],
)
def test_help_waits_for_nothing_heavy(words: list[str], absent: tuple[str, ...]) -> None:
    code = f"import sys\nfrom prism_prm.cli import app\ntry:\n app({words!r})\nexcept SystemExit:\n pass\n"
    code += f"print('heavy', [name for name in {absent!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Usage" in out
    assert out.strip().endswith("heavy []")

"""`prism serve`: PRMs behind HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism_prm.backends.critic_settings import CriticSettings
from prism_prm.backends.policy import PolicySettings
from prism_prm.cli.options import Command, families_of, narrow, prm_options
from prism_prm.cli.ui import conclude, tell
from prism_prm.models.load_settings import LoadSettings
from prism_prm.paths import is_hub_id, named_places, split_name
from prism_prm.search.methods import SearchSettings
from prism_prm.serve.settings import ServeSettings


@dataclass(frozen=True, slots=True)
class ServeCommand(ServeSettings):
    """The settings of `prism serve`."""

    prm: tuple[str, ...] = ()
    """A PRM to serve, or NAME=PRM: a folder, hub id, prism:URL, vllm:URL, critic:openai:URL, critic:hf:FOLDER, or
    another scorer: ensemble:…, implicit:…, orm:…, logprob:… (docs/guides/rivals.md)."""
    results: tuple[str, ...] = ()
    """Results to show on the page, also while they are being made: a folder or NAME=FOLDER, as for `prism view`."""
    data: tuple[str, ...] = ()
    """The texts of the results: the benchmark's files, or the solutions that were scored. By default those that the
    results name."""
    split: str | None = None
    """For labeled and pairs: the split that was measured, if the results do not name it."""
    family: tuple[str, ...] = ()
    """The family of all PRMs, or NAME=FAMILY for one, if their folders do not name it."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    load: LoadSettings = field(default_factory=LoadSettings)
    critic: CriticSettings = field(default_factory=CriticSettings)


def serve(settings: ServeCommand) -> None:
    """Serve PRMs over HTTP, for people (a page at /) and for programs.

    It has its own API (/v1/steps), and answers clients of vLLM (/pooling), OpenRLHF (/get_reward) and, with --policy,
    OpenAI (/v1/chat/completions, by search). A busy server answers 429. SIGTERM or Ctrl-C lets requests finish.
    """
    from prism_prm.serve.serve_prms import serve_prms

    prms = named_places(list(map(_with_name, settings.prm)))
    answered = serve_prms(
        prms, narrow(settings, ServeSettings), results=settings.results, data=settings.data, split=settings.split,
        policy=settings.policy if settings.policy.name else None, search=settings.search,
        prm_options=prm_options(settings, families=families_of(settings.family, prms)),
    )  # fmt: skip
    conclude(lambda: {"requests": answered}, lambda: tell(f"{answered:,} requests answered"))


def _with_name(given: str) -> str:
    """A hub id is named by all of it: what clients call the model."""
    name, place = split_name(given)
    return f"{place}={place}" if not name and is_hub_id(place) else given


COMMAND = Command(
    ServeCommand,
    serve,
    options={
        "--prm": "prm", "--policy": "policy.name", "--results": "results",
        "--data": "data", "--host": "host", "--port": "port", "--keys": "keys",
        "--for-training": "for_training", "--family": "family", "--dtype": ("load.dtype", "policy.dtype"),
        "--device": ("load.device", "policy.device"),
    },
    examples={
        "A PRM for programs on this machine": "prism serve --prm runs/my-prm",
        "Two PRMs, by the names that clients ask for":
            "prism serve --prm base=prms/base --prm Qwen/Qwen2.5-Math-PRM-7B=prms/prism --port 8000",
        "For other machines, with keys": "prism serve --prm runs/my-prm --host 0.0.0.0 --keys keys.txt",
        "As the reward of a trainer: requests wait instead of getting 429":
            "prism serve --prm runs/my-prm --for-training",
        "Searched answers for OpenAI clients, as the model my-policy@beam-16":
            "prism serve --policy my-policy=hf:models/policy --prm runs/my-prm",
        "Watch a search that is running": "prism serve --results runs/beam",
    },
)  # fmt: skip

"""Find and check a model's files (a local folder or a hub id), and load its tokenizer.

Nothing here imports torch, so mistakes are reported before anything heavy is imported.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prism_prm.errors import DataError, ModelError, PrismError, first_sentence
from prism_prm.file_types import read_json
from prism_prm.models.gguf_files import converted, find_gguf
from prism_prm.paths import is_hub_id, nearest, no_connection

ADAPTER_FILE = "adapter_config.json"
CONFIG_FILE = "config.json"
_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
_PICKLED = ("*.bin", "*.pt", "*.pth")
_LAYOUT = ("tokenizer*", "*.jinja", "special_tokens_map.json", "config.json", "prism.json", "vocab*", "merges.txt")


class ModelFiles:
    """A snapshot of a model's files, to detect later which of them changed."""

    def __init__(self, folder: Path) -> None:
        self._states: dict[Path, tuple[int, ...] | None] = {}
        self.add(folder)

    def add(self, folder: Path) -> None:
        """Add the files of another folder, such as an adapter's."""
        for pattern in (*_WANTED, *_PICKLED):
            self._states |= {path: _file_state(path) for path in folder.glob(pattern)}

    def changed(self) -> list[Path]:
        """Return the files that have changed or are gone."""
        return sorted(path for path, state in self._states.items() if _file_state(path) != state)

    def check_loaded(self) -> None:
        """Raise if files changed during loading, so that the model may be a mix of versions."""
        if changed := self.changed():
            folder, names = changed[0].parent, ", ".join(path.name for path in changed)
            raise ModelError(f"{folder}: {names} changed while the model was loaded; load it again when it is complete")


def _file_state(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextlib.contextmanager
def readable(folder: Path, what: str) -> Iterator[None]:
    """Turn any error into a ModelError that names the folder; transformers raises all kinds for damaged files."""
    try:
        yield
    except PrismError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"{folder}: its {what} cannot be read: {reason}. Fix it, or save or download the folder again."
        ) from error


def check_model(name: str | Path, *, allow_pickle: bool = False) -> None:
    """Raise early if `name` cannot be a model: a file, a folder without one, a mistyped path. Does not use the hub."""
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists():
            raise ModelError(f"{name}: this is a file; name a model folder with config.json and weights")
        if not is_hub_id(str(name)):
            raise ModelError(
                f"{name}: there is no such model folder.{nearest(name)} A model on the hub is named owner/name."
            )
        return
    if is_adapter(folder) or find_gguf(folder) is not None:
        return
    if not (folder / CONFIG_FILE).exists():
        inside = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG_FILE}"))[:3]
        hint = f"; did you mean {' or '.join(inside)}?" if inside else ""
        raise ModelError(f"{folder}: no {CONFIG_FILE}, so this is not a model folder{hint}")
    with readable(folder, CONFIG_FILE):
        if not isinstance(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")), dict):
            raise ValueError("it is not a JSON object")
    check_pickled(folder, allow_pickle=allow_pickle)


def check_pickled(folder: Path, *, allow_pickle: bool) -> None:
    """Raise if the weights are pickled and not allowed: loading a pickle can run arbitrary code."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if not pickled:
        raise ModelError(f"{folder}: no .safetensors file, so there are no weights to load")
    if not allow_pickle:
        raise ModelError(
            f"{folder}: the weights are pickled ({pickled[0]}), and reading them can run arbitrary code. Convert them "
            "to safetensors, or set allow_pickle=True (--set allow_pickle=true) if you trust their author."
        )


def local_folder(name: str, *, allow_pickle: bool = False) -> Path:
    """Return the folder of a model; a hub id is downloaded."""
    check_model(name, allow_pickle=allow_pickle)
    return Path(name) if Path(name).is_dir() else _download(name, [*_WANTED, *(_PICKLED if allow_pickle else ())])


def config_folder(name: str, *, needs_config: bool = True) -> Path:
    """Return the folder of a model's config and tokenizer; a hub id is downloaded without its weights."""
    folder = Path(name)
    if not folder.is_dir():
        check_model(name)
        return _download(name, [pattern for pattern in _WANTED if "safetensors" not in pattern])
    if needs_config and not (folder / CONFIG_FILE).exists() and find_gguf(folder) is None:
        raise ModelError(f"{folder}: no {CONFIG_FILE}, so this is not a model folder")
    return folder


def layout_folder(name: str) -> Path:
    """Return the folder of a served model's tokenizer, config and card; of a hub id, only these are downloaded."""
    from huggingface_hub import snapshot_download

    if Path(name).is_dir():
        return Path(name)
    return Path(snapshot_download(name, allow_patterns=list(_LAYOUT), local_files_only=bool(no_connection())))


def plain_folder(folder: Path) -> Path:
    """Return a folder with the model's config and tokenizer: its own, or what its GGUF file was converted to."""
    gguf = find_gguf(folder)
    if gguf is None:
        return folder

    def convert(made: Path) -> None:
        from transformers import AutoConfig

        with readable(folder, gguf.name):
            AutoConfig.from_pretrained(folder, gguf_file=gguf.name).save_pretrained(made)
            load_tokenizer(folder, gguf_file=gguf.name).save_pretrained(made)
        # The model's own tokenizer class would replace how the file's tokenizer normalizes and splits text.
        settings = {**read_json(made / "tokenizer_config.json"), "tokenizer_class": "PreTrainedTokenizerFast"}
        (made / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")

    return converted(gguf, "tokenizer", convert)


def _download(name: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    offline = no_connection()
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, local_files_only=bool(offline)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = f"{offline}, and it was not downloaded before" if offline else f"the hub does not provide it: {error}"
        raise ModelError(
            f"{name}: there is no such folder, and {reason}. Name a local folder, or check the network."
        ) from None


def is_adapter(folder: str | Path) -> bool:
    """Whether the folder holds a LoRA adapter."""
    return Path(folder, ADAPTER_FILE).exists()


def base_of(folder: Path) -> str:
    """Return the name of the model that an adapter was trained on."""
    try:
        base = read_json(folder / ADAPTER_FILE).get("base_model_name_or_path")
    except (OSError, DataError, AttributeError) as error:
        raise ModelError(f"{folder}: its {ADAPTER_FILE} cannot be read: {error}") from error
    if not base:
        raise ModelError(f"{folder}: its {ADAPTER_FILE} names no base model; load the base with adapter='{folder}'")
    return str(base)


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    from transformers import AutoTokenizer

    with readable(folder, "tokenizer"):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, **options)


def render_chat(tokenizer: Any, messages: Sequence[Mapping[str, str]], **options: Any) -> str:
    """Render messages with the tokenizer's chat template. Templates are third-party code and may fail."""
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        where = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise ModelError(
            f"{where}: its chat template fails ({first_sentence(error)}); fix it in chat_template.jinja or "
            "tokenizer_config.json"
        ) from error
    return text


def tokenizer_text(tokenizer: Any) -> str:
    """Serialize the tokenizer for hashing: its definition (of a slow one its vocabulary) and its chat template."""
    template = getattr(tokenizer, "chat_template", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps([sorted(tokenizer.get_vocab().items()), template])
    # Truncation and padding are options of the last call that tokenizers remember; they do not define the tokenizer.
    definition = json.loads(backend.to_str())
    return json.dumps([{**definition, "truncation": None, "padding": None}, template], sort_keys=True)

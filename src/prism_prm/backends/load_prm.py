"""Load a PRM with `load_prm`, or make a new one from a language model with `init_prm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prism_prm.backends.ensemble import Ensemble
from prism_prm.backends.open_critic import is_critic, open_critic
from prism_prm.backends.open_rival import rival_place
from prism_prm.backends.open_scorer import PrmOptions, ensemble_place, remote_place
from prism_prm.backends.remote_prm import RemotePRM, compare_with, open_served
from prism_prm.backends.vllm_prm import VllmPRM
from prism_prm.calibration import Calibration
from prism_prm.errors import ConfigError, ModelError
from prism_prm.models.attention import check_attention
from prism_prm.models.card import CARD_FILE, Card, hub_id, prm_folder, read_calibration
from prism_prm.models.check_packing import check_packing
from prism_prm.models.families import find_family
from prism_prm.models.families.base import Family
from prism_prm.models.load_lm import language_model, merge_adapter, pick_device, pick_dtype
from prism_prm.models.load_settings import LoadSettings, OnTooLong
from prism_prm.models.lower_cache import CacheSettings
from prism_prm.models.model_files import base_of, is_adapter, local_folder
from prism_prm.models.prm import PRM, check_on_too_long
from prism_prm.models.prm_folder import load_folder
from prism_prm.net import RetryPolicy, Server
from prism_prm.scorer import Scorer


def load_prm(
    name: str | Path,
    *,
    family: str | None = None,
    settings: Mapping[str, str] | None = None,
    adapter: str | Path | None = None,
    compat: bool | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    device_map: Any = None,
    attn: str = "sdpa",
    token_budget: int | None = None,
    context: int | None = None,
    on_too_long: OnTooLong = "error",
    segmenter: str | None = None,
    thinking: str | None = None,
    cache: str | Path | CacheSettings | None = None,
    cache_gb: float = 50.0,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    local: str | Path | None = None,
    check: bool = False,
    calibration: str | Path | Calibration | None = None,
    prm_timeout: float = 300.0,
    prm_retries: int = 5,
    prm_concurrency: int = 16,
) -> PRM | RemotePRM:
    """Load a PRM from a folder or a hub id, or open one behind a server, which scores but cannot be trained.

    Args:
        name: folder or hub id of a PRM or a LoRA adapter; for a folder of `prism train`, its best round is loaded.
            `prism:URL#MODEL` and `vllm:URL#MODEL` are PRMs behind a server.
        family: the PRM's family, needed if prism.json, name and architecture do not tell. `my_file.py:Mine` runs a
            class in your own file.
        settings: settings of the family's layout, such as {"separator": "\\n\\n"}.
        adapter: folder of a LoRA adapter (peft) to merge into the PRM.
        compat: reproduce the quirk of the published code, if the family has one.
        dtype: "auto" for the checkpoint's own on a GPU, and for bfloat16 on a CPU where it is faster. By default "auto"
            on a GPU and float32 on a CPU.
        device: where the model runs. By default a GPU if there is one.
        device_map: spread the model over several devices as accelerate does ("auto", or a map); instead of `device`.
        attn: "sdpa" (everywhere) or "flex" (GPU; several trees per row).
        token_budget: tokens per forward pass, padding included. By default 16,384 on a GPU and 8,192 on a CPU.
        context: the maximum length of a path in tokens. By default the model's own limit.
        on_too_long: what to do with a step whose path exceeds the context: "error" stops, "window" scores it after the
            last steps that fit, "skip" leaves it without a score (NaN).
        segmenter: how solutions are cut into steps, a key of `SEGMENTERS`. By default as its card says.
        thinking: what is done with thinking steps: "scored", "context", "dropped" or "last-N". By default as its card
            says.
        cache: a folder that caches the activations of the frozen layers that prism.json names.
        cache_gb: the size limit of the cache folder in GB.
        allow_pickle: allow pickled weights, which can run arbitrary code.
        trust_remote_code: let transformers run code from the model's repository.
        local: a local copy of a remote PRM; `vllm:URL` takes its tokenizer and card.
        check: compare a remote PRM's scores of one solution with those of its local copy first.
        calibration: what `prism calibrate --out` wrote for this PRM, used instead of the card's.
        prm_timeout: seconds to wait for one complete answer from a remote PRM.
        prm_retries: how often a failed request to a remote PRM is retried.
        prm_concurrency: the maximum number of requests to a remote PRM in flight.

    Example:
        >>> prm = load_prm("my-prm", dtype="float32")
        >>> len(prm.score("What is 2 + 3 * 4?", ["3 * 4 = 12.", "2 + 12 = 15."]))
        2
    """
    LoadSettings(  # raises for values out of range
        token_budget=token_budget, context=context, cache_gb=cache_gb, prm_timeout=prm_timeout,
        prm_retries=prm_retries, prm_concurrency=prm_concurrency, segmenter=segmenter, thinking=thinking,
    )  # fmt: skip
    chosen: dict[str, Any] = {
        key: value for key, value in (("segmenter", segmenter), ("thinking", thinking)) if value is not None
    }
    if (remote := remote_place(name)) is not None:
        if check and local is None:
            raise ConfigError(f"{name}: to check it, name its local copy (--set load.local=…, local= in Python)")
        check_on_too_long(on_too_long)
        policy = RetryPolicy(prm_timeout, prm_retries)
        served: RemotePRM
        if remote.kind == "prism":
            served = open_served(remote.url, remote.model, on_too_long, policy, prm_concurrency)
        else:
            served = VllmPRM(
                Server(remote.url, policy, prm_concurrency, key_variable="VLLM_API_KEY"), remote.model, on_too_long,
                local=None if local is None else str(local), family=family, settings=settings, context=context,
            )  # fmt: skip
        if check and local is not None:
            compare_with(served, load_prm(local, family=family, settings=settings, device=device))
        if thinking not in (None, served.card.thinking) and remote.kind == "prism":
            raise ConfigError(
                f"{name}: its server says what is done with thinking; start it with load.thinking={thinking}"
            )
        served.card = replace(served.card, **chosen)
        _calibrate(served, calibration)
        return served
    if device is not None and device_map is not None:
        raise ConfigError("pass device or device_map, not both")
    name = prm_folder(name)
    if is_adapter(name):
        if adapter is not None:
            raise ConfigError(f"{name} is an adapter itself; pass its base model, or no adapter=")
        name, adapter = base_of(Path(name)), name
    target = pick_device(device)
    module, instance, card = load_folder(
        str(name),
        family=family,
        settings=settings,
        compat=compat,
        dtype=pick_dtype(dtype, target, str(name)),
        device=target if device_map is None else None,
        device_map=device_map,
        attn=attn,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )
    if adapter is not None:
        files = module.files
        assert files is not None, "load_folder sets it"
        files.add(Path(adapter))
        module = merge_adapter(module, Path(adapter))
        files.check_loaded()
        card = card.uncalibrated()  # its calibration is of other weights
    module.eval()
    check_packing(module)
    if cache is not None and not isinstance(cache, CacheSettings):
        if not card.frozen_layers:
            raise ConfigError(
                f"{name}: its {CARD_FILE} names no frozen_layers, so there are no activations to cache; leave out the "
                f"cache, or train with hardware.frozen_layers"
            )
        cache = CacheSettings(cache, card.frozen_layers, cache_gb)
    card = replace(card, **chosen)
    prm = PRM(module, instance, card, token_budget=token_budget, context=context, on_too_long=on_too_long, cache=cache)
    _calibrate(prm, calibration)
    return prm


def _calibrate(prm: PRM | RemotePRM, given: str | Path | Calibration | None) -> None:
    """Use a calibration instead of the card's. Raises if it is of another model."""
    if given is None:
        return
    calibration = given if isinstance(given, Calibration) else read_calibration(given)
    if calibration.model_hash and (own := prm.model_hash()) and calibration.model_hash != own:
        place = "the calibration" if isinstance(given, Calibration) else given
        raise ConfigError(
            f"{place}: was fitted to another PRM, or to this one with other weights or dtype; run `prism calibrate` "
            "with this one"
        )
    prm.card = replace(prm.card, threshold=calibration.threshold, calibration=calibration)


def open_prm(prm: Scorer | str | Path, options: PrmOptions | None = None, name: str = "") -> Scorer:
    """Return `prm` if it is a scorer; otherwise load it from a folder or hub id, or open the critic, ensemble or
    rival of that name."""
    if isinstance(prm, Scorer):
        return prm
    if not isinstance(prm, str | Path):
        raise ConfigError(f"expected a PRM, its folder or hub id, or a subclass of Scorer; found {type(prm).__name__}")
    options = options or PrmOptions()
    if options.ray is not None:
        raise ConfigError("ray: the PRM must be in this process here; leave out the Ray cluster")
    if (ensemble := ensemble_place(prm)) is not None:
        return Ensemble([open_prm(member, options, name) for member in ensemble.members], ensemble.rule)
    if (rival := rival_place(prm)) is not None:
        from prism_prm.backends.rivals import open_rival

        return open_rival(rival, options.load_options(name))
    if isinstance(prm, str) and is_critic(prm):
        return open_critic(prm, options.critic, dtype=options.dtype, device=options.device)
    found = load_prm(prm, **options.load_options(name))
    if isinstance(found, PRM) and found.family.name == "implicit":
        raise ConfigError(f"{prm} is half of an implicit PRM; name its reference, too: implicit:{prm}+REFERENCE")
    if isinstance(found, PRM) and found.family.name == "orm":  # read after its steps, it would score something else
        raise ConfigError(f"{prm} is an outcome reward model; name it orm:{prm}, without a family")
    return found


def init_prm(
    backbone: str | Path,
    *,
    family: str = "qwen",
    settings: Mapping[str, str] | None = None,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    attn: str = "sdpa",
    seed: int = 0,
    layers: int | None = None,
    token_budget: int | None = None,
    on_too_long: OnTooLong = "error",
    allow_pickle: bool = False,
) -> PRM:
    """Make a new PRM from a causal language model.

    The head is random, drawn with `seed`, except in families that use the language model's own output layer. Tokens
    that the family's layout needs are added to the tokenizer, with the mean of all embeddings.

    Args:
        backbone: the language model: a hub id, a folder, or a folder with one GGUF file.
        family: how problem and steps are laid out and read. `my_file.py:Mine` runs a class in your own file.
        settings: settings of the family's layout, such as {"separator": "\\n\\n"}.
        dtype: "auto" for the checkpoint's own on a GPU, and for bfloat16 on a CPU where it is faster. By default "auto"
            on a GPU and float32 on a CPU.
        device: where the model runs. By default a GPU if there is one.
        attn: "sdpa" (everywhere) or "flex" (GPU; several trees per row).
        seed: the seed for the head.
        layers: use only this many of the backbone's lowest layers; middle layers are often as good for judging steps.
        token_budget: tokens per forward pass, padding included. By default 16,384 on a GPU and 8,192 on a CPU.
        on_too_long: what to do with a step whose path exceeds the context: "error" stops, "window" scores it after the
            last steps that fit, "skip" leaves it without a score (NaN).
        allow_pickle: allow pickled weights, which can run arbitrary code.

    Example:
        >>> prm = init_prm("my-lm", family="token-classification", seed=1)
        >>> prm.save_pretrained("fresh-prm")
    """
    kind = find_family(family)
    kernel = check_attention(attn)
    target = pick_device(device)
    folder = local_folder(str(backbone), allow_pickle=allow_pickle)
    model, tokenizer = language_model(
        folder, pick_dtype(dtype, target, str(backbone)), kernel=kernel, allow_pickle=allow_pickle,
        output_layer=kind.uses_lm_head, other_heads=True,
    )  # fmt: skip
    if layers is not None:
        body, config = model.base_model, model.config
        if not 0 < layers <= len(body.layers):
            raise ConfigError(f"layers = {layers}: the backbone has {len(body.layers)}.")
        body.layers = body.layers[:layers]
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = list(config.layer_types)[:layers]
    if missing := [token for token in kind.new_tokens if token not in tokenizer.get_vocab()]:
        tokenizer.add_tokens(missing, special_tokens=True)
        weight_VH = model.get_input_embeddings().weight
        if len(tokenizer) > (old := len(weight_VH)):
            mean_H = weight_VH.detach().mean(dim=0)
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
            with torch.no_grad():
                model.get_input_embeddings().weight[old:] = mean_H
    instance = kind(tokenizer, settings=settings)
    body = model.base_model if kind.uses_lm_head else model
    head = _fresh_head(instance, model, seed)
    module = instance.make_module(body, head.to(next(body.parameters()).dtype)).to(target).eval()
    check_packing(module)
    card = Card(
        kind.name, instance.chosen, aggregator=kind.aggregator, family_sha256=kind.sha256, base_model=hub_id(backbone)
    )
    return PRM(module, instance, card, token_budget=token_budget, on_too_long=on_too_long)


def _fresh_head(family: Family, model: Any, seed: int) -> nn.Module:
    """Make a random head, initialized like transformers' linear layers, or reuse the model's output layer."""
    config = model.config
    head = family.make_head(config.hidden_size, config)
    if family.uses_lm_head:
        output = model.get_output_embeddings()
        if output.bias is not None:
            raise ModelError(f"{config.model_type}: its output layer has a bias, but family {family.name!r} has none")
        head.weight = output.weight
        # The folder may have a separate output layer, whatever its config says.
        config.tie_word_embeddings = head.weight is model.get_input_embeddings().weight
        return head
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in head.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, getattr(config, "initializer_range", 0.02), generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()
    return head

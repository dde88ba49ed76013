"""From settings to the library's objects: `Engine`, `Session` and their configurations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ecokv_cli.errors import usage
from ecokv_cli.settings import ENVIRONMENT, Settings

if TYPE_CHECKING:
    from ecokv_local import Engine, EvictionConfig, SamplingConfig, Session

#: Eviction settings that do nothing without a budget.
_NEED_BUDGET = (
    "policy",
    "sinks",
    "recent",
    "window",
    "slack",
    "prefill",
    "image_budget",
    "protect",
)


def open_engine(settings: Settings, progress: Any, **fixed: Any) -> Engine:
    """Load the model that the settings name; `progress(text)` hears of downloads. `fixed` are
    arguments of `Engine` that the command chooses.
    """
    import ecokv_local

    model, mmproj = settings.get("model"), settings.get("mmproj")
    repo = settings.get("hf_repo")
    if repo is not None:
        from ecokv_cli import hub

        offline = settings.get("offline", False) or hub.offline_by_environment(os.environ)
        files = hub.fetch(repo, offline=offline, projector=mmproj is None, progress=progress)
        model, mmproj = files.model, mmproj or files.mmproj
    return ecokv_local.Engine(
        model,
        mmproj,
        verbose=settings.get("verbose", False),
        **settings.given(
            lora="lora",
            n_batch="batch_size",
            n_ubatch="ubatch_size",
            threads="threads",
            gpu_layers="gpu_layers",
            flash_attn="flash_attn",
            cache_type_k="cache_type_k",
            cache_type_v="cache_type_v",
            image_max_tokens="image_max_tokens",
        )
        | fixed,
    )


def model_values_of(settings: Settings) -> dict[str, Any]:
    """What a manifest calls the model that the settings name; nothing is loaded or fetched."""
    from ecokv_local.caption.config import model_values

    names = ("cache_type_k", "cache_type_v", "image_max_tokens")
    more = {name: settings.get(name) for name in names}
    model, mmproj, lora = (settings.get(name) for name in ("model", "mmproj", "lora"))
    repo = settings.get("hf_repo")
    if repo is not None:
        return model_values("", mmproj, lora or (), **more) | {"model": repo}
    if model is None:
        from ecokv_local.models import built_in

        files = built_in()
        model, mmproj, lora = files.model, mmproj or files.mmproj, [*files.lora, *(lora or ())]
    return model_values(model, mmproj, lora or (), **more)


def open_session(
    engine: Engine, settings: Settings, eviction: EvictionConfig, sampling: SamplingConfig
) -> Session:
    """A conversation on `engine`. A context of 0 is the model's own, as in llama.cpp."""
    n_ctx = settings.get("ctx_size")
    file = settings.get("session")
    if file is not None:
        if settings.get("system") is not None:
            raise usage(
                f"{settings.where('system')} and --session: the session has its own system prompt",
                "leave one of them out",
            )
        return engine.load_session(
            file,
            sampling=sampling,
            n_ctx=engine.n_ctx_train if n_ctx == 0 else n_ctx,
            **_eviction_given(settings),
        )
    return engine.session(
        system=settings.get("system"),
        eviction=eviction,
        sampling=sampling,
        n_ctx=engine.n_ctx_train if n_ctx == 0 else n_ctx,
    )


def eviction_of(settings: Settings) -> EvictionConfig:
    """What stays in the cache."""
    from ecokv_local import EvictionConfig

    return EvictionConfig(**_eviction_given(settings))


def _eviction_given(settings: Settings) -> dict[str, Any]:
    return settings.given(
        budget="budget",
        policy="policy",
        sinks="sinks",
        recent="recent",
        window="window",
        slack="slack",
        prefill="prefill",
        image_budget="image_budget",
        protect="protect",
    )


def sampling_of(settings: Settings) -> SamplingConfig:
    """How the next token is drawn. A seed of -1 is none, as in llama.cpp."""
    from ecokv_local import SamplingConfig

    given = settings.given(temp="temp", top_k="top_k", top_p="top_p", min_p="min_p", seed="seed")
    if given.get("seed") == -1:
        del given["seed"]
    return SamplingConfig(**given)


def max_tokens(settings: Settings) -> int | None:
    """Longest answer; None is until the model ends it."""
    value = settings.get("max_tokens")
    return None if value == -1 else value


def without_effect(settings: Settings, session: Session | None = None) -> list[str]:
    """What the user asked for on this command line that cannot do anything. A loaded `session` may
    have a budget of its own.
    """
    if settings.get("session") is not None and session is not None and session.eviction.enabled:
        return []
    if settings.get("budget") is not None:
        if settings.get("policy") != "none":
            return []
        return [f"{settings.where('budget')} has no effect with policy none: the cache is full"]
    return [
        f"{settings.where(name)} has no effect without --budget: the cache is full"
        for name in _NEED_BUDGET
        if settings.rank(name) >= ENVIRONMENT
    ]

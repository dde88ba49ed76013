"""Settings of a batch. Frozen; a bad value is a UsageError at construction."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ecokv_local.caption.names import SIDECAR_NAMES, check_extension
from ecokv_local.config import EvictionConfig, SamplingConfig, whole_number
from ecokv_local.errors import UsageError

EXISTING = ("skip", "overwrite", "append", "prepend")
CHANGED = ("ask", "keep", "redo")
ROW_FORMATS = (".jsonl", ".csv")

#: What is asked about a picture if nothing else is.
DEFAULT_PROMPT = "Describe the image."
#: Longest caption in tokens: a model that repeats itself must not stop a batch.
DEFAULT_MAX_TOKENS = 512

_SAMPLED = 1 << 20  # bytes at both ends of a model file that its fingerprint is made of


@dataclass(frozen=True)
class CaptionConfig:
    """What a batch writes, where, and how it treats what is there.

    ``outputs`` are ``.jsonl`` or ``.csv`` files, one row a picture; ``sidecar`` left out means a
    sidecar for each picture unless there are outputs. ``prepend`` and ``append`` are put around
    every caption. ``existing`` says what happens to captions that are there already, ``changed``
    what to do with those that were made with other settings. ``frame`` of an animation counts from
    0; ``parallel`` pictures are captioned at a time, "auto" as many as is fastest here.
    """

    prepend: str = ""
    append: str = ""
    system: str | None = None
    grammar: str | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    extension: str = ".txt"
    existing: Literal["skip", "overwrite", "append", "prepend"] = "skip"
    sidecar: bool | None = None
    sidecar_name: Literal["stem", "full"] = "stem"
    outputs: tuple[str, ...] = ()
    manifest: str | None = None
    retry_failed: bool = False
    changed: Literal["ask", "keep", "redo"] = "ask"
    max_pixels: int | None = None
    allow_truncated: bool = False
    frame: int = 0
    parallel: int | Literal["auto"] = "auto"
    n_ctx: int | None = None
    eviction: EvictionConfig = EvictionConfig()  # noqa: RUF009 - frozen
    sampling: SamplingConfig = SamplingConfig()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        for name, choices in (
            ("existing", EXISTING),
            ("sidecar_name", SIDECAR_NAMES),
            ("changed", CHANGED),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise UsageError(
                    f"{name} {value!r} does not exist", hint=f"choose from {', '.join(choices)}"
                )
        object.__setattr__(self, "outputs", tuple(os.fspath(path) for path in self.outputs))
        self._check_outputs()
        check_extension(self.extension)
        whole_number("frame", self.frame, 0, 2**31 - 1)
        if self.parallel != "auto":
            whole_number("parallel", self.parallel, 1, 1024)
        if self.max_pixels is not None:
            whole_number("max_pixels", self.max_pixels, 1, 2**40)
        if self.max_tokens is not None:
            whole_number("max_tokens", self.max_tokens, 1, 2**31 - 1)

    def _check_outputs(self) -> None:
        for path in self.outputs:
            if os.path.splitext(path)[1].lower() not in ROW_FORMATS:
                raise UsageError(
                    f"--output {path}: the name has to end with .jsonl or .csv",
                    hint="for example --output captions.jsonl",
                )
        if len({os.path.abspath(path) for path in self.outputs}) < len(self.outputs):
            raise UsageError("--output: the same file twice", hint="give each file once")
        if not self.sidecars and not self.outputs:
            raise UsageError("the captions would go nowhere", hint="give --output FILE.jsonl")
        if not self.sidecars and self.existing in ("append", "prepend"):
            raise UsageError(
                f"--existing {self.existing} adds to the text of sidecar files, and there are none",
                hint="give --sidecar too, or --existing overwrite",
            )

    @property
    def sidecars(self) -> bool:
        """Whether every picture gets a file of its own."""
        return not self.outputs if self.sidecar is None else self.sidecar

    @property
    def limits(self) -> list[Any]:
        """What decides which pictures are refused: a failure counts for these only."""
        return [self.max_pixels, self.allow_truncated]

    @property
    def full_names(self) -> bool:
        """Whether sidecars keep the ending of the picture."""
        return self.sidecar_name == "full"


def fingerprint(path: str | Path) -> str:
    """What tells a model file from another, in milliseconds: its size, and a hash of both ends.

    The name is left out: a model may be moved. Raises OSError.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        value = hashlib.sha256(file.read(_SAMPLED))
        if size > _SAMPLED:
            file.seek(max(_SAMPLED, size - _SAMPLED))
            value.update(file.read(_SAMPLED))
    return f"{size}-{value.hexdigest()[:16]}"


def model_values(
    model: str | Path, mmproj: str | Path | None, lora: Sequence[str | Path] = (), **more: Any
) -> dict[str, Any]:
    """The model of a batch as its manifest names it; ``more`` are its options that change what it
    says (cache types, image tokens).

    A file that cannot be read is named only: loading it will tell why.
    """

    def of(path: str | Path) -> str:
        try:
            return f"{Path(path).name} {fingerprint(path)}"
        except OSError:
            return Path(path).name

    values: dict[str, Any] = {"model": of(model), "mmproj": of(mmproj) if mmproj else None}
    if lora:
        values["lora"] = [of(path) for path in lora]
    return values | {name: value for name, value in more.items() if value is not None}


def settings_values(config: CaptionConfig, prompts: Any, model: dict[str, Any]) -> dict[str, Any]:
    """Everything that changes a caption, by name, for the manifest: values of JSON."""
    values: dict[str, Any] = dict(model)
    values["prompt"] = prompts
    for name in ("prepend", "append", "system", "grammar", "max_tokens", "frame"):
        values[name] = getattr(config, name)
    eviction, sampling = config.eviction, config.sampling
    if eviction.enabled:
        values |= {"budget": str(eviction.budget), "policy": eviction.policy}
        plain = eviction.plain()
        values |= {
            f"eviction {f.name}": plain[f.name]
            for f in fields(eviction)
            if f.name not in ("budget", "policy") and getattr(eviction, f.name) != f.default
        }
    values["temp"] = sampling.temp
    if sampling.temp > 0:
        values |= {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p", "seed")}
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def settings_id(values: dict[str, Any]) -> str:
    """A short name of settings."""
    raw = json.dumps(values, sort_keys=True).encode()
    return hashlib.sha256(raw).hexdigest()[:16]


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed, in words: ``budget: 64, was 128``."""
    changed = [name for name in (*now, *before) if before.get(name) != now.get(name)]
    return [
        f"{name}: {_short(now.get(name))}, was {_short(before.get(name))}"
        for name in dict.fromkeys(changed)
    ]


def _short(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."

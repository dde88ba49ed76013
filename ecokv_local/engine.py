"""A loaded model, with its projector and adapters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from ecokv_local.cache_types import check_heads, check_pair, type_number
from ecokv_local.config import EvictionConfig, SamplingConfig, whole_number
from ecokv_local.errors import ModelError, StateError, UsageError
from ecokv_local.gguf_meta import check_complete, check_projector
from ecokv_local.memory import check_fits
from ecokv_local.models import built_in

if TYPE_CHECKING:
    from ecokv_local.context import Context
    from ecokv_local.projector import Projector
    from ecokv_local.prompt import ChatTemplate
    from ecokv_local.session import Session

_FLASH = {"auto": -1, "off": 0, "on": 1}

#: Cells where neither the caller nor the model asks for fewer: a model's own 128k must not eat the
#: memory of a laptop.
DEFAULT_CELLS = 4096

#: Positions are 32-bit numbers in llama.cpp, and cells are rounded up.
MAX_CELLS = 2**31 - 2**16
MAX_BATCH = 2**20
MAX_THREADS = 512
MAX_LAYERS = 2**20


def _cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class Closable(Protocol):
    """What has to be closed before the model it works on."""

    def close(self) -> None: ...


class Engine:
    """A model that sessions run on. A context manager; ``close`` is idempotent.

    Without ``model`` the built-in one is used. ``lora`` are adapter files, ``gpu_layers`` is a
    number, ``"auto"`` or ``"all"``, the cache types are names of ggml types. Raises ModelError for
    files that cannot be used and UsageError for settings that cannot work, before anything large is
    loaded.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        mmproj: str | Path | None = None,
        *,
        lora: Sequence[str | Path] = (),
        n_ctx: int | None = None,
        n_batch: int = 512,
        n_ubatch: int = 512,
        threads: int | None = None,
        gpu_layers: int | str = "auto",
        flash_attn: str = "auto",
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
        image_max_tokens: int | None = None,
        verbose: bool = False,
    ) -> None:
        self._ptr: Any = None
        self._adapters: list[Any] = []
        self._n_sight = 0  # the first of them are for conversations with images only
        self._projector: Projector | None = None
        self._users: WeakSet[Closable] = WeakSet()
        if flash_attn not in _FLASH:
            raise UsageError(f"flash_attn {flash_attn!r}", hint="choose from auto, on, off")
        for name, value, high in (
            ("n_batch", n_batch, MAX_BATCH),
            ("n_ubatch", n_ubatch, MAX_BATCH),
            ("n_ctx", n_ctx, MAX_CELLS),
            ("threads", threads, MAX_THREADS),
            ("image_max_tokens", image_max_tokens, MAX_CELLS),
        ):
            if value is not None:
                whole_number(name, value, 1, high)
        check_pair(cache_type_k, cache_type_v, flash_attn)
        if model is None:
            files = built_in()
            model, mmproj = files.model, mmproj or files.mmproj
            self._n_sight, lora = len(files.lora), [*files.lora, *lora]
        self.model_path, self.mmproj_path = Path(model), Path(mmproj) if mmproj else None
        self.lora_paths = [Path(path) for path in lora]
        self._check_files()
        check_heads(cache_type_k, cache_type_v, *self.meta.head_sizes())
        self.threads = threads or _cores()
        self.n_batch, self.n_ubatch = max(n_batch, n_ubatch), n_ubatch
        self.n_ctx, self.flash_attn = n_ctx, flash_attn
        self.cache_type_k, self.cache_type_v = cache_type_k, cache_type_v
        self._gpu_layers = self._layers(gpu_layers)
        self.image_max_tokens = image_max_tokens
        try:
            self._load(verbose)
        except BaseException:
            self.close()
            raise

    def _check_files(self) -> None:
        self.meta = check_complete(self.model_path)
        if self.meta.is_mmproj:
            raise ModelError(
                f"{self.model_path}: this is a projector, not a language model",
                hint="give it with --mmproj and the model with -m",
            )
        if self.mmproj_path is not None:
            check_projector(self.meta, check_complete(self.mmproj_path))
        for path in self.lora_paths:
            check_complete(path)

    @staticmethod
    def _layers(value: int | str) -> int:
        if value in ("auto", "all"):
            return -1
        try:
            layers = int(value)
        except ValueError:
            raise UsageError(f"gpu_layers {value!r}", hint="a number, auto or all") from None
        whole_number("gpu_layers", layers, -1, MAX_LAYERS)
        return layers

    def _load(self, verbose: bool) -> None:
        from ecokv_local import native
        from ecokv_local.vocab import Vocab

        native.log.verbose = verbose
        native.llama.llama_backend_init()
        params = native.llama.llama_model_default_params()
        params.n_gpu_layers = self._gpu_layers
        native.log.take()
        self._ptr = native.llama.llama_model_load_from_file(os.fsencode(self.model_path), params)
        if not self._ptr:
            raise ModelError(
                f"{self.model_path}: the model cannot be loaded: "
                f"{native.log.take() or 'no detail'}",
                hint="is it a GGUF of an architecture that llama.cpp knows? see -v",
            )
        self.vocab = Vocab(self._ptr)
        for path in self.lora_paths:
            adapter = native.llama.llama_adapter_lora_init(self._ptr, os.fsencode(path))
            if not adapter:
                raise ModelError(
                    f"{path}: the LoRA adapter does not fit {self.model_path.name}: "
                    f"{native.log.take() or 'no detail'}",
                    hint="give an adapter that was trained on this model",
                )
            self._adapters.append(adapter)
        if self.mmproj_path is not None:
            from ecokv_local.projector import Projector

            self._projector = Projector(
                self.mmproj_path,
                self._ptr,
                threads=self.threads,
                use_gpu=self._gpu_layers != 0,
                image_max_tokens=self.image_max_tokens,
            )

    @property
    def has_vision(self) -> bool:
        """Whether this engine takes images."""
        return self._projector is not None

    @property
    def projector(self) -> Projector | None:
        """The loaded projector, if any."""
        return self._projector

    @property
    def cache_types(self) -> tuple[int, int]:
        """Numbers of ``ggml_type`` of K and V."""
        return type_number(self.cache_type_k), type_number(self.cache_type_v)

    @property
    def gpu_layers(self) -> int:
        """Layers that were to go to a GPU; -1 is all of them."""
        return self._gpu_layers

    @property
    def on_host(self) -> bool:
        """Whether the model runs on the cores of this machine alone."""
        from ecokv_local import native

        return self._gpu_layers == 0 or not native.has_gpu()

    @property
    def n_ctx_train(self) -> int:
        """Positions the model was trained on."""
        from ecokv_local import native

        return int(native.llama.llama_model_n_ctx_train(self._model()))

    def _model(self) -> Any:
        if not self._ptr:
            raise StateError("the engine is closed")
        return self._ptr

    def context(
        self,
        n_ctx: int | None = None,
        *,
        n_seq: int = 1,
        threads: int | None = None,
        n_first: int | None = None,
    ) -> Context:
        """A new cache of ``n_ctx`` cells (default: the engine's, else the model's own up to
        4096) for each of ``n_seq`` sequences; ``n_first``: see ``ContextParams``.
        """
        from ecokv_local.context import Context, ContextParams

        cells = self.n_ctx if n_ctx is None else n_ctx
        if cells is None:
            cells = min(self.n_ctx_train, DEFAULT_CELLS)
        whole_number("ctx-size", cells, 1, MAX_CELLS)
        type_k, type_v = self.cache_types
        params = ContextParams(
            n_cells=cells,
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            threads=threads or self.threads,
            flash_attn=_FLASH[self.flash_attn],
            type_k=type_k,
            type_v=type_v,
            n_seq=n_seq,
            n_first=n_first,
        )
        self.check_fits((n_first or cells) * n_seq)
        return Context(self._model(), params, self.adapters(seeing=False))

    def check_fits(self, n_cells: int) -> None:
        """Raises MemoryLimitError for a cache larger than the main memory that it would be in."""
        if self.on_host:
            check_fits(self.meta, n_cells, *self.cache_types)

    def adapters(self, *, seeing: bool) -> list[Any]:
        """Adapters of a conversation. The built-in one teaches the model to read its projector; it
        is on only where there are images, so that talk without any is the language model's own."""
        return self._adapters if seeing else self._adapters[self._n_sight :]

    def lora_files(self, *, seeing: bool) -> list[Path]:
        """Files of ``adapters``."""
        return self.lora_paths if seeing else self.lora_paths[self._n_sight :]

    def load_session(
        self,
        path: str | Path,
        *,
        sampling: SamplingConfig | None = None,
        n_ctx: int | None = None,
        **eviction: Any,
    ) -> Session:
        """A conversation that goes on from a file of ``Session.save``; ``eviction`` are fields of
        ``EvictionConfig`` to change.

        Raises SessionFileError if the file is missing, damaged, of a newer version, or was saved
        with another model, projector, adapter or cache.
        """
        from ecokv_local.saving import load

        return load(self, path, sampling=sampling, n_ctx=n_ctx, **eviction)

    def session(
        self,
        *,
        system: str | None = None,
        eviction: EvictionConfig | None = None,
        sampling: SamplingConfig | None = None,
        n_ctx: int | None = None,
    ) -> Session:
        """A conversation. Raises ModelError if a budget is asked of a memory that cannot be
        evicted.
        """
        from ecokv_local.session import Session

        session = Session(
            self,
            system=system,
            eviction=eviction or EvictionConfig(),
            sampling=sampling or SamplingConfig(),
            n_ctx=n_ctx,
        )
        self.attach(session)
        return session

    def attach(self, user: Closable) -> None:
        """``close`` closes this first: it works on the loaded model."""
        self._users.add(user)

    def chat_template(self) -> ChatTemplate:
        """The chat template of the model. Raises TemplateError if it cannot be read."""
        from ecokv_local.prompt import ChatTemplate

        return ChatTemplate(
            self.meta.chat_template,
            name=self.model_path.name,
            bos_token=self.vocab.text_of("bos"),
            eos_token=self.vocab.text_of("eos"),
        )

    def info(self) -> dict[str, Any]:
        """What is loaded, in words for people and programs."""
        return {
            "model": str(self.model_path),
            "mmproj": str(self.mmproj_path) if self.mmproj_path else None,
            "lora": [str(path) for path in self.lora_paths],
            "architecture": self.meta.architecture,
            "n_ctx_train": self.n_ctx_train,
            "threads": self.threads,
            "flash_attn": self.flash_attn,
            "cache_type_k": self.cache_type_k,
            "cache_type_v": self.cache_type_v,
        }

    def close(self) -> None:
        """Free everything, open sessions included."""
        for user in list(self._users):
            user.close()
        self._users.clear()
        if self._projector is not None:
            self._projector.close()
            self._projector = None
        if self._ptr:
            from ecokv_local import native

            for adapter in self._adapters:
                native.llama.llama_adapter_lora_free(adapter)
            native.llama.llama_model_free(self._ptr)
        self._adapters.clear()
        self._ptr = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

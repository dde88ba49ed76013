"""libmtmd of the pin: prompts with images become chunks, image chunks become embeddings."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ecokv_local import native
from ecokv_local.errors import EcokvError, ImageError, ModelError, UsageError

if TYPE_CHECKING:
    from ecokv_local.context import Context
    from ecokv_local.images import LoadedImage

_TEXT = 0  # mtmd_input_chunk_type


@dataclass(frozen=True)
class Chunk:
    """A run of text tokens, or one image (slice). ``n_tokens`` cells, ``n_positions`` positions."""

    tokens: tuple[int, ...]  # empty for images
    n_tokens: int
    n_positions: int
    handle: Any = None
    at_once: bool = False  # its tokens see each other: they cannot be read in parts
    image: str = ""  # SHA-256 of the pixels that it is (a part) of

    @property
    def is_image(self) -> bool:
        """Whether this chunk is made of image embeddings."""
        return self.handle is not None


class Projector:
    """A loaded mmproj file on a loaded model. Owns the native object."""

    def __init__(
        self, path: Path, model: Any, *, threads: int, use_gpu: bool, image_max_tokens: int | None
    ) -> None:
        self._path, self._mtmd = path, native.load_mtmd()
        self._encoding = Lock()  # the native object holds one image's embeddings
        self._n_embd = int(native.llama.llama_model_n_embd_inp(model))
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads = use_gpu, threads
        params.print_timings, params.warmup = False, False
        if image_max_tokens is not None:
            params.image_max_tokens = image_max_tokens
        native.log.take()
        self._ptr: Any = self._mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
        if not self._ptr:
            detail = native.log.take() or "no detail"
            if image_max_tokens is not None and "image_max_pixels" in detail:
                raise UsageError(
                    f"image_max_tokens {image_max_tokens}: too few for {path}: {detail}",
                    hint="raise --image-max-tokens, or leave it out",
                )
            raise ModelError(
                f"{path}: the projector cannot be loaded: {detail}",
                hint="give the mmproj file that belongs to this model with --mmproj",
            )
        if not self._mtmd.mtmd_support_vision(self._ptr):
            self.close()
            raise ModelError(f"{path}: this projector takes no images")

    @contextmanager
    def chunks(
        self, pieces: Sequence[str], images: Sequence[LoadedImage], *, add_special: bool
    ) -> Iterator[list[Chunk]]:
        """Tokenise text pieces with one image between each two; frees the chunks at the end.

        ``len(pieces) == len(images) + 1``. Every image that was given comes out as at least one
        chunk, or ImageError is raised. Raises ModelError where the projector needs a token that the
        model does not have.
        """
        mtmd = self._mtmd
        bitmaps: list[Any] = []
        output = mtmd.mtmd_input_chunks_init()
        try:
            parts: list[Any] = []
            keep: list[Any] = []  # ctypes memory that the parts point to
            for i, piece in enumerate(pieces):
                if piece:
                    raw = piece.encode()
                    text = mtmd.mtmd_input_text(raw, len(raw), False, True)
                    keep += [raw, text]
                    parts.append(mtmd.mtmd_input_part(c.pointer(text), None))
                if i < len(images):
                    bitmaps.append(self._bitmap(images[i]))
                    parts.append(mtmd.mtmd_input_part(None, bitmaps[-1]))
            pointers = (c.POINTER(mtmd.mtmd_input_part) * len(parts))(
                *[c.pointer(p) for p in parts]
            )
            native.log.take()
            status = mtmd.mtmd_tokenize_from_parts(
                self._ptr, output, pointers, len(parts), add_special
            )
            if status != 0:
                names = ", ".join(image.name for image in images)
                raise ImageError(
                    f"{names}: the projector did not take the image "
                    f"(status {status}): {native.log.take() or 'no detail'}",
                    hint="try a smaller picture, or --image-max-tokens",
                )
            yield self._collect(output, images)
        finally:
            mtmd.mtmd_input_chunks_free(output)
            for bitmap in bitmaps:
                mtmd.mtmd_bitmap_free(bitmap)

    def _bitmap(self, image: LoadedImage) -> Any:
        height, width, _ = image.rgb.shape
        data = image.rgb.ctypes.data_as(c.POINTER(c.c_uint8))
        bitmap = self._mtmd.mtmd_bitmap_init(width, height, data)
        if not bitmap:
            raise ImageError(f"{image.name}: no memory for {width} x {height} pixels")
        self._mtmd.mtmd_bitmap_set_id(bitmap, image.sha256.encode())
        return bitmap

    def _collect(self, output: Any, images: Sequence[LoadedImage]) -> list[Chunk]:
        mtmd = self._mtmd
        result: list[Chunk] = []
        seen: list[str] = []
        for i in range(mtmd.mtmd_input_chunks_size(output)):
            handle = mtmd.mtmd_input_chunks_get(output, i)
            n_tokens = int(mtmd.mtmd_input_chunk_get_n_tokens(handle))
            n_positions = int(mtmd.mtmd_input_chunk_get_n_pos(handle))
            if mtmd.mtmd_input_chunk_get_type(handle) == _TEXT:
                size = c.c_size_t()
                tokens = mtmd.mtmd_input_chunk_get_tokens_text(handle, c.byref(size))
                ids = tuple(tokens[j] for j in range(size.value))
                if min(ids, default=0) < 0:
                    raise ModelError(
                        f"{self._path}: the model has no token for a mark that this projector "
                        "puts around pictures",
                        hint="give the mmproj file that belongs to this model with --mmproj",
                    )
                result.append(Chunk(ids, n_tokens, n_positions))
            else:
                seen.append((mtmd.mtmd_input_chunk_get_id(handle) or b"").decode())
                at_once = bool(mtmd.mtmd_decode_use_non_causal(self._ptr, handle))
                result.append(Chunk((), n_tokens, n_positions, handle, at_once, seen[-1]))
        for image in images:
            if image.sha256 not in seen:
                raise ImageError(f"{image.name}: the image did not reach the model")
        return result

    def encode(self, chunk: Chunk) -> Any:
        """The embeddings of an image chunk, a copy: floats ``[n_tokens, n_embd]``. Any thread may
        call this, one at a time has its turn.
        """
        size = chunk.n_tokens * self._n_embd
        with self._encoding:
            if self._mtmd.mtmd_encode_chunk(self._ptr, chunk.handle) != 0:
                raise ImageError(f"the image encoder failed: {native.log.take() or 'no detail'}")
            result = (c.c_float * size)()
            c.memmove(result, self._mtmd.mtmd_get_output_embd(self._ptr), c.sizeof(result))
        return result

    def read_image(self, chunk: Chunk, context: Context) -> tuple[float, float]:
        """Encode an image chunk and append it; milliseconds of the encoder and of the model."""
        mtmd = self._mtmd
        native.log.take()
        start = perf_counter()
        embeddings = self.encode(chunk)
        encoded = perf_counter()
        position = native.llama.llama_pos(0)
        status = mtmd.mtmd_helper_decode_image_chunk(
            self._ptr,
            context.ptr,
            chunk.handle,
            embeddings,
            context.n_position,
            context.seq,
            context.n_batch,
            c.byref(position),
            mtmd.mtmd_helper_post_decode_callback(),
            None,
        )
        context.raise_if_stopped(status)
        if status != 0:
            raise EcokvError(
                f"the model could not read an image of {chunk.n_tokens} tokens at position "
                f"{context.n_position} (status {status}): {native.log.take() or 'no detail'}"
            )
        context.appended(chunk.n_tokens, position.value - context.n_position)
        return (encoded - start) * 1e3, (perf_counter() - encoded) * 1e3

    def close(self) -> None:
        """Free the native object."""
        if self._ptr:
            self._mtmd.mtmd_free(self._ptr)
            self._ptr = None

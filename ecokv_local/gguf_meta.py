"""What a GGUF file says about itself, and whether all of it is there.

The header is walked here before llama.cpp maps the file: a truncated download would crash the
process at the first touch of a page that is missing. Arrays, such as the vocabulary, are skipped,
so that a file of any size takes milliseconds.
"""

from __future__ import annotations

import mmap
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ecokv_local.errors import ModelError

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
#: value type -> struct format
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
#: ggml type -> (values in a block, bytes of a block), of the pin's ggml.h
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
    39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip
_MIN_KEY, _MIN_TENSOR = 13, 24  # bytes that the shortest entry takes
_MAX_DIMS, _MAX_NAME = 4, 64

#: projector type -> tensor and axis whose length is the width of the embeddings it makes, as
#: clip_n_mmproj_embd() of the pin has it. Types that are not here are left to libmtmd to check.
_WIDTH_AT = {
    "mlp": ("mm.2.weight", 1),
    "pixtral": ("mm.2.weight", 1),
    "idefics3": ("mm.model.fc.weight", 1),
    "gemma3": ("mm.input_projection.weight", 0),
    "internvl": ("mm.model.mlp.3.weight", 1),
    "qwen2vl_merger": ("mm.2.bias", 0),
    "qwen2.5vl_merger": ("mm.2.bias", 0),
    "qwen3vl_merger": ("mm.2.bias", 0),
}
#: projectors that only one family of models can take
_FAMILY = {
    "qwen2vl_merger": ("qwen2vl",),
    "qwen2.5vl_merger": ("qwen2vl",),
    "qwen3vl_merger": ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
    "gemma3": ("gemma3",),
    "gemma3nv": ("gemma3n",),
}
_DOWNLOAD = "download it again, and compare the sizes"


@dataclass(frozen=True)
class GgufMeta:
    """Header of a GGUF file.

    ``n_embd`` is the width of the model's embeddings (of the encoder's own for a projector),
    ``projection_dim`` the width of the embeddings that a projector makes, where its tensors tell.
    ``fields`` holds every key that is not an array, ``shapes`` the shape of every tensor (as in
    the file: fastest axis first).
    """

    path: Path
    size: int
    architecture: str
    name: str
    n_embd: int
    n_layer: int
    n_ctx_train: int
    chat_template: str | None
    projector_type: str | None
    projection_dim: int | None
    fields: Mapping[str, Any] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)

    @property
    def is_mmproj(self) -> bool:
        """Whether this is a projector, not a language model."""
        return self.architecture == "clip"

    def head_sizes(self) -> tuple[int, int]:
        """Values in a key and in a value of one head; 0 where the header does not tell."""
        heads = self._number("attention.head_count")
        usual = self.n_embd // heads if heads else 0
        return (
            self._number("attention.key_length") or usual,
            self._number("attention.value_length") or usual,
        )

    def _number(self, key: str) -> int:
        value = self.fields.get(f"{self.architecture}.{key}")
        return value if isinstance(value, int) else 0


def row_bytes(ggml_type: int, n_values: int) -> int:
    """Bytes of ``n_values`` values in a row, rounded up to whole blocks."""
    values, size = _BLOCKS[ggml_type]
    return -(-n_values // values) * size


def read_meta(path: str | Path) -> GgufMeta:
    """Read the header of a GGUF file, and check that it is whole.

    Raises:
        ModelError: no such file, a folder, not a GGUF, damaged, or truncated.
    """
    path = Path(path)
    with _Mapped(path) as data:
        walk = _Walk(path, data)
        try:
            walk.run()
        except ModelError:
            raise
        except Exception as error:
            raise walk.damaged(f"{type(error).__name__}: {error}") from error
        return _meta(path, walk)


def check_complete(path: str | Path) -> GgufMeta:
    """Check that a GGUF file is there and holds all its tensors, and so do its other parts.

    Returns:
        The header of ``path``.

    Raises:
        ModelError: as ``read_meta``, or a part of a split model is missing or damaged.
    """
    meta = read_meta(path)
    count = meta.fields.get("split.count", 0)
    parts = re.fullmatch(r"(.+)-\d{5}-of-(\d{5})\.gguf", meta.path.name)
    if not isinstance(count, int) or count < 2 or not parts:
        return meta
    for i in range(int(parts[2])):
        part = meta.path.with_name(f"{parts[1]}-{i + 1:05}-of-{parts[2]}.gguf")
        if part != meta.path:
            read_meta(part)
    return meta


def check_projector(model: GgufMeta, mmproj: GgufMeta, *, force: bool = False) -> None:
    """Check that a projector makes embeddings that the model can read.

    Args:
        model: header of the language model.
        mmproj: header of the projector.
        force: take a projector of another family if the width is right.

    Raises:
        ModelError: it is not a projector, of another family, or of another width.
    """
    hint = f"give the mmproj file that was made for {model.name or model.path.name} with --mmproj"
    if not mmproj.is_mmproj:
        raise ModelError(
            f"{mmproj.path}: this is not a projector but a model ({mmproj.architecture})",
            hint=hint,
        )
    if mmproj.projection_dim is not None and mmproj.projection_dim != model.n_embd:
        raise ModelError(
            f"{mmproj.path} does not fit {model.path}: the projector makes embeddings of width "
            f"{mmproj.projection_dim}, the model reads width {model.n_embd}",
            hint=hint,
        )
    family = _FAMILY.get(mmproj.projector_type or "")
    if family and model.architecture not in family and not force:
        raise ModelError(
            f"{mmproj.path} does not fit {model.path}: a {mmproj.projector_type} projector "
            f"(width {mmproj.projection_dim}) is for {' or '.join(family)}, the model is "
            f"{model.architecture} (width {model.n_embd})",
            hint=hint,
        )


class _Mapped:
    """A file in memory; the mapping is ours, every access to it is checked against its end."""

    def __init__(self, path: Path) -> None:
        try:
            status = path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise ModelError(f"{path}: is a folder", hint="give the .gguf file in it")
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{path}: is not a regular file", hint="give a .gguf file")
            if status.st_size == 0:
                raise ModelError(f"{path}: the file is empty (0 bytes)", hint=_DOWNLOAD)
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelError(f"{path}: no such file", hint="check the path") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise ModelError(f"{path}: cannot be read: {error}") from None

    def __enter__(self) -> mmap.mmap:
        return self._map

    def __exit__(self, *_: object) -> None:
        self._map.close()


class _Walk:
    """One pass over the header: ``fields`` and ``shapes`` out of ``data``."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size = path, data, len(data)
        self.fields: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._at = 0

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: damaged GGUF: {what}", hint=_DOWNLOAD)

    def _truncated(self, need: int, what: str) -> ModelError:
        return ModelError(
            f"{self.path}: truncated: {what} needs {need} bytes, the file has {self.size}",
            hint=_DOWNLOAD,
        )

    def _advance(self, count: int, what: str) -> int:
        start = self._at
        if start + count > self.size:
            raise self._truncated(start + count, what)
        self._at = start + count
        return start

    def _number(self, form: str, what: str) -> Any:
        start = self._advance(struct.calcsize(form), what)
        return struct.unpack_from(form, self.data, start)[0]

    def _text(self, what: str) -> str:
        count = self._number("<Q", what)
        start = self._advance(count, what)
        return self.data[start : start + count].decode("utf-8", "replace")

    def run(self) -> None:
        if self.data[:4] != _MAGIC:
            if _MAGIC.startswith(self.data[:4]):
                raise self._truncated(24, "the header")
            raise ModelError(
                f"{self.path}: not a GGUF file (begins with {self.data[:4].hex(' ')})",
                hint="give a model in GGUF format, such as the ones llama.cpp runs",
            )
        self._at = 4
        version = self._number("<I", "the header")
        if version not in (2, 3):
            swapped = version & 0xFFFF == 0 and version
            kind = "big-endian" if swapped else f"version {version}"
            raise ModelError(
                f"{self.path}: a {kind} GGUF, only little-endian versions 2 and 3 are read",
                hint="convert the model again with the converter of llama.cpp",
            )
        n_tensors = self._number("<Q", "the header")
        n_keys = self._number("<Q", "the header")
        for count, least, what in ((n_keys, _MIN_KEY, "keys"), (n_tensors, _MIN_TENSOR, "tensors")):
            if count >= 1 << 32:
                raise self.damaged(f"{count} {what}")
            if count * least > self.size:
                raise self._truncated(24 + count * least, f"the list of {count} {what}")
        for _ in range(n_keys):
            self._key()
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"alignment {alignment}")
        ends = [self._tensor(alignment) for _ in range(n_tensors)]
        start = -(-self._at // alignment) * alignment
        if ends:
            end, name = max(ends)
            if start + end > self.size:
                raise self._truncated(start + end, f"tensor {name!r}")

    def _key(self) -> None:
        key = self._text("a key")
        what = f"key {key[:80]!r}"
        kind = self._number("<I", what)
        if kind == _ARRAY:
            self._skip_array(what)
        elif kind == _STRING:
            self.fields[key] = self._text(what)
        elif kind in _SCALARS:
            self.fields[key] = self._number(_SCALARS[kind], what)
        else:
            raise self.damaged(f"{what} is of unknown type {kind}")

    def _skip_array(self, what: str) -> None:
        kind, count = self._number("<I", what), self._number("<Q", what)
        if kind in _SCALARS:
            self._advance(count * struct.calcsize(_SCALARS[kind]), what)
            return
        if kind != _STRING:
            raise self.damaged(f"{what} is an array of unknown type {kind}")
        if count * 8 > self.size:
            raise self._truncated(self._at + count * 8, what)
        at, length_at, data = self._at, struct.Struct("<Q").unpack_from, self.data
        try:
            for _ in range(count):
                at += 8 + length_at(data, at)[0]
        except (struct.error, OverflowError):  # past the end
            raise self._truncated(max(at, self.size) + 8, what) from None
        self._at = at
        self._advance(0, what)

    def _tensor(self, alignment: int) -> tuple[int, str]:
        """Read one entry; where its data ends, in bytes from the start of all data."""
        name = self._text("the name of a tensor")
        what = f"tensor {name[:_MAX_NAME]!r}"
        n_dims = self._number("<I", what)
        if n_dims > _MAX_DIMS or len(name.encode()) >= _MAX_NAME:
            raise self.damaged(f"{what} has {n_dims} dimensions, {len(name)} letters")
        shape = tuple(self._number("<Q", what) for _ in range(n_dims))
        kind, offset = self._number("<I", what), self._number("<Q", what)
        if kind not in _BLOCKS:
            raise ModelError(
                f"{self.path}: {what} is of type {kind}, which the pinned llama.cpp cannot read",
                hint="use another quantisation of this model",
            )
        values, size = _BLOCKS[kind]
        total = 1
        for length in shape:
            total *= length
        row = shape[0] if shape else 1
        if total >= 1 << 60 or row % values or offset % alignment:
            raise self.damaged(f"{what} has shape {shape}, type {kind}, offset {offset}")
        if name in self.shapes:
            raise self.damaged(f"{what} is there twice")
        self.shapes[name] = shape
        return offset + total // values * size, name


def _meta(path: Path, walk: _Walk) -> GgufMeta:
    fields, shapes = walk.fields, walk.shapes

    def text(key: str) -> str | None:
        value = fields.get(key)
        return value if isinstance(value, str) else None

    def number(key: str) -> int:
        value = fields.get(key)
        return value if isinstance(value, int) else 0

    architecture = text("general.architecture")
    if not architecture:
        raise ModelError(
            f"{path}: a GGUF without general.architecture, so not a model",
            hint="give the file of a language model",
        )
    prefix = "clip.vision" if architecture == "clip" else architecture
    kind = text("clip.projector_type") or text("clip.vision.projector_type")
    tensor, axis = _WIDTH_AT.get(kind or "", ("", 0))
    shape = shapes.get(tensor, ())
    return GgufMeta(
        path=path,
        size=walk.size,
        architecture=architecture,
        name=text("general.name") or "",
        n_embd=number(f"{prefix}.embedding_length"),
        n_layer=number(f"{prefix}.block_count"),
        n_ctx_train=number(f"{prefix}.context_length"),
        chat_template=text("tokenizer.chat_template"),
        projector_type=kind,
        projection_dim=shape[axis] if len(shape) > axis else None,
        fields=fields,
        shapes=shapes,
    )

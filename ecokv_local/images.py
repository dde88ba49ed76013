"""Pictures of any common kind to plain RGB pixels.

Pillow is the front end: orientation tags are applied, transparency goes on white, 16 bits become
8, and an animation counts as its first frame, so that the model sees what a viewer shows.

Pillow's global settings are not touched, and its own size guard (one for the whole process) is not
relied on: the cap here is per image and is checked from the header, before any pixel is decoded.
"""

from __future__ import annotations

import hashlib
import io
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Union

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image

from ecokv_local.errors import ImageError

#: Pixels an image may have: 64 million, such as 8000 x 8000.
MAX_PIXELS = 64_000_000

ImageSource = Union[str, Path, bytes, Image.Image]  # noqa: UP007 - evaluated on Python 3.10

_ORIENTATION_TAG = 0x0112
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_NEVER = frozenset({"EPS"})  # Pillow would run Ghostscript on it
_HEIF_BRANDS = frozenset(b"heic heix heim heis hevc hevx mif1 msf1 avif avis".split())
_ALPHA_MODES = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})


@dataclass(frozen=True)
class ImageInput:
    """An image as it was given, what to call it in messages, and how ``load`` is to read it."""

    source: ImageSource
    name: str
    max_pixels: int = MAX_PIXELS
    allow_truncated: bool = False
    frame: int = 0

    @classmethod
    def of(cls, source: ImageSource | ImageInput) -> ImageInput:
        """Wrap a path, the bytes of a file or a Pillow image, with a name made from it.

        Raises:
            ImageError: it is something else.
        """
        if isinstance(source, ImageInput):
            return source
        if isinstance(source, (str, Path)):
            return cls(source, str(source))
        if isinstance(source, (bytes, bytearray, memoryview)):
            return cls(bytes(source), f"<{len(source)} bytes>")
        if isinstance(source, Image.Image):
            name = getattr(source, "filename", "") or f"<{source.width} x {source.height} image>"
            return cls(source, str(name))
        raise ImageError(
            f"an image cannot be made of {type(source).__name__}",
            hint="give a path, the bytes of an image file, or a Pillow image",
        )

    def load(self) -> LoadedImage:
        """Decode it, with its own settings. Raises ImageError."""
        return load_image(
            self.source,
            name=self.name,
            max_pixels=self.max_pixels,
            allow_truncated=self.allow_truncated,
            frame=self.frame,
        )


@dataclass(frozen=True, eq=False)
class LoadedImage:
    """Decoded pixels.

    ``rgb`` is uint8 of shape (height, width, 3), C-contiguous. ``sha256`` is the hex digest over
    size and pixels: equal for equal pictures, whatever file they came from.
    """

    rgb: npt.NDArray[np.uint8]
    name: str
    sha256: str


def load_image(
    source: ImageSource,
    *,
    name: str | None = None,
    max_pixels: int = MAX_PIXELS,
    allow_truncated: bool = False,
    frame: int = 0,
) -> LoadedImage:
    """Decode an image.

    Args:
        source: a path, the bytes of an image file, or a Pillow image (taken at its current frame;
            from files and bytes it is always the first).
        name: what messages call it; made from ``source`` if not given.
        max_pixels: cap on width x height, checked before decoding.
        allow_truncated: accept a file that ends early; what is missing is black or grey.
        frame: which one of an animation, from 0; a still has one frame, which serves for any.

    Raises:
        ImageError: no such file, not an image, too large, truncated, damaged, or no memory for it.
    """
    given = ImageInput.of(source)
    name = given.name if name is None else name
    try:
        if isinstance(given.source, Image.Image):
            rgb = _pixels(given.source, name, max_pixels, allow_truncated)
        elif isinstance(given.source, bytes):
            rgb = _from_stream(io.BytesIO(given.source), name, max_pixels, allow_truncated, frame)
        else:
            with _open_file(Path(given.source), name) as file:
                rgb = _from_stream(file, name, max_pixels, allow_truncated, frame)
    except ImageError:
        raise
    except MemoryError:
        raise ImageError(f"{name}: no memory to decode it", hint="try a smaller picture") from None
    except Exception as error:  # decoders raise anything on damaged files
        raise ImageError(
            f"{name}: damaged or unsupported ({_reason(error)})",
            hint="open it in a viewer and save it again, as PNG or JPEG",
        ) from error
    digest = hashlib.sha256(struct.pack("<II", rgb.shape[1], rgb.shape[0]))
    digest.update(rgb.data)
    return LoadedImage(rgb, name, digest.hexdigest())


def _open_file(path: Path, name: str) -> BinaryIO:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{name}: is a folder, not an image", hint="give one of its files")
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{name}: is not a regular file", hint="give an image file")
        return path.open("rb")
    except FileNotFoundError:
        url = "://" in name
        raise ImageError(
            f"{name}: no such file",
            hint="addresses are not read: download it first" if url else "check the path",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ImageError(f"{name}: cannot be read ({_reason(error)})") from None


def _from_stream(
    file: BinaryIO, name: str, max_pixels: int, allow_truncated: bool, frame: int
) -> npt.NDArray[np.uint8]:
    with _identify(file, _head(file, name), name) as image:
        if frame:
            _check_size(image, name, max_pixels)
            _seek(image, frame, name)
        return _pixels(image, name, max_pixels, allow_truncated)


def _head(file: BinaryIO, name: str) -> bytes:
    head = file.read(32)
    if not head:
        raise ImageError(f"{name}: the file is empty (0 bytes)", hint="copy or download it again")
    return head


def _seek(image: Image.Image, frame: int, name: str) -> None:
    count = int(getattr(image, "n_frames", 1))
    if count == 1:
        return
    if frame >= count:
        raise ImageError(
            f"{name}: has {count} frames, there is no frame {frame}",
            hint=f"use --frame 0 to {count - 1}",
        )
    image.seek(frame)


def probe_image(path: str | Path, *, name: str | None = None) -> dict[str, Any]:
    """What the header of an image file tells, without decoding it: ``width`` and ``height`` as it
    is shown, and ``exif``, tags by their names.

    Raises ImageError as ``load_image`` does.
    """
    name = str(path) if name is None else name
    try:
        with (
            _open_file(Path(path), name) as file,
            _identify(file, _head(file, name), name) as image,
        ):
            width, height = image.size
            if _orientation(image) in (5, 6, 7, 8):
                width, height = height, width
            return {"width": width, "height": height, "exif": _exif(image)}
    except ImageError:
        raise
    except Exception as error:  # decoders raise anything on damaged files
        raise ImageError(f"{name}: damaged or unsupported ({_reason(error)})") from error


def _exif(image: Image.Image) -> dict[str, Any]:
    """Tags that are a text or a number. Damaged metadata counts as none."""
    tags: dict[str, Any] = {}
    try:
        exif = image.getexif()
        for number, value in (*exif.items(), *exif.get_ifd(ExifTags.IFD.Exif).items()):
            tag = ExifTags.TAGS.get(number)
            if tag is None:
                continue
            if isinstance(value, str):
                tags[tag] = value.split("\0")[0].strip()
            elif not isinstance(value, (bytes, tuple, dict)):
                number_value = float(value)
                tags[tag] = int(number_value) if number_value.is_integer() else number_value
    except Exception:  # metadata must not cost the picture
        return tags
    return tags


def _identify(file: BinaryIO, head: bytes, name: str) -> Image.Image:
    """What ``Image.open`` does, without its size guard, which warns and is set for all threads."""
    failure: Exception | None = None
    for ready in (Image.preinit, Image.init):  # the common formats first
        ready()
        for kind in list(Image.ID):
            factory, accept = Image.OPEN[kind]
            if kind in _NEVER or (accept is not None and accept(head) in (False, None, "")):
                continue
            verdict = accept(head) if accept is not None else True
            if isinstance(verdict, str):  # "right format, but it cannot be decoded here"
                failure = failure or ValueError(verdict)
                continue
            file.seek(0)
            try:
                return factory(file, "")
            except (SyntaxError, IndexError, TypeError, struct.error) as error:
                failure = failure or (error if accept is not None else None)
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS:
        return _open_heif(file, head, name)
    if failure is not None:
        raise ImageError(
            f"{name}: damaged or unsupported ({_reason(failure)})",
            hint="open it in a viewer and save it again, as PNG or JPEG",
        )
    raise ImageError(
        f"{name}: not an image of a known format (begins with {head[:8].hex(' ')})",
        hint="convert it to PNG or JPEG",
    )


def _open_heif(file: BinaryIO, head: bytes, name: str) -> Image.Image:
    kind = "AVIF" if head[8:10] == b"av" else "HEIC"
    try:
        import pillow_heif
    except ImportError:
        raise ImageError(
            f"{name}: {kind} needs a decoder that is not installed",
            hint='pip install "ecokv-local[images]", or convert it to PNG or JPEG',
        ) from None
    file.seek(0)
    image: Image.Image = pillow_heif.HeifImageFile(file)
    return image


def _pixels(
    image: Image.Image, name: str, max_pixels: int, allow_truncated: bool
) -> npt.NDArray[np.uint8]:
    _check_size(image, name, max_pixels)
    try:
        image.load()
    except OSError as error:
        if not allow_truncated or getattr(image, "_im", None) is None:
            raise ImageError(
                f"{name}: truncated or damaged ({_reason(error)})",
                hint="copy or download it again",
            ) from error
        image.tile = []  # type: ignore[attr-defined] # nothing left to read: keep what is there
        image.load()
    _check_size(image, name, max_pixels)  # an icon holds pictures that have their own size
    upright = _upright(image)
    return np.ascontiguousarray(np.asarray(_to_rgb(upright), dtype=np.uint8))


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(f"{name}: has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise ImageError(
            f"{name}: {width} x {height} is {width * height} pixels, "
            f"more than the {max_pixels} that are allowed",
            hint="make it smaller, or raise --max-pixels",
        )


def _upright(image: Image.Image) -> Image.Image:
    """Apply the orientation tag (1-8)."""
    method = _TRANSPOSE.get(_orientation(image))
    if method is None:
        return image
    turned = image.transpose(method)
    if "transparency" in image.info:
        turned.info["transparency"] = image.info["transparency"]
    return turned


def _orientation(image: Image.Image) -> int:
    """The orientation tag, 1 without one. A damaged tag counts as none."""
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # metadata must not cost the picture
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    key = image.info.get("transparency")
    if image.mode.startswith(("I", "F")):
        grey, clear = _wide_to_grey(image, key)
        grey[clear] = 255
        return Image.fromarray(grey).convert("RGB")
    if image.mode in _ALPHA_MODES or (key is not None and image.mode in ("1", "L", "P", "RGB")):
        straight = image.convert("LA") if image.mode == "La" else image
        rgba = straight.convert("RGBA")
        flat = Image.new("RGB", image.size, "white")
        flat.paste(rgba, mask=rgba.getchannel("A"))
        return flat
    return image.convert("RGB")


def _wide_to_grey(
    image: Image.Image, key: Any
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """More than 8 bits to 8, and where the transparent value ``key`` stands; both (height, width).

    Whole numbers count from 0 to 65535, floats from 0 to 1 or, if any is larger, to 255; a
    picture that leaves this range is stretched from its smallest to its largest value.
    """
    values = np.asarray(image)
    clear = values == key if isinstance(key, (int, float)) else np.zeros(values.shape, bool)
    wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(wide.min()), float(wide.max())
    full = 65535.0 if not image.mode.startswith("F") else 1.0 if high <= 1.0 else 255.0
    if low < 0 or high > full:
        wide, full = wide - low, high - low
    return np.rint(wide * (255.0 / full)).astype(np.uint8), clear


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text[:200] or type(error).__name__) if text else type(error).__name__

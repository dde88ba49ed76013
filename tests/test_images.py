"""What the model is shown of a file."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageSequence, features

from ecokv_local.errors import ImageError
from ecokv_local.images import ImageInput, load_image

ARROW = np.zeros((6, 9, 3), np.uint8)  # no two of its eight turns are the same
ARROW[1, :7] = (255, 0, 0)
ARROW[0:4, 2] = (0, 255, 0)
ARROW[5, 8] = (0, 0, 255)


def packed(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def noise(mode: str = "RGB", size: tuple[int, int] = (64, 48), seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(values).convert(mode)


def pixels(source: Any, **options: Any) -> np.ndarray:
    return load_image(source, **options).rgb


# How a picture has to be turned before it is stored, so that its tag turns it back.
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("tag", range(1, 9))
def test_P08_orientation_is_applied(tag: int, kind: str) -> None:
    image = Image.fromarray(np.ascontiguousarray(STORED[tag](ARROW)))
    exif = Image.Exif()
    exif[0x0112] = tag
    options = {"lossless": True} if kind == "WEBP" else {}
    loaded = load_image(packed(image, kind, exif=exif, **options))
    np.testing.assert_array_equal(loaded.rgb, ARROW)
    assert loaded.sha256 == load_image(Image.fromarray(ARROW)).sha256


@pytest.mark.parametrize("tag", [0, 9, 77])
def test_P08_an_impossible_orientation_counts_as_none(tag: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = tag
    np.testing.assert_array_equal(pixels(packed(Image.fromarray(ARROW), "PNG", exif=exif)), ARROW)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_P08_damaged_exif_does_not_cost_the_picture() -> None:
    data = packed(noise(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert pixels(data).shape == (48, 64, 3)


def _clear_with_square(mode: str) -> Image.Image:
    image = Image.new("RGBA", (20, 20), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (5, 5, 10, 10))
    if mode == "P":
        flat = Image.new("P", (20, 20), 0)
        flat.putpalette([0, 0, 0, 0, 0, 0])
        flat.paste(1, (5, 5, 10, 10))
        flat.info["transparency"] = 0
        return flat
    return image.convert("LA").convert("La") if mode == "La" else image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "RGBa", "La"])
def test_P09_transparency_goes_on_white(mode: str) -> None:
    expected = np.full((20, 20, 3), 255, np.uint8)
    expected[5:10, 5:10] = 0
    image = _clear_with_square(mode)
    np.testing.assert_array_equal(pixels(image), expected)
    if mode in ("RGBA", "LA", "P"):
        transparency = {"transparency": 0} if mode == "P" else {}
        np.testing.assert_array_equal(pixels(packed(image, "PNG", **transparency)), expected)


def test_P09_half_transparent_is_half_white() -> None:
    assert pixels(Image.new("RGBA", (1, 1), (0, 0, 0, 128))).tolist() == [[[127, 127, 127]]]


@pytest.mark.parametrize(("mode", "key"), [("L", 7), ("RGB", (7, 7, 7)), ("1", 0)])
def test_P09_a_transparent_colour_without_alpha(mode: str, key: Any) -> None:
    image = Image.new(mode, (4, 4), key)
    image.putpixel((1, 2), 1 if mode == "1" else 100 if mode == "L" else (100, 100, 100))
    rgb = pixels(packed(image, "PNG", transparency=key))
    assert rgb[0, 0].tolist() == [255] * 3
    assert rgb[2, 1].tolist() == ([255] * 3 if mode == "1" else [100] * 3)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_P10_first_frame_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (16, 12), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = packed(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert len(list(ImageSequence.Iterator(Image.open(io.BytesIO(data))))) == 3
    loaded = load_image(data)
    np.testing.assert_array_equal(loaded.rgb, np.full((12, 16, 3), (255, 0, 0), np.uint8))
    assert loaded.sha256 == load_image(packed(frames[0], "PNG")).sha256


def _bomb(width: int, height: int) -> bytes:
    """A 1-bit PNG of any size in a few hundred kilobytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    row = bytes(1 + (width + 7) // 8)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    body = zlib.compress(row * height, 1)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("error")
def test_P11_a_bomb_is_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _bomb(30000, 30000)

    def load(self: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(ImageError, match=r"bomb\.png: 30000 x 30000 is 900000000 pixels") as caught:
        load_image(data, name="bomb.png")
    assert "--max-pixels" in caught.value.hint


@pytest.mark.filterwarnings("error")
def test_P11_the_cap_is_per_image_and_exact() -> None:
    data = packed(noise(size=(10, 10)), "PNG")
    assert pixels(data, max_pixels=100).shape == (10, 10, 3)
    with pytest.raises(ImageError, match="more than the 99"):
        load_image(data, max_pixels=99)
    with pytest.raises(ImageError, match="more than the 99"):
        load_image(noise(size=(10, 10)), max_pixels=99)


@pytest.mark.filterwarnings("error")
def test_P11_pillows_own_guard_neither_warns_nor_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Image.open would refuse
    assert pixels(packed(noise(size=(10, 10)), "PNG")).shape == (10, 10, 3)
    assert Image.MAX_IMAGE_PIXELS == 10 and not ImageFile.LOAD_TRUNCATED_IMAGES


KINDS = ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percent", [1, 10, 50, 90, 99])
def test_P12_truncated(kind: str, percent: int, tmp_path: Path) -> None:
    data = packed(noise(size=(200, 150)), kind)
    path = tmp_path / f"half.{kind.lower()}"
    path.write_bytes(data[: len(data) * percent // 100])
    with pytest.raises(ImageError) as caught:
        load_image(path)
    assert str(path) in caught.value.message and caught.value.hint


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP"])
def test_P12_truncated_is_read_when_allowed(kind: str) -> None:
    data = packed(noise(size=(200, 150)), kind)
    whole = pixels(data).astype(int)
    half = pixels(data[: len(data) // 2], allow_truncated=True).astype(int)
    assert half.shape == whole.shape
    rows = slice(100, None) if kind == "BMP" else slice(0, 50)  # a BMP begins at the bottom
    np.testing.assert_array_equal(half[rows], whole[rows])
    rest = slice(0, 50) if kind == "BMP" else slice(100, None)
    assert (half[rest] != whole[rest]).mean() > 0.9
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, about damaged tags
@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=150, deadline=None)
def test_P12_damaged_bytes_give_an_image_or_an_image_error(kind: str, data: st.DataObject) -> None:
    raw = bytearray(packed(noise(size=(24, 18)), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        loaded = load_image(bytes(raw), max_pixels=100_000)
    except ImageError as error:
        assert error.message and error.hint
    else:
        assert loaded.rgb.dtype == np.uint8 and loaded.rgb.ndim == 3 and loaded.rgb.shape[2] == 3


def test_unreadable_sources_name_the_file_and_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("hello, I am no picture")
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64)
    cases = {
        tmp_path / "none.png": "no such file",
        tmp_path: "is a folder",
        tmp_path / "empty.png": "empty",
        tmp_path / "text.png": "not an image",
        Path("/dev/null"): "not a regular file",
    }
    for path, reason in cases.items():
        for source in (path, str(path)):
            with pytest.raises(ImageError, match=reason) as caught:
                load_image(source)
            assert str(path) in caught.value.message
    with pytest.raises(ImageError, match="cannot be read"):
        load_image("a\0b")
    with pytest.raises(ImageError, match="no such file") as caught:
        load_image("https://example.org/a.png")
    assert "download" in caught.value.hint
    with pytest.raises(ImageError, match=r"photo\.heic") as caught:
        load_image(heic, name="photo.heic")
    try:
        import pillow_heif  # noqa: F401
    except ImportError:
        assert "ecokv-local[images]" in caught.value.hint
    with pytest.raises(ImageError, match="int"):
        ImageInput.of(3)  # type: ignore[arg-type]


def test_postscript_is_never_run() -> None:
    eps = packed(noise(), "EPS")
    with pytest.raises(ImageError, match="not an image of a known format"):
        load_image(eps)


def test_same_pixels_from_every_lossless_format() -> None:
    image = noise()
    data = [packed(image, kind) for kind in ("PNG", "BMP", "TIFF", "PPM", "TGA")]
    data.append(packed(image, "WEBP", lossless=True))
    hashes = {load_image(each).sha256 for each in data} | {load_image(image).sha256}
    assert len(hashes) == 1
    np.testing.assert_array_equal(pixels(data[0]), np.asarray(image))


@pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")
def test_avif_is_close_to_the_original() -> None:
    image = Image.radial_gradient("L").resize((64, 48)).convert("RGB")
    difference = pixels(packed(image, "AVIF", quality=95)).astype(int) - np.asarray(image)
    assert np.abs(difference).max() < 12


def test_the_hash_knows_the_shape() -> None:
    grey = [load_image(Image.new("RGB", size)) for size in ((4, 6), (6, 4), (3, 8))]
    assert len({each.sha256 for each in grey}) == 3


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<i4"])
def test_16_bits_are_scaled(dtype: str) -> None:
    values = np.array([[0, 257, 32896, 65535]], dtype)
    mode = {"<u2": "I;16", ">u2": "I;16B", "<i4": "I"}[dtype]
    image = Image.frombytes(mode, (4, 1), values.tobytes())
    assert pixels(image)[0, :, 0].tolist() == [0, 1, 128, 255]


def test_16_bit_png_keeps_its_brightness() -> None:
    values = np.linspace(0, 65535, 300).astype(np.uint16).reshape(10, 30)
    rgb = pixels(packed(Image.fromarray(values), "PNG"))
    np.testing.assert_array_equal(rgb[..., 1], np.rint(values / 257).astype(np.uint8))


def test_16_bit_png_with_a_transparent_value() -> None:
    values = np.array([[0, 65535, 1000]], np.uint16)
    data = packed(Image.fromarray(values), "PNG", transparency=1000)
    assert pixels(data)[0, :, 0].tolist() == [0, 255, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([float("nan"), 0.0, 1.0], [0, 0, 255]),
    ],
)
def test_floats_are_scaled(values: list[float], expected: list[int]) -> None:
    data = packed(Image.fromarray(np.array([values], np.float32)), "TIFF")
    assert pixels(data)[0, :, 0].tolist() == expected


def test_cmyk_and_1_bit() -> None:
    cmyk = Image.new("CMYK", (2, 1), (0, 255, 255, 0))
    assert pixels(cmyk)[0, 0].tolist() == [255, 0, 0]
    jpeg = pixels(packed(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=100))
    assert np.abs(jpeg.astype(int) - (255, 0, 0)).max() < 12
    bits = Image.new("1", (2, 1))
    bits.putpixel((1, 0), 1)
    assert pixels(packed(bits, "PNG"))[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "YCbCr", "HSV", "CMYK", "RGBX"])
def test_layout_of_every_mode(mode: str) -> None:
    rgb = pixels(noise("RGB").convert(mode))
    assert rgb.shape == (48, 64, 3) and rgb.dtype == np.uint8 and rgb.flags.c_contiguous


def test_a_pillow_image_is_not_changed() -> None:
    image = Image.fromarray(ARROW).convert("RGBA")
    image.getexif()[0x0112] = 6
    before = image.tobytes()
    rgb = pixels(image)
    assert image.tobytes() == before and image.mode == "RGBA" and image.size == (9, 6)
    assert rgb.shape == (9, 6, 3)


def test_names() -> None:
    assert ImageInput.of("a/b.png").name == "a/b.png"
    assert ImageInput.of(Path("a/b.png")).name == str(Path("a/b.png"))
    assert ImageInput.of(b"123").name == "<3 bytes>"
    assert ImageInput.of(noise()).name == "<64 x 48 image>"
    given_name = ImageInput("x.png", "upload 1")
    assert ImageInput.of(given_name) is given_name
    assert load_image(noise(), name="mine").name == "mine"


def test_many_threads_see_the_same_pixels() -> None:
    data, seen = packed(noise(size=(200, 200)), "JPEG"), set()

    def work() -> None:
        for _ in range(5):
            seen.add(load_image(data).sha256)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {load_image(data).sha256}

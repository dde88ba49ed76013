"""Pictures of every kind in a batch: each is captioned, or fails by itself and says why."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caption.conftest import batch_of, encoded, picture
from PIL import Image, features

from benchmarks.caption_formats import FORMATS, MODES, caption_all
from benchmarks.caption_kill import environment
from benchmarks.caption_memory import slope
from ecokv_local import Engine
from ecokv_local.caption import Result
from ecokv_local.caption.estimate import estimates
from ecokv_local.errors import TemplateError

Run = Callable[..., dict[str, Result]]


def write(folder: Path, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


def large_png(width: int, height: int, bits: int = 1, colour: int = 0) -> bytes:
    """A PNG of any size in a few hundred kilobytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    row = bytes(1 + (width * bits * (3 if colour == 2 else 1) + 7) // 8)
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    packer = zlib.compressobj(1)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_P04_a_large_picture_between_two_others(tmp_path: Path, run: Run) -> None:
    small = encoded(picture(1), "PNG")
    big = large_png(12000, 9000, 8, 2)
    folder = write(tmp_path / "p", a__png=small, b__png=big, c__png=small)
    done = run(folder)
    assert done["a.png"].ok and done["c.png"].ok
    assert "12000 x 9000" in str(done["b.png"].error)
    assert not (folder / "b.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2vl"])
def test_P04_a_large_picture_that_is_allowed(
    tmp_path: Path, request: pytest.FixtureRequest, family: str
) -> None:
    """It is scaled down; the others go on whatever becomes of it."""
    prefix = "tiny" if family == "llama" else "tiny_qwen2vl"
    model = request.getfixturevalue(f"tiny_{family}_path")
    mmproj = request.getfixturevalue(f"{prefix}_mmproj_path")
    small = encoded(picture(1), "PNG")
    folder = write(tmp_path / "p", a__png=small, b__png=large_png(12000, 9000, 8, 2), c__png=small)
    with Engine(model, mmproj, threads=1, n_ctx=8192, image_max_tokens=None) as engine:
        batch = batch_of(engine, folder, max_pixels=120_000_000)
        with batch:
            done = {Path(r.path).name: r for r in batch.run()}
    assert done["a.png"].ok and done["c.png"].ok
    assert done["b.png"].ok or done["b.png"].error.message  # type: ignore[union-attr]


LETTERS = {"grammar": "root ::= [a-z] [a-z] [a-z]"}  # a model of random weights may say nothing


@pytest.mark.parametrize("n", [12, pytest.param(80, marks=pytest.mark.slow)])
def test_P05_tokens_predicted_from_size_are_those_that_are_read(
    tmp_path: Path, tiny_qwen2vl_path: Path, tiny_qwen2vl_mmproj_path: Path, n: int
) -> None:
    rng = random.Random(5)
    for i in range(n):
        size = (rng.randint(1, 300), rng.randint(1, 300))
        picture(i, size).save(tmp_path / f"{i:03}.png")
    engine = Engine(tiny_qwen2vl_path, tiny_qwen2vl_mmproj_path, threads=1)
    with engine, batch_of(engine, tmp_path, **LETTERS) as batch:
        predicted = {e.path: (e.n_prompt, e.n_image_tokens) for e in estimates(batch, engine)}
        read = {}
        for result in batch.run():
            assert result.answer is not None, result.error
            read[result.path] = (result.answer.n_prompt, result.answer.n_image_tokens)
    assert read == predicted and len({tokens for _, tokens in read.values()}) > 3


def test_P06_the_same_picture_in_every_format(tmp_path: Path, run: Run) -> None:
    image = picture(3)
    folder = write(
        tmp_path / "p",
        a__png=encoded(image, "PNG"),
        b__bmp=encoded(image, "BMP"),
        c__tiff=encoded(image, "TIFF"),
        d__webp=encoded(image, "WEBP", lossless=True),
        e__gif=encoded(image, "GIF"),
        f__jpg=encoded(image, "JPEG", quality=95),
    )
    if features.check("avif"):
        write(folder, g__avif=encoded(image, "AVIF", quality=95))
    write(folder, h__heic=b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64))
    done = run(folder, sidecar_name="full")
    same = {done[name].caption for name in ("a.png", "b.bmp", "c.tiff", "d.webp", "e.gif")}
    assert len(same) == 1
    assert all(done[name].ok for name in done if name != "h.heic")
    error = done["h.heic"].error
    assert error is not None and "heic" in error.message.lower()
    try:
        import pillow_heif  # noqa: F401
    except ImportError:
        assert "ecokv-local[images]" in error.hint


def test_P07_no_caption_for_bytes_that_are_no_picture(tmp_path: Path, run: Run) -> None:
    folder = write(tmp_path / "p", a__png=b"\x89PNG\r\n\x1a\n" + bytes(50), b__jpg=b"text")
    done = run(folder, outputs=(folder / "all.jsonl",), sidecar=True)
    assert not any(result.ok for result in done.values())
    assert not list(folder.glob("*.txt")) and (folder / "all.jsonl").read_bytes() == b""


def test_P08_every_orientation_is_captioned_alike(tmp_path: Path, run: Run) -> None:
    upright = picture(2, (60, 40))
    turns = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    for tag, turn in turns.items():
        exif = Image.Exif()
        exif[0x0112] = tag
        stored = upright if turn is None else upright.transpose(turn)
        stored.save(tmp_path / f"{tag}.png", exif=exif)
    done = run(tmp_path, prompt="{{ width }} x {{ height }}?")
    assert len({result.caption for result in done.values()}) == 1
    assert {result.prompt for result in done.values()} == {"60 x 40?"}


def test_P09_a_clear_background_is_white(tmp_path: Path, run: Run) -> None:
    clear = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (10, 10, 20, 20))
    white = Image.new("RGB", (40, 40), "white")
    white.paste((0, 0, 0), (10, 10, 20, 20))
    black = Image.new("RGB", (40, 40))
    write(tmp_path, **{f"{n}__png": encoded(i, "PNG") for n, i in (("c", clear), ("w", white))})
    write(tmp_path, b__png=encoded(black, "PNG"))
    done = run(tmp_path)
    assert done["c.png"].caption == done["w.png"].caption != done["b.png"].caption


#: `ecokv`, and its own peak of resident memory; what getrusage tells has the parent's in it.
TELLING_ITS_PEAK = """
import atexit, pathlib, sys
from ecokv_cli.main import main

status = pathlib.Path("/proc/self/status")
if status.exists():
    atexit.register(lambda: sys.stderr.write(status.read_text()))
sys.exit(main())
"""


def test_P11_a_bomb_in_a_batch_of_three(
    tmp_path: Path, tiny_llama_path: Path, tiny_mmproj_path: Path
) -> None:
    small = encoded(picture(1), "PNG")
    write(tmp_path, a__png=small, b__png=large_png(30000, 30000), c__png=small)
    flags = ["-m", str(tiny_llama_path), "--mmproj", str(tiny_mmproj_path), "-t", "1", "-n", "4"]
    done = subprocess.run(
        [sys.executable, "-c", TELLING_ITS_PEAK, "caption", str(tmp_path), *flags, "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    kinds = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert (kinds[0], kinds[-1]) == ("start", "end")  # between them as they are done
    assert sorted(kinds[1:-1]) == ["caption", "caption", "failed"]
    peak = re.search(r"VmHWM:\s*(\d+) kB", done.stderr)
    if peak is not None:  # where there is /proc
        assert int(peak[1]) < 600 * 1024, peak  # the bomb alone has 900 MB of pixels


def test_P12_truncated_pictures_are_skipped_and_counted(tmp_path: Path, run: Run) -> None:
    whole = encoded(picture(4, (200, 150)), "JPEG", quality=95)
    for percent in (10, 50, 99):
        (tmp_path / f"{percent}.jpg").write_bytes(whole[: len(whole) * percent // 100])
    (tmp_path / "whole.jpg").write_bytes(whole)
    done = run(tmp_path)
    assert [name for name, result in done.items() if result.ok] == ["whole.jpg"]
    assert all(result.error.hint for result in done.values() if result.error)
    done = run(
        tmp_path,
        allow_truncated=True,
    )  # tried again by itself
    assert done["99.jpg"].ok and done["50.jpg"].ok


@pytest.mark.parametrize(
    ("n", "limit"), [(150, 20.0), pytest.param(400, 8.0, marks=pytest.mark.slow)]
)
def test_P19_memory_stays_flat(tmp_path: Path, engine: Engine, n: int, limit: float) -> None:
    """KiB an image after the first 50; benchmarks/caption_memory.py takes more of them."""
    for i in range(n):
        picture(i, (64, 64)).save(tmp_path / f"{i:04}.png")
    with batch_of(engine, tmp_path, outputs=(tmp_path / "all.jsonl",), sidecar=True) as batch:
        assert slope(batch.run(), skip=50) < limit * 1024


TEMPLATES = {
    "string": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    "list": (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>"
        "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
    ),
    "typed list": (
        "{% for m in messages %}{% if m.content is string %}{{ raise_exception('a list') }}"
        "{% endif %}{% for p in m.content %}{% if p['type'] == 'text' %}{{ p['text'] }}"
        "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endfor %}"
    ),
    "own token": (
        "{% for m in messages %}{% if m.content is not string %}{% for p in m.content %}"
        "{% if p.type == 'image' %}<start_of_image>{% else %}{{ p.text }}{% endif %}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("style", [*TEMPLATES, "none", "drops pictures"])
def test_P26_styles_of_templates(tmp_path: Path, tiny_mmproj_path: Path, style: str) -> None:
    pytest.importorskip("gguf")
    import tiny

    template = TEMPLATES.get(style)
    if style == "drops pictures":
        template = "{% for m in messages %}{{ m.role }}{% endfor %}"
    model = tiny.tiny_llama(tmp_path / "m.gguf", chat_template=template)
    folder = write(tmp_path / "p", a__png=encoded(picture(1), "PNG"))
    with Engine(model, tiny_mmproj_path, threads=1) as engine:
        batch = batch_of(engine, folder, prompt="See <__media__> and <image>?")
        with batch:
            if style == "drops pictures":
                with pytest.raises(TemplateError, match=r"m\.gguf"):
                    list(batch.run())
                return
            (result,) = batch.run()
    assert result.answer is not None, result.error
    assert result.answer.n_image_tokens == 36  # one marker for one picture
    warned = any("no chat template" in w for w in result.answer.warnings)
    assert warned == (style == "none")


SOME = {"modes": ["1", "P", "RGBA", "I;16", "CMYK"], "sizes": [(1, 1), (1, 600), (33, 20)]}


@pytest.mark.parametrize(
    "kinds", [SOME, pytest.param({"modes": MODES, "sizes": SOME["sizes"]}, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(1800)
def test_every_mode_size_and_format(tmp_path: Path, engine: Engine, kinds: Any) -> None:
    """Captioned, or a failure of its own with a reason; the batch finishes.

    All sizes are tried by benchmarks/caption_formats.py.
    """
    sizes = kinds["sizes"]
    figures = caption_all(tmp_path, engine, kinds["modes"], sizes, FORMATS)
    assert figures["files"] == figures["captioned"] + figures["failed"]
    assert figures["captioned"] == figures["files"], figures["reasons"]
    assert figures["files"] > 10

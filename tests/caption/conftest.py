"""Folders of small pictures, and a tiny model that captions them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ecokv_local import Engine
from ecokv_local.caption import Batch, CaptionConfig, Prompts, Result, caption, gather


@pytest.fixture(scope="session")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    """Captions an image in 20 ms."""
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1) as engine:
        yield engine


def picture(i: int, size: tuple[int, int] = (64, 48), mode: str = "RGB") -> Image.Image:
    """Picture number ``i``: two fields, no two numbers alike."""
    image = Image.new("RGB", size, (i * 37 % 256, i * 101 % 256, i * 59 % 256))
    image.paste((255 - i * 17 % 256, i * 71 % 256, 90), (0, 0, size[0] // 2, size[1] // 2))
    return image.convert(mode)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """A folder with ``n`` pictures, ``0.png`` and so on."""

    def make(n: int, name: str = "photos") -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for i in range(n):
            picture(i).save(folder / f"{i}.png")
        return folder

    return make


@pytest.fixture
def run(engine: Engine) -> Callable[..., dict[str, Result]]:
    """Caption with the tiny model; results by the name of the picture."""

    def run(*paths: Any, **options: Any) -> dict[str, Result]:
        options = {"engine": engine, "max_tokens": 8, **options}
        return {Path(result.path).name: result for result in caption(paths, **options)}

    return run


class Never:
    """An engine that must not be asked for."""

    def __call__(self) -> Engine:
        raise AssertionError("the model was loaded")


def batch_of(
    engine: Any, *paths: Any, model: dict[str, Any] | None = None, prompt: str = "", **options: Any
) -> Batch:
    """A planned batch over files and folders; `engine` may be `Never`."""
    from ecokv_local.caption.config import DEFAULT_PROMPT

    found = gather(paths, recursive=options.pop("recursive", False))
    scope = [str(path) for path in paths]
    config = CaptionConfig(**{"max_tokens": 8, **options})
    prompts = Prompts((prompt or DEFAULT_PROMPT,))
    return Batch(found.sources, config, prompts, engine=engine, model=model or MODEL, scope=scope)


#: What the manifest calls the tiny model in these tests.
MODEL = {"model": "tiny"}


def actions(batch: Batch) -> dict[str, str]:
    """What is going to happen, by the name of the picture."""
    return {Path(item.path).name: item.action for item in batch.plan.items}

"""The header walk, on whole, cut, damaged and unfitting files."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ecokv_local.errors import ModelError
from ecokv_local.gguf_meta import check_complete, check_projector, read_meta

gguf = pytest.importorskip("gguf")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, body: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + body


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def small(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    """A GGUF by hand."""
    keys = [key("general.architecture", 8, text("llama")), *(keys or [])]
    tensors = tensors or []
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    body = head + b"".join(keys) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + data if tensors else body


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


def test_fields_of_a_model(tiny_llama_path: Path) -> None:
    import tiny

    meta = read_meta(tiny_llama_path)
    assert (meta.architecture, meta.name, meta.is_mmproj) == ("llama", "tiny-llama", False)
    assert (meta.n_embd, meta.n_layer, meta.n_ctx_train) == (256, 2, 8192)
    assert meta.chat_template == tiny.CHATML
    assert (meta.projector_type, meta.projection_dim) == (None, None)
    assert meta.size == tiny_llama_path.stat().st_size


def test_fields_of_a_projector(tiny_mmproj_path: Path) -> None:
    meta = read_meta(tiny_mmproj_path)
    assert (meta.architecture, meta.is_mmproj, meta.chat_template) == ("clip", True, None)
    assert (meta.projector_type, meta.projection_dim, meta.n_embd) == ("mlp", 256, 64)


@pytest.mark.parametrize("name", ["smollm2_path", "tiny_gemma3_path", "tiny_qwen2vl_mmproj_path"])
def test_same_as_the_gguf_package(name: str, request: Any) -> None:
    path = request.getfixturevalue(name)
    meta, reader = read_meta(path), gguf.GGUFReader(path)
    shapes = {t.name: tuple(int(n) for n in t.shape) for t in reader.tensors}
    assert dict(meta.shapes) == shapes
    scalars = {
        name: field.contents()
        for name, field in reader.fields.items()
        if field.types[0] != gguf.GGUFValueType.ARRAY and not name.startswith("GGUF.")
    }
    assert dict(meta.fields) == scalars


def test_block_sizes_are_those_of_the_pin() -> None:
    from ecokv_local import native
    from ecokv_local.gguf_meta import _BLOCKS

    (library,) = native.library_dir().glob("*ggml-base.*")
    ggml = ctypes.CDLL(str(library))
    ggml.ggml_blck_size.restype, ggml.ggml_type_size.restype = ctypes.c_int64, ctypes.c_size_t
    sizes = {kind: (ggml.ggml_blck_size(kind), ggml.ggml_type_size(kind)) for kind in range(43)}
    assert {kind: size for kind, size in sizes.items() if size[0]} == _BLOCKS


def test_a_large_vocabulary_takes_less_than_50_ms(smollm2_path: Path) -> None:
    times = []
    for _ in range(10):
        start = time.process_time()  # not of the other programs that run
        read_meta(smollm2_path)
        times.append(time.process_time() - start)
    assert min(times) < 0.05


@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("name", ["tiny_llama_path", "tiny_mmproj_path"])
def test_P25_cut_anywhere(part: int, name: str, request: Any, tmp_path: Path) -> None:
    source = request.getfixturevalue(name)
    size = source.stat().st_size
    cut = (
        [0, 1, 4, 8, 23, 24, 100, 1000, 4000, size - 1][part]
        if part < 10
        else (size * (part - 9) // 11)
    )
    path = tmp_path / "cut.gguf"
    path.write_bytes(source.read_bytes()[:cut])
    with pytest.raises(ModelError) as caught:
        check_complete(path)
    message = caught.value.message
    assert str(path) in message and caught.value.hint and caught.value.exit_code == 4
    if cut:
        have = re.search(r"needs (\d+) bytes, the file has (\d+)", message)
        assert have is not None and int(have[2]) == cut < int(have[1]) <= size


def test_P25_every_cut_of_the_header_is_refused(file: Any) -> None:
    keys = [
        key("general.name", 8, text("x")),
        key("a.list", 9, struct.pack("<IQ", 8, 2) + text("one") + text("two")),
        key("a.numbers", 9, struct.pack("<IQ", 4, 3) + bytes(12)),
    ]
    whole = small(keys, [tensor("t", (4, 2))], bytes(32))
    assert read_meta(file(whole)).shapes == {"t": (4, 2)}
    for cut in range(len(whole)):
        with pytest.raises(ModelError):
            read_meta(file(whole[:cut]))


def test_P25_whole_files_pass(
    tiny_llama_path: Path, tiny_mmproj_path: Path, smollm2_path: Path
) -> None:
    for path in (tiny_llama_path, tiny_mmproj_path, smollm2_path):
        assert check_complete(path) == check_complete(str(path)) == read_meta(path)


def test_P25_no_such_file_folder_and_others(tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html><html>not found</html>")
    cases = {
        tmp_path / "none.gguf": "no such file",
        tmp_path: "is a folder",
        tmp_path / "page.gguf": "not a GGUF file",
        Path("/dev/null"): "not a regular file",
        Path("a\0b"): "cannot be read",
    }
    for path, reason in cases.items():
        with pytest.raises(ModelError, match=reason) as caught:
            check_complete(path)
        assert str(path) in caught.value.message


LIE = 1 << 40
DAMAGED = {
    "version 1": (small(version=1), "version 1"),
    "big-endian": (small(version=3 << 24), "big-endian"),
    "many keys": (small(n_keys=LIE), "keys"),
    "many tensors": (small(n_tensors=LIE), "tensors"),
    "more keys than bytes": (small(n_keys=1 << 20), "truncated"),
    "long text": (small([key("a", 8, struct.pack("<Q", LIE))]), "truncated"),
    "longest text": (small([key("a", 8, struct.pack("<Q", 2**64 - 1))]), "truncated"),
    "unknown type": (small([key("a", 99, b"")]), "unknown type 99"),
    "nested array": (small([key("a", 9, struct.pack("<IQ", 9, 1) + bytes(99))]), "unknown type 9"),
    "long array": (small([key("a", 9, struct.pack("<IQ", 4, LIE))]), "truncated"),
    "long list": (small([key("a", 9, struct.pack("<IQ", 8, LIE))]), "truncated"),
    "long text in a list": (
        small([key("a", 9, struct.pack("<IQQ", 8, 2, 2**64 - 1) + bytes(64))]),
        "truncated",
    ),
    "alignment": (small([key("general.alignment", 4, struct.pack("<I", 3))]), "alignment 3"),
    "alignment of 0": (small([key("general.alignment", 4, bytes(4))]), "alignment 0"),
    "dimensions": (small(None, [tensor("t", (1,) * 5)], bytes(32)), "5 dimensions"),
    "long name": (small(None, [tensor("t" * 64, (1,))], bytes(32)), "64 letters"),
    "huge shape": (small(None, [tensor("t", (2**32, 2**32))], bytes(32)), "shape"),
    "unknown ggml type": (small(None, [tensor("t", (32,), 4)], bytes(32)), "type 4"),
    "part of a block": (small(None, [tensor("t", (33,), 8)], bytes(64)), "shape"),
    "crooked offset": (small(None, [tensor("t", (1,), 0, 4)], bytes(64)), "offset 4"),
    "twice": (small(None, [tensor("t", (1,))] * 2, bytes(64)), "twice"),
    "data outside": (small(None, [tensor("t", (9,))], bytes(32)), "truncated: tensor 't'"),
    "offset outside": (small(None, [tensor("t", (1,), 0, 64)], bytes(64)), "truncated"),
    "no architecture": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_P25_damaged_header(name: str, file: Any) -> None:
    data, reason = DAMAGED[name]
    with pytest.raises(ModelError, match=re.escape(reason)) as caught:
        read_meta(file(data))
    assert caught.value.hint


@given(data=st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_P25_any_damage_gives_a_header_or_a_model_error(data: st.DataObject, file: Any) -> None:
    keys = [
        key("general.name", 8, text("name")),
        key("general.alignment", 4, struct.pack("<I", 64)),
        key("llama.embedding_length", 4, struct.pack("<I", 256)),
        key("list", 9, struct.pack("<IQ", 8, 3) + text("a") + text("bc") + text("")),
    ]
    raw = bytearray(small(keys, [tensor("t", (8, 2)), tensor("u", (32,), 8, 64)], bytes(256)))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 8, 9, 0x7F, 0x80, 0xFF, raw[at] ^ 1]))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    try:
        meta = read_meta(file(bytes(raw)))
    except ModelError as error:
        assert "model.gguf" in error.message
    else:
        assert isinstance(meta.n_embd, int) and isinstance(meta.name, str)


@given(junk=st.binary(max_size=200))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_P25_junk_behind_the_magic(junk: bytes, file: Any) -> None:
    with pytest.raises(ModelError):
        read_meta(file(b"GGUF" + junk))


def test_P25_every_part_of_a_split_model_is_needed(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        part = gguf.GGUFWriter(tmp_path / f"big-{i:05}-of-00003.gguf", arch="llama")
        part.add_uint16("split.count", 3)
        part.add_uint16("split.no", i - 1)
        part.add_tensor("t", np.zeros(64, np.float32))
        part.write_header_to_file()
        part.write_kv_data_to_file()
        part.write_tensors_to_file()
        part.close()
    first, last = (tmp_path / f"big-{i:05}-of-00003.gguf" for i in (1, 3))
    check_complete(first)
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(ModelError, match=f"{last.name}: truncated"):
        check_complete(first)
    last.unlink()
    with pytest.raises(ModelError, match=f"{last.name}: no such file"):
        check_complete(first)


def test_P24_fitting_pairs(
    tiny_llama_path: Path,
    tiny_mmproj_path: Path,
    tiny_qwen2vl_path: Path,
    tiny_qwen2vl_mmproj_path: Path,
) -> None:
    check_projector(read_meta(tiny_llama_path), read_meta(tiny_mmproj_path))
    check_projector(read_meta(tiny_qwen2vl_path), read_meta(tiny_qwen2vl_mmproj_path))


def test_P24_another_width(tiny_llama_path: Path, wrong_mmproj_path: Path) -> None:
    start = time.perf_counter()
    for force in (False, True):
        with pytest.raises(ModelError, match=r"width 320.*width 256") as caught:
            check_projector(read_meta(tiny_llama_path), read_meta(wrong_mmproj_path), force=force)
        assert str(tiny_llama_path) in caught.value.message
        assert str(wrong_mmproj_path) in caught.value.message
        assert caught.value.exit_code == 4 and "--mmproj" in caught.value.hint
    assert time.perf_counter() - start < 1


def test_P24_another_family_of_the_same_width(
    tiny_llama_path: Path, tiny_qwen2vl_mmproj_path: Path
) -> None:
    model, mmproj = read_meta(tiny_llama_path), read_meta(tiny_qwen2vl_mmproj_path)
    assert model.n_embd == mmproj.projection_dim == 256
    with pytest.raises(ModelError, match=r"qwen2vl_merger.*width 256.*llama.*width 256"):
        check_projector(model, mmproj)
    check_projector(model, mmproj, force=True)


def test_P24_a_model_is_not_a_projector(tiny_llama_path: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_llama_path, tmp_path / "other.gguf")
    with pytest.raises(ModelError, match=r"other\.gguf: this is not a projector"):
        check_projector(read_meta(tiny_llama_path), read_meta(tmp_path / "other.gguf"))


def test_P24_the_declared_width_is_not_believed(tiny_llama_path: Path, tmp_path: Path) -> None:
    import tiny

    path = tiny.tiny_mmproj(tmp_path / "mmproj.gguf")
    raw = path.read_bytes()
    at = raw.index(b"clip.vision.projection_dim") + len("clip.vision.projection_dim") + 4
    path.write_bytes(raw[:at] + struct.pack("<I", 768) + raw[at + 4 :])
    meta = read_meta(path)
    assert meta.fields["clip.vision.projection_dim"] == 768 and meta.projection_dim == 256
    check_projector(read_meta(tiny_llama_path), meta)

"""`-hf user/repo[:quant]`, over a stand-in for `huggingface_hub`: nothing is fetched here."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ecokv_cli import hub

FILES = [
    "README.md",
    "model-Q4_K_M.gguf",
    "model-Q8_0.gguf",
    "model-f16-00001-of-00002.gguf",
    "model-f16-00002-of-00002.gguf",
    "mmproj-model-Q8_0.gguf",
    "mmproj-model-f16.gguf",
]


@pytest.fixture
def fake_hub(monkeypatch, tmp_path):
    """A repository in the place of the real one, and what was asked of it."""
    cache = tmp_path / "cache"
    cache.mkdir()
    asked = []

    def list_repo_files(repo):
        asked.append(("list", repo))
        if repo == "no/body":
            raise OSError("404: no such repository\nmore")
        return FILES

    def hf_hub_download(repo, file, local_files_only=False):
        asked.append(("offline" if local_files_only else "online", file))
        return f"/cache/{file}"

    def snapshot_download(repo, local_files_only):
        assert local_files_only
        if not any(cache.iterdir()):
            raise FileNotFoundError("not cached")
        return str(cache)

    module = SimpleNamespace(
        list_repo_files=list_repo_files,
        hf_hub_download=hf_hub_download,
        snapshot_download=snapshot_download,
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return SimpleNamespace(asked=asked, cache=cache)


@pytest.mark.parametrize(
    ("quant", "found"),
    [
        ("", ("model-Q4_K_M.gguf", "mmproj-model-f16.gguf")),
        ("Q8_0", ("model-Q8_0.gguf", "mmproj-model-Q8_0.gguf")),
        ("q8_0", ("model-Q8_0.gguf", "mmproj-model-Q8_0.gguf")),
        ("f16", ("model-f16-00001-of-00002.gguf", "mmproj-model-f16.gguf")),
        ("Q4_K", (None, "mmproj-model-f16.gguf")),
    ],
)
def test_choice(quant, found):
    assert hub.choose(FILES, quant) == found


def test_choice_among_little():
    assert hub.choose(["only-IQ2_XS.gguf"], "") == ("only-IQ2_XS.gguf", None)
    assert hub.choose(["README.md"], "") == (None, None)


def test_model_and_projector(ecokv, engine, fake_hub):
    assert ecokv("chat", "Hi", "-hf", "user/repo:Q8_0").code == 0
    (made,) = engine.opened
    assert (made.model_path, made.mmproj_path) == (
        "/cache/model-Q8_0.gguf",
        "/cache/mmproj-model-Q8_0.gguf",
    )


def test_own_projector_is_not_fetched_over(ecokv, engine, fake_hub):
    ecokv("chat", "Hi", "-hf", "user/repo", "--mmproj", "own.gguf")
    assert engine.opened[0].mmproj_path == "own.gguf"
    assert not any("mmproj" in file for _, file in fake_hub.asked)


def test_split_model_is_fetched_whole(ecokv, engine, fake_hub):
    ecokv("chat", "Hi", "-hf", "user/repo:f16")
    assert engine.opened[0].model_path == "/cache/model-f16-00001-of-00002.gguf"
    assert ("online", "model-f16-00002-of-00002.gguf") in fake_hub.asked


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_offline_asks_the_cache_only(ecokv, engine, fake_hub, monkeypatch, how):
    flags = ["--offline"] if how == "flag" else []
    if how == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = ecokv("chat", "Hi", "-hf", "user/repo", *flags)
    assert result.code == 4 and "not in the local cache" in result.err
    (fake_hub.cache / "model-Q4_K_M.gguf").touch()
    assert ecokv("chat", "Hi", "-hf", "user/repo", *flags).code == 0
    assert fake_hub.asked == [("offline", "model-Q4_K_M.gguf")]


def test_wrong_quant_lists_what_there_is(ecokv, engine, fake_hub):
    result = ecokv("chat", "Hi", "-hf", "user/repo:Q4_0")
    assert result.code == 4 and "no GGUF model for Q4_0" in result.err
    assert "model-Q8_0.gguf" in result.err


def test_unreachable(ecokv, engine, fake_hub):
    result = ecokv("chat", "Hi", "-hf", "no/body")
    assert result.code == 4 and "error: -hf no/body: 404: no such repository\n" in result.err


def test_without_the_package(ecokv, engine, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    result = ecokv("chat", "Hi", "-hf", "user/repo")
    assert result.code == 4 and "pip install huggingface_hub" in result.err

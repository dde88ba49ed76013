"""Saved sessions: a new process goes on with the same tokens, and nothing wrong is ever loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pictures import noise

from ecokv_local import Engine, EvictionConfig, ekv
from ecokv_local.errors import EcokvError, ImageError, ModelError, SessionFileError, StateError

RESOURCE = pytest.importorskip("resource")

CONTINUE = """
import json, sys
from ecokv_local import Engine
with Engine(*sys.argv[2:], threads=1, n_ctx=1024) as engine:
    session = engine.load_session(sys.argv[1])
    answers = [session.answer("Go on.", max_tokens=64).text, session.answer("And?").text]
    print(json.dumps([answers, session.n_position, session.n_rows, len(session.messages)]))
"""


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path, tiny_mmproj_path: Path) -> Iterator[Engine]:
    with Engine(tiny_llama_path, tiny_mmproj_path, threads=1, n_ctx=1024) as engine:
        yield engine


def go_on(session: object) -> list[object]:
    first = session.answer("Go on.", max_tokens=64).text  # type: ignore[attr-defined]
    return [first, session.n_position, session.n_rows]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("policy", "pairs"), [("ecokv", 64), ("pyramid", 64), ("ada", 48), ("none", None)]
)
def test_a_loaded_session_goes_on_with_the_same_tokens(
    engine: Engine, tmp_path: Path, policy: str, pairs: int | None
) -> None:
    config = EvictionConfig(policy, pairs, slack=16)
    session = engine.session(system="Be brief.", eviction=config, n_ctx=1024)
    for turn in range(3):
        session.answer("What?", [noise(turn)], max_tokens=10)
    session.save(tmp_path / "a.ekv")
    loaded = engine.load_session(tmp_path / "a.ekv")
    assert loaded.stats()["layers"] is not None and loaded.eviction == config
    assert (loaded.n_position, loaded.n_rows) == (session.n_position, session.n_rows)
    if pairs:  # the queries that vote are those of the saved session: evict before reading more
        assert loaded.evict(40).n_query == session.evict(40).n_query == 8
    assert go_on(loaded) == go_on(session)
    assert [m.text for m in loaded.messages] == [m.text for m in session.messages]
    session.close()
    loaded.close()


def test_floors_of_images_and_the_window_of_a_long_talk_are_saved(
    engine: Engine, tmp_path: Path
) -> None:
    config = EvictionConfig(budget=96, slack=16, image_budget="10%", protect="question")
    session = engine.session(eviction=config, n_ctx=1024)
    session.answer("What?", [noise(1)], max_tokens=2)
    for _ in range(40):
        session.answer("And?", max_tokens=2)
    assert session.reads[0].first > 0  # the window has moved
    session.save(tmp_path / "a.ekv")
    loaded = engine.load_session(tmp_path / "a.ekv")
    assert (loaded.eviction, loaded.reads) == (config, session.reads)
    assert loaded.context.spans == session.context.spans != ()
    answer, expected = (s.answer("Go on.", max_tokens=16) for s in (loaded, session))
    assert (answer.text, answer.n_prompt) == (expected.text, expected.n_prompt)
    loaded.close()
    session.close()


@pytest.mark.parametrize("pairs", [None, 48])
def test_a_failed_first_question_leaves_the_documents_as_they_were(
    engine: Engine, tmp_path: Path, pairs: int | None
) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    answers = []
    for fails in (False, True):
        session = engine.session(eviction=EvictionConfig(budget=pairs), n_ctx=1024)
        list(session.read("word " * 60))
        end = session.n_position
        if fails:
            with pytest.raises(ImageError):
                session.answer("What?", [tmp_path / "bad.png"])
            session.ask("What?", [noise(1)])  # and one that nobody listens to
        assert (session.messages, session.n_position) == ([], end)
        answers.append((session.answer("What?", max_tokens=8).text, session.n_position))
        session.close()
    assert answers[0] == answers[1]


def test_another_process_goes_on_with_the_same_tokens(
    engine: Engine, tmp_path: Path, tiny_llama_path: Path, tiny_mmproj_path: Path
) -> None:
    session = engine.session(eviction=EvictionConfig(budget=64))
    for turn in range(5):
        session.answer("What?", [noise(turn)], max_tokens=10)
    session.save(tmp_path / "a.ekv")
    command = [sys.executable, "-c", CONTINUE, tmp_path / "a.ekv", tiny_llama_path]
    done = subprocess.run([*command, tiny_mmproj_path], capture_output=True, check=True)
    answers = [session.answer("Go on.", max_tokens=64).text, session.answer("And?").text]
    expected = [answers, session.n_position, session.n_rows, len(session.messages)]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    session.close()


@pytest.mark.parametrize("kind", ["qwen2vl", "gemma3"])
def test_other_memories(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    files = [request.getfixturevalue(f"tiny_{kind}{end}_path") for end in ("", "_mmproj")]
    with Engine(*files, threads=1, n_ctx=1024) as engine:
        session = engine.session(eviction=EvictionConfig(budget=64))
        for turn in range(3):
            session.answer("What is it? " * 8, [noise(turn)], max_tokens=20)
        session.save(tmp_path / "a.ekv")
        loaded = engine.load_session(tmp_path / "a.ekv")
        assert loaded.n_position == session.n_position
        assert go_on(loaded) == go_on(session)


def test_a_memory_that_cannot_be_saved_is_refused(tiny_mamba_path: Path, tmp_path: Path) -> None:
    with Engine(tiny_mamba_path, threads=1, n_ctx=256) as engine:
        session = engine.session()
        session.answer("Hello.", max_tokens=3)
        with pytest.raises(ModelError, match="no plain attention KV cache"):
            session.save(tmp_path / "a.ekv")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def saved(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "a.ekv"
    session = engine.session(eviction=EvictionConfig(budget=48))
    session.answer("What?", [noise(0)], max_tokens=5)
    session.save(path)
    session.close()
    return path


def test_every_kind_of_damage_is_told(saved: Path, tmp_path: Path) -> None:
    data, bad = saved.read_bytes(), tmp_path / "bad.ekv"
    places = [*range(40), *range(40, len(data), len(data) // 60), len(data) - 1]
    for place in places:
        bad.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(SessionFileError, match=r"bad\.ekv"):
            ekv.read(bad)
    for size in (0, 3, 20, 40, 1000, len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:size])
        with pytest.raises(SessionFileError, match=r"not a session file|damaged|truncated"):
            ekv.read(bad)
    bad.write_bytes(data + b"more")
    with pytest.raises(SessionFileError, match="truncated"):
        ekv.read(bad)
    with pytest.raises(SessionFileError, match="No such file"):
        ekv.read(tmp_path / "none.ekv")


def test_a_newer_version_is_told(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ekv, "VERSION", 2)
    ekv.write(tmp_path / "new.ekv", ekv.read(saved))
    monkeypatch.undo()
    with pytest.raises(SessionFileError, match="of version 2, this program reads up to 1"):
        ekv.read(tmp_path / "new.ekv")


def test_damage_inside_the_cache_is_told_by_the_native_code(
    engine: Engine, saved: Path, tmp_path: Path
) -> None:
    file = ekv.read(saved)
    cache = file.sections["cache"]
    running = engine.session(eviction=EvictionConfig(budget=48))
    running.answer("Here?", max_tokens=5)
    before = (running.n_position, running.n_rows, list(running.messages))
    for place in (0, 4, 9, 20, 30, 90, 200, len(cache) // 2, len(cache) - 1):
        wrong = cache[:place] + bytes([cache[place] ^ 0x20]) + cache[place + 1 :]
        sections = {**file.sections, "cache": wrong}
        ekv.write(tmp_path / "wrong.ekv", ekv.SessionFile(file.info, sections))
        with pytest.raises(SessionFileError):
            engine.load_session(tmp_path / "wrong.ekv")
    assert before == (running.n_position, running.n_rows, list(running.messages))
    assert running.answer("Still?", max_tokens=5).text
    running.close()


def test_files_of_another_model_or_cache_are_refused(
    saved: Path, tiny_llama_path: Path, tiny_mmproj_path: Path, tiny_qwen2vl_path: Path
) -> None:
    for arguments, options, words in (
        (
            (tiny_qwen2vl_path, None),
            {},
            r"with the model tiny-llama\.gguf .* not with tiny-qwen2vl",
        ),
        ((tiny_llama_path, None), {}, r"with the projector tiny-mmproj\.gguf .* not without one"),
        ((tiny_llama_path, tiny_mmproj_path), {"cache_type_k": "q8_0"}, "with -ctk f16"),
        ((tiny_llama_path, tiny_mmproj_path), {"flash_attn": "off"}, "with -fa on"),
    ):
        with (
            Engine(*arguments, threads=1, n_ctx=256, **options) as other,  # type: ignore[arg-type]
            pytest.raises(SessionFileError, match=words),
        ):
            other.load_session(saved)


def test_a_full_disk_leaves_the_old_file(engine: Engine, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.ekv"
    path.write_bytes(saved.read_bytes())
    session = engine.load_session(path)
    session.answer("More.", max_tokens=5)
    limits = RESOURCE.getrlimit(RESOURCE.RLIMIT_FSIZE)
    RESOURCE.setrlimit(RESOURCE.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(EcokvError, match="could not be saved"):
            session.save(path)
    finally:
        RESOURCE.setrlimit(RESOURCE.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == saved.read_bytes() and os.listdir(tmp_path) == ["a.ekv"]
    session.save(path)
    assert path.read_bytes() != saved.read_bytes()
    session.close()


def test_documents_are_read_once_and_asked_about(engine: Engine, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    noise(1).save(image)
    session = engine.session(eviction=EvictionConfig(budget=64))
    [*_, end] = session.read("word " * 100, [image])
    assert end.answer is not None and end.answer.n_kept == 64 and end.answer.n_image_tokens == 36
    assert not session.messages
    session.save(tmp_path / "a.ekv")
    before = (tmp_path / "a.ekv").read_bytes()
    image.unlink()
    asked = []
    for question in ("What is it?", "What is it?", "Where?"):
        loaded = engine.load_session(tmp_path / "a.ekv")
        answer = loaded.answer(question, max_tokens=8)
        asked.append((answer.text, answer.n_prompt))
        assert answer.warnings == () and answer.n_prompt < 40  # the documents are not read again
        assert len(loaded.messages) == 2 and loaded.messages[0].text.endswith(question)
        assert loaded.answer("More?", [noise(2)], max_tokens=3).n_image_tokens == 36
        loaded.close()
    assert asked[0] == asked[1] and (tmp_path / "a.ekv").read_bytes() == before
    loaded = engine.load_session(tmp_path / "a.ekv")
    assert loaded.answer("And this?", [noise(2)], max_tokens=3).n_prompt < 120
    with pytest.raises(StateError, match="before a talk begins"):
        list(loaded.read("more"))
    loaded.configure(system="Now otherwise.")  # all has to be read again, and a picture is gone
    with pytest.raises(ImageError, match=r"a\.png.*has to be read again"):
        loaded.answer("What?")
    loaded.close()
    session.close()

"""What a batch does with files that are there, with failures, changes and interruptions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from caption.conftest import Never, actions, batch_of, picture

from ecokv_local import Engine
from ecokv_local.caption import Batch, ChangedError, Result
from ecokv_local.caption.manifest import FILE_NAME, read
from ecokv_local.errors import EcokvError, UsageError

Photos = Callable[..., Path]
Run = Callable[..., dict[str, Result]]


def captions(folder: Path, end: str = ".txt") -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob(f"*{end}"))}


def results(batch: Batch) -> dict[str, Result]:
    with batch:
        return {Path(result.path).name: result for result in batch.run()}


def test_captions_are_what_the_session_answers(photos: Photos, run: Run, engine: Engine) -> None:
    folder = photos(3)
    done = run(folder)
    with closing(engine.session()) as session:
        for i in range(3):
            session.clear()
            expected = session.answer("Describe the image.", [folder / f"{i}.png"], max_tokens=8)
            assert done[f"{i}.png"].answer.text == expected.text  # type: ignore[union-attr]
            assert (folder / f"{i}.txt").read_text() == expected.text.strip() + "\n"


@pytest.mark.parametrize("parallel", [1, 3, 8, "auto"])
def test_captions_do_not_depend_on_how_many_are_made_at_a_time(
    photos: Photos, run: Run, parallel: Any
) -> None:
    folder = photos(5)
    (folder / "2x.png").write_bytes(b"no picture")
    expected = {name: r.caption for name, r in run(folder, max_tokens=12, parallel=1).items()}
    other = photos(5, "other")
    (other / "2x.png").write_bytes(b"no picture")
    done = run(other, max_tokens=12, parallel=parallel)
    assert {name: result.caption for name, result in done.items()} == expected
    assert [name for name, result in done.items() if not result.ok] == ["2x.png"]


def test_P14_a_second_run_loads_no_model(photos: Photos, run: Run, engine: Engine) -> None:
    folder = photos(3)
    assert len(results(batch_of(engine, folder))) == 3
    before = captions(folder)
    manifest = (folder / FILE_NAME).read_bytes()
    assert results(batch_of(Never(), folder)) == {}
    assert captions(folder) == before and (folder / FILE_NAME).read_bytes() == manifest
    picture(9).save(folder / "new.png")
    assert list(results(batch_of(engine, folder))) == ["new.png"]


def test_P14_captions_of_others_are_kept(photos: Photos, run: Run, engine: Engine) -> None:
    folder = photos(3)
    (folder / "1.txt").write_text("mine")
    batch = batch_of(engine, folder)
    assert actions(batch) == {"0.png": "caption", "1.png": "existing", "2.png": "caption"}
    assert results(batch).keys() == {"0.png", "2.png"}
    assert (folder / "1.txt").read_text() == "mine"


@pytest.mark.parametrize("mode", ["overwrite", "append", "prepend"])
def test_P14_other_modes_act_once_when_asked(photos: Photos, engine: Engine, mode: str) -> None:
    folder = photos(2)
    (folder / "0.txt").write_bytes(b"\xef\xbb\xbfmine \xff")
    done = results(batch_of(engine, folder, existing=mode))
    new = done["0.png"].caption.encode() + b"\n"
    expected = {
        "overwrite": new,
        "append": b"\xef\xbb\xbfmine \xff\n" + new,
        "prepend": b"\xef\xbb\xbf" + new + b"mine \xff",
    }[mode]
    assert (folder / "0.txt").read_bytes() == expected
    assert (folder / "1.txt").read_text() == done["1.png"].caption + "\n"
    again = results(batch_of(engine, folder, existing=mode))  # asked a second time: done again
    assert again.keys() == done.keys()
    if mode == "append":
        assert (folder / "1.txt").read_text() == f"{done['1.png'].caption}\n" * 2


@pytest.mark.parametrize("mode", ["skip", "overwrite", "append", "prepend"])
def test_P14_an_interrupted_run_goes_on(photos: Photos, engine: Engine, mode: str) -> None:
    folder = photos(6)
    for i in range(6):
        if mode != "skip":
            (folder / f"{i}.txt").write_text(f"mine {i}")
    seen: list[str] = []
    for _ in range(6):  # each run is left after one picture, without an end
        with batch_of(engine, folder, existing=mode) as batch:
            for result in batch.run():
                seen.append(Path(result.path).name)
                break
    assert sorted(seen) == [f"{i}.png" for i in range(6)]
    assert results(batch_of(Never(), folder, existing=mode)) == {}
    for text in captions(folder).values():
        assert text.count("mine") == (mode in ("append", "prepend"))


def test_P13_bad_files_first_or_only(photos: Photos, engine: Engine, tmp_path: Path) -> None:
    folder = photos(2)
    (folder / "!first.jpg").write_bytes(b"\xff\xd8\xff")
    done = results(batch_of(engine, folder))
    assert [name for name, result in done.items() if not result.ok] == ["!first.jpg"]
    bad = tmp_path / "bad"
    bad.mkdir()
    for name in "abc":
        (bad / f"{name}.png").touch()
    done = results(batch_of(engine, bad))
    assert len(done) == 3 and not any(result.ok for result in done.values())
    (tmp_path / "empty").mkdir()
    assert results(batch_of(Never(), tmp_path / "empty")) == {}


def test_P16_status_and_reason_of_every_file(photos: Photos, engine: Engine) -> None:
    folder = photos(3)
    (folder / "bad1.jpg").write_bytes(b"no picture")
    (folder / "bad2.png").touch()
    done = results(batch_of(engine, folder))
    assert [name for name, result in done.items() if not result.ok] == ["bad1.jpg", "bad2.png"]
    files = read(folder / FILE_NAME).files
    assert [files[f"{i}.png"]["status"] for i in range(3)] == ["done"] * 3
    assert "not an image" in files["bad1.jpg"]["error"]["message"]
    assert "empty" in files["bad2.png"]["error"]["message"]
    assert not (folder / "bad1.txt").exists()

    batch = batch_of(Never(), folder)  # told again, not tried again
    assert results(batch) == {} and [name for name, _ in batch.failed_before] == [
        str(folder / "bad1.jpg"),
        str(folder / "bad2.png"),
    ]
    batch = batch_of(engine, folder, retry_failed=True)
    assert [a for a in actions(batch).items() if a[1] == "caption"] == [
        ("bad1.jpg", "caption"),
        ("bad2.png", "caption"),
    ]
    picture(7).save(folder / "bad2.png")
    assert results(batch)["bad2.png"].ok
    picture(8).save(folder / "bad1.jpg")  # repaired: another file than the one that failed
    assert results(batch_of(engine, folder)).keys() == {"bad1.jpg"}


def test_P07_nothing_is_written_for_a_picture_that_was_not_seen(
    photos: Photos, engine: Engine, tiny_llama_path: Path
) -> None:
    folder = photos(1)
    with Engine(tiny_llama_path, threads=1) as blind, pytest.raises(UsageError, match="no proj"):
        results(batch_of(blind, folder))
    assert captions(folder) == {}
    assert results(batch_of(engine, folder))["0.png"].ok


def test_P15_collisions_stop_it_before_anything_runs(photos: Photos, engine: Engine) -> None:
    folder = photos(1)
    picture(3).save(folder / "0.jpg")
    before = sorted(folder.iterdir())
    with pytest.raises(UsageError, match="share"):
        batch_of(Never(), folder)
    assert sorted(folder.iterdir()) == before
    assert len(results(batch_of(engine, folder, sidecar_name="full"))) == 2
    assert captions(folder).keys() == {"0.jpg.txt", "0.png.txt"}
    rows = folder / "all.jsonl"
    assert len(results(batch_of(engine, folder, outputs=(rows,)))) == 2  # no sidecars, no clash


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ({"prompt": "One?"}, {"prompt": "Two?"}, "prompt: Two?, was One?"),
        ({}, {"model": {"model": "other"}}, "model: other, was tiny"),
        ({"max_tokens": 8}, {"max_tokens": 9}, "max_tokens: 9, was 8"),
        ({}, {"prepend": "x "}, "prepend: x, was none"),
    ],
)
def test_P16_changed_settings_are_noticed(
    photos: Photos, engine: Engine, first: Any, then: Any, words: str
) -> None:
    folder = photos(2)
    results(batch_of(engine, folder, **first))
    before = captions(folder)
    (folder / "1.txt").write_text("edited by hand")
    with batch_of(Never(), folder, **then) as batch, pytest.raises(ChangedError) as caught:
        list(batch.run())
    assert words in caught.value.message and "2 files" in caught.value.message
    assert results(batch_of(Never(), folder, changed="keep", **then)) == {}
    done = results(batch_of(engine, folder, changed="redo", **then))
    assert done.keys() == {"0.png"}  # what somebody edited is not thrown away
    assert captions(folder)["1.txt"] == "edited by hand"
    assert captions(folder)["0.txt"] == done["0.png"].caption + "\n"
    if "max_tokens" in then or "prepend" in then:
        assert captions(folder)["0.txt"] != before["0.txt"]
    assert results(batch_of(Never(), folder, changed="keep", **then)) == {}


def test_P16_a_caption_whose_redo_failed_is_told_and_tried_again(
    photos: Photos, engine: Engine
) -> None:
    folder = photos(2)
    results(batch_of(engine, folder))
    long = 'root ::= "a long story"'
    redo = {"grammar": long, "max_tokens": 3, "changed": "redo"}
    assert not any(result.ok for result in results(batch_of(engine, folder, **redo)).values())
    batch = batch_of(Never(), folder, **redo)
    assert results(batch) == {} and len(batch.failed_before) == 2
    (folder / "1.txt").write_text("edited")
    done = results(batch_of(engine, folder, grammar=long, max_tokens=40))
    assert done.keys() == {"0.png"} and captions(folder)["0.txt"] == "a long story\n"
    assert captions(folder)["1.txt"] == "edited"


def test_P16_a_changed_budget_is_noticed(photos: Photos, engine: Engine) -> None:
    from ecokv_local import EvictionConfig

    folder = photos(1)
    results(batch_of(engine, folder, eviction=EvictionConfig(budget=32)))
    with pytest.raises(ChangedError, match="budget: 40, was 32"):
        results(batch_of(Never(), folder, eviction=EvictionConfig(budget=40)))
    with pytest.raises(ChangedError, match="budget: none"):
        results(batch_of(Never(), folder))


def test_a_changed_picture_is_noticed_and_a_copy_is_not(photos: Photos, engine: Engine) -> None:
    folder = photos(2)
    results(batch_of(engine, folder))
    os.utime(folder / "0.png")
    assert results(batch_of(Never(), folder)) == {}
    entry = read(folder / FILE_NAME).files["0.png"]
    assert entry["mtime_ns"] == (folder / "0.png").stat().st_mtime_ns
    picture(5).save(folder / "1.png")
    with batch_of(Never(), folder) as batch, pytest.raises(ChangedError, match="content"):
        list(batch.run())
    assert results(batch_of(engine, folder, changed="redo")).keys() == {"1.png"}


def test_a_caption_that_is_gone_is_made_again(photos: Photos, engine: Engine) -> None:
    folder = photos(2)
    rows = folder / "all.jsonl"
    options = {"outputs": (rows,), "sidecar": True}
    results(batch_of(engine, folder, **options))
    (folder / "0.txt").unlink()
    assert results(batch_of(engine, folder, **options)).keys() == {"0.png"}
    assert len(rows.read_text().splitlines()) == 2
    rows.write_text(rows.read_text().splitlines(keepends=True)[0])
    (folder / "1.txt").write_text("edited")
    assert results(batch_of(engine, folder, **options)).keys() == {"1.png"}
    assert captions(folder)["1.txt"] == "edited" and len(rows.read_text().splitlines()) == 2


@pytest.mark.parametrize("end", ["jsonl", "csv"])
def test_rows_of_pictures_made_again_replace_the_old_ones(
    photos: Photos, engine: Engine, end: str
) -> None:
    folder = photos(3)
    rows = folder / f"all.{end}"
    results(batch_of(engine, folder, outputs=(rows,)))
    done = results(batch_of(engine, folder, outputs=(rows,), max_tokens=5, changed="redo"))
    assert len(done) == 3
    with batch_of(Never(), folder, outputs=(rows,), max_tokens=5) as batch:
        assert set(actions(batch).values()) == {"done"}
        assert batch._outputs.rows[0].names == {"0.png", "1.png", "2.png"}
        assert not batch._outputs.rows[0].has_doubles


def test_rows_have_the_keys_of_json(photos: Photos, engine: Engine) -> None:
    folder = photos(1)
    result = results(
        batch_of(engine, folder, outputs=(folder / "o.jsonl",), prepend="{{ stem }}: ", append=".")
    )["0.png"]
    row = json.loads((folder / "o.jsonl").read_text())
    assert result.answer is not None
    assert list(row)[:2] == ["file_name", "prompt"]
    assert row == {
        "file_name": "0.png",
        "prompt": "Describe the image.",
        **result.answer.to_dict(),
        "text": f"0: {result.answer.text.strip()}.",
    }


def test_everything_can_be_moved_together(photos: Photos, engine: Engine, tmp_path: Path) -> None:
    folder = photos(2)
    results(batch_of(engine, folder))
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert results(batch_of(Never(), moved)) == {}


def test_P27_stop_finishes_what_is_in_work(photos: Photos, engine: Engine) -> None:
    folder = photos(40)
    seen = []
    with batch_of(engine, folder, parallel=2) as batch:
        for result in batch.run():
            seen.append(Path(result.path).name)
            batch.stop()
    assert 1 <= len(seen) < 40 and batch.stopped
    state = read(folder / FILE_NAME)
    assert state.n_damaged == 0 and not state.pending and len(state.files) == len(seen)
    rest = results(batch_of(engine, folder))
    assert {*seen, *rest} == {f"{i}.png" for i in range(40)} and not rest.keys() & set(seen)


def test_a_batch_that_is_left_ends_what_is_running(
    photos: Photos, tiny_llama_path: Path, tiny_mmproj_path: Path
) -> None:
    folder = photos(6)
    engine = Engine(tiny_llama_path, tiny_mmproj_path, threads=1)
    with pytest.raises(ZeroDivisionError), engine, batch_of(engine, folder, parallel=2) as batch:
        for _ in batch.run():
            raise ZeroDivisionError
    with batch_of(Never(), folder) as batch:
        assert list(actions(batch).values()).count("done") >= 1


def test_a_folder_that_nobody_can_write_to_fails_its_files_only(
    photos: Photos, engine: Engine, tmp_path: Path
) -> None:
    folder = photos(1)
    name = "x" * 252 + ".p"  # with .png it would be too long, and so is its sidecar
    (folder / name).write_bytes((folder / "0.png").read_bytes())
    batch = batch_of(engine, folder / name, folder / "0.png")
    done = results(batch)
    assert not done[name].ok and "cannot be written" in str(done[name].error)
    assert done["0.png"].ok
    assert not list(folder.glob(".*tmp")) and not read(folder / FILE_NAME).pending


def test_an_engine_error_ends_the_batch_and_the_next_run_goes_on(
    photos: Photos, engine: Engine
) -> None:
    folder = photos(2)

    def broken() -> Engine:
        raise EcokvError("no model today")

    with batch_of(broken, folder) as batch, pytest.raises(EcokvError, match="today"):
        list(batch.run())
    assert len(results(batch_of(engine, folder))) == 2

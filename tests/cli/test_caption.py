"""`ecokv caption` with a tiny model: what it prints, writes and ends with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image


@pytest.fixture
def flags(tiny_llama_path: Path, tiny_mmproj_path: Path) -> list[Any]:
    return ["-m", tiny_llama_path, "--mmproj", tiny_mmproj_path, "-t", 1]


@pytest.fixture
def caption(ecokv: Any, flags: list[Any]) -> Any:
    def run(*arguments: Any, **more: Any) -> Any:
        given = [] if "-n" in arguments else ["-n", 6]
        return ecokv("caption", *flags, *given, *arguments, **more)

    return run


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (40, 30), (i * 90, 200 - i * 70, 50)).save(folder / f"{i}.png")
    return folder


def events(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_folder(caption, photos):
    result = caption(photos)
    assert (result.code, result.out) == (0, "")
    assert "3 pictures to caption" in result.err and "images/s" in result.err
    assert all((photos / f"{i}.txt").read_text().endswith("\n") for i in range(3))
    assert "\x1b" not in result.err


def test_P14_a_second_run_has_nothing_to_do(caption, photos):
    caption(photos)
    result = caption(photos)
    assert result.code == 0 and "done before  3" in result.err


def test_P16_failures_are_listed_with_reasons_and_the_code_is_3(caption, photos):
    (photos / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (photos / "empty.png").touch()
    for arguments in ((), ("--retry-failed",), ()):
        result = caption(photos, *arguments)
        assert result.code == 3
        for name, reason in (("bad.jpg", "damaged"), ("empty.png", "empty")):
            assert str(photos / name) in result.err and reason in result.err
    assert "--retry-failed" in result.err
    assert caption(photos, "-q").err.count("bad.jpg") == 1


def test_P15_collisions(caption, photos):
    Image.new("RGB", (9, 9)).save(photos / "0.JPG")
    result = caption(photos)
    assert result.code == 2 and "share" in result.err and "--sidecar-name full" in result.err
    assert not list(photos.glob("*.txt")) and not list(photos.glob(".ecokv*"))
    assert caption(photos, "--sidecar-name", "full").code == 0
    assert (photos / "0.JPG.txt").exists() and (photos / "0.png.txt").exists()


def test_P18_hidden_files(caption, photos):
    for name in ("._0.png", "Thumbs.db", ".x.png"):
        (photos / name).write_bytes(b"?")
    assert caption(photos).code == 0
    assert caption(photos, "--include-hidden", "--sidecar-name", "full").code == 3


def test_P32_names_and_reasons_with_brackets(caption, photos):
    os.rename(photos / "0.png", photos / "[slug] [b].png")
    (photos / "[red]bad[!].png").write_bytes(b"[/x] [bold")
    for tty in (False, True):
        result = caption(photos, "--retry-failed", tty=tty)
        assert result.code == 3 and "[red]bad[!].png" in result.err.replace("\n", "")
    assert (photos / "[slug] [b].txt").exists()
    assert caption(photos).code == 3  # and it can be resumed


def test_P32_captions_and_warnings_with_brackets(caption, photos, isolated):
    (isolated / "g.gbnf").write_text('root ::= "[/x] [bold"')
    for tty in (False, True):
        result = caption(photos, "--grammar-file", "g.gbnf", "-n", 20, "--existing", "overwrite")
        assert result.code == 0, result.err
        assert (photos / "1.txt").read_text() == "[/x] [bold\n"
        result = caption(photos, "-n", 3, "--grammar-file", "g.gbnf", "--changed", "redo", tty=tty)
        assert result.code == 3 and "cut off" in result.err
    assert caption(photos, "--prepend", "[b]", "--existing", "overwrite", tty=True).code == 0


def test_P32_a_prompt_with_brackets_in_dry_run_and_events(caption, photos):
    os.rename(photos / "0.png", photos / "[slug] [b].png")
    result = caption(photos, "--dry-run", "-p", "[/x] [bold]")
    assert result.code == 0 and "[slug] [b].png" in result.out
    prompts = [e["prompt"] for e in events(caption(photos, "-p", "[/x] [bold]", "--json"))[1:-1]]
    assert prompts == ["[/x] [bold]"] * 3


def test_events(caption, photos):
    (photos / "bad.jpg").write_bytes(b"no")
    result = caption(photos, "--json", "--budget", 32)
    start, *middle, end = events(result)
    assert start["event"] == "start" and start["caption"] == 4 and result.code == 3
    middle.sort(key=lambda event: event["event"])  # they come as they are done
    middle.sort(key=lambda e: e["event"])  # pictures are finished in any order
    assert [e["event"] for e in middle] == ["caption"] * 3 + ["failed"]
    first = middle[0]
    assert first["budget"] == "32" and first["n_evicted"] > 0
    assert first["text"] + "\n" == Path(first["sidecar"]).read_text()
    assert middle[3]["error"]["code"] == "image"
    assert end["captioned"] == 3 and end["failed"] == 1 and end["images_per_s"] > 0
    start, failed, end = events(caption(photos, "--json", "--budget", 32))
    assert start["done"] == 3 and failed["before"] and end["captioned"] == 0


def test_changed_settings(caption, photos):
    caption(photos)
    result = caption(photos, "-p", "Why?")
    assert result.code == 2 and "prompt: Why?, was Describe the image. (3 files)" in result.err
    assert "--changed keep" in result.err and "--changed redo" in result.err
    assert caption(photos, "-p", "Why?", "--changed", "keep").code == 0
    assert caption(photos, "-p", "Why?", "--changed", "redo").code == 0
    assert caption(photos, "-p", "Why?").code == 0


@pytest.mark.parametrize(
    ("answer", "code"), [(b"r\n", 0), (b"k\n", 0), (b"what\ns\n", 2), (b"", 2)]
)
def test_a_terminal_is_asked_about_changed_settings(caption, photos, answer, code):
    caption(photos)
    result = caption(photos, "-n", 7, tty=True, stdin=answer)
    assert result.code == code and "keep them, redo them, or stop?" in result.err
    later = caption(photos, "-n", 7)
    assert later.code == (0 if answer == b"r\n" else 2)


def test_lists(caption, photos, isolated, flags):
    listed = "".join(f"{photos}/{i}.png\0" for i in (2, 0))
    assert caption("--filelist", "-", stdin=listed.encode()).code == 0
    assert sorted(path.name for path in photos.glob("*.txt")) == ["0.txt", "2.txt"]
    lines = [{"image": str(photos / "1.png"), "prompt": "Why {{ this }}?"}, {"image": "none.png"}]
    (isolated / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = caption("--filelist", "list.jsonl", "--json", "-o", "all.csv")
    assert result.code == 3
    done = {e.get("prompt") or e["error"]["message"] for e in events(result)[1:-1]}
    assert done == {"Why {{ this }}?", "none.png: no such file"}
    result = caption("--filelist", "-", tty=True)
    assert result.code == 2 and "standard input" in result.err
    assert caption().code == 2 and caption("--filelist", "no.txt").code == 2


def test_prompt_files_and_templates(caption, photos, isolated):
    (isolated / "prompts.json").write_text('["One {{ stem }}?", {"prompt": "Two?", "weight": 3}]')
    result = caption(photos, "--prompt-file", "prompts.json", "--prompt-seed", 3, "--json")
    prompts = {e["prompt"] for e in events(result)[1:-1]}
    assert prompts <= {"One 0?", "One 1?", "One 2?", "Two?"}
    result = caption(photos, "--prompt-file", "prompts.json", "-p", "x")
    assert result.code == 2 and "two prompts" in result.err
    result = caption(photos, "-p", "{{ nmae }}")
    assert result.code == 2 and "nmae" in result.err and "stem" in result.err
    (isolated / "out").mkdir()
    caption(photos, "--append", ", {{ width }}x{{ height }}", "-o", "out/x.jsonl")
    assert all(
        json.loads(line)["text"].endswith(", 40x30")
        for line in (isolated / "out" / "x.jsonl").read_text().splitlines()
    )


def test_a_schema_makes_json(caption, photos, isolated):
    schema = {
        "type": "object",
        "properties": {"sure": {"type": "boolean"}, "kind": {"enum": ["photo", "drawing"]}},
        "required": ["sure", "kind"],
    }
    (isolated / "schema.json").write_text(json.dumps(schema))
    assert caption(photos, "--schema", "schema.json", "-n", 100).code == 0
    for path in photos.glob("*.txt"):
        answer = json.loads(path.read_text())
        assert answer.keys() == {"sure", "kind"} and answer["kind"] in ("photo", "drawing")
    result = caption(photos, "--schema", "schema.json", "-n", 3, "--changed", "redo")
    assert result.code == 3 and "cut off" in result.err
    (isolated / "no.json").write_text("[]")
    assert caption(photos, "--schema", "no.json").code == 2
    (isolated / "no.gbnf").write_text("root ::= [")
    result = caption(photos, "--grammar-file", "no.gbnf", "--changed", "redo")
    assert result.code == 2 and "grammar cannot be read" in result.err


def test_P31_a_character_in_several_tokens_is_whole(caption, photos, isolated):
    """Every byte is a token of its own in the tiny model."""
    (isolated / "g.gbnf").write_text('root ::= "naïve 😀 café"\n')
    result = caption(photos, "--grammar-file", "g.gbnf", "-n", 60, "--json")
    assert {e["text"] for e in events(result)[1:-1]} == {"naïve 😀 café"}
    assert (photos / "0.txt").read_text(encoding="utf-8") == "naïve 😀 café\n"


def test_existing(caption, photos):
    (photos / "0.txt").write_text("mine")
    assert caption(photos).code == 0 and (photos / "0.txt").read_text() == "mine"
    assert caption(photos, "--existing", "append").code == 0
    assert (photos / "0.txt").read_text().startswith("mine\n")
    result = caption(photos, "--existing", "append", "--output", "x.jsonl")
    assert result.code == 2 and "--sidecar" in result.err


def test_P10_frames(caption, photos, tmp_path):
    frames = [Image.new("RGB", (30, 30), colour) for colour in ("red", "lime", "blue")]
    folder = tmp_path / "frames"
    folder.mkdir()
    frames[0].save(folder / "a.gif", save_all=True, append_images=frames[1:])
    for i, frame in enumerate(frames):
        frame.save(folder / f"{i}.png")

    def texts(n):
        result = caption(folder, "--frame", n, "--json", "--existing", "overwrite")
        return {Path(e["file"]).name: e.get("text") for e in events(result)[1:-1]}

    for n in range(3):
        found = texts(n)
        assert found["a.gif"] == found[f"{n}.png"]
    assert len(set(found.values())) > 1
    assert texts(3)["a.gif"] is None


def test_P05_dry_run_counts_what_is_counted(caption, photos):
    plan = events(caption(photos, "--dry-run", "--json", "--budget", 32, "-p", "{{ name }}"))
    assert not list(photos.glob("*.txt")) and not list(photos.glob(".ecokv*"))
    done = events(caption(photos, "--json", "--budget", 32, "-p", "{{ name }}"))
    done[1:-1] = sorted(done[1:-1], key=lambda e: e["file"])
    for before, after in zip(plan[:-1], done[1:-1], strict=True):
        for key in ("file", "n_prompt", "n_image_tokens"):
            assert before[key] == after[key]
        assert before["n_kept"] == 32 and before["kv_bytes"] * after["n_kept"] == (
            after["kv_bytes"] * 32
        )
    assert plan[-1]["seconds_per_image"] is None
    again = events(caption(photos, "--dry-run", "--json", "--budget", 32, "-p", "{{ name }}"))
    assert again[-1]["seconds_per_image"] > 0 and {e.get("action") for e in again[:-1]} == {"done"}
    (photos / "bad.png").write_bytes(b"no")
    result = caption(photos, "--dry-run", "--budget", 32)
    assert result.code == 3 and "would fail" in result.out


def test_settings_of_the_file(caption, photos, isolated):
    (isolated / "ecokv.toml").write_text('[caption]\nextension = ".caption"\nprepend = "x "\n')
    assert caption(photos).code == 0
    assert (photos / "0.caption").read_text().startswith("x ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none",), "no such file"),
        (("https://example.org/a.png",), "download"),
        (("--extension", ".jpg", "."), "look like pictures"),
        (("--output", "x.txt", "."), ".jsonl or .csv"),
        (("--existing", "replace", "."), "skip"),
        (("--frame", "-1", "."), "out of range"),
        (("--manifest", "none/m", "."), "--manifest"),
    ],
)
def test_mistakes(caption, photos, isolated, arguments, words):
    Image.new("RGB", (9, 9)).save(isolated / "a.png")
    result = caption(*arguments)
    assert result.code == 2 and words in result.err and result.out == ""


def test_a_second_process_is_told(caption, photos):
    from ecokv_local.caption.manifest import Manifest

    with Manifest(photos / ".ecokv-caption.jsonl"):
        result = caption(photos)
    assert result.code == 1 and "another run" in result.err

"""`kill -9` at any moment: nothing lost, doubled or partial."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from caption.conftest import Never, batch_of, picture

from benchmarks.caption_kill import check, command, draw_scenes, environment, kill_and_resume
from ecokv_local import Engine
from ecokv_local.caption import outputs, writing
from ecokv_local.caption.manifest import FILE_NAME, Manifest, encode_line
from ecokv_local.errors import EcokvError


class Killed(BaseException):
    """The process ends here."""


ROWS = ("all.jsonl", "all.csv")


def start(engine: Any, folder: Path, **options: Any) -> Any:
    files = tuple(folder / name for name in ROWS)
    return batch_of(engine, folder, outputs=files, sidecar=True, **options)


STEPS = ["manifest", "write_all", "flush", "replace", "flush_folder"]


@pytest.mark.parametrize("mode", ["skip", "append"])
@pytest.mark.parametrize("step", STEPS)
def test_P17_killed_before_every_step_of_writing(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, step: str, mode: str
) -> None:
    """Ends at the k-th call of ``step``, half of it done, for every k; then it is resumed."""
    for k in range(1, 40):
        folder = tmp_path / f"{k}"
        folder.mkdir()
        for i in range(2):
            picture(i).save(folder / f"{i}.png")
            if mode == "append":
                (folder / f"{i}.txt").write_text("mine\n")
        with monkeypatch.context() as patch:
            reached = _break(patch, step, k)
            try:
                with start(engine, folder, existing=mode) as batch:
                    list(batch.run())
            except Killed:
                pass
        if b'"status":"end"' not in (folder / FILE_NAME).read_bytes():
            with start(engine, folder, existing=mode) as batch:
                list(batch.run())
        figures = {**check_rows(folder, mode), "k": k}
        assert figures == {"lost": 0, "doubled": 0, "partial": 0, "k": k}
        if not reached:
            return
    raise AssertionError("there are more steps than that")


def check_rows(folder: Path, mode: str) -> dict[str, int]:
    if mode == "append":  # the part that was there goes, the rest is compared
        for path in folder.glob("*.txt"):
            text = path.read_bytes()
            assert text.startswith(b"mine\n") and text.count(b"mine") == 1, text
            path.write_bytes(text.removeprefix(b"mine\n"))
    figures = check(folder, 2)
    assert figures.pop("made_twice") <= 1
    return figures


def _break(patch: pytest.MonkeyPatch, step: str, k: int) -> list[int]:
    """Make the k-th call fail; the list has an entry if it was reached."""
    reached: list[int] = []
    calls = [0]

    def counted(real: Callable[..., Any], half: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            calls[0] += 1
            if reached:
                raise Killed  # it is dead: nothing after counts
            if calls[0] == k:
                reached.append(k)
                half(*arguments)
                raise Killed
            return real(*arguments, **more)

        return call

    def half_written(handle: int, data: bytes) -> None:
        os.write(handle, data[: len(data) // 2])

    if step == "manifest":
        real = Manifest.add

        def half_line(manifest: Any, entry: Any, **_: Any) -> None:
            line = encode_line(entry)
            os.write(manifest._handle, line[: len(line) // 2])

        patch.setattr(Manifest, "add", counted(real, half_line))
    elif step == "replace":
        patch.setattr(writing.os, "replace", counted(os.replace, lambda *_: None))
    else:
        real = getattr(writing, step)
        half = half_written if step == "write_all" else lambda *_: None
        patch.setattr(writing, step, counted(real, half))
    # a dead process tidies nothing up
    patch.setattr(writing, "remove_unfinished", lambda _: None)
    patch.setattr(writing.os, "ftruncate", lambda *_: None)
    return reached


def test_P17_a_full_disk_leaves_old_files_and_the_next_run_goes_on(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        picture(i).save(tmp_path / f"{i}.png")
        (tmp_path / f"{i}.txt").write_text(f"old {i}\n")
    with monkeypatch.context() as patch:

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(outputs, "replace_file", full)
        batch = start(engine, tmp_path, existing="overwrite")
        with batch, pytest.raises(EcokvError, match="No space left") as caught:
            list(batch.run())
    assert "goes on" in caught.value.hint
    assert [(tmp_path / f"{i}.txt").read_text() for i in range(3)] == [
        f"old {i}\n" for i in range(3)
    ]
    with start(engine, tmp_path, existing="overwrite") as batch:
        assert len(list(batch.run())) == 2  # the first was made, and is only written now
    figures = check(tmp_path, 3)
    assert set(figures.values()) == {0}


def test_P17_a_small_file_system(
    tmp_path: Path, tiny_llama_path: Path, tiny_mmproj_path: Path
) -> None:
    """On a tmpfs of 1 MiB that gets full: what is there is whole, and room lets it go on."""
    script = """
set -e
mount -t tmpfs -o size=1m none "$1"
cp "$2"/*.png "$1"
head -c 1m /dev/zero > "$1/filler" 2>/dev/null || true
shift 2
set +e
"$@"; echo "code $?"
rm "$DIR/filler"
"$@"; echo "code $?"
ls -A "$DIR"; cat "$DIR"/*.txt | wc -l
"""
    source, target = tmp_path / "source", tmp_path / "small"
    source.mkdir(), target.mkdir()
    for i in range(4):
        picture(i).save(source / f"{i}.png")
    flags = ["-m", str(tiny_llama_path), "--mmproj", str(tiny_mmproj_path), "-t", "1", "-n", "6"]
    flags += ["--grammar-file", str(tmp_path / "g")]
    (tmp_path / "g").write_text('root ::= "cap"')
    unshare = ["unshare", "-rm", "sh", "-c", script, "sh", str(target), str(source)]
    run = [sys.executable, "-m", "ecokv_cli", "caption", str(target), *flags]
    done = subprocess.run(
        [*unshare, *run],
        env=environment() | {"DIR": str(target)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "code" not in done.stdout:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()[:80]}")
    first, *rest = done.stdout.splitlines()
    assert first == "code 1" and "No space left" in done.stderr, done.stderr
    assert rest[0] == "code 0" and rest[-1].strip() == "4", done.stdout + done.stderr
    assert sum(name.endswith(".txt") for name in rest) == 4
    assert not any("ecokv-tmp" in name for name in rest)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("parallel", [1, 4])
def test_P17_kill_9_at_random_moments(
    tmp_path: Path, tiny_llama_path: Path, tiny_mmproj_path: Path, parallel: int
) -> None:
    n = 240  # more than a fast machine gets done between 20 kills
    draw_scenes(tmp_path, n)
    flags = ["-m", str(tiny_llama_path), "--mmproj", str(tiny_mmproj_path), "-t", "1", "-n", "30"]
    flags += ["--parallel", str(parallel)]
    figures = kill_and_resume(tmp_path, n, 20, flags, seed=1, pace=0.05)
    assert figures["killed"] >= 10
    wrong = {name: figures[name] for name in ("lost", "doubled", "partial", "made_twice")}
    assert set(wrong.values()) == {0}, figures


@pytest.mark.slow
def test_P27_ctrl_c_finishes_the_picture_in_work(
    tmp_path: Path, tiny_llama_path: Path, tiny_mmproj_path: Path
) -> None:
    """Ends with 130 and a valid manifest; the next run does the rest."""
    draw_scenes(tmp_path, 400)
    flags = ["-m", str(tiny_llama_path), "--mmproj", str(tiny_mmproj_path), "-t", "1", "-n", "30"]
    process = subprocess.Popen(
        [*command(tmp_path, flags), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "finishing the pictures in work" in err and "Traceback" not in err
    assert '"event": "end"' in out.splitlines()[-1]
    done = len(list(tmp_path.glob("*.txt")))
    assert 3 <= done < 400
    with Manifest(tmp_path / FILE_NAME) as manifest:
        assert manifest.state.n_damaged == 0 and not manifest.state.pending
        assert len(manifest.state.files) == done


#: `ecokv`, and a line on standard error when the first token of a caption is there.
TELLING = """
import sys
from ecokv_cli.main import main
from ecokv_local.turn import Turn

accept = Turn.accept

def first(turn, *arguments):
    Turn.accept = accept
    print("the first token", file=sys.stderr, flush=True)
    return accept(turn, *arguments)

Turn.accept = first
sys.exit(main())
"""


@pytest.mark.slow
def test_P27_a_second_ctrl_c_stops_now(tmp_path: Path, smollm2_path: Path) -> None:
    """While one long caption is being made by a model that does not stop by itself."""
    draw_scenes(tmp_path, 2)
    (tmp_path / "g").write_text('root ::= "a "+')
    flags = ["-t", "1", "-n", "2000", "--grammar-file", str(tmp_path / "g")]
    python, _, _, *arguments = command(tmp_path, flags)
    process = subprocess.Popen(
        [python, "-c", TELLING, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(),
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert "the first token\n" in iter(process.stderr.readline, "")
        process.send_signal(signal.SIGINT)
        assert any("again stops now" in line for line in iter(process.stderr.readline, ""))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    with Manifest(tmp_path / FILE_NAME) as manifest:
        assert manifest.state.n_damaged == 0 and not manifest.state.files


def test_recovery_needs_no_model(tmp_path: Path, engine: Engine, monkeypatch: Any) -> None:
    picture(0).save(tmp_path / "0.png")
    with monkeypatch.context() as patch:
        patch.setattr(outputs.Outputs, "write", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed), start(engine, tmp_path) as batch:
            list(batch.run())
    with start(Never(), tmp_path) as batch:
        assert list(batch.run()) == [] and not batch.warnings
    assert set(check(tmp_path, 1).values()) == {0}


def test_recovery_leaves_what_somebody_else_wrote(
    tmp_path: Path, engine: Engine, monkeypatch: Any
) -> None:
    picture(0).save(tmp_path / "0.png")
    with monkeypatch.context() as patch:
        patch.setattr(outputs.Outputs, "write", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed), start(engine, tmp_path) as batch:
            list(batch.run())
    (tmp_path / "0.txt").write_text("somebody's")
    with start(Never(), tmp_path) as batch:
        assert "changed by somebody else" in batch.warnings[0]
        assert list(batch.run()) == []
    assert (tmp_path / "0.txt").read_text() == "somebody's"

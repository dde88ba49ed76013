"""`ecokv chat` over the real engine and tiny models: bad input is told in one line.

The models have random weights: what they say is noise, how it is handled is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import environment
from real import SCENE, beginning, chat, failed, terminal

MINIMUM = 13  # of ecokv: 4 sinks, 8 recent and one more


@pytest.fixture
def eyes(tiny_llama_path: Path, tiny_mmproj_path: Path) -> list[str]:
    """Flags of a model that sees."""
    return ["-m", str(tiny_llama_path), "--mmproj", str(tiny_mmproj_path)]


def record(*arguments: object) -> dict:
    done = chat(*arguments, "--json")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def test_text(tiny_llama_path):
    answer = record("-m", tiny_llama_path, "-p", "Hi", "-n", 6)
    assert answer["finish_reason"] in ("stop", "length") and answer["n_prompt"] > 0
    assert (answer["budget"], answer["policy"], answer["n_evicted"]) == (None, "none", 0)


@pytest.mark.parametrize("policy", ["ecokv", "snapkv", "streaming", "random"])
def test_a_picture_through_an_evicted_cache(eyes, policy):
    """The figures of the record add up, and the plain answer is the same as that of --json."""
    flags = (*eyes, "-a", SCENE, "-p", "Hi", "-n", 6, "--budget", 20, "--policy", policy)
    answer = record(*flags)
    assert answer["n_image_tokens"] == 36 and answer["n_evicted"] == answer["n_prompt"] - 20
    assert 20 <= answer["n_kept"] <= 26 and answer["kv_bytes"] < answer["kv_bytes_peak"]
    assert (answer["budget"], answer["policy"]) == ("20", policy)
    plain = chat(*flags, "--stats")
    assert plain.stdout.removesuffix("\n") == answer["text"].removesuffix("\n")
    assert f"{answer['n_evicted']} evicted" in plain.stderr


def test_p20_equal_questions_have_equal_answers(eyes):
    """P20: nothing is left over from one run to the next."""
    flags = (*eyes, "-a", SCENE, "-p", "Hi", "-n", 8, "--budget", "50%")
    assert record(*flags)["text"] == record(*flags)["text"]


@pytest.mark.parametrize("seed", range(3))
def test_p31_any_bytes_of_a_model_are_printed(tiny_llama_path, seed):
    """P31: a model of noise makes broken characters; the program makes none of its own."""
    flags = ("-m", tiny_llama_path, "-p", "Hi", "-n", 40, "--temp", 1.5, "--seed", seed)
    done = chat(*flags)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert done.stdout.removesuffix("\n") == record(*flags)["text"].removesuffix("\n")


def test_missing_model():
    failed(chat("-m", "none.gguf", "-p", "Hi"), 4, "none.gguf")


def test_p25_truncated_model(tiny_llama_path, tmp_path):
    """P25: cut at any place, it is told from the header and never crashes."""
    size = tiny_llama_path.stat().st_size
    for cut in (0, 3, 8, 100, size // 50, size // 2, size - 1):
        file = beginning(tmp_path / "cut.gguf", tiny_llama_path, cut)
        failed(chat("-m", file, "-p", "Hi"), 4, "cut.gguf")


def test_p24_projector_of_another_model(tiny_llama_path, wrong_mmproj_path, eyes):
    """P24: told from the headers, with both widths."""
    start = time.perf_counter()
    wrong = chat("-m", tiny_llama_path, "--mmproj", wrong_mmproj_path, "-p", "Hi")
    failed(wrong, 4, wrong_mmproj_path.name, "320", "256")
    assert time.perf_counter() - start < 5
    failed(chat("-m", tiny_llama_path, "--mmproj", tiny_llama_path, "-p", "Hi"), 4, "projector")
    failed(chat("-m", wrong_mmproj_path, "-p", "Hi"), 4, "projector")


@pytest.mark.parametrize("name", ["bad.png", "[slug] [b].png", "ümläut.jpg"])
def test_p07_p32_pictures_that_cannot_be_decoded(eyes, tmp_path, name):
    """P07, P32: never an invented answer; the file is named as it is called."""
    (tmp_path / name).write_text("not a picture")
    failed(chat(*eyes, "-a", tmp_path / name, "-p", "Hi"), 1, name)


def test_p12_truncated_picture(eyes, tmp_path):
    """P12: half a picture is not looked at."""
    cut = beginning(tmp_path / "cut.png", SCENE, SCENE.stat().st_size // 2)
    failed(chat(*eyes, "-a", cut, "-p", "Hi"), 1, "cut.png")


def test_a_picture_for_a_model_that_cannot_see(tiny_llama_path):
    failed(chat("-m", tiny_llama_path, "-a", SCENE, "-p", "Hi"), 1, "--mmproj")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--budget", 24, "--image-budget", 20), ("image-budget 20", "leaves 12", "--budget 32")),
        (("--budget", 20, "--protect", "question"), ("--protect question", "--budget 49")),
        (("--budget", "1KiB", "--image-budget", "50%"), ()),
    ],
)
def test_more_is_protected_than_the_budget_holds(eyes, flags, words):
    question = "What is it that stands behind the red hou"
    failed(chat(*eyes, "-a", SCENE, "-p", question, *flags), 5, *words)


def test_protected_texts_and_images_in_a_conversation(eyes):
    """Refused, turned off, answered: the session lives on."""
    talk = terminal(*eyes, "-n", 4, "--budget", 40, "-a", SCENE)
    try:
        talk.wait("\n> ", 60)
        for line, message in (
            ("/set protect question", "protect is question"),
            ("/set image-budget 30", "image-budget is 30"),
            ("What is it?", "leaves "),
            ("/set image-budget 1MiB", "an amount of memory"),
            ("/set image-budget none", "image-budget is none"),
            (f"/image {SCENE}", "1 picture will go"),
            ("What is it?", "\n> "),
            ("/show", "protect       question"),
        ):
            talk.line(line)
            talk.wait(message, 60)
    finally:
        talk.close()


def test_budget_below_the_minimum(tiny_llama_path):
    for budget in (4, MINIMUM - 1):
        wrong = chat("-m", tiny_llama_path, "-p", "Hi", "--budget", budget)
        failed(wrong, 5, str(budget), str(MINIMUM))
    failed(chat("-m", tiny_llama_path, "-p", "Hi", "--budget", "1KiB"), 5, "1KiB")
    assert record("-m", tiny_llama_path, "-p", "Hi", "-n", 2, "--budget", MINIMUM)["n_evicted"] > 0


def test_unknown_policy(tiny_llama_path):
    wrong = chat("-m", tiny_llama_path, "-p", "Hi", "--budget", 64, "--policy", "best")
    failed(wrong, 2, "'best'", "ecokv, snapkv")


def test_recurrent_model_with_a_budget(tiny_mamba_path):
    """Refused with the reason when the session is made; without a budget it answers."""
    failed(chat("-m", tiny_mamba_path, "-p", "Hi", "--budget", 64), 4, "budget")
    assert chat("-m", tiny_mamba_path, "-p", "Hi", "-n", 4).returncode == 0


def test_a_prompt_that_does_not_fit(tiny_llama_path):
    """P30: told with numbers, and nothing is cut."""
    failed(chat("-m", tiny_llama_path, "-p", "word " * 600, "-c", 256), 5, "256", "--ctx-size")


def test_p28_cache_types_that_cannot_work(tiny_llama_path):
    """P28: refused before loading."""
    wrong = chat("-m", tiny_llama_path, "-p", "Hi", "-ctv", "q4_0", "-fa", "off")
    failed(wrong, 2, "q4_0")


def test_no_libraries(tiny_llama_path, tmp_path):
    wrong = chat("-m", tiny_llama_path, "-p", "Hi", ECOKV_LIB_DIR=str(tmp_path))
    failed(wrong, 4, str(tmp_path))


def test_errors_as_json():
    done = chat("-m", "none.gguf", "-p", "Hi", "--json")
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 4 and done.stderr == ""
    assert set(error) == {"code", "type", "message", "hint"} and "none.gguf" in error["message"]


def test_bad_input_in_a_conversation(eyes, tmp_path):
    """Each is told, the session lives on, and the next good turn works."""
    (tmp_path / "bad.png").write_text("not a picture")
    talk = terminal(*eyes, "-n", 6, "-c", 256)
    try:
        talk.wait("> ", 60)
        for line, message in (
            (f"/image {tmp_path / 'none.png'}", "there is no such picture"),
            (f"/image {tmp_path / 'bad.png'}", "1 picture will go"),
            ("What is it?", "bad.png: "),
            ("/set budget 4", f"is below {MINIMUM}"),
            ("/set policy best", "there is no policy 'best'"),
            ("word " * 300, "the prompt needs "),
            ("/nonsense", "unknown command /nonsense"),
            ("/regen", "error: "),
            ("/set budget 20", "budget is 20"),
            (f"/image {SCENE}", "1 picture will go"),
        ):
            talk.line(line)
            talk.wait(message, 30)
            talk.wait("\n> ", 30)
        talk.line("What is it?")
        talk.wait("\n> ", 60)
        talk.line("/show")
        assert "messages      2" in talk.wait("cells")
        talk.wait("\n> ")
        talk.line("/stats")
        assert "n_evictions" in talk.wait("il  n_head_kv")
        talk.wait("\n> ")
        talk.line("/regen")
        talk.wait("\n> ", 60)
        talk.line("/exit")
        assert talk.end() == 0 and "Traceback" not in talk.seen
    finally:
        talk.close()


def test_p01_more_pictures_than_fit(eyes):
    """P01: twelve pictures in a context for six: numbers instead of a crash, then a good answer."""
    pictures = [flag for _ in range(12) for flag in ("-a", SCENE)]
    failed(chat(*eyes, *pictures, "-p", "Hi", "-c", 256), 5, "432", "256")
    talk = terminal(*eyes, "-n", 4, "-c", 256, *pictures)
    try:
        talk.wait("\n> ", 60)
        talk.line("Hi")
        talk.wait("12 pictures dropped")
        talk.wait("\n> ")
        talk.line(f"/image {SCENE}")
        talk.wait("\n> ")
        talk.line("Hi")
        talk.wait("\n> ", 60)
        talk.line("/show")
        assert "messages      2" in talk.wait("cells")
    finally:
        talk.close()


@pytest.mark.skipif(os.name == "nt", reason="sh")
def test_closed_pipe(tiny_llama_path):
    line = f'"{sys.executable}" -m ecokv_cli chat -m "{tiny_llama_path}" -n 200 -p "Hi"'
    done = subprocess.run(
        ["bash", "-c", f"{line} | head -c1 >/dev/null; echo ${{PIPESTATUS[0]}}"],
        env=environment(GOMP_SPINCOUNT="0"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")

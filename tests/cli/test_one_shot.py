"""`ecokv chat` with one question: what goes in, what comes out, and with which code it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Reply

from ecokv_local import errors

KEYS = [
    *("text", "finish_reason", "truncated", "model", "mmproj", "budget", "policy", "n_prompt"),
    *("n_image_tokens", "n_kept", "n_evicted", "kv_bytes", "kv_bytes_peak", "t_encode_ms"),
    *("t_prefill_ms", "t_evict_ms", "t_decode_ms", "tokens_per_s", "warnings", "error"),
]


@pytest.fixture
def picture(isolated: Path) -> Path:
    file = isolated / "x.png"
    file.write_bytes(b"not decoded by the fake engine")
    return file


def test_answer_is_all_of_stdout(ecokv, engine):
    engine.enqueue(Reply(["The star ", "is red."], status=["prefill 31/31"]))
    result = ecokv("chat", "-p", "What colour is the star?")
    assert result == type(result)(0, "The star is red.\n", "")
    assert engine.opened[0].sessions[0].asked[0].text == "What colour is the star?"


@pytest.mark.parametrize("answer", ["one\n", "one\n\n", ""])
def test_answer_is_not_given_a_second_line_end(ecokv, engine, answer):
    engine.enqueue(answer)
    assert ecokv("chat", "Hi").out == answer


def test_positional_prompt_and_flags_reach_the_library(ecokv, engine, picture):
    result = ecokv(
        *("chat", "What is it?", "-m", "a.gguf", "--mmproj", "b.gguf", "--lora", "c.gguf"),
        *("-a", picture, "--image", picture, "-s", "Be brief.", "-c", 512, "-n", 9, "-b", 64),
        *("-ub", 32, "-t", 2, "-ngl", "all", "-fa", "on", "-ctk", "q8_0", "-ctv", "q4_0"),
        *("--temp", 0.5, "--top-k", 3, "--top-p", 0.5, "--min-p", 0.1, "--seed", 7),
        *("--image-max-tokens", 64, "--budget", "25%", "--policy", "snapkv", "--sinks", 2),
        *("--recent", 3, "--window", 5, "--slack", 6, "--prefill", "whole"),
    )
    assert (result.code, result.err) == (0, "")
    (made,) = engine.opened
    assert (made.model_path, made.mmproj_path) == ("a.gguf", "b.gguf")
    assert made.options == {
        "lora": ["c.gguf"],
        "n_batch": 64,
        "n_ubatch": 32,
        "threads": 2,
        "gpu_layers": "all",
        "flash_attn": "on",
        "cache_type_k": "q8_0",
        "cache_type_v": "q4_0",
        "image_max_tokens": 64,
        "verbose": False,
    }
    (session,) = made.sessions
    assert (session.options["system"], session.options["n_ctx"]) == ("Be brief.", 512)
    sampling, eviction = session.options["sampling"], session.options["eviction"]
    assert (sampling.temp, sampling.top_k, sampling.top_p) == (0.5, 3, 0.5)
    assert (sampling.min_p, sampling.seed) == (0.1, 7)
    assert (str(eviction.budget), eviction.policy, eviction.sinks) == ("25%", "snapkv", 2)
    assert (eviction.recent, eviction.window, eviction.slack) == (3, 5, 6)
    assert eviction.prefill == "whole"
    (asked,) = session.asked
    assert asked.images == (str(picture), str(picture)) and asked.max_tokens == 9
    assert session.closed and made.closed


def test_nothing_is_passed_that_was_not_set(ecokv, engine):
    from ecokv_local import EvictionConfig, SamplingConfig

    ecokv("chat", "Hi")
    (made,) = engine.opened
    assert made.options == {"verbose": False}
    options = made.sessions[0].options
    assert options["eviction"] == EvictionConfig() and options["sampling"] == SamplingConfig()
    assert options["n_ctx"] is None and made.sessions[0].asked[0].max_tokens is None


def test_context_zero_is_the_models_own(ecokv, engine):
    ecokv("chat", "Hi", "-c", 0, "-n", -1, "--seed", -1)
    session = engine.opened[0].sessions[0]
    assert session.options["n_ctx"] == 2048 and session.asked[0].max_tokens is None
    assert session.options["sampling"].seed is None


def test_max_kv_size_is_budget(ecokv, engine):
    ecokv("chat", "Hi", "--max-kv-size", "64")
    assert str(engine.opened[0].sessions[0].options["eviction"].budget) == "64"


def test_piped_prompt(ecokv, engine):
    assert ecokv("chat", stdin="Grüße?\n".encode()).out == "ok\n"
    assert engine.opened[0].sessions[0].asked[0].text == "Grüße?"


def test_piped_text_goes_before_the_prompt_and_says_so(ecokv, engine):
    result = ecokv("chat", "-p", "Sum it up.", stdin=b"one\ntwo\n")
    assert engine.opened[0].sessions[0].asked[0].text == "one\ntwo\n\nSum it up."
    assert result.err == "note: 7 characters of standard input go before the prompt\n"


def test_dash_reads_the_prompt(ecokv, engine):
    ecokv("chat", "-p", "-", stdin=b"Hi")
    assert engine.opened[0].sessions[0].asked[0].text == "Hi"


def test_dash_reads_a_picture(ecokv, engine, picture):
    ecokv("chat", "-p", "Hi", "--image", "-", "--image", picture, stdin=b"\x89PNG")
    assert engine.opened[0].sessions[0].asked[0].images == (b"\x89PNG", str(picture))


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["chat"], b"", "there is no prompt"),
        (["chat", "-p", " "], b"", "the prompt is empty"),
        (["chat", "-p", "a", "b"], b"", "there are two prompts: --prompt and 'b'"),
        (["chat", "-p", "a", "--image", "-"], b"", "standard input is empty"),
        (["chat", "--image", "-"], b"\x89PNG", "the prompt cannot come from there"),
        (["chat", "-p", "-", "--image", "-"], b"\x89PNG", "the prompt cannot come from there"),
        (["chat", "-p", "a", "-a", "-", "-a", "-"], b"\x89PNG", "--image - can be given once"),
        (["chat"], b"\x89PNG", "standard input is not UTF-8 text (byte 0)"),
        (["chat", "-p", "a", "--image", "http://127.0.0.1/x.png"], b"", "is a URL, not a file"),
        (["chat", "-p", "a", "--prefill", "never"], b"", "not one of auto, whole, chunked"),
        (["chat", "-p", "a", "--budget", "0.5"], b"", "--budget: "),
        (["chat", "-p", "a", "--policy", "snapvk"], b"", "there is no policy 'snapvk'"),
    ],
)
def test_usage_errors(ecokv, engine, arguments, stdin, message):
    result = ecokv(*arguments, stdin=stdin)
    assert result.code == 2 and result.out == "" and message in result.err
    assert result.err.startswith("error: ") and "\n hint: " in result.err
    assert engine.opened == [], "a model was loaded for a command line that cannot work"
    again = ecokv(*arguments, "--json", stdin=stdin)
    assert again.code == 2 and again.err == "" and message in again.error["message"]
    assert set(again.error) == {"code", "type", "message", "hint"} and again.error["hint"]


def test_bare_fraction_says_what_to_write(ecokv, engine):
    assert "write 50%" in ecokv("chat", "Hi", "--budget", "0.5").err


def test_misspelt_policy_is_guessed(ecokv, engine):
    assert "did you mean snapkv?" in ecokv("chat", "Hi", "--policy", "snapvk").err


@pytest.mark.parametrize(
    ("name", "message"), [("none.png", "there is no such picture"), (".", "is a folder")]
)
def test_a_picture_that_is_not_there_is_told_before_loading(ecokv, engine, name, message):
    result = ecokv("chat", "-p", "Hi", "--image", name)
    assert result.code == errors.ImageError.exit_code == 1
    assert f"error: {name}: {message}" in result.err and engine.opened == []


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ModelError, 4),
        (errors.BudgetError, 5),
        (errors.ContextFullError, 5),
        (errors.ImageError, 1),
    ],
)
def test_errors_of_the_library(ecokv, engine, kind, code):
    engine.fail = kind("x.gguf: is cut off", hint="fetch it again")
    result = ecokv("chat", "Hi")
    assert (result.code, result.out) == (code, "")
    assert result.err == "error: x.gguf: is cut off\n hint: fetch it again\n"
    result = ecokv("chat", "Hi", "--json")
    assert result.code == code and result.err == ""
    assert result.error == engine.fail.to_dict()


def test_an_error_in_the_middle_of_the_answer(ecokv, engine):
    engine.enqueue(Reply(["half"], error=errors.StateError("it broke", hint="again")))
    result = ecokv("chat", "Hi")
    assert (result.code, result.out) == (1, "half")
    assert result.err == "error: it broke\n hint: again\n"


def test_an_answer_that_ends_with_an_error(ecokv, engine):
    error = {"code": "context_full", "type": "ContextFullError", "message": "full", "hint": "-c"}
    engine.enqueue(Reply(["half"], record={"finish_reason": "error", "error": error}))
    result = ecokv("chat", "Hi", "--json")
    assert result.code == 5 and result.error["message"] == "full"


@pytest.mark.parametrize(
    ("bug", "code"), [(ValueError("a bug"), 1), (MemoryError(), 5), (OSError(28, "full", "f"), 1)]
)
def test_a_bug_is_an_error_without_traceback(ecokv, engine, monkeypatch, bug, code):
    engine.enqueue(bug)
    result = ecokv("chat", "Hi")
    assert result.code == code and result.err.startswith("error: ")
    assert "Traceback" not in result.err
    monkeypatch.setenv("ECOKV_DEBUG", "1")
    engine.enqueue(bug)
    assert "Traceback" in ecokv("chat", "Hi").err


def test_json_has_the_stable_keys(ecokv, engine):
    engine.enqueue(Reply(["zwölf 🦉"], status=["prefill"]))
    result = ecokv("chat", "Hi", "--json", "--budget", "64")
    assert result.code == 0 and result.err == ""
    assert list(result.json) == KEYS
    assert result.json["text"] == "zwölf 🦉" and result.json["budget"] == "64"


def test_no_stream_prints_the_same(ecokv, engine):
    engine.enqueue(Reply(["a", "b"]), Reply(["a", "b"], error=errors.StateError("broke")))
    assert ecokv("chat", "Hi", "--no-stream").out == "ab\n"
    assert ecokv("chat", "Hi", "--no-stream").out == ""


def test_warnings_go_to_stderr_and_json(ecokv, engine):
    reply = Reply(["x"], record={"warnings": ["2 window layers are not evicted"]})
    engine.enqueue(reply, reply, reply)
    assert ecokv("chat", "Hi").err == "warning: 2 window layers are not evicted\n"
    assert ecokv("chat", "Hi", "-q").err == "warning: 2 window layers are not evicted\n"
    result = ecokv("chat", "Hi", "--json")
    assert result.json["warnings"] == ["2 window layers are not evicted"]


def test_an_answer_cut_off_is_told(ecokv, engine):
    reply = Reply(["x"], record={"finish_reason": "length"})
    engine.enqueue(reply, reply, reply)
    result = ecokv("chat", "Hi", "-n", 1)
    assert result.code == 0 and result.err.startswith("note: the answer was cut off")
    assert ecokv("chat", "Hi", "-n", 1, "-q").err == ""
    result = ecokv("chat", "Hi", "-n", 1, "--json")
    assert result.json["finish_reason"] == "length" and result.err == ""


def test_eviction_flags_without_budget_are_named(ecokv, engine):
    result = ecokv("chat", "Hi", "--policy", "snapkv", "--json")
    assert result.code == 0
    assert result.json["warnings"] == ["--policy has no effect without --budget: the cache is full"]


def test_a_budget_that_nobody_applies_is_named(ecokv, engine):
    result = ecokv("chat", "Hi", "--policy", "none", "--budget", "64")
    assert result.err == "warning: --budget has no effect with policy none: the cache is full\n"


def test_stats(ecokv, engine):
    result = ecokv("chat", "Hi", "--budget", "25%", "--stats")
    assert result.out == "ok\n"
    assert [line.split(None, 1) for line in result.err.splitlines()] == [
        ["model", "fake.gguf"],
        ["projector", "none"],
        ["prompt", "31 tokens, 16 of them pictures"],
        ["budget", "25%, policy ecokv"],
        ["cache", "21 kept, 10 evicted (KV pairs per layer and head)"],
        ["memory", "3.0 MiB of KV, peak 4.0 MiB"],
        ["time", "encode 12.5 ms, prefill 1.50 s, evict 0.5 ms, decode 30.0 ms"],
        ["speed", "40.0 tokens/s"],
        ["end", "stop"],
    ]


def test_verbose_tells_what_is_done(ecokv, engine):
    engine.enqueue(Reply(["x"], status=["prefill 31/31"]))
    assert ecokv("chat", "Hi", "-v").err == "loading the built-in model\nprefill 31/31\n"
    assert engine.opened[0].options["verbose"] is True


def test_quiet_and_verbose_exclude_each_other(ecokv, engine):
    assert ecokv("chat", "Hi", "-q", "-v").code == 2


def test_same_image_prompt_in_one_shot_and_conversation(ecokv, engine, picture, monkeypatch):
    """A one-shot prompt with a picture is the same call as in a conversation."""
    from ecokv_cli import repl

    lines = iter([f"/image {picture}", "What is it?"])

    class Reader:
        def __init__(self, complete):
            pass

        def read(self, message):
            try:
                return next(lines)
            except StopIteration:
                raise EOFError from None

    ecokv("chat", "-p", "What is it?", "-a", picture)
    monkeypatch.setattr(repl, "Prompt", Reader)
    ecokv("chat", tty=True)
    first, second = (made.sessions[0].asked for made in engine.opened)
    assert first == second


def test_errors_keep_to_one_object_in_json_mode_from_the_environment(ecokv, engine, monkeypatch):
    monkeypatch.setenv("ECOKV_JSON", "1")
    assert json.loads(ecokv("chat", "--nonsense").out)["error"]["code"]

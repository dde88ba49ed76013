"""What is printed: nothing is parsed, nothing is lost, nothing moves a cursor."""

from __future__ import annotations

import pytest
from fakes import Reply

from ecokv_cli.output import Output
from ecokv_local import errors

TRICKY = "[/x] [bold] [link=a]b[/] \\[c] :smile: {d} %s"


@pytest.mark.parametrize("tty", [False, True])
def test_p31_characters_are_whole(ecokv, engine, tty):
    """P31: emoji and accents are printed as they come, never as replacement characters."""
    engine.enqueue(Reply(["naïve ", "👩‍🚀", " 日", "本"]))
    result = ecokv("chat", "-p", "Hi", tty=tty)
    assert "naïve 👩‍🚀 日本\n" in result.out and "\ufffd" not in result.out


@pytest.mark.parametrize("tty", [False, True])
def test_p32_model_text_is_not_markup(ecokv, engine, tty):
    """P32: brackets in the answer stay brackets."""
    engine.enqueue(Reply([TRICKY[:9], TRICKY[9:]], status=["encode [/b].png [x"]))
    assert TRICKY in ecokv("chat", "-p", "Hi", tty=tty).out


@pytest.mark.parametrize("tty", [False, True])
def test_p32_file_names_are_not_markup(ecokv, engine, isolated, tty):
    """P32: a picture called `[slug] [/b].png` is loaded, and named in errors, as it is called."""
    name = "[slug] [/b].png".replace("/", "∕")
    (isolated / name).touch()
    assert ecokv("chat", "-p", "Hi", "-a", name, tty=tty).code == 0
    assert engine.opened[0].sessions[0].asked[0].images == (name,)
    result = ecokv("chat", "-p", "Hi", "-a", "[gone] [/b].png", tty=tty)
    assert result.code == 1 and "[gone] [/b].png: there is no such picture" in result.err


@pytest.mark.parametrize("tty", [False, True])
def test_p32_error_text_is_not_markup(ecokv, engine, tty):
    """P32: error text with brackets is printed whole."""
    engine.enqueue(errors.ImageError(f"{TRICKY}: bad", hint=TRICKY))
    result = ecokv("chat", "-p", "Hi", tty=tty)
    assert f"{TRICKY}: bad" in result.err and result.err.rstrip().endswith(TRICKY)


def test_control_characters_reach_a_pipe_but_not_a_terminal(ecokv, engine):
    engine.enqueue("a\x1b[2Jb\tc", "a\x1b[2Jb\tc")
    assert ecokv("chat", "-p", "Hi").out == "a\x1b[2Jb\tc\n"
    assert ecokv("chat", "-p", "Hi", tty=True).out == "a\\x1b[2Jb\tc\n"


def test_control_characters_in_errors_are_shown(ecokv, engine):
    assert "\\x1b[31m" in ecokv("chat", "-p", "Hi", "-a", "\x1b[31m.png").err


def test_colour_only_on_a_terminal_that_wants_it(ecokv, engine, monkeypatch):
    assert "\x1b" not in ecokv("chat", "-p", "").err
    assert "\x1b[31merror:\x1b[0m" in ecokv("chat", "-p", "", tty=True).err
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in ecokv("chat", "-p", "", tty=True).err


def test_no_spinner_without_terminal(ecokv, engine):
    engine.enqueue(Reply(["x"], status=["prefill 1/2", "prefill 2/2"]))
    assert ecokv("chat", "-p", "Hi").err == ""


def test_spinner_on_a_terminal_is_gone_before_the_answer(ecokv, engine, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    engine.enqueue(Reply(["x"], status=["prefill [1/2]"]))
    result = ecokv("chat", "-p", "Hi", tty=True)
    assert "prefill [1/2]" in result.err and result.err.rstrip().endswith("\x1b[2K")
    assert result.out == "x\n"


def test_undecodable_file_names(ecokv, engine):
    result = ecokv("chat", "-p", "Hi", "-a", "\udcff.png")
    assert result.code == 1 and "\\udcff.png" in result.err
    assert ecokv("chat", "-p", "Hi", "-a", "\udcff.png", "--json").code == 1


@pytest.mark.parametrize("tty", [False, True])
def test_long_work_tells_a_log_where_it_is(capsys, monkeypatch, tty):
    """A line every ten seconds where nobody sees a spinner; none with --quiet."""
    monkeypatch.setattr("ecokv_cli.output.is_terminal", lambda stream: tty)
    monkeypatch.setenv("TERM", "dumb")
    clock = iter([0.0, 1.0, 12.0, 12.0, 13.0, 0.0])
    monkeypatch.setattr("ecokv_cli.output.time.monotonic", lambda: next(clock))
    out = Output()
    for i in range(3):
        out.progress(f"[{i}]")
    assert capsys.readouterr().err == ("" if tty else "[1]\n")
    Output(quiet=True).progress("x")
    assert capsys.readouterr().err == ""

"""`ecokv chat` on a real (pseudo) terminal: the line editor, Tab, Ctrl-D and Ctrl-C."""

from __future__ import annotations

import sys
import time

import pytest
from processes import Terminal, command

pytest.importorskip("pty", reason="pseudo-terminals are a Unix thing")

SLOW = {"pieces": ["word "], "times": 200, "delay": 0.05}


def test_conversation(terminal, isolated):
    (isolated / "my cat.png").touch()
    chat = terminal(["Hello.", {"error": ["ImageError", "cannot decode [b]"]}, "Bye."], "chat")
    chat.wait("> ")
    chat.line("Hi")
    chat.wait("Hello.\n")
    chat.wait("> ")
    chat.type("/image my\t")
    chat.wait("my\\ cat.png")
    chat.type("\r")
    chat.wait("1 picture will go with the next message.")
    chat.wait("> ")
    chat.line("What is it?")
    chat.wait("error: cannot decode [b]")
    chat.wait("> ")
    chat.line("And now?")
    chat.wait("Bye.\n")
    chat.wait("> ")
    chat.type("\x04")
    assert chat.end() == 0
    assert "Traceback" not in chat.seen


def test_several_lines_and_history(terminal, tmp_path):
    chat = terminal(["A", "B"], "chat")
    chat.wait("> ")
    chat.line('"""first')
    chat.wait("... ")
    chat.line('second"""')
    chat.wait("A\n")
    chat.wait("> ")
    chat.line("/exit")
    assert chat.end() == 0
    history = tmp_path / "home" / "history"
    assert "first" in history.read_text() and history.stat().st_mode & 0o077 == 0


def test_a_home_that_cannot_be_written_is_no_reason_to_fail(terminal, tmp_path):
    file = tmp_path / "file"
    file.touch()
    chat = terminal(["A"], "chat", ECOKV_HOME=str(file / "below"))
    chat.wait("> ")
    chat.line("Hi")
    chat.wait("A\n")
    chat.wait("> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_p27_first_ctrl_c_stops_the_answer_and_the_talk_goes_on(terminal):
    """P27: the turn is kept, the prompt is back at once, and the next question is answered."""
    chat = terminal([SLOW, "Fine."], "chat", "--stats")
    chat.wait("> ")
    chat.line("Count")
    chat.wait("word word ")
    chat.interrupt()
    chat.wait("cancelled", seconds=2)
    chat.wait("> ", seconds=1)
    chat.line("/show")
    assert "messages      2" in chat.wait("cells")
    chat.wait("> ")
    chat.line("Go on")
    chat.wait("Fine.\n")
    chat.wait("> ")
    chat.type("\x03")
    chat.wait("Ctrl-C again")
    chat.wait("> ")
    chat.type("\x03")
    assert chat.end() == 130
    assert "Traceback" not in chat.seen


def test_p27_second_ctrl_c_ends_with_130(terminal):
    """P27: stopped by the first, ended by the second at the prompt."""
    chat = terminal([SLOW], "chat")
    chat.wait("> ")
    chat.line("Count")
    chat.wait("word word ")
    chat.interrupt()
    chat.wait("> ", seconds=2)
    chat.type("\x03")
    assert chat.end() == 130


def test_p27_second_ctrl_c_ends_even_a_call_that_does_not_listen(terminal):
    """P27: one long native call cannot hold the program."""
    chat = terminal([{"pieces": ["a"], "delay": 30, "deaf": True, "status": ["busy"]}], "chat")
    chat.wait("> ")
    chat.line("Count")
    chat.wait("busy")
    chat.interrupt()
    time.sleep(0.3)
    chat.interrupt()
    assert chat.end(seconds=5) == 130


def test_ctrl_c_on_a_typed_line_only_clears_it(terminal):
    chat = terminal(["A"], "chat")
    chat.wait("> ")
    chat.type("rubbish")
    chat.wait("rubbish")
    chat.type("\x03\x03")
    chat.wait("Ctrl-C again")
    chat.wait("> ")
    chat.line("Hi")
    chat.wait("A\n")
    chat.wait("> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_spinner_and_answer_on_one_terminal(terminal):
    replies = [{"pieces": ["[bold]x[/]"], "status": ["encode [1/2]"], "delay": 0.3}]
    chat = terminal(replies, "chat", "-p", "Hi")
    chat.wait("encode [1/2]")
    chat.wait("[bold]x[/]")
    assert chat.end() == 0


def test_no_conversation_when_the_answer_is_redirected():
    """A terminal to type at, but a file to write to: there is nobody to talk to."""
    script = "import subprocess as s; raise SystemExit(s.call(%r, stdout=s.DEVNULL))"
    chat = Terminal([sys.executable, "-c", script % command([], "chat")])
    assert chat.end() == 2 and "there is no prompt" in chat.plain
    chat.close()


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_terminals(terminal, term):
    chat = terminal(["A"], "chat", TERM=term)
    chat.wait("> ")
    chat.line("Hi")
    chat.wait("A\n")
    chat.wait("> ")
    chat.line("/exit")
    assert chat.end() == 0

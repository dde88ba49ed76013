"""The conversation, with a script in place of the keyboard."""

from __future__ import annotations

import json

import pytest
from fakes import Reply

from ecokv_cli import repl as repl_module
from ecokv_cli.repl_commands import COMMANDS, SETTABLE, complete
from ecokv_local import errors


@pytest.fixture
def talk(ecokv, engine, monkeypatch):
    """Type lines into a conversation; `KeyboardInterrupt` in the list is Ctrl-C."""

    def run(*lines, arguments=()):
        left = list(lines)

        class Reader:
            def __init__(self, complete):
                pass

            def read(self, message):
                if not left:
                    raise EOFError
                line = left.pop(0)
                if line is KeyboardInterrupt:
                    raise KeyboardInterrupt
                return line

        monkeypatch.setattr(repl_module, "Prompt", Reader)
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
        result = ecokv("chat", *arguments, tty=True)
        run.left = left
        return result

    return run


@pytest.fixture
def session(engine):
    return lambda: engine.opened[0].sessions[0]


@pytest.fixture
def picture(isolated):
    file = isolated / "my cat.png"
    file.touch()
    return file


def test_two_turns(talk, engine, session):
    engine.enqueue("Hello.", "Bye.")
    result = talk("Hi", "", "See you")
    assert (result.code, result.out) == (0, "Hello.\nBye.\n")
    assert [asked.text for asked in session().asked] == ["Hi", "See you"]
    assert session().closed and engine.opened[0].closed


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye"])
def test_leaving(talk, word):
    assert talk(word, "Hi").code == 0 and talk.left == ["Hi"]


def test_help_lists_every_command(talk):
    for word in ("/help", "/?"):
        text = talk(word).err
        assert all(name in text for command in COMMANDS for name in command.names)
        assert '"""' in text


def test_image_goes_with_the_next_message_only(talk, session, picture):
    result = talk(f"/image {picture}", "What is it?", "Sure?")
    assert "1 picture will go with the next message." in result.err
    assert [asked.images for asked in session().asked] == [(str(picture),), ()]


@pytest.mark.parametrize("typed", ["my cat.png", "'my cat.png'", '"my cat.png"', "my\\ cat.png"])
def test_image_names_as_people_type_them(talk, session, picture, typed):
    talk(f"/image {typed}", "What is it?")
    assert session().asked[0].images == ("my cat.png",)


def test_image_of_the_command_line_goes_with_the_first_message(talk, session, picture):
    result = talk("What is it?", arguments=["-a", str(picture)])
    assert session().asked[0].images == (str(picture),)
    assert "1 picture will go with the next message." in result.err


@pytest.mark.parametrize("name", ["none.png", "."])
def test_wrong_image(talk, session, picture, name):
    result = talk(f"/image {name}", "/image", "Hi")
    assert result.err.count("error: ") == 2 and result.out == "ok\n"
    assert session().asked[0].images == ()


def test_image_for_a_blind_model(talk, engine, session, picture):
    engine.has_vision = False
    result = talk(f"/image {picture}", "Hi")
    assert "cannot see" in result.err and "--mmproj" in result.err
    assert session().asked[0].images == ()


def test_read_puts_a_file_before_the_next_message(talk, session, isolated):
    (isolated / "notes.txt").write_text("Käse")
    (isolated / "x.bin").write_bytes(b"\xff\xfe\x00")
    result = talk("/read notes.txt", "/read x.bin", "/read", "/read none.txt", "Sum up.", "Hi")
    assert [asked.text for asked in session().asked] == ["Käse\n\nSum up.", "Hi"]
    assert "x.bin is not UTF-8 text" in result.err and "none.txt: No such file" in result.err
    assert result.err.count("error: ") == 3


def test_clear(talk, session, picture):
    talk("Hi", f"/image {picture}", "/clear", "Again")
    assert session().messages == [("user", "Again"), ("assistant", "ok")]
    assert session().asked[-1].images == ()


def test_regen(talk, engine, session):
    engine.enqueue("one", "two")
    result = talk("/regen", "Hi", "/regen", "/regen now")
    assert "there is no answer to make again" in result.err and "takes no argument" in result.err
    assert result.out == "one\ntwo\n" and session().messages[-1] == ("assistant", "two")


def test_set(talk, session):
    result = talk(
        *("/set budget 25%", "/set policy snapkv", "/set temp 0.5", "/set system 'Be brief.'"),
        *("/set", "Hi", "/set budget none", "/set system", "/show"),
        arguments=["--json"],
    )
    changes = session().configured
    assert str(changes[0]["eviction"].budget) == "25%"
    assert changes[1]["eviction"].policy == "snapkv" and str(changes[1]["eviction"].budget) == "25%"
    assert changes[2]["sampling"].temp == 0.5
    assert changes[3] == {"system": "Be brief."}
    assert changes[4]["eviction"].budget is None and changes[4]["eviction"].policy == "snapkv"
    assert changes[5] == {"system": ""}
    assert json.loads(result.out)["budget"] == "25%"
    for line in ("budget is 25%", "policy is snapkv", "temp is 0.5", "system is Be brief."):
        assert line in result.err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("/set budget 0.5", "50%"),
        ("/set budget", "needs a value"),
        ("/set policy none-such", "there is no policy 'none-such'"),
        ("/set temp hot", "/set temp: 'hot' is not a number"),
        ("/set colour red", "settings: budget, policy, image-budget, protect, temp"),
    ],
)
def test_wrong_set_changes_nothing(talk, session, typed, message):
    result = talk(typed, "Hi")
    assert message in result.err and "error: " in result.err
    assert session().configured == [] and result.out == "ok\n"


def test_refused_setting_is_not_kept(talk, engine, session, monkeypatch):
    from fakes import FakeSession

    def refuse(self, **changes):
        raise errors.BudgetError("budget 64 is below the smallest here", hint="65")

    monkeypatch.setattr(FakeSession, "configure", refuse)
    result = talk("/set budget 64", "/set", "Hi")
    assert "below the smallest" in result.err and "budget  none" in result.err
    assert result.out == "ok\n"


def test_show_and_stats(talk, session):
    result = talk("Hi", "/show", "/stats")
    rows = [line.split(None, 1) for line in result.err.splitlines()]
    for row in (["model", "fake.gguf"], ["position", "31"], ["cells", "128"], ["messages", "2"]):
        assert row in rows
    assert ["turns", "1"] in rows and ["rows", "21"] in rows
    assert [line.split() for line in result.err.splitlines()[-3:]] == [
        ["il", "n_evictions", "n_pairs_kept"],
        ["0-1", "1", "21"],
        ["2-3", "2", "21"],
    ]


def test_unknown_command(talk, session, picture):
    result = talk("/iamge x", "/xyzzy", "/", " /etc is a folder?")
    assert "did you mean /image?" in result.err and result.err.count("error: ") == 3
    assert [asked.text for asked in session().asked] == ["/etc is a folder?"]


def test_a_dropped_file_is_recognised(talk, picture, isolated):
    file = isolated / "x.png"
    file.touch()
    assert f"/image {file}" in talk(str(file)).err


def test_several_lines(talk, session):
    talk('"""one', "", "/two", 'three"""', '"""four"""', '"""', "/five", '"""')
    assert [asked.text for asked in session().asked] == ["one\n\n/two\nthree", "four", "/five"]


def test_a_failed_turn_is_rolled_back_and_the_next_works(talk, engine, session, picture):
    engine.enqueue(
        Reply(["ha"], error=errors.ImageError("cat.png: cannot be decoded", hint="save it again")),
        ValueError("a bug"),
        "Fine.",
    )
    result = talk(f"/image {picture}", "What is it?", "And now?", "And now?")
    assert result.code == 0 and result.out == "ha\nFine.\n"
    assert "error: cat.png: cannot be decoded\n hint: save it again\n" in result.err
    assert "1 picture dropped" in result.err and "internal error" in result.err
    assert "Traceback" not in result.err
    assert session().asked[1].images == ()
    assert session().messages == [("user", "And now?"), ("assistant", "Fine.")]


def test_json_is_one_object_a_turn_errors_included(talk, engine):
    engine.enqueue("a", errors.ImageError("bad", hint="x"), "b")
    lines = [
        json.loads(line) for line in talk("1", "2", "3", arguments=["--json"]).out.splitlines()
    ]
    assert [line.get("text") for line in lines] == ["a", None, "b"]
    assert lines[1]["error"]["message"] == "bad"


def test_stats_after_each_turn(talk):
    assert talk("Hi", "Hi", arguments=["--stats"]).err.count("40.0 tokens/s") == 2


def test_a_warning_is_said_once(talk, engine):
    reply = Reply(["x"], record={"warnings": ["window layers stay"]})
    engine.enqueue(reply, reply)
    assert talk("Hi", "Hi").err.count("window layers stay") == 1


def test_p27_two_ctrl_c_in_a_row_leave(talk, session):
    """P27: at the prompt, the first tells how to leave, the second ends with 130."""
    assert talk(KeyboardInterrupt, KeyboardInterrupt, "Hi").code == 130
    assert talk.left == ["Hi"]
    assert talk(KeyboardInterrupt, "Hi", KeyboardInterrupt).code == 0


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/im", ["/image"]),
        ("/", [name for command in COMMANDS for name in command.names]),
        ("/set ", list(SETTABLE)),
        ("/set po", ["policy"]),
        ("/set policy sn", ["snapkv", "snapkv+ecokv"]),
        ("/set protect q", ["question"]),
        ("Hello /im", []),
        ("/clear ", []),
    ],
)
def test_completion(line, found):
    assert [text for _, text, _ in complete(line)] == found


def test_completion_of_names(isolated, picture):
    (isolated / "my dogs").mkdir()
    assert complete("/image my") == [
        (2, "my\\ cat.png", "my cat.png"),
        (2, "my\\ dogs/", "my dogs/"),
    ]

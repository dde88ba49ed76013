"""The program as others start it: exit codes, signals, closed pipes, odd streams, its speed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from processes import ROOT, command, environment

SLOW = {"pieces": ["word "], "times": 200, "delay": 0.05}
LONG = {"pieces": ["0123456789" * 200], "times": 500}


def start(queue, *arguments, **more):
    return subprocess.Popen(
        command(queue, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        **more,
    )


def test_plain_run(program):
    result = program(["The star is red."], "chat", "-p", "What colour is the star?")
    assert result == type(result)(0, "The star is red.\n", "")


@pytest.mark.parametrize(
    ("queue", "arguments", "code"),
    [
        (["x"], ["chat", "Hi"], 0),
        ([{"error": [None, "bug"]}], ["chat", "Hi"], 1),
        ([{"error": ["ImageError", "bad"]}], ["chat", "Hi"], 1),
        (["x"], ["chat", "--nonsense"], 2),
        (["x"], ["nonsense"], 2),
        (["x"], ["chat", "Hi", "--budget", "0.5"], 2),
        ([{"error": ["ModelError", "bad"]}], ["chat", "Hi"], 4),
        ([{"error": ["BudgetError", "bad"]}], ["chat", "Hi"], 5),
    ],
)
def test_exit_codes_without_traceback(program, queue, arguments, code):
    result = program(queue, *arguments)
    assert result.code == code and "Traceback" not in result.err
    assert result.err == "" if code == 0 else result.err.startswith("error: ")


def test_p27_ctrl_c_in_one_shot(program):
    """P27: what was answered so far is there, in text and in JSON, and the code is 130."""
    run = start([SLOW], "chat", "Hi")
    assert run.stdout.read(10) == b"word word "
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=5)
    assert run.returncode == 130 and err == b"" and out.endswith(b"\n")
    run = start([SLOW], "chat", "Hi", "--json")
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    record = json.loads(run.communicate(timeout=5)[0])
    assert run.returncode == 130 and record["finish_reason"] == "cancelled"


@pytest.mark.parametrize(
    "queue", [[{"load_seconds": 30}], [{"pieces": ["x"], "delay": 30, "deaf": True}]]
)
def test_p27_ctrl_c_while_loading_or_in_a_long_call(queue):
    """P27: once ends the loading, twice ends anything; no traceback."""
    run = start(queue, "chat", "Hi", "-v")
    assert run.stderr.readline() == b"loading the built-in model\n"
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    if "load_seconds" not in queue[0]:
        time.sleep(0.2)
        assert run.poll() is None
        run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=5)
    assert (run.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("flags", [[], ["--json"], ["--no-stream"], ["--stats"]])
def test_closed_pipe(flags):
    run = start([LONG], "chat", "Hi", *flags)
    run.stdout.read(1)
    run.stdout.close()
    err = run.stderr.read()
    assert (run.wait(timeout=10), err) == (141, b"")


def test_closed_pipe_of_help():
    run = start([], "chat", "--help")
    run.stdout.close()
    assert run.wait(timeout=10) in (0, 141) and run.stderr.read() == b""


@pytest.mark.skipif(os.name == "nt", reason="sh")
def test_head_in_a_shell():
    import shlex

    line = f"{shlex.join(command([LONG], 'chat', 'Hi'))} | head -c1; echo :${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], env=environment(), capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("0:141\n", "")


@pytest.mark.skipif(os.name == "nt", reason="sh")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_missing_streams(closed):
    import shlex

    line = f"{shlex.join(command(['x'], 'chat', '-p', 'Hi'))} {closed}"
    done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_encodings(program, encoding):
    result = program(["naïve 🦉"], "chat", "Hi", PYTHONIOENCODING=f"{encoding}:strict")
    expected = {"ascii": "na\\xefve \\U0001f989\n", "utf-8": "naïve 🦉\n"}
    assert result.code == 0 and result.out == expected.get(encoding, result.out)
    result = program(["naïve 🦉"], "chat", "Hi", "--json", PYTHONIOENCODING="ascii:strict")
    assert result.json["text"] == "naïve 🦉"


def test_a_pipe_that_is_never_closed_is_told():
    reader, writer = os.pipe()
    run = subprocess.Popen(
        command(["x"], "chat", "-p", "Hi"),
        stdin=reader,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert b"waiting for standard input to end" in run.stderr.readline()
    os.close(writer)
    os.close(reader)
    assert run.communicate(timeout=5)[0] == b"x\n"


def test_inherited_null_device_is_not_input(program):
    run = start(["x"], "chat", "-p", "Hi")
    assert run.communicate(timeout=10) == (b"x\n", b"")


def test_debug_shows_the_traceback(program):
    result = program([{"error": [None, "bug"]}], "chat", "Hi", ECOKV_DEBUG="1")
    assert result.code == 1 and "Traceback" in result.err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["chat", "--help"]])
def test_starting_imports_nothing_heavy(arguments):
    script = (
        "import sys; from ecokv_cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'numpy', 'PIL', 'llama_cpp', 'rich', 'prompt_toolkit', 'jinja2', 'numba'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "[]\n" and "ecokv" in done.stdout


def test_help_is_fast():
    """Under 0.3 s of processor time, the best of five: what else runs does not count."""
    best = min(_seconds("--help") for _ in range(5))
    assert best < 0.3, f"ecokv --help took {best:.3f} s"


def _seconds(*arguments: str) -> float:
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "ecokv_cli", *arguments],
        env=environment(),
        stdout=subprocess.DEVNULL,
        check=True,
        cwd=ROOT,
    )
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system

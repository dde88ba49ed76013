"""Ways to run `ecokv` over the fake engine in another process, with or without a terminal."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

FAKES = Path(__file__).with_name("fakes.py")
ROOT = Path(__file__).parents[2]


def command(queue: list[Any], *arguments: Any) -> list[str]:
    """Command line of `ecokv` over the fake engine in another process."""
    return [sys.executable, str(FAKES), json.dumps(queue), *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """Variables of another process; PYTHONPATH_FIRST goes before everything that is installed."""
    paths = [more.pop("PYTHONPATH_FIRST", ""), str(ROOT), str(ROOT / "cli")]
    paths.append(os.environ.get("PYTHONPATH", ""))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        **more,
    }


class Terminal:
    """`ecokv` on a pseudo-terminal: type at it, wait for what it shows."""

    def __init__(self, arguments: list[str], **more: str) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
            os.execve(arguments[0], arguments, environment(**{"TERM": "xterm", **more}))
        self.seen = ""
        self._mark = 0

    def wait(self, text: str, seconds: float = 15) -> str:
        """Read until `text` shows up behind what earlier waits found; returns what came before."""
        end = time.monotonic() + seconds
        while text not in self.plain[self._mark :]:
            left = end - time.monotonic()
            assert left > 0, f"no {text!r} in {self.plain[self._mark :]!r}"
            if not self._read(left):
                assert text in self.plain[self._mark :], f"no {text!r}, it ended: {self.plain!r}"
        start = self._mark
        at = self.plain.index(text, start)
        self._mark = at + len(text)
        return self.plain[start:at]

    @property
    def plain(self) -> str:
        """What it showed, without escape sequences; the editor draws a space by moving over it."""
        self.seen = re.sub(r"(\x08|\x1b\[\d+D)\x1b\[\d+C", " ", self.seen)
        return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])", "", self.seen).replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def line(self, text: str) -> None:
        self.type(text + "\r")

    def interrupt(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def end(self, seconds: float = 15) -> int:
        """Wait for the end of the program; returns its exit code."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            self._read(0.05)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.pid = 0
                while self._read(0.05):
                    pass
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it did not end: {self.plain!r}")

    def _read(self, seconds: float) -> bool:
        """Take what is there; False at the end of the program's output."""
        ready, _, _ = select.select([self.fd], [], [], max(seconds, 0))
        if not ready:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

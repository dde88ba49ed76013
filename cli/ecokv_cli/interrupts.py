"""Ctrl-C: the first stops the answer and keeps the turn, the second ends the program with 130.

Python runs signal handlers between bytecodes only, and one call into the model may take a minute.
So a thread reads the wake-up pipe that the interpreter's C handler writes: it can stop the answer,
or end the program, while the main thread is still inside native code.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType

EXIT_CODE = 130


class Interrupts:
    """While entered, SIGINT calls `stop` once; the next one leaves. Without `stop`, the first does.

    `pressed` tells afterwards whether there was one.
    """

    def __init__(self, stop: Callable[[], None] | None = None) -> None:
        self._stop = stop
        self._active = False
        self.pressed = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        import socket  # 10 ms that --help does not need

        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._old_handler = signal.signal(signal.SIGINT, lambda number, frame: None)
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._active = True
        self._thread = threading.Thread(target=self._watch, name="ecokv-interrupts", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._active:
            return
        self._active = False
        signal.set_wakeup_fd(self._old_fd)
        signal.signal(signal.SIGINT, self._old_handler)
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _watch(self) -> None:
        while True:
            numbers = self._reader.recv(64)
            if not numbers:
                return
            for _ in range(numbers.count(signal.SIGINT)):
                if self._stop is None or self.pressed:
                    leave()
                else:
                    self.pressed = True
                    self._stop()


def leave() -> None:
    """End at once: the main thread may be deep in native code and cannot be asked."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")  # a spinner may have hidden the cursor
    os._exit(EXIT_CODE)

"""The line editor of the REPL: history, Tab completion, pasting of several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ecokv_cli.settings import state_folder

#: (how many characters before the cursor it replaces, text, what to list)
Completion = tuple[int, str, str]


class Prompt:
    """Reads lines from the terminal. Raises `EOFError` on Ctrl-D and `KeyboardInterrupt` on Ctrl-C.

    prompt_toolkit and not readline: it is the same on every system, also where Python comes with
    libedit or without either, and completion of quoted names is ours. It takes 0.2 s to import, so
    only the REPL does it.
    """

    def __init__(self, complete: Callable[[str], list[Completion]]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.shortcuts import CompleteStyle

        self._session: Any = PromptSession(
            completer=_completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            history=_history(),
            enable_history_search=True,
            key_bindings=_keys(),
        )

    def read(self, message: str) -> str:
        return str(self._session.prompt(message))


def _keys() -> Any:
    """Ctrl-C clears a line that has text, as in a shell; on an empty one it is an interrupt."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("c-c")
    def _(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def _completer(complete: Callable[[str], list[Completion]]) -> Any:
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document

    class Adapter(Completer):
        def get_completions(self, document: Document, event: Any) -> Iterator[Completion]:
            for length, text, display in complete(document.text_before_cursor):
                yield Completion(text, start_position=-length, display=display)

    return Adapter()


def _history() -> Any:
    """Prompts of earlier sessions, readable by their owner only; in memory if it cannot be kept."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    file = state_folder() / "history"
    return FileHistory(str(file)) if _is_writable(file) else InMemoryHistory()


def _is_writable(file: Path) -> bool:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
        with file.open("ab"):
            return True
    except OSError:
        return False

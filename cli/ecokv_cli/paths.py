"""File names as people type them at a prompt: `~`, quotes, `\\ `, and completion with Tab."""

from __future__ import annotations

import os
from dataclasses import dataclass

_SPECIAL = set(" \t\"'\\")


@dataclass(frozen=True)
class Candidate:
    """One completion: what replaces the typed fragment, and what to list."""

    text: str
    display: str


def split(line: str) -> list[str]:
    """The file names of `line`.

    A line that is the name of an existing file as it stands is that one file, whatever is in it;
    otherwise quotes group, a backslash escapes (not on Windows, where it separates folders), and
    `~` at the front is the home folder. An unclosed quote reaches to the end.
    """
    line = line.strip()
    if not line:
        return []
    if os.path.exists(os.path.expanduser(line)):
        return [os.path.expanduser(line)]
    return [name for name, _, _ in _words(line)]


def complete(fragment: str) -> list[Candidate]:
    """Completions of the last, unfinished file name in `fragment`, sorted, folders with a slash."""
    words = _words(fragment)
    if words and not _ended(fragment, words[-1]):
        name, start, quote = words[-1]
        raw = fragment[start:]
    else:
        name, raw, quote = "", "", ""
    folder, stem = os.path.split(name)
    shown_folder = raw[: _raw_folder_length(raw, quote)]
    found = []
    try:
        entries = sorted(os.listdir(folder or "."))
    except OSError:
        return []
    for entry in entries:
        if not entry.startswith(stem) or (entry.startswith(".") and not stem.startswith(".")):
            continue
        is_folder = os.path.isdir(os.path.join(folder, entry))
        tail = os.sep if is_folder else quote
        text = shown_folder or quote
        text += (entry if quote else _escape(entry)) + tail
        found.append(Candidate(text, entry + (os.sep if is_folder else "")))
    return found


def fragment_length(fragment: str) -> int:
    """How many characters at the end of `fragment` a completion replaces."""
    words = _words(fragment)
    if not words or _ended(fragment, words[-1]):
        return 0
    return len(fragment) - words[-1][1]


def _words(line: str) -> list[tuple[str, int, str]]:
    """(name with quotes and `~` resolved, where it starts, the quote it starts with or '')."""
    words: list[tuple[str, int, str]] = []
    at = 0
    while at < len(line):
        if line[at] in " \t":
            at += 1
            continue
        start, quote = at, line[at] if line[at] in "\"'" else ""
        name, open_quote = "", ""
        while at < len(line) and (open_quote or line[at] not in " \t"):
            mark = line[at]
            if open_quote:
                if mark == open_quote:
                    open_quote = ""
                else:
                    name += mark
            elif mark in "\"'":
                open_quote = mark
            elif mark == "\\" and os.name != "nt" and at + 1 < len(line):
                at += 1
                name += line[at]
            else:
                name += mark
            at += 1
        words.append((os.path.expanduser(name), start, quote))
    return words


def _ended(fragment: str, word: tuple[str, int, str]) -> bool:
    """Whether the last word is complete: a space follows it, or its quote is closed."""
    raw = fragment[word[1] :]
    quote = word[2]
    if quote:
        return len(raw) > 1 and quote in raw[1:]
    return raw[-1:] in (" ", "\t") and not raw.endswith(("\\ ", "\\\t"))


def _raw_folder_length(raw: str, quote: str) -> int:
    """Length of the folder part of what was typed, quotes and escapes included."""
    separators = {os.sep, os.altsep or os.sep}
    return max((at + 1 for at, mark in enumerate(raw) if mark in separators), default=len(quote))


def _escape(name: str) -> str:
    if os.name == "nt":
        return name
    return "".join("\\" + mark if mark in _SPECIAL else mark for mark in name)

"""Unified diffs, as strict as our patches need them: no fuzz, no new, deleted or renamed files.

Written out here so that a build needs neither git nor patch, and so that a patch that does not
apply can say why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal

CONTEXT = 3
_RANGE = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class DiffError(Exception):
    """The text is not a diff that we understand."""


class HunkError(Exception):
    """A hunk does not fit the file."""

    def __init__(self, path: str, number: int, hunk: Hunk, line: int, wanted: str, found: str):
        super().__init__(f"{path}: hunk {number}")
        self.path, self.number, self.hunk = path, number, hunk
        self.line, self.wanted, self.found = line, wanted, found


@dataclass
class Hunk:
    old_start: int
    new_start: int
    lines: list[str] = field(default_factory=list)  # with their ' ', '+' or '-'

    @property
    def old(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "+"]

    @property
    def new(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "-"]

    @property
    def title(self) -> str:
        return f"@@ -{self.old_start},{len(self.old)} +{self.new_start},{len(self.new)} @@"

    def reversed(self) -> Hunk:
        swap = {"+": "-", "-": "+", " ": " "}
        lines = [swap[line[0]] + line[1:] for line in self.lines]
        return Hunk(self.new_start, self.old_start, lines)


@dataclass
class FileDiff:
    path: str
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def added(self) -> int:
        return sum(line[0] == "+" for hunk in self.hunks for line in hunk.lines)

    @property
    def removed(self) -> int:
        return sum(line[0] == "-" for hunk in self.hunks for line in hunk.lines)

    def reversed(self) -> FileDiff:
        return FileDiff(self.path, [hunk.reversed() for hunk in self.hunks])

    def apply(self, text: str) -> str:
        lines = _lines(self.path, text)
        grown = 0  # by the hunks so far
        drift = 0  # how far from its place the last hunk was found
        end = 0  # hunks never go backwards
        for number, hunk in enumerate(self.hunks, 1):
            guess = hunk.old_start - 1 + drift + grown
            at = _find(lines, hunk, guess, end)
            if at is None:
                raise _mismatch(self.path, number, hunk, lines, guess, end, grown)
            lines[at : at + len(hunk.old)] = hunk.new
            end = at + len(hunk.new)
            drift += at - guess
            grown += len(hunk.new) - len(hunk.old)
        return "".join(line + "\n" for line in lines)

    def format(self) -> str:
        out = [f"--- a/{self.path}", f"+++ b/{self.path}"]
        for hunk in self.hunks:
            out += [hunk.title, *hunk.lines]
        return "\n".join(out) + "\n"


def _lines(path: str, text: str) -> list[str]:
    """Keeps a CR as part of its line."""
    *lines, rest = text.split("\n")
    if rest:
        raise DiffError(f"{path}: no newline at the end of the file")
    return lines


def _find(lines: list[str], hunk: Hunk, guess: int, start: int) -> int | None:
    """The place nearest to the guess where every old line is found."""
    old = hunk.old
    places = range(start, len(lines) - len(old) + 1)
    for at in sorted(places, key=lambda place: abs(place - guess)):
        if lines[at : at + len(old)] == old:
            return at
    return None


def _mismatch(
    path: str, number: int, hunk: Hunk, lines: list[str], guess: int, start: int, grown: int
) -> HunkError:
    """Where the hunk comes closest to fitting, and the first line that keeps it from it."""
    old = hunk.old

    def misses(at: int) -> tuple[int, int]:
        there = lines[at : at + len(old)]
        same = sum(wanted == found for wanted, found in zip(old, there, strict=False))
        return len(old) - same, abs(at - guess)

    at = min(range(start, max(start, len(lines)) + 1), key=misses)
    for line, wanted in enumerate(old, at):
        found = lines[line] if line < len(lines) else "(end of file)"
        if found != wanted:
            break
    return HunkError(path, number, hunk, line + 1 - grown, wanted, found)


def parse(text: str) -> tuple[str, list[FileDiff]]:
    """The text before the first diff, and the diffs."""
    head: list[str] = []
    files: list[FileDiff] = []
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith("--- "):
            files.append(FileDiff(_path(line, next(lines, ""))))
        elif line.startswith("@@"):
            if not files:
                raise DiffError(f"a hunk without a file: {line}")
            files[-1].hunks.append(_hunk(line, lines))
        elif not files:
            head.append(line)
        elif line:
            raise DiffError(f"unexpected line after a hunk of {files[-1].path}: {line!r}")
    return "\n".join(head), files


def _path(old: str, new: str) -> str:
    if not (old.startswith("--- a/") and new.startswith("+++ b/") and old[6:] == new[6:]):
        raise DiffError(f"expected '--- a/FILE' and '+++ b/FILE' of one file: {old!r}, {new!r}")
    return old[6:]


def _hunk(title: str, lines: Iterator[str]) -> Hunk:
    match = _RANGE.match(title)
    if not match:
        raise DiffError(f"not a hunk: {title!r}")
    old_start, old_count, new_start, new_count = (int(part or 1) for part in match.groups())
    hunk = Hunk(old_start, new_start)
    old = new = 0
    while old < old_count or new < new_count:
        line = next(lines, None)
        if line is None or (line and line[0] not in " +-"):
            raise DiffError(f"{title!r} has fewer lines than it says")
        line = line or " "  # editors strip the blank of an empty context line
        old += line[0] != "+"
        new += line[0] != "-"
        hunk.lines.append(line)
    return hunk


def diff(path: str, before: str, after: str) -> FileDiff:
    """Deterministic; purely additive wherever the change is."""
    a, b = _lines(path, before), _lines(path, after)
    out = FileDiff(path)
    for group in _Opcodes(_opcodes(a, b)).get_grouped_opcodes(CONTEXT):
        hunk = Hunk(group[0][1] + 1, group[0][3] + 1)
        for tag, a0, a1, b0, b1 in group:
            if tag == "equal":
                hunk.lines += [" " + line for line in a[a0:a1]]
                continue
            hunk.lines += ["-" + line for line in a[a0:a1]]
            hunk.lines += ["+" + line for line in b[b0:b1]]
        out.hunks.append(hunk)
    return out


_Tag = Literal["equal", "insert", "replace", "delete"]
_Opcode = tuple[_Tag, int, int, int, int]


class _Opcodes(SequenceMatcher[str]):
    """Given opcodes, for difflib to group."""

    def __init__(self, codes: list[_Opcode]):
        super().__init__()
        self.codes = codes

    def get_opcodes(self) -> list[_Opcode]:
        return self.codes


def _opcodes(a: list[str], b: list[str]) -> list[_Opcode]:
    # autojunk would drop frequent lines such as "}" and invent removals
    codes: list[_Opcode] = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    if any(tag in ("replace", "delete") for tag, *_ in codes):
        return _insertions(a, b) or codes
    return codes


def _insertions(a: list[str], b: list[str]) -> list[_Opcode] | None:
    """Opcodes without removals, or None if b is not a with lines added."""
    codes: list[_Opcode] = []
    i = j = 0
    while j < len(b):
        same = i < len(a) and a[i] == b[j]
        tag: _Tag = "equal" if same else "insert"
        step = int(same)
        if codes and codes[-1][0] == tag:
            _, a0, _, b0, _ = codes[-1]
            codes[-1] = (tag, a0, i + step, b0, j + 1)
        else:
            codes.append((tag, i, i + step, j, j + 1))
        i += step
        j += 1
    return codes if i == len(a) else None

"""Which pictures there are: files, folders, patterns and lists, in an order that stays the same."""

from __future__ import annotations

import glob as globbing
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ecokv_local.errors import UsageError

#: What counts as a picture in a folder, by the end of its name.
PICTURES = frozenset(
    f".{end}"
    for end in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "gif", "bmp", "dib", "tif", "tiff"),
        *("heic", "heif", "avif", "jp2", "j2k", "jpx", "ppm", "pgm", "pbm", "pnm", "tga", "ico"),
        *("qoi", "dds", "pcx", "psd"),
    )
)

#: Files and folders that systems and tools leave behind, in lower case.
LITTER = frozenset(
    {
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
        "icon\r",
        "__macosx",
        "@eadir",
        "#recycle",
        "$recycle.bin",
        "system volume information",
        "lost+found",
    }
)

_LIST_KEYS = ("file_name", "image", "file", "path")


@dataclass(frozen=True)
class Source:
    """A picture to caption, by its path, and a prompt of its own if a list gave one."""

    path: str
    prompt: str | None = None


@dataclass
class Gathered:
    """Pictures in order, each once; what was left out, by reason; folders that cannot be read."""

    sources: list[Source] = field(default_factory=list)
    n_hidden: int = 0
    warnings: list[str] = field(default_factory=list)
    _seen: dict[str, Source] = field(default_factory=dict)

    def add(self, path: str, prompt: str | None = None, *, whole: str = "") -> None:
        """Take a picture, unless it is there already; ``whole`` is its absolute path, if known.

        Raises UsageError for a second prompt.
        """
        source = Source(path, prompt)
        earlier = self._seen.setdefault(whole or os.path.abspath(path), source)
        if earlier is source:
            self.sources.append(source)
        elif earlier.prompt != prompt:
            raise UsageError(
                f"{path}: is listed twice, with different prompts",
                hint="one prompt for each picture; put the others into a run of their own",
            )


def gather(
    paths: Iterable[str | os.PathLike[str]] = (),
    *,
    recursive: bool = False,
    patterns: Sequence[str] = (),
    listed: Iterable[Source] = (),
    include_hidden: bool = False,
) -> Gathered:
    """The pictures that ``paths`` name, then those of a list.

    A folder stands for its pictures, in the order of their names; ``patterns`` (such as ``*.png``)
    say which files of it those are, else the end of the name does. A path that does not exist but
    has ``*``, ``?`` or ``[`` in it is a pattern itself. Hidden files and litter are skipped, also
    when a pattern of the shell named them.

    Raises UsageError for a path that is not there; missing files of a list fail later, by
    themselves.
    """
    found = Gathered()
    for given in paths:
        path = os.fspath(given)
        if os.path.isdir(path):
            _folder(path, found, recursive, patterns, include_hidden)
        elif os.path.lexists(path):
            _file(path, found, include_hidden)
        else:
            _matching(path, found, recursive, patterns, include_hidden)
    for source in listed:
        found.add(source.path, source.prompt)
    return found


def _matching(
    path: str, found: Gathered, recursive: bool, patterns: Sequence[str], include_hidden: bool
) -> None:
    if not globbing.has_magic(path):
        url = "://" in path
        raise UsageError(
            f"{path}: no such file or folder",
            hint="addresses are not read: download it first" if url else "check the path",
        )
    names = sorted(globbing.glob(path, recursive=True))
    if not names:
        raise UsageError(f"{path}: nothing matches this pattern", hint="check the path")
    for name in names:
        if os.path.isdir(name):
            if "**" not in path:  # `**` has listed what is inside
                _folder(name, found, recursive, patterns, include_hidden)
        else:
            _file(name, found, include_hidden)


def _file(path: str, found: Gathered, include_hidden: bool) -> None:
    if _skipped(os.path.basename(path), include_hidden):
        found.n_hidden += 1
    else:
        found.add(path)


def _skipped(name: str, include_hidden: bool) -> bool:
    """Hidden or litter. Unfinished files and manifests of our own never count as pictures."""
    return name.lower() in LITTER or (name.startswith(".") and not include_hidden)


def _folder(
    folder: str, found: Gathered, recursive: bool, patterns: Sequence[str], include_hidden: bool
) -> None:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        found.warnings.append(f"{folder}: cannot be read ({error.strerror}), it was left out")
        return
    folders = []
    place = os.path.join(os.path.abspath(folder), "")
    for entry in entries:
        name = entry.name
        is_folder = entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and entry.is_dir())
        if _skipped(name, include_hidden):
            found.n_hidden += is_folder or _is_picture(name, patterns)
        elif is_folder:
            if not entry.is_symlink():  # a link may lead back to where we are
                folders.append(entry.path)
        elif _is_picture(name, patterns):
            found.add(entry.path, whole=place + name)
    if recursive:
        for path in folders:
            _folder(path, found, recursive, patterns, include_hidden)


def _is_picture(name: str, patterns: Sequence[str]) -> bool:
    if patterns:
        return any(fnmatchcase(name, pattern) for pattern in patterns)
    return name[name.rfind(".") :].lower() in PICTURES


# ---- lists


def read_list(data: bytes, name: str) -> list[Source]:
    """Pictures of a list: one path a line (or ended by NUL, as of ``find -print0``), or JSON lines
    with ``image`` and, optionally, ``prompt``.

    Paths are taken as they stand, relative to the working folder; ``file_name`` in JSON lines is
    relative to the list. Raises UsageError for lines that cannot be understood.
    """
    text = data.removeprefix(b"\xef\xbb\xbf")
    if b"\0" in text:
        return [Source(os.fsdecode(part)) for part in text.split(b"\0") if part.strip()]
    lines = [line.rstrip(b"\r") for line in text.split(b"\n")]
    if next((line for line in lines if line.strip()), b"").lstrip().startswith(b"{"):
        return list(_json_lines(lines, name))
    return [Source(os.fsdecode(line)) for line in lines if line.strip()]


def _json_lines(lines: Sequence[bytes], name: str) -> Iterator[Source]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where}: not JSON ({error})", hint=_LIKE) from None
        yield _listed(entry, where, "" if name == "-" else os.path.dirname(name))


_LIKE = 'a line is: {"image": "a.jpg", "prompt": "What is this?"}'


def _listed(entry: Any, where: str, folder: str) -> Source:
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: is not an object", hint=_LIKE)
    keys = [key for key in _LIST_KEYS if key in entry]
    if len(keys) != 1 or not isinstance(entry[keys[0]], str) or not entry[keys[0]]:
        raise UsageError(f"{where}: one of {', '.join(_LIST_KEYS)} has to name a file", hint=_LIKE)
    prompt = entry.get("prompt")
    if prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
        raise UsageError(f"{where}: prompt {prompt!r} is not a text", hint=_LIKE)
    path = entry[keys[0]]
    return Source(os.path.join(folder, path) if keys[0] == "file_name" else path, prompt)

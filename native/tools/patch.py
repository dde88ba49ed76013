"""The patches of native/patches: apply, check, refresh.

  patch.py unpack  --tree DIR   the pinned source with the patches applied, to edit
  patch.py refresh --tree DIR   writes the patches anew from an edited tree
  patch.py check                counts, headers, applies and reverses cleanly
  patch.py apply   --tree DIR   applies what is not applied yet
  patch.py reverse --tree DIR   takes the patches out again

A patch holds call sites only, so it is additive. Its header says why it is there, what it touches
and when it may be dropped; a refresh keeps the first and the last and writes the second.
"""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import unidiff
from fetch import fetch
from lock import NATIVE, ToolError, read_lock
from unidiff import DiffError, FileDiff, HunkError

MAX_ADDED, MAX_REMOVED, MAX_FILES = 80, 0, 6
FIELDS = ("Why", "Touches", "Drop-when")
FIRST = "0001-ecokv-hooks.patch"
TODO = "TODO"


@dataclass
class Patch:
    path: Path
    text: str
    header: dict[str, str]
    files: list[FileDiff]


def read_patch(path: Path) -> Patch:
    text = path.read_bytes().decode("utf-8")
    if "\r" in text:
        raise ToolError(f"{path} has CRLF line ends; patches are kept with LF (.gitattributes)")
    try:
        head, files = unidiff.parse(text)
    except DiffError as error:
        raise ToolError(f"{path}: {error}") from None
    return Patch(path, text, read_header(head), files)


def read_header(text: str) -> dict[str, str]:
    """'Name: value' with indented continuation lines."""
    header: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if match := re.match(r"([A-Z][A-Za-z-]*): *(.*)", line):
            name = match[1]
            header[name] = match[2]
        elif name and line.startswith(" "):
            header[name] = f"{header[name]}\n{line}".strip()
    return header


def read_series(folder: Path) -> list[Patch]:
    series = folder / "series"
    names = series.read_text(encoding="utf-8").splitlines() if series.is_file() else []
    names = [name.strip() for name in names if name.strip() and not name.startswith("#")]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ToolError(f"{series} names {', '.join(missing)}, which is not there")
    return [read_patch(folder / name) for name in names]


# --- apply ------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    return path.read_bytes().decode("utf-8")  # never translates line ends


def write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


def changed_files(each: Patch, tree: Path, *, reverse: bool = False) -> dict[Path, str]:
    """What the files of a patch become; nothing is written unless all of them work."""
    out: dict[Path, str] = {}
    for file in each.files:
        path = tree / file.path
        if not path.is_file():
            raise ToolError(
                f"{each.path} does not apply: {file.path} is not in the pinned source\n{NEXT_STEP}"
            )
        try:
            out[path] = (file.reversed() if reverse else file).apply(read_text(path))
        except HunkError as error:
            raise ToolError(explain(each, error)) from None
    return out


def apply_all(patches: list[Patch], tree: Path) -> None:
    for each in patches:
        for path, text in changed_files(each, tree).items():
            write_text(path, text)


NEXT_STEP = """What to do next: if the pin or a patch was just changed, edit by hand and refresh:
  python native/tools/patch.py unpack  --tree DIR   (applies what applies, lists what does not)
  edit the file in DIR
  python native/tools/patch.py refresh --tree DIR
If nothing was changed, restore native/patches and native/llama.cpp.lock (git checkout)."""


def explain(each: Patch, error: HunkError) -> str:
    return (
        f"{each.path} does not apply\n"
        f"  file     {error.path}\n"
        f"  hunk     {error.number}: {error.hunk.title}\n"
        f"  line     {error.line}\n"
        f"  expected {error.wanted!r}\n"
        f"  found    {error.found!r}\n{NEXT_STEP}"
    )


def is_applied(each: Patch, tree: Path) -> bool:
    try:
        changed_files(each, tree, reverse=True)
    except ToolError:
        return False
    return True


# --- check ------------------------------------------------------------------------------------


def check(patches: list[Patch], pristine: Path) -> list[str]:
    """What is wrong with the patches, if anything. Leaves the tree as it was."""
    problems: list[str] = []
    files = [file for each in patches for file in each.files]
    added, removed = sum(file.added for file in files), sum(file.removed for file in files)
    touched = {file.path for file in files}
    for count, limit, what in (
        (added, MAX_ADDED, "added lines"),
        (removed, MAX_REMOVED, "removed lines"),
        (len(touched), MAX_FILES, "files"),
    ):
        if count > limit:
            problems.append(f"{count} {what}, at most {limit} are allowed")
    if len(touched) < len(files):
        problems.append("a file is touched by more than one patch; refresh could not tell them")

    for each in patches:
        for name in FIELDS:
            if not each.header.get(name) or TODO in each.header[name]:
                problems.append(f"{each.path.name}: the header lacks '{name}:'")
        if each.header.get("Touches") != touches(each.files):
            problems.append(f"{each.path.name}: 'Touches:' is out of date; run refresh")
    return problems + check_round_trip(patches, pristine)


def check_round_trip(patches: list[Patch], pristine: Path) -> list[str]:
    before = {
        file.path: read_text(pristine / file.path)
        for each in patches
        for file in each.files
        if (pristine / file.path).is_file()
    }
    try:
        apply_all(patches, pristine)
        for each in reversed(patches):
            for path, text in changed_files(each, pristine, reverse=True).items():
                write_text(path, text)
    except ToolError as error:
        return [str(error)]
    finally:
        after = {name: read_text(pristine / name) for name in before}
        for name, text in before.items():
            write_text(pristine / name, text)
    return [
        f"{name}: not restored by the reverse" for name in before if before[name] != after[name]
    ]


def counts(patches: list[Patch]) -> str:
    files = [file for each in patches for file in each.files]
    added, removed = sum(file.added for file in files), sum(file.removed for file in files)
    return (
        f"{len(patches)} patches: {added} lines added (at most {MAX_ADDED}), "
        f"{removed} removed (at most {MAX_REMOVED}), {len(files)} files (at most {MAX_FILES})"
    )


# --- refresh ----------------------------------------------------------------------------------


def touches(files: list[FileDiff]) -> str:
    return ", ".join(f"{file.path} (+{file.added})" for file in files)


def format_patch(header: dict[str, str], files: list[FileDiff]) -> str:
    header = {"Why": TODO, **header, "Touches": touches(files)}
    header.setdefault("Drop-when", TODO)
    fields = "".join(f"{name}: {header[name]}\n" for name in FIELDS)
    return fields + "\n" + "".join(file.format() for file in files)


def edited(tree: Path) -> list[FileDiff]:
    """What the tree changes of the pinned source."""
    from source import WANTED, members

    lock = read_lock()
    out: list[FileDiff] = []
    known: set[Path] = set()
    with tarfile.open(fetch(lock)) as archive:
        for name, member in members(archive, lock):
            path = tree.joinpath(*name.parts)
            known.add(path)
            if name.parts[0] not in WANTED:
                continue
            if not path.is_file():
                raise ToolError(f"{path} was deleted; a patch may only add lines to files")
            source = archive.extractfile(member)
            assert source is not None
            before, after = source.read(), path.read_bytes()
            if before != after:
                out.append(diff_of(str(name), before, after))
    for folder in ("include", "src", "common", "ggml"):
        for path in sorted((tree / folder).rglob("*")):
            if path.is_file() and path not in known and path.suffix in (".h", ".c", ".cpp"):
                raise ToolError(f"{path} is new; own sources belong into native/src")
    return sorted(out, key=lambda file: file.path)


def diff_of(name: str, before: bytes, after: bytes) -> FileDiff:
    try:
        return unidiff.diff(name, before.decode(), after.decode())
    except (DiffError, UnicodeDecodeError) as error:
        raise ToolError(f"{name} cannot be put into a patch: {error}") from None


def refresh(folder: Path, tree: Path, into: str | None) -> list[Patch]:
    """A changed file goes to the patch that has it already, else to `into` (default: the last)."""
    old = read_series(folder)
    owner = {file.path: each.path.name for each in old for file in each.files}
    names = [each.path.name for each in old]
    target = into or (names[-1] if names else FIRST)
    if target not in names:
        names.append(target)

    files = edited(tree)
    headers = {each.path.name: each.header for each in old}
    written: list[str] = []
    for name in names:
        mine = [file for file in files if owner.get(file.path, target) == name]
        if mine:
            write_text(folder / name, format_patch(headers.get(name, {}), mine))
            written.append(name)
        else:
            (folder / name).unlink(missing_ok=True)
    write_text(folder / "series", "".join(f"{name}\n" for name in written))
    return read_series(folder)


# --- command line -----------------------------------------------------------------------------


def run_unpack(folder: Path, tree: Path) -> int:
    from source import unpack

    if tree.exists() and any(tree.iterdir()):
        raise ToolError(f"{tree} is not empty; name a new folder")
    unpack(read_lock(), tree)
    failed = 0
    for each in read_series(folder):
        for file in each.files:
            # file by file: what applies is done, the rest is told
            try:
                part = Patch(each.path, "", {}, [file])
                for path, text in changed_files(part, tree).items():
                    write_text(path, text)
            except ToolError as error:
                failed += 1
                print(str(error).removesuffix(NEXT_STEP), file=sys.stderr)
    print(f"{tree}: edit it, then: python native/tools/patch.py refresh --tree {tree}")
    return 1 if failed else 0


def run_apply(patches: list[Patch], tree: Path) -> int:
    for each in patches:
        if is_applied(each, tree):
            print(f"{each.path.name}: already applied")
            continue
        apply_all([each], tree)
        print(f"{each.path.name}: applied")
    return 0


def run_reverse(patches: list[Patch], tree: Path) -> int:
    for each in reversed(patches):
        for path, text in changed_files(each, tree, reverse=True).items():
            write_text(path, text)
        print(f"{each.path.name}: reversed")
    return 0


def run_check(patches: list[Patch]) -> int:
    from source import STOCK, unpack

    print(counts(patches))
    with tempfile.TemporaryDirectory(prefix="ecokv-patch-") as folder:
        wanted = {file.path.split("/")[0] for each in patches for file in each.files}
        unpack(read_lock(), Path(folder), sorted(wanted) or STOCK)
        problems = check(patches, Path(folder))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["unpack", "refresh", "check", "apply", "reverse"])
    parser.add_argument("--tree", type=Path, help="a llama.cpp tree")
    parser.add_argument("--patches", type=Path, default=NATIVE / "patches")
    parser.add_argument("--into", metavar="NAME.patch", help="refresh: the patch for new files")
    args = parser.parse_args(argv)
    if args.command != "check" and args.tree is None:
        parser.error(f"{args.command} needs --tree")

    if args.command == "unpack":
        return run_unpack(args.patches, args.tree)
    if args.command == "refresh":
        args.patches.mkdir(exist_ok=True)
        print(counts(refresh(args.patches, args.tree, args.into)))
        return 0
    patches = read_series(args.patches)
    if args.command == "check":
        return run_check(patches)
    return (run_apply if args.command == "apply" else run_reverse)(patches, args.tree)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

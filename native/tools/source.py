"""Puts the pinned llama.cpp source, patched, where the build wants it.

Run by CMake at every configure. Does nothing if the tree is of this pin and these patches. Else a
fresh tree is unpacked and patched beside the old one, and only files that differ are replaced, so
that a changed patch recompiles what it touches and no more. A tree is never patched twice.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import patch
from fetch import fetch
from lock import NATIVE, Lock, ToolError, read_lock

STAMP = ".ecokv-source"
LAYOUT = 1  # raise it when this file puts other things into the tree

# of upstream's tree: what a build reads
WANTED = ["CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "licenses"]
WANTED += ["scripts", "src", "tools", "vendor"]
STOCK = ["include", "src", "LICENSE"]


def unpack(lock: Lock, target: Path, wanted: list[str] = WANTED) -> None:
    with tarfile.open(fetch(lock)) as archive:
        for name, member in members(archive, lock):
            if name.parts[0] not in wanted:
                continue
            path = target.joinpath(*name.parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None  # regular files only
            with source, path.open("wb") as out:
                shutil.copyfileobj(source, out)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)


def members(
    archive: tarfile.TarFile, lock: Lock
) -> Iterator[tuple[PurePosixPath, tarfile.TarInfo]]:
    """The regular files of the llama.cpp tree, with their names in it."""
    root = PurePosixPath(lock.subfolder)
    for member in archive:
        name = PurePosixPath(*PurePosixPath(member.name).parts[1:])  # without package-version/
        if member.isreg() and ".." not in name.parts and name.is_relative_to(root):
            yield name.relative_to(root), member


def prepare(target: Path, lock: Lock, patches: list[patch.Patch], wanted: list[str]) -> None:
    key = tree_key(lock, patches)
    stamp = target / STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        unpack(lock, fresh, wanted)
        patch.apply_all(patches, fresh)
        replace_changed(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    stamp.write_text(key, encoding="utf-8")


def tree_key(lock: Lock, patches: list[patch.Patch]) -> str:
    digest = hashlib.sha256(f"{LAYOUT}\n{lock}\n".encode())
    for each in patches:
        digest.update(f"{each.path.name}\n{each.text}".encode())
    return digest.hexdigest()


def replace_changed(fresh: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    (target / STAMP).unlink(missing_ok=True)  # half-way is never taken for done
    names = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for path in [path for path in target.rglob("*") if path.is_file()]:
        if path.relative_to(target) not in names:
            path.unlink()
    for name in names:
        old, new = target / name, fresh / name
        if not old.is_file() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(new, old)


def write_pin(path: Path, lock: Lock, key: str) -> None:
    """For CMake: what build-info.json says."""
    text = f'set(ECOKV_PIN_VERSION "{lock.version}")\nset(ECOKV_PIN_COMMIT "{lock.commit}")\n'
    text += f'set(ECOKV_PIN_KEY "{key}")\n'
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patched", type=Path, help="folder for the patched tree")
    parser.add_argument("--pristine", type=Path, help="folder for libllama's unpatched sources")
    parser.add_argument("--pin-file", type=Path, help="CMake file to write the pin to")
    parser.add_argument("--patches", type=Path, default=NATIVE / "patches")
    args = parser.parse_args()

    lock = read_lock()
    patches = patch.read_series(args.patches)
    if args.patched:
        prepare(args.patched, lock, patches, WANTED)
    if args.pristine:
        prepare(args.pristine, lock, [], STOCK)
    if args.pin_file:
        write_pin(args.pin_file, lock, tree_key(lock, patches))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
